"""The tables of linking, lexicons and probing: made once, with shared models and a curve."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm import KB, PretrainConfig, PrixError
from prixlm.entities.mirror import MirrorConfig
from prixlm.evaluation.entity_linking import LinkingTask, withheld_tasks
from prixlm.evaluation.lexicons import Dictionary
from prixlm.evaluation.probing.prompts import Prompt, Prompts
from prixlm.evaluation.reproduce_names import (
    NamesConfig,
    NamesModels,
    reproduce_bli,
    reproduce_probe,
    reproduce_xel,
)
from prixlm.evaluation.trained import TrainedModels
from prixlm.reports.kept import Kept
from prixlm.reports.tables import ResultTable, tables_to_json
from prixlm.training.checkpoints import checkpoint_steps
from prixlm.training.loop import TrainingConfig
from tests.evaluation.conftest import TINY

MIRROR = MirrorConfig(batch=16, epochs=1, training=TrainingConfig(checkpoints=(1.0,)))
CONFIG = NamesConfig(pretrain=TINY, mirror=MIRROR, pairs=32, frequent=100)
WORDS = [f"{a}{b}" for a in "abcdef" for b in "ghijk"]
PAIRS = [(word, word[::-1]) for word in WORDS]
LEXICONS = {"en-fi": (Dictionary(PAIRS[:20], PAIRS[20:]), "fi")}
PROMPTS = {"fi": Prompts([Prompt("<mask> on", "fi 1", ("fi 1", "fi 22"))])}
FILES = {"sv": LinkingTask(["a", "b"], np.arange(2), ["c"], np.array([0, 1]), np.array([1]))}


def make_tables(kb: KB, to: Path) -> list[list[ResultTable]]:
    """Make all three tables, or read them."""
    return [
        reproduce_xel(kb, to, CONFIG, FILES),
        reproduce_bli(kb, to, LEXICONS, CONFIG),
        reproduce_probe(kb, to, PROMPTS, CONFIG),
    ]


@pytest.fixture(scope="module")
def made(
    numbered: KB, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[ResultTable]]]:
    """The folder of the tables, and the tables."""
    folder = tmp_path_factory.mktemp("tables")
    return folder, make_tables(numbered, folder)


def test_the_tables_have_every_row(made: tuple[Path, list[list[ResultTable]]]) -> None:
    folder, (linking, lexicons, probing) = made
    assert list(linking[0].rows) == [
        "string similarity (rapidfuzz)",
        "string similarity, romanised",
        "character n-grams (cosine)",
        "character n-grams, romanised",
        "base, without Mirror",
        "Prix-LM (All), without Mirror",
        "base + Mirror (words)",
        "Prix-LM (Single) + Mirror (words)",
        "Prix-LM (All) + Mirror (words)",
        "base + Mirror (links)",
        "Prix-LM (Single) + Mirror (links)",
        "Prix-LM (All) + Mirror (links)",
        "Prix-LM (All), translate",
    ]
    assert not (folder / "xel" / "models" / "single").exists(), "those of `lp` are used"
    files = linking[3]
    assert files.title == "accuracy@1, files" and "Prix-LM (All), translate" not in files.rows
    assert list(lexicons[0].rows)[4:9] == [
        "hashed n-grams, mapped",
        "hashed n-grams, romanised, mapped",
        "base, without Mirror",
        "Prix-LM (All), without Mirror",
        "base + Mirror (words)",
    ]
    assert len(lexicons[0].rows) == 14
    assert lexicons[-1].metric == "test pairs that are linked names of the KB"
    assert lexicons[-1].values("in any case") == {"en-fi": 0.0}
    assert list(probing[0].rows) == ["base", "Prix-LM (Single, en)", "Prix-LM (All)"]
    assert probing[0].notes and "never seen a sentence" in probing[0].notes[0]


def test_every_table_has_a_curve_from_step_0_on(
    made: tuple[Path, list[list[ResultTable]]],
) -> None:
    for name in ("xel/xel", "bli", "probe"):
        assert (made[0] / f"{name}-checkpoints.png").exists()
        curve = json.loads((made[0] / f"{name}-checkpoints.json").read_text())
        assert next(iter(curve.values()))[0][0] == 0


def test_a_table_is_made_once(
    numbered: KB, made: tuple[Path, list[list[ResultTable]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for trains in ("pretrain", "mirror"):
        monkeypatch.setattr(f"prixlm.evaluation.trained.{trains}", None)
    again = make_tables(numbered, made[0])
    assert list(map(tables_to_json, again)) == list(map(tables_to_json, made[1]))


def test_a_table_of_other_files_settings_or_kb_is_refused(
    numbered: KB, toy: KB, made: tuple[Path, list[list[ResultTable]]]
) -> None:
    other = {"en-fi": (Dictionary(PAIRS[:21], PAIRS[21:]), "fi")}
    with pytest.raises(PrixError, match=r"bli.json was made with other files: name another"):
        reproduce_bli(numbered, made[0], other, CONFIG)
    settings = dataclasses.replace(CONFIG, linking_at=0.5)
    with pytest.raises(PrixError, match=r"made with other settings\.linking_at: "):
        reproduce_xel(numbered, made[0], settings, FILES)
    with pytest.raises(PrixError, match="made with another KB"):
        reproduce_xel(toy, made[0], CONFIG, FILES)


def test_one_model_serves_all_tables_of_a_kb_that_withholds_links(
    numbered_split: KB, tmp_path: Path
) -> None:
    split = numbered_split
    config = dataclasses.replace(CONFIG, single="fi")
    tables = reproduce_xel(split, tmp_path / "t", config)
    expected = {lang: len(task.mentions) for lang, task in withheld_tasks(split, "en").items()}
    assert tables[0].numbers() == expected
    assert not (tmp_path / "t" / "xel").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("optimizer.*")}
    assert len(reproduce_probe(split, tmp_path / "t", PROMPTS, config)[0].rows) == 3
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("optimizer.*")}
    assert before and after == before, "all models that probing needs were there"


def test_a_pretrained_base_has_the_papers_settings() -> None:
    config = NamesConfig.of_base("xlm-roberta-base")
    assert config.pretrain == dataclasses.replace(PretrainConfig(), base="xlm-roberta-base")
    assert config.mirror == config.mirror_others == MirrorConfig()
    assert (config.pairs, config.linking_at, config.probing_at) == (10_000, 0.75, 0.1)
    assert NamesConfig.of_base("compact") == NamesConfig()
    assert NamesConfig().mirror.training.lr > 10 * NamesConfig().mirror_others.training.lr


def test_other_models_are_tuned_with_settings_of_their_own(
    toy: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(["heart", "liver", "lung", "skin"]))
    training = TrainingConfig(lr=1e-3, checkpoints=(1.0,))
    ours = MirrorConfig(words=str(words), epochs=1, batch=2, training=training)
    theirs = MirrorConfig(words=str(words), epochs=1, batch=4, number=8)
    others = (str(bases["mbert"]),)
    config = NamesConfig(mirror=ours, mirror_others=theirs, pairs=4, others=others)
    models = NamesModels(TrainedModels(toy, tmp_path / "t"), config)
    for name, model, lr in (("xlmr", bases["xlmr"], 1e-3), ("mbert", str(bases["mbert"]), 2e-5)):
        for positives in ("words", "links"):  # a file of words does not stand in the way of links
            models.encoder(name, model, positives)
            folder = tmp_path / "t" / "encoders" / f"{name}-{positives}"
            settings = (folder / "run.toml").read_text()
            assert f"lr = {lr}" in settings and f'positives = "{positives}"' in settings


@pytest.mark.parametrize("name", ["xel", "bli", "probe"])
def test_a_table_that_was_stopped_measures_no_language_again(
    name: str,
    numbered: KB,
    made: tuple[Path, list[list[ResultTable]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables are made again, with the models that are there, and stopped after two results."""
    make = {
        "xel": lambda: reproduce_xel(numbered, made[0], CONFIG, FILES),
        "bli": lambda: reproduce_bli(numbered, made[0], LEXICONS, CONFIG),
        "probe": lambda: reproduce_probe(numbered, made[0], PROMPTS, CONFIG),
    }[name]
    folder = made[0] / "xel" if name == "xel" else made[0]
    before = tables_to_json(make())
    curve = (folder / f"{name}-checkpoints.json").read_text()
    for path in (f"{name}.json", f"{name}.md", f"{name}.parquet", f"{name}-checkpoints.json"):
        (folder / path).unlink()
    measured: list[tuple[str, ...]] = []
    real = Kept.get

    def get(self: Kept, key: Sequence[str], compute: Callable[[], Any]) -> Any:
        def counted() -> Any:
            measured.append(tuple(key))
            if len(measured) == 3:
                raise KeyboardInterrupt
            return compute()

        return real(self, key, counted)

    monkeypatch.setattr(Kept, "get", get)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert (folder / f"{name}-parts.jsonl").exists()
    again = make()
    assert tables_to_json(again) == before
    assert (folder / f"{name}-checkpoints.json").read_text() == curve
    assert measured[2] == measured[3] and len(set(measured)) == len(measured) - 1 > 3
    assert not (folder / f"{name}-parts.jsonl").exists()


