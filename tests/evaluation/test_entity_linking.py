"""Entity linking: ranks, files, the links that a split withholds, and the tables."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, SearchConfig, SplitConfig, import_kb, split_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import MirrorConfig, mirror
from prixlm.evaluation.entity_linking import (
    EncoderScorer,
    FuzzyScorer,
    LinkingTask,
    PerLanguage,
    Scorer,
    Translation,
    evaluate_linking,
    evaluate_linking_files,
    evaluate_withheld_links,
    language_of,
    read_names,
    read_tasks,
    read_tasks_by_language,
    read_withheld_links,
    spelling_scorers,
    withheld_tasks,
)
from prixlm.evaluation.trained import single_settings
from prixlm.reports.kept import Kept
from prixlm.training.pretrain import pretrain
from prixlm.training.sampler import Links
from tests.evaluation.conftest import TINY
from tests.trimmed import save_trimmed

SPELLED = [
    "string similarity (rapidfuzz)",
    "string similarity, romanised",
    "character n-grams (cosine)",
    "character n-grams, romanised",
]


class Table(Scorer):
    """Scores that are given."""

    name = "table"

    def __init__(self, scores: list[list[float]]) -> None:
        self.table = np.array(scores)

    def scores(self, task: object, lang: object) -> object:
        yield self.table[:1]
        yield self.table[1:]


def test_ranks_equal_a_hand_worked_example() -> None:
    # Entity 0 has two names, entity 1 one, entity 2 one, entity 3 one.
    task = LinkingTask(
        list("abcde"),
        np.array([0, 1, 0, 2, 3]),
        list("wxyz"),
        np.array([0, 1, 2, 4, 5]),
        np.array([0, 1, 2, 3, 3]),
    )
    scores = Table(
        [
            [0.1, 0.5, 0.9, 0.2, 0.3],  # 0 by its second name: first
            [0.5, 0.5, 0.1, 0.5, 0.4],  # 1 ties with 0 and 2: 1 + 2 / 2
            [0.9, 0.1, 0.9, 0.3, 0.8],  # 2 or 3: 3 is second, and 2 does not stand before it
            [0.1, 0.2, 0.3, 0.4, 0.0],  # 3 is last
        ]
    )
    ranks = scores.ranks(task, "fi")
    assert ranks.tolist() == [1, 2, 2, 4]


def test_names_of_one_text_tie(bases: dict[str, Path]) -> None:
    names = ["Paris", "Helsinki", "Paris"]
    task = LinkingTask(names, np.arange(3), ["Paris"], np.array([0, 1]), np.array([2]))
    encoder = EncoderScorer(EntityEncoder.load(bases["xlmr"]))
    assert encoder.ranks(task, "fi").tolist() == [1.5]
    assert FuzzyScorer().ranks(task, "fi").tolist() == [1.5]


def test_linkers_that_read_unlike_their_base_are_refused(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("C1||Turku\nC2||Oslo\n")
    (tmp_path / "fi.txt").write_text("C1||Abo\n")
    files = (tmp_path / "names.txt", [tmp_path / "fi.txt"])
    whole = save_trimmed(tmp_path / "whole", ["Turku", "Oslo", "Abo"], [])
    assert evaluate_linking_files([whole], *files)
    no_mention = save_trimmed(tmp_path / "a", ["Turku", "Oslo"], ["Abo"])
    with pytest.raises(PrixError, match=r"1 of 1 mentions of fi.txt, asked of a/model \(100 %\)"):
        evaluate_linking_files([whole, no_mention], *files)
    no_name = save_trimmed(tmp_path / "b", ["Turku", "Abo"], ["Oslo"])
    with pytest.raises(PrixError, match=r"1 of 2 names, asked of"):
        evaluate_linking_files([no_name], *files)
    tasks = read_tasks(tmp_path / "names.txt", {"fi": tmp_path / "fi.txt"})
    scorer = EncoderScorer(EntityEncoder.load(no_mention))
    with pytest.raises(PrixError, match="1 of 1 mentions of fi"):
        evaluate_linking(tasks, [PerLanguage("single", lambda _: scorer)])
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\nen\tTurku\tr\tOslo\n")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    decoder = save_trimmed(tmp_path / "c", ["Turku", "Oslo"], ["Abo"], ["en"])
    with pytest.raises(PrixError, match="1 of 1 mentions of fi, asked of translate"):
        evaluate_linking(tasks, [Translation(decoder, kb, "en")])


def test_what_was_measured_of_the_same_encoder_and_links_is_kept(
    toy_split: KB, bases: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "xel-parts.jsonl"
    folder = shutil.copytree(bases["xlmr"], tmp_path / "encoder")
    first = evaluate_withheld_links(toy_split, [folder], kept=Kept(path))
    assert list(first[0].rows) == [*SPELLED, "encoder"]

    asked: list[tuple[str, int]] = []
    ranks = Scorer.ranks

    def counted(scorer: Scorer, task: LinkingTask, lang: str) -> np.ndarray:
        asked.append((lang, len(task.mentions)))
        return ranks(scorer, task, lang)

    monkeypatch.setattr(Scorer, "ranks", counted)
    again = evaluate_withheld_links(toy_split, [folder], kept=Kept(path))
    assert asked == [] and [t.rows for t in again] == [t.rows for t in first]
    # Fewer mentions are another task, and other weights under the same name another encoder.
    evaluate_withheld_links(toy_split, [folder], langs=["fi"], most=1, kept=Kept(path))
    assert asked == [("fi", 1)] * 5
    asked.clear()
    shutil.rmtree(folder)
    shutil.copytree(bases["mbert"], folder)
    evaluate_withheld_links(toy_split, [folder], langs=["fi"], kept=Kept(path))
    assert len(asked) == 1
    # A row that says nothing of itself is measured in any case.
    more = FuzzyScorer()
    more.name = "another"
    evaluate_withheld_links(toy_split, [], langs=["fi"], more=[more], kept=Kept(path))
    evaluate_withheld_links(toy_split, [], langs=["fi"], more=[more], kept=Kept(path))
    assert len(asked) == 3


def test_strings_alike_are_near(bases: dict[str, Path]) -> None:
    names = ["Turku", "Helsinki", "Tampere"]
    task = LinkingTask(
        names, np.arange(3), ["helsinkiin", "Tampereen"], np.array([0, 1, 2]), np.array([1, 2])
    )
    assert FuzzyScorer().ranks(task, "fi").tolist() == [1, 1]
    assert task.differ().tolist() == [True, True]


def test_xlbel_files(tmp_path: Path) -> None:
    names, queries = tmp_path / "names.txt", tmp_path / "queries.txt"
    names.write_text("C1||heart\nC1||cor\nC2||liver\nC2||liver\n||none\nC3||\nbad line\n", "utf-8")
    queries.write_text("C1||sydän\nC9|C2||maksa\nC9||mikä\n\n", "utf-8")
    task = read_tasks(names, {"fi": queries})["fi"]
    assert task.names == ["heart", "cor", "liver"] and task.owner.tolist() == [0, 0, 1]
    assert task.mentions == ["sydän", "maksa"]
    assert [task.answers(0), task.answers(1)] == [[0], [1]]
    assert task.problems == {
        "names.txt: the same id and name again": 1,
        "names.txt: no id or no name": 2,
        "names.txt: not 2 fields joined by ||": 1,
        "queries.txt: no name for the id": 1,
        "queries.txt: no name for one of several ids (kept)": 1,
    }
    names.write_text("C1|C2||heart\n", "utf-8")
    assert len(read_tasks(names, {"fi": queries})["fi"].mentions) == 2, (
        "a name may have several ids"
    )
    queries.write_text("C9||mikä\n")
    with pytest.raises(PrixError, match="no mention whose id"):
        read_tasks(names, {"fi": queries})["fi"]
    names.write_text("")
    with pytest.raises(PrixError, match="has no names"):
        read_tasks(names, {"fi": queries})["fi"]


def test_lrxel_files(tmp_path: Path) -> None:
    kb, queries = tmp_path / "kb", tmp_path / "te"
    kb.write_text(
        "1 ||| Finland ||| GPE\n2 ||| Paris ||| GPE\n2 ||| Paris, Texas ||| GPE\n", "utf-8"
    )
    queries.write_text("1 ||| Finland ||| ఫిన్లాండ్ ||| GPE\n3 ||| Rome ||| రోమ్ ||| GPE\n", "utf-8")
    task = read_tasks(kb, {"te": queries}, "lrxel")["te"]
    assert task.names == ["Finland", "Paris"]
    assert task.mentions == ["ఫిన్లాండ్"] and task.answers(0) == [0]
    assert task.problems == {"kb: an id twice": 1, "te: no name for the id": 1}


def test_the_real_queries_are_linked_to_the_english_ones(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = data / "xlbel"
    english = folder / "en_1k_test_query.txt"
    files = {lang: folder / f"{lang}_1k_test_query.txt" for lang in ("fi", "ru", "th", "tr")}
    caplog.clear()
    tasks = read_tasks(english, files)
    found = {lang: len(task.mentions) for lang, task in tasks.items()}
    assert caplog.text.count("the same id and name again") == 1, "said once, not for every file"
    assert all(task.names is tasks["fi"].names for task in tasks.values())
    assert found == {"fi": 122, "ru": 118, "th": 105, "tr": 157}


def test_files_are_named_by_their_languages(tmp_path: Path) -> None:
    names, fi, sv = (tmp_path / name for name in ("names", "fi_test.txt", "sv.txt"))
    names.write_text("1||heart\n", "utf-8")
    for path in (fi, sv):
        path.write_text("1||x\n", "utf-8")
    assert list(read_tasks_by_language(names, [fi, sv])) == ["fi", "sv"]
    with pytest.raises(PrixError, match="two files of fi: pass one for each language"):
        read_tasks_by_language(names, [fi, tmp_path / "fi_more.txt"])
    with pytest.raises(PrixError, match="--format tsv: expected xlbel or lrxel"):
        read_tasks(names, {"fi": fi}, "tsv")
    with pytest.raises(PrixError, match="nowhere cannot be read as text"):
        read_tasks(tmp_path / "nowhere", {"fi": fi})


def test_withheld_links_are_a_task(shared_toy: KB, toy_split: KB, tmp_path: Path) -> None:
    task = read_withheld_links(toy_split, "fi", "en")
    names = dict(enumerate(task.names))
    found = {m: [names[e] for e in task.answers(i)] for i, m in enumerate(task.mentions)}
    everything = {"Suomi": ["Finland"], "Ranska": ["France"], "Helsinki": ["Helsinki"]}
    assert found and found.items() <= everything.items()
    back = read_withheld_links(toy_split, "en", "fi")
    assert {(m, task.names[e]) for i, m in enumerate(task.mentions) for e in task.answers(i)} == {
        (back.names[e], m) for i, m in enumerate(back.mentions) for e in back.answers(i)
    }
    one = read_withheld_links(toy_split, "fi", "en", most=1)
    assert len(one.mentions) == 1 and set(one.mentions) <= set(task.mentions)
    few = split_kb(shared_toy, tmp_path / "few", SplitConfig(hide_links=0.3))
    with pytest.raises(PrixError, match="no withheld link from fi into te"):
        read_withheld_links(few, "fi", "te")


def test_withheld_tasks_are_those_of_languages_with_withheld_links(
    shared_toy: KB, toy_split: KB
) -> None:
    tasks = withheld_tasks(toy_split, "en")
    columns = toy_split.withheld_links().columns
    a, b = (toy_split.language_of(column.to_numpy()) for column in columns)
    english = toy_split.languages.index("en")
    linked = {*a[b == english], *b[a == english]}
    assert set(tasks) == {toy_split.languages[index] for index in linked}
    assert set(withheld_tasks(toy_split, "en", ["fi"])) == {"fi"}
    tables = evaluate_linking(tasks, [FuzzyScorer()])
    assert tables[0].numbers() == {lang: len(task.mentions) for lang, task in tasks.items()}
    for options, message in (
        ({"split": "train"}, "expected test or valid"),
        ({"most": 0}, "--most 0: expected 1 or more"),
        ({"langs": ["en"]}, "has no withheld links into en"),
    ):
        with pytest.raises(PrixError, match=message):
            withheld_tasks(toy_split, "en", **options)  # type: ignore[arg-type]
    with pytest.raises(PrixError, match="withholds no links"):
        withheld_tasks(shared_toy, "en")


def test_no_withheld_link_is_trained_on(numbered_split: KB) -> None:
    links = Links(numbered_split, max_links=1000)
    found = links.take(np.arange(links.num_links), [0, 0])
    trained = set(zip(found.subject.tolist(), found.object.tolist(), strict=True))
    a, b = (column.to_pylist() for column in numbered_split.withheld_links().columns)
    assert trained and not trained & set(zip(a, b, strict=True))
    assert not trained & set(zip(b, a, strict=True))


def test_aliases_are_names_of_their_entity(tmp_path: Path) -> None:
    label, alias = (
        f"<http://www.w3.org/{x}>"
        for x in ("2000/01/rdf-schema#label", "2004/02/skos/core#altLabel")
    )
    lines = [
        f'<http://x/paris> {label} "Paris"@en .',
        f'<http://x/paris> {alias} "Lutetia"@en .',
        f'<http://x/france> {label} "France"@en .',
        "<http://x/paris> <http://x/country> <http://x/france> .",
    ]
    source = tmp_path / "facts.nt"
    source.write_text("\n".join(lines) + "\n", "utf-8")
    texts, owner = read_names(import_kb([source], tmp_path / "kb"), "en")
    named = dict(zip(texts, owner.tolist(), strict=True))
    assert set(named) == {"Paris", "Lutetia", "France"}
    assert named["Lutetia"] == named["Paris"] != named["France"]


def test_spelling_compares_romanised_names_by_their_language() -> None:
    """A name in two scripts, of digits, of emoji, of one letter: each finds itself romanised."""
    names = ["Athens", "Tom Cruise", "Moscow", "2001", ":grinning:", "k"]
    mentions = ["Αθήνα", "Τομ Cruise", "Москва", "2001", "😀", "κ"]
    task = LinkingTask(names, np.arange(6), mentions, np.arange(7), np.arange(6), into="en")
    found = {linker.name: (linker.ranks(task, "el") == 1).tolist() for linker in spelling_scorers()}
    assert list(found) == SPELLED
    assert found[SPELLED[1]] == [True] * 6
    assert sum(found[SPELLED[0]]) < 6 and sum(found[SPELLED[2]]) < 6
    assert found[SPELLED[3]][:4] == [True] * 4


def test_ten_thousand_entities_of_one_name_share_their_ranks() -> None:
    names = ["Αθήνα"] * 10_000
    task = LinkingTask(names, np.arange(10_000), ["Athina"], np.arange(2), np.array([7]))
    for linker in spelling_scorers():
        assert linker.ranks(task, "en").tolist() == [5000.5], linker.name


@pytest.mark.parametrize(
    ("title", "lang"), [("ja", "ja"), ("ja_test.txt", "ja"), ("mentions", None), ("x", None)]
)
def test_the_language_of_a_column_is_read_from_its_title(title: str, lang: str | None) -> None:
    assert language_of(title) == lang


def test_tables_have_a_row_per_linker_and_a_column_per_language(bases: dict[str, Path]) -> None:
    task = LinkingTask(
        ["heart", "liver"], np.arange(2), ["sydän", "liver"], np.arange(3), np.array([0, 1])
    )
    linkers = [FuzzyScorer(), PerLanguage("each", lambda lang: FuzzyScorer())]
    first, five, different = evaluate_linking({"fi": task}, linkers)
    assert list(first.rows) == ["string similarity (rapidfuzz)", "each"]
    assert first.rows["each"]["fi"] >= (0.5, 2) and five.rows["each"]["fi"].value == 1.0
    assert different.title == "accuracy@1, names that differ"
    assert different.numbers() == {"fi": 1}, "one name is the mention itself"


def test_encoders_are_evaluated_on_files(bases: dict[str, Path], tmp_path: Path) -> None:
    names, queries = tmp_path / "names", tmp_path / "fi"
    names.write_text("1||heart\n2||liver\n", "utf-8")
    queries.write_text("1||sydän\n2||liver\n9||x\n", "utf-8")
    tables = evaluate_linking_files([bases["xlmr"], bases["mbert"]], names, [queries])
    assert list(tables[0].rows) == [*SPELLED, "xlmr", "mbert"]
    assert tables[0].numbers() == {"fi": 2} and tables[2].numbers() == {"fi": 1}


def test_a_model_that_saw_the_withheld_links_is_refused(
    shared_toy: KB, toy_split: KB, bases: dict[str, Path], tmp_path: Path
) -> None:
    config = MirrorConfig(positives="links", number=8, batch=4, epochs=1)
    seen = mirror(bases["xlmr"], tmp_path / "seen", config, shared_toy)
    checkpoint = next((tmp_path / "seen" / "checkpoints").glob("*/encoder.json")).parent
    for folder in (tmp_path / "seen", checkpoint):
        with pytest.raises(PrixError, match="on the withheld links that it would be asked for"):
            evaluate_withheld_links(toy_split, [folder])
    assert seen.model.settings.lineage.links_of_kb == shared_toy.fingerprint()
    # Single reads no links: that it was trained on the whole KB does not matter.
    pretrain(shared_toy, tmp_path / "single", single_settings(TINY, "fi"))
    pretrain(shared_toy, tmp_path / "all", TINY)
    with pytest.raises(PrixError, match=r"all was trained on the KB that .* is a split of"):
        evaluate_withheld_links(toy_split, [], [tmp_path / "all"], langs=["fi"])
    encoders = [bases["xlmr"], tmp_path / "single"]
    tables = evaluate_withheld_links(toy_split, encoders, langs=["fi"])
    assert list(tables[0].rows) == [*SPELLED, "xlmr", "single"]


def test_translation_ranks_equal_the_exact_search(toy_split: KB, tmp_path: Path) -> None:
    model = pretrain(toy_split, tmp_path / "model", TINY)
    task = read_withheld_links(toy_split, "fi", "en")
    linker = Translation(model, toy_split, "en")
    config = SearchConfig(k=10, search="exact")
    for mention, rank in enumerate(linker.ranks(task, "fi")):
        name = task.mentions[mention]
        answers = linker.completer.translate(name, lang="fi", to="en", config=config)
        right = {task.names[entity] for entity in task.answers(mention)}
        assert rank == next(answer.rank for answer in answers if answer.name in right)
    settings = linker.completer.model.settings
    known = tuple(lang for lang in settings.languages if lang != "fi")
    linker.completer.model.settings = dataclasses.replace(settings, languages=known)
    with pytest.raises(PrixError, match="the model has no language 'fi'"):
        linker.ranks(task, "fi")


def test_a_mention_that_does_not_fit_is_counted_as_wrong(
    toy_split: KB, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    linker = Translation(model, toy_split, "en")
    length = linker.completer.model.max_length
    task = LinkingTask(["x"], np.zeros(1, int), ["x " * length], np.arange(2), np.zeros(1, int))
    assert linker.ranks(task, "fi").tolist() == [np.inf]
    assert "1 mentions or names are too long" in caplog.text
