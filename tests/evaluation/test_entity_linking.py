"""Entity linking: files, ranks, and links that a split hides."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, SplitConfig, split_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.evaluation.entity_linking import (
    EncoderScorer,
    FuzzyScorer,
    LinkingTask,
    Scorer,
    accuracy,
    linking_ranks,
    read_hidden_links,
    read_tasks,
)


class Table(Scorer):
    """Scores that are given."""

    name = "table"

    def __init__(self, scores: list[list[float]]) -> None:
        self.scores = np.array(scores)

    def tables(self, mentions: object, names: object) -> object:
        yield self.scores[:1]
        yield self.scores[1:]


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
    ranks = linking_ranks(scores, task)
    assert ranks.tolist() == [1, 2, 2, 4]
    assert accuracy(ranks, 1) == 0.25 and accuracy(ranks, 5) == 1.0
    assert np.isnan(accuracy(ranks[:0], 1))


def test_names_of_one_text_tie(bases: dict[str, Path]) -> None:
    names = ["Paris", "Helsinki", "Paris"]
    task = LinkingTask(names, np.arange(3), ["Paris"], np.array([0, 1]), np.array([2]))
    encoder = EncoderScorer(EntityEncoder.load(bases["xlmr"]))
    assert linking_ranks(encoder, task).tolist() == [1.5]
    assert linking_ranks(FuzzyScorer(), task).tolist() == [1.5]


def test_strings_alike_are_near(bases: dict[str, Path]) -> None:
    names = ["Turku", "Helsinki", "Tampere"]
    task = LinkingTask(
        names, np.arange(3), ["helsinkiin", "Tampereen"], np.array([0, 1, 2]), np.array([1, 2])
    )
    assert linking_ranks(FuzzyScorer(), task).tolist() == [1, 1]
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


def test_whole_concepts_lose_their_links(world: KB, tmp_path: Path) -> None:
    split = split_kb(world, tmp_path / "split", SplitConfig(hide_links=0.2, valid=0.05))
    before, after = world.concepts(), split.concepts()
    hidden = {name: split.hidden_links(name) for name in ("test", "valid")}
    test_a, test_b = (np.asarray(column) for column in hidden["test"].columns)
    assert (before[test_a] == before[test_b]).all()
    alone = np.bincount(after)[after] == 1
    assert alone[test_a].all() and alone[test_b].all(), "no third language is left"
    several = [np.unique(before[np.asarray(h.column(0))]) for h in hidden.values()]
    assert not set(several[0]) & set(several[1])
    sizes = np.bincount(before)
    assert len(several[0]) == pytest.approx(0.2 * (sizes > 1).sum(), rel=0.02)
    # Every pair of a hidden concept is there, and nothing else of the KB has changed.
    language = world.language_of(np.arange(world.num_entities))
    concept = several[0][0]
    members = np.flatnonzero(before == concept)
    pairs = {(a, b) for a in members for b in members if a < b and language[a] != language[b]}
    assert {(a, b) for a, b in zip(test_a, test_b, strict=True) if before[a] == concept} == pairs
    assert split.num_triples(split="train") == world.num_triples(split="train")
    with pytest.raises(PrixError, match="hides links already"):
        split_kb(split, tmp_path / "again", SplitConfig(hide_links=0.2))
    with pytest.raises(PrixError, match="hides no links"):
        world.hidden_links()


def test_hidden_links_are_a_task(toy: KB, tmp_path: Path) -> None:
    split = split_kb(toy, tmp_path / "split", SplitConfig(hide_links=0.9, valid=0.0))
    task = read_hidden_links(split, "fi", "en")
    names = dict(enumerate(task.names))
    found = {m: [names[e] for e in task.answers(i)] for i, m in enumerate(task.mentions)}
    everything = {"Suomi": ["Finland"], "Ranska": ["France"], "Helsinki": ["Helsinki"]}
    assert found and found.items() <= everything.items()
    back = read_hidden_links(split, "en", "fi")
    assert {(m, task.names[e]) for i, m in enumerate(task.mentions) for e in task.answers(i)} == {
        (back.names[e], m) for i, m in enumerate(back.mentions) for e in back.answers(i)
    }
    with pytest.raises(PrixError, match="no hidden link from fi into te"):
        read_hidden_links(split_kb(toy, tmp_path / "s2", SplitConfig(hide_links=0.3)), "fi", "te")


def test_hiding_links_is_a_split_of_its_own() -> None:
    for options in ({"hide_links": 0.0}, {"hide_links": 1.0}, {"hide_links": 0.1, "unseen": 0.1}):
        with pytest.raises(PrixError, match="--hide-links"):
            SplitConfig(**options)  # type: ignore[arg-type]
