"""Tables of probing: models on their own and on common prompts, and a stopped table."""

import gc
import json
import weakref
from pathlib import Path

import pytest

from prixlm import PrixLM
from prixlm.entities.encoder import load_model
from prixlm.evaluation.probing.asking import Probed, probe
from prixlm.evaluation.probing.prompts import (
    Prompt,
    Prompts,
)
from prixlm.evaluation.probing.tables import evaluate_models, evaluate_probing
from prixlm.reports.kept import Kept
from prixlm.reports.tables import tables_to_json
from tests.evaluation.probing.helpers import favour, piece


def test_tables_compare_models_on_their_own_and_on_common_prompts(
    wordy: Path, bases: dict[str, Path]
) -> None:
    small = PrixLM.from_base(wordy, ())
    favour(small, [piece(small, "Rome"), piece(small, "Paris")])
    other = PrixLM.from_base(bases["mbert"], ())
    texts = ("It is in <mask>.", "<mask> is it")
    prompts = Prompts([Prompt(text, "Rome", ("Rome", "Paris"), "P1") for text in texts])
    tables, results = evaluate_probing({"xlmr": small, "mbert": other}, {"fi": prompts})
    single, common, ranked, by_relation = tables
    assert [table.title for table in tables] == [
        "best word, one-piece answers",
        "best word, answers of one piece for every model",
        "candidate ranking",
        "candidate ranking by relation, fi",
    ]
    assert single.rows["xlmr"]["fi"][:2] == (1.0, 2) and single.rows["mbert"]["fi"].number == 0
    assert not single.questions, "the models were asked other prompts: no row to compare"
    assert set(ranked.questions) == {("xlmr", "fi"), ("mbert", "fi")}
    assert common.numbers() == {"fi": 0}, "mBERT's pieces have no Rome"
    assert ranked.rows["chance"]["fi"].value == 0.5 and ranked.rows["xlmr"]["fi"].value == 1.0
    assert list(by_relation.rows) == ["P1"] and by_relation.columns() == ["xlmr", "mbert"]
    assert by_relation.rows["P1"]["xlmr"].number == 2
    assert "Words that the best one is chosen from: xlmr" in single.notes[0]
    assert set(results) == {"xlmr", "mbert"}


def test_a_compact_model_is_marked_and_named_by_its_folder(model: Path) -> None:
    prompts = {"fi": Prompts([Prompt("<mask> on", "fi 1", ("fi 1", "fi 22"))])}
    tables, _ = evaluate_models([model], prompts)
    assert list(tables[0].rows) == [model.name]
    assert "never seen a sentence (all)" in tables[0].notes[0]


def test_a_stopped_table_resumes_and_holds_one_model_at_a_time(
    wordy: Path, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ("It is in <mask>.", "<mask> is it", "the <mask> is")
    part = Prompts([Prompt(text, "Rome", ("Rome", "Paris")) for text in texts])
    prompts = {"fi": part, "et": part}
    folders = [wordy, bases["mbert"]]
    whole, _ = evaluate_models(folders, prompts)
    asked: list[tuple[str, str]] = []
    loaded: list[weakref.ref[PrixLM]] = []

    def counting_load(folder: Path) -> PrixLM:
        gc.collect()
        assert not any(model() is not None for model in loaded), "the model before it is dropped"
        model = load_model(folder)
        loaded.append(weakref.ref(model))
        return model

    def counting_probe(model: PrixLM, prompts: Prompts, lang: str) -> Probed:
        asked.append((model.backbone.config.model_type, lang))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return probe(model, prompts, lang)

    monkeypatch.setattr("prixlm.evaluation.probing.tables.load_model", counting_load)
    monkeypatch.setattr("prixlm.evaluation.probing.tables.probe", counting_probe)
    path = tmp_path / "parts.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate_models(folders, prompts, kept=Kept(path))
    asked.append(("stopped", ""))
    tables, _ = evaluate_models(folders, prompts, kept=Kept(path))
    assert asked[3:] == [("xlm-roberta", "et"), ("bert", "fi"), ("bert", "et")]
    assert tables_to_json(tables) == tables_to_json(whole)
    # Values of other prompts, another sample or another model are not taken.
    asked.append(("sample", ""))
    evaluate_models(folders[:1], {"fi": part}, most=2, kept=Kept(path))
    config = json.loads((wordy / "config.json").read_text("utf-8"))
    (wordy / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1}))
    evaluate_models(folders[:1], {"fi": part}, kept=Kept(path))
    assert asked[-3:] == [("sample", ""), ("xlm-roberta", "fi"), ("xlm-roberta", "fi")]
