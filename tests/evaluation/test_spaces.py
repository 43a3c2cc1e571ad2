"""Linking, lexicons and probing from a shell, and their tables."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from prixlm import KB, PretrainConfig, PrixError, SplitConfig, split_kb
from prixlm.cli.app import app
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.linker import EntityLinker
from prixlm.entities.mirror import MirrorConfig, mirror_tune
from prixlm.evaluation.entity_linking import LinkingTask, read_hidden_links, read_names
from prixlm.evaluation.lexicons import Dictionary, read_folder
from prixlm.evaluation.probing import Prompt, Prompts
from prixlm.evaluation.reproduce_names import (
    SpacesConfig,
    reproduce_bli,
    reproduce_probe,
    reproduce_xel,
)
from prixlm.evaluation.spaces import Translation, check_hidden, evaluate_linking, hidden_tasks
from prixlm.lm.compact import CompactConfig
from prixlm.reports.grids import Grid, grid_values, grids_markdown, read_grids, write_grids
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import pretrain
from prixlm.training.sampler import SupplyConfig
from tests.cli.test_app import run

TINY = PretrainConfig(
    base="compact",
    epochs=2,
    batch=8,
    training=TrainingConfig(lr=1e-3),
    compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
)


def done(*args: object) -> Result:
    """A command in this process: importing torch anew each time takes longer than the work."""
    made = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False)
    assert made.exit_code == 0, made.output
    return made


def test_mirror_and_link_from_a_shell(toy: KB, bases: dict[str, Path], tmp_path: Path) -> None:
    encoder = tmp_path / "encoder"
    options = ("--kb", toy.folder, "--number", 16, "--batch", 4, "--epochs", 1, "--json")
    made = done("mirror", bases["xlmr"], "--to", encoder, *options)
    assert json.loads(made.stdout)["positives"] == "links"
    asked = ("--kb", toy.folder, "--mention", "Suomi", "-k", 3)
    found = json.loads(done("link", encoder, *asked, "--json").stdout)
    assert [one["rank"] for one in found[0]["answers"]] == [1, 2, 3]
    assert found[0]["answers"][0]["name"] == "Suomi", "its own name is nearest"
    within = done("link", encoder, *asked, "--lang", "te").stdout
    assert "ఫిన్లాండ్" in within and "Suomi" in within.splitlines()[0]
    mentions, out = tmp_path / "mentions.txt", tmp_path / "out.tsv"
    mentions.write_text("  Suomi\n\nParis \n", "utf-8")
    asked = ("--kb", toy.folder, "--mentions", mentions, "--out", out, "-k", 1)
    assert "3 lines (1 of them empty) linked" in done("link", encoder, *asked).stdout
    lines = [line.split("\t") for line in out.read_text("utf-8").splitlines()]
    assert [line[:3] for line in lines[1:]] == [
        ["Suomi", "1", "Suomi"],
        ["", "", ""],
        ["Paris", "1", "Paris"],
    ]


def test_a_named_kb_means_links_unless_a_file_says_words(
    toy: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    settings = tmp_path / "mirror.toml"
    for text, expected in (("epochs = 1\n", "links"), ('positives = "words"\n', "words")):
        settings.write_text(text)
        options = ("--kb", toy.folder, "--number", 8, "--batch", 4, "--epochs", 1, "--json")
        made = done(
            "mirror", bases["xlmr"], "--to", tmp_path / expected, "--config", settings, *options
        )
        assert json.loads(made.stdout)["positives"] == expected


def test_what_saw_the_hidden_links_is_refused(
    toy: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    split = split_kb(toy, tmp_path / "split", SplitConfig(hide_links=0.9, valid=0.0))
    config = MirrorConfig(positives="links", number=8, batch=4, epochs=1)
    seen = mirror_tune(bases["xlmr"], tmp_path / "seen", config, toy)
    checkpoint = next((tmp_path / "seen" / "checkpoints").glob("*/encoder.json")).parent
    asked = ("evaluate", "xel", "--kb", split.folder, "--encoder")
    for folder in (tmp_path / "seen", checkpoint):
        made = CliRunner().invoke(app, [*map(str, asked), str(folder)])
        assert isinstance(made.exception, PrixError)
        assert "on the links that it would be asked for" in str(made.exception)
    check_hidden(split, EntityEncoder.load(bases["xlmr"]).model, "a base")
    # Single reads no links: that it was trained on the whole KB does not matter.
    one = dataclasses.replace(TINY, supply=SupplyConfig(langs=("fi",)))
    check_hidden(split, pretrain(toy, tmp_path / "single", one), "Single")
    every = pretrain(toy, tmp_path / "all", TINY)
    with pytest.raises(PrixError, match=r"All was trained on the KB that .* is a split of"):
        check_hidden(split, every, "All")
    assert seen.model.settings.trained["links_of_kb"] == toy.fingerprint()


def test_the_tasks_from_a_shell(bases: dict[str, Path], tmp_path: Path) -> None:
    names, queries = tmp_path / "names", tmp_path / "fi"
    names.write_text("1||heart\n2||liver\n", "utf-8")
    queries.write_text("1||sydän\n2||liver\n9||x\n", "utf-8")
    base = ("--encoder", bases["xlmr"])
    found = done("evaluate", "xel", *base, "--names", names, "--queries", queries, "--json")
    grids = json.loads(found.stdout)
    assert grids[0]["numbers"] == {"fi": 2}
    assert grids[0]["rows"]["string similarity (rapidfuzz)"]["fi"] >= 0.5
    assert grids[2]["numbers"] == {"fi": 1}, "one name is the mention itself"
    words = tmp_path / "words"
    words.write_text("".join(f"{a}{b}\t{b}{a}\n" for a in "abcdef" for b in "ghijk"))
    found = done("evaluate", "bli", *base, "--train", words, "--test", words, "--to", tmp_path)
    assert "accuracy among dictionary (%)" in found.stdout
    assert (tmp_path / "bli.md").exists() and (tmp_path / "bli.json").exists()
    prompts = tmp_path / "en.tsv"
    prompts.write_text("Prompt\tAns\tCandidate Ans\tSubject\nIt is <mask>.\ta\ta, b\tx\n")
    found = done("evaluate", "probe", "--model", bases["xlmr"], "--prompts", prompts, "--json")
    assert json.loads(found.stdout)[2]["rows"]["chance"] == {"en": 0.5}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["evaluate", "xel"], "name a KB whose links are hidden"),
        (["evaluate", "xel", "--names", "x", "--queries", "y", "--format", "z"], "xlbel or lrxel"),
        (["evaluate", "bli", "--train", "x", "--test", "y"], "name an encoder"),
        (["evaluate", "bli", "--train", "x", "--test", "y", "--frequent", "-5"], "0 or more"),
        (["evaluate", "probe", "--model", "x"], "--prompts, or a folder"),
        (["link", "e", "--kb", "k"], "--mention TEXT, or --mentions FILE"),
        (["link", "e", "--kb", "k", "--mention", "x", "-k", "0"], "expected 1 or more"),
        (["mirror", "nowhere", "--to", "e"], "no model at nowhere"),
        (["split", "k", "--to", "s", "--hide-links", "2"], "--hide-links 2.0: expected a share"),
    ],
)
def test_a_wrong_argument_is_one_line(args: list[str], message: str, tmp_path: Path) -> None:
    made = run(*args, cwd=tmp_path)
    assert made.returncode == 2
    assert message in made.stderr and len(made.stderr.splitlines()) == 1, made.stderr


def test_translation_ranks_equal_the_exact_search(toy: KB, tmp_path: Path) -> None:
    split = split_kb(toy, tmp_path / "split", SplitConfig(hide_links=0.9, valid=0.0))
    model = pretrain(split, tmp_path / "model", TINY)
    task = read_hidden_links(split, "fi", "en")
    way = Translation(model, split, "en")
    from prixlm import SearchConfig

    config = SearchConfig(k=10, search="exact")
    for place, rank in enumerate(way.ranks(task, "fi")):
        answers = way.completer.translate(task.mentions[place], lang="fi", to="en", config=config)
        right = {task.names[e] for e in task.answers(place)}
        assert rank == next(a.rank for a in answers if a.name in right)
    settings = way.completer.model.settings
    known = tuple(lang for lang in settings.languages if lang != "fi")
    way.completer.model.settings = dataclasses.replace(settings, languages=known)
    with pytest.raises(PrixError, match="the model has no language 'fi'"):
        way.ranks(task, "fi")


def test_an_entity_counts_with_its_nearest_alias(tmp_path: Path, bases: dict[str, Path]) -> None:
    from prixlm import import_kb

    label, alias = (
        f"<http://www.w3.org/{x}>"
        for x in ("2000/01/rdf-schema#label", "2004/02/skos/core#altLabel")
    )
    lines = [
        f'<http://x/paris> {label} "Paris"@en .',
        f'<http://x/paris> {alias} "City of Light"@en .',
        f'<http://x/paris> {alias} "Lutetia"@en .',
        f'<http://x/france> {label} "France"@en .',
        "<http://x/paris> <http://x/country> <http://x/france> .",
    ]
    source = tmp_path / "facts.nt"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    kb = import_kb([source], tmp_path / "kb")
    linker = EntityLinker(EntityEncoder.load(bases["xlmr"]), kb)
    for mention in ("Paris", "Lutetia", "City of Light"):
        (answers,) = linker.link([mention], 5)
        assert [a.name for a in answers] == ["Paris", "France"], "an entity is answered once"
        assert answers[0].score == pytest.approx(1.0, abs=1e-5)
    texts, owner = read_names(kb, "en")
    named = dict(zip(texts, owner.tolist(), strict=True))
    assert set(named) == {"Paris", "City of Light", "Lutetia", "France"}
    assert named["Lutetia"] == named["Paris"] != named["France"], "evaluation has them, too"
    with pytest.raises(PrixError, match="mention 2 is empty"):
        linker.link(["Paris", " "])
    with pytest.raises(PrixError, match="has no language xx"):
        linker.link(["Paris"], lang="xx")


def test_grids_are_written_and_read(tmp_path: Path) -> None:
    grid = Grid("a | b", {"x<y": {"fi": 0.5, "en": float("nan")}, "z": {"fi": 1.0}}, {"fi": 3})
    assert grid.cells("x<y") == ["50.0", "–", "–"] and grid.cells("z") == ["100.0", "–", "–"]
    text = grids_markdown([grid])
    assert "| x&lt;y | 50.0 | – | – |" in text and "a \\| b" in text and "fi (3)" in text
    write_grids(tmp_path, "g", [grid])
    (again,) = read_grids(tmp_path / "g.json")
    assert grid_values([again]) == grid_values([grid])
    json.loads((tmp_path / "g.json").read_text("utf-8"))


def test_every_table_is_made_once(
    world: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prixlm import import_kb

    kb = import_kb([], tmp_path / "kb", format="world", langs=["et", "fi", "en"])
    tiny = dataclasses.replace(TINY, epochs=1, batch=256)
    mirror = MirrorConfig(number=64, batch=16, epochs=1)
    config = SpacesConfig(pretrain=tiny, mirror=mirror, pairs=200, frequent=100)
    words = [f"{a}{b}" for a in "abcdef" for b in "ghijk"]
    pairs = [(word, word[::-1]) for word in words]
    lexicons = {"en-fi": (Dictionary(pairs[:20], pairs[20:]), "fi")}
    prompts = {"fi": Prompts([Prompt("<mask> on", "Suomi", ("Suomi", "Viro"))])}

    files = {"sv": LinkingTask(["a", "b"], np.arange(2), ["c"], np.array([0, 1]), np.array([1]))}

    def everything() -> list[list[Grid]]:
        return [
            reproduce_xel(kb, tmp_path / "t", config, files),
            reproduce_bli(kb, tmp_path / "t", lexicons, config),
            reproduce_probe(kb, tmp_path / "t", prompts, config),
        ]

    first = everything()
    assert list(first[0][0].rows) == [
        "string similarity (rapidfuzz)",
        "base + Mirror (words)",
        "Prix-LM (Single) + Mirror (words)",
        "Prix-LM (All) + Mirror (words)",
        "base + Mirror (links)",
        "Prix-LM (Single) + Mirror (links)",
        "Prix-LM (All) + Mirror (links)",
        "Prix-LM (All), translate",
    ]
    assert not (tmp_path / "t" / "xel" / "models" / "single").exists(), "those of `lp` will do"
    assert len(first[1][0].rows) == 7 and len(first[2][0].rows) == 3
    assert "files" in first[0][3].title and "Prix-LM (All), translate" not in first[0][3].rows
    assert first[2][0].notes and "never seen a sentence" in first[2][0].notes[0]
    for name in ("xel/xel", "bli", "probe"):
        assert (tmp_path / "t" / f"{name}-checkpoints.png").exists()
        curve = json.loads((tmp_path / "t" / f"{name}-checkpoints.json").read_text())
        assert next(iter(curve.values()))[0][0] == 0, "step 0 is on the curve"
    monkeypatch.setattr("prixlm.evaluation.reproduce_names.mirror_tune", None)
    second = everything()
    assert [grid_values(part) for part in second] == [grid_values(part) for part in first]
    other = {"en-fi": (Dictionary(pairs[:21], pairs[21:]), "fi")}
    with pytest.raises(PrixError, match="was made with other files"):
        reproduce_bli(kb, tmp_path / "t", other, config)
    with pytest.raises(PrixError, match=r"made with other settings\.linking_at: "):
        reproduce_xel(kb, tmp_path / "t", dataclasses.replace(config, linking_at=0.5), files)
    with pytest.raises(PrixError, match="made with another KB"):
        reproduce_xel(world, tmp_path / "t", config, files)


def test_one_model_serves_all_tables_of_a_kb_that_hides_links(
    tmp_path: Path,
) -> None:
    from prixlm import import_kb

    kb = import_kb([], tmp_path / "kb", format="world", langs=["et", "en"])
    hiding = split_kb(kb, tmp_path / "hiding", SplitConfig(hide_links=0.2))
    mirror = MirrorConfig(number=64, batch=16, epochs=1)
    tiny = dataclasses.replace(TINY, epochs=1, batch=256)
    config = SpacesConfig(pretrain=tiny, mirror=mirror, pairs=64, single="et")
    grids = reproduce_xel(hiding, tmp_path / "t", config)
    assert grids[0].numbers == {
        lang: len(task.mentions) for lang, task in hidden_tasks(hiding, "en").items()
    }
    assert not (tmp_path / "t" / "xel").exists()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("optimizer.*")}
    prompts = {"et": Prompts([Prompt("<mask> on", "Soome", ("Soome", "Eesti"))])}
    assert len(reproduce_probe(hiding, tmp_path / "t", prompts, config)[0].rows) == 3
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").rglob("optimizer.*")}
    assert before and after == before, "all that probing needs was there"


def test_a_pretrained_base_has_the_papers_settings() -> None:
    from prixlm.evaluation.reproduce import ReproduceConfig

    spaces, rows = (kind.of_base("xlm-roberta-base") for kind in (SpacesConfig, ReproduceConfig))
    for config in (spaces, rows):
        assert config.pretrain == dataclasses.replace(PretrainConfig(), base="xlm-roberta-base")
    assert spaces.mirror == spaces.mirror_others == MirrorConfig()
    assert (spaces.pairs, spaces.linking_at, spaces.probing_at) == (10_000, 0.75, 0.1)
    assert rows.unseen_epochs == rows.propagate_epochs == rows.pretrain.epochs
    assert SpacesConfig.of_base("compact") == SpacesConfig()
    assert ReproduceConfig.of_base("compact") == ReproduceConfig()
    assert SpacesConfig().mirror.training.lr > 10 * SpacesConfig().mirror_others.training.lr


def test_other_models_are_tuned_with_settings_of_their_own(
    toy: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    from prixlm.evaluation.reproduce_names import _Work

    words = tmp_path / "words.txt"
    words.write_text("\n".join(["heart", "liver", "lung", "skin"]))
    training = TrainingConfig(lr=1e-3, checkpoints=(1.0,))
    ours = MirrorConfig(words=str(words), epochs=1, batch=2, training=training)
    theirs = MirrorConfig(words=str(words), epochs=1, batch=4)
    config = SpacesConfig(mirror=ours, mirror_others=theirs, pairs=4, others=(str(bases["mbert"]),))
    work = _Work(toy, tmp_path / "t", config)
    for name, model, lr in (("xlmr", bases["xlmr"], 1e-3), ("mbert", str(bases["mbert"]), 2e-5)):
        for positives in ("words", "links"):  # a file of words does not stand in the way of links
            work.encoder(name, model, positives)
            settings = (
                tmp_path / "t" / "encoders" / f"{name}-{positives}" / "run.toml"
            ).read_text()
            assert f"lr = {lr}" in settings and f'positives = "{positives}"' in settings


def test_no_hidden_link_is_trained_on(world: KB, tmp_path: Path) -> None:
    from prixlm.training.sampler import Links

    split = split_kb(world, tmp_path / "split", SplitConfig(hide_links=0.2))
    links = Links(split, most=1000)
    found = links.take(np.arange(links.number), [0, 0])
    trained = set(zip(found.subject.tolist(), found.object.tolist(), strict=True))
    hidden = split.hidden_links()
    a, b = (column.to_pylist() for column in hidden.columns)
    assert trained and not trained & set(zip(a, b, strict=True))
    assert not trained & set(zip(b, a, strict=True))


def test_hidden_tasks_are_those_with_hidden_links(toy: KB, tmp_path: Path) -> None:
    split = split_kb(toy, tmp_path / "split", SplitConfig(hide_links=0.9, valid=0.0))
    tasks = hidden_tasks(split, "en")
    a, b = (split.language_of(column.to_numpy()) for column in split.hidden_links().columns)
    english = split.languages.index("en")
    linked = {*a[b == english], *b[a == english]}
    assert set(tasks) == {split.languages[place] for place in linked}
    with pytest.raises(PrixError, match="expected test or valid"):
        hidden_tasks(split, "en", split="train")
    with pytest.raises(PrixError, match="hides no links"):
        hidden_tasks(toy, "en")
    numbers = {lang: len(task.mentions) for lang, task in tasks.items()}
    assert evaluate_linking(tasks, [])[0].numbers == numbers


def test_a_folder_of_dictionaries(data: Path, tmp_path: Path) -> None:
    found = read_folder(data / "bli")
    assert {name: code for name, (_, code) in found.items()} == {
        "en-fi": "fi",
        "en-it": "it",
        "fi-ru": "ru",
    }
    with pytest.raises(PrixError, match="no folder for a pair"):
        read_folder(tmp_path)
    (tmp_path / "a-b").mkdir()
    with pytest.raises(PrixError, match="not one"):
        read_folder(tmp_path)