def test_a_table_of_mlama_is_recognised_by_prompts_and_candidates(
    numbered: KB, tmp_path: Path
) -> None:
    def ask(answer: str, candidates: tuple[str, ...]) -> list[ResultTable]:
        prompts = Prompts([Prompt("<mask> on", answer, candidates, "P1")])
        return reproduce_probe(numbered, tmp_path, {"fi": prompts}, CONFIG)

    tables = ask("fi 1", ("fi 1", "fi 22"))
    assert any(table.metric == "candidate ranking by relation" for table in tables)
    ask("fi 1", ("fi 1", "fi 22"))
    for answer, candidates in (("fi 22", ("fi 1", "fi 22")), ("fi 1", ("fi 1", "fi 2"))):
        with pytest.raises(PrixError, match="made with other files"):
            ask(answer, candidates)


def test_a_step_that_the_run_will_not_keep_is_refused_before_it_is_trained(
    numbered: KB, made: tuple[Path, list[list[ResultTable]]], tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, probing_at=150_000.0)
    message = (
        r"step 150,000 is not among the checkpoints that the run keeps \(0, 1\): add it to --ch"
    )
    with pytest.raises(PrixError, match=message):
        reproduce_probe(numbered, tmp_path / "t", PROMPTS, config)
    assert not (tmp_path / "t").exists()
    kept = dataclasses.replace(TINY.training, checkpoints=(0.0, 150_000.0, 1.0))
    longer = dataclasses.replace(config, pretrain=dataclasses.replace(TINY, training=kept))
    NamesModels(TrainedModels(numbered, tmp_path / "t"), longer)
    # A run that is there may have kept it.
    last = checkpoint_steps(made[0] / "models" / "all")[-1]
    assert last > 1
    there = dataclasses.replace(CONFIG, linking_at=float(last))
    NamesModels(TrainedModels(numbered, made[0]), there)


def test_wrong_settings_are_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="are shares of a run, from 0 to 1"):
        NamesConfig(probing_at=1.5)
    with pytest.raises(PrixError, match="curve both: expected words or links"):
        NamesConfig(curve="both")
    with pytest.raises(PrixError, match="has no sv; it has ar, en, fi, ja, te"):
        reproduce_bli(toy, tmp_path, LEXICONS, NamesConfig(single="sv"))
