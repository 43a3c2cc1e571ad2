"""The linker's figures: ranks against a slow count, DBP15K's files, rows of entity linking."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, SplitConfig, split_kb
from prixlm.evaluation.alignment import (
    FusedLinking,
    Measured,
    Unlinked,
    ablations,
    calibration_tables,
    evaluate_dbp15k,
    read_dbp15k,
)
from prixlm.evaluation.entity_linking import (
    LinkingTask,
    evaluate_withheld_links,
    spelling_scorers,
    withheld_tasks,
)
from prixlm.linking.evidence import FEATURES, CandidatePairs
from prixlm.linking.linker import Linked, LinkerConfig
from tests.helpers import make_linked_kb

QUICK = LinkerConfig(folds=2, rounds=1)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("links")
    kb = make_linked_kb(folder, 400)
    return split_kb(kb, folder / "split", SplitConfig(hide_links=0.3, valid=0.1))


@pytest.fixture(scope="module")
def dbp15k(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in DBP15K's format, of 400 entities each, all linked."""
    folder = tmp_path_factory.mktemp("data") / "fr_en"
    folder.mkdir()
    generator = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    names = ["".join(generator.choice(syllables, 4)) for _ in range(400)]
    for side, first in (("1", 0), ("2", 1000)):
        iri = "http://dbpedia.org/resource/"
        text = [f"{first + i}\t{iri}{name}_{side}" for i, name in enumerate(names)]
        (folder / f"ent_ids_{side}").write_text("\n".join(text) + "\n", "utf-8")
        facts = [f"{first + i}\t{first}\t{first + (7 * i) % 400}" for i in range(400)]
        (folder / f"triples_{side}").write_text("\n".join(facts) + "\n", "utf-8")
    (folder / "ref_ent_ids").write_text("".join(f"{i}\t{1000 + i}\n" for i in range(400)), "utf-8")
    return folder


def test_ranks_are_those_of_a_slow_count() -> None:
    generator = np.random.default_rng(0)
    left, right = (
        grid.ravel() for grid in np.meshgrid(np.arange(20), np.arange(10), indexing="ij")
    )
    kept = generator.random(200) < 0.7
    left, right = left[kept], right[kept]
    share = generator.integers(0, 6, len(left)) / 6
    pairs = CandidatePairs(left, right, right, np.zeros((len(left), len(FEATURES)), np.float32))
    links = np.arange(0, 20, 2), generator.integers(0, 10, 10)
    allowed = np.arange(10) != 3
    for mask in (None, allowed):
        measured = Measured.of(Linked(pairs, share, share), links, mask)
        for rank, a, b in zip(measured.ranks, *links, strict=True):
            rows = [
                i for i in range(len(left)) if left[i] == a and (mask is None or mask[right[i]])
            ]
            own = [share[i] for i in rows if right[i] == b]
            others = [share[i] for i in rows if right[i] != b]
            if own:
                assert (
                    rank
                    == 1 + sum(s > own[0] for s in others) + sum(s == own[0] for s in others) / 2
                )
            else:
                assert np.isinf(rank)


def test_dbp15k_is_read_with_a_part_of_its_links(dbp15k: Path) -> None:
    data = read_dbp15k(dbp15k)
    known, asked = data.problem.links(), data.asked
    assert len(known[0]) == 120 and len(asked[0]) == 280
    assert not set(known[0].tolist()) & set(asked[0].tolist())
    assert (known[0] == known[1]).all() and (asked[0] == asked[1]).all()
    assert data.problem.ours.texts[0].endswith(" 1") and data.problem.ours.langs == "fr"
    assert data.problem.facts is not None and len(data.problem.facts.subject) == 800


def test_dbp15k_has_hits_among_the_asked_and_among_all(dbp15k: Path) -> None:
    [table] = evaluate_dbp15k([dbp15k], QUICK)
    spelled = [scorer.name for scorer in spelling_scorers()]
    assert list(table.rows) == [*spelled, "linker", "linker, among all entities"]
    assert table.rows[spelled[0]]["Hits@1"].number == table.rows["linker"]["Hits@1"].number
    assert table.rows["linker"]["Hits@1"].value > 0.9
    assert table.rows["linker"]["MRR"].value >= table.rows["linker"]["Hits@1"].value
    assert "seconds" in table.notes[0]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("ref_ent_ids", "0\t1000\t3\n", "line 1: 3 columns, expected 2"),
        ("ref_ent_ids", "0\t99999\n", "entity 99999 has no name"),
        ("triples_1", "0\tx\t1\n", "'x' is not an id"),
        ("ent_ids_2", "\n", "ent_ids_2 is empty"),
    ],
)
def test_bad_files_say_what_is_wrong(
    dbp15k: Path, tmp_path: Path, file: str, text: str, message: str
) -> None:
    for path in dbp15k.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / file).write_text(text, "utf-8")
    with pytest.raises(PrixError, match=message):
        read_dbp15k(tmp_path)
    with pytest.raises(PrixError, match="cannot be read"):
        read_dbp15k(tmp_path / "none")


def test_the_linker_is_a_row_beside_string_similarity(split: KB) -> None:
    fused = FusedLinking(split, "en", QUICK)
    first, *_ = evaluate_withheld_links(split, [], into="en", langs=["fi"], more=[fused])
    plain = next(iter(first.rows))
    assert first.rows["linker"]["fi"].value > first.rows[plain]["fi"].value + 0.1
    error, precision, recall = calibration_tables([fused])
    assert error.rows["linker"]["fi"].value < 0.15
    assert precision.rows["linker"]["fi"].value > 0.9 and recall.rows["linker"]["fi"].value > 0.1
    assert calibration_tables([]) == []


def test_the_linker_needs_links_of_a_kb(split: KB) -> None:
    task = LinkingTask(["a"], np.zeros(1, int), ["a"], np.arange(2), np.zeros(1, int))
    with pytest.raises(PrixError, match="pass --kb"):
        FusedLinking(split, "en").check({"fi": task})


def test_a_language_of_few_links_is_refused_before_anything_is_measured(
    split: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.evaluation.alignment.MIN_CASES", 10**6)
    monkeypatch.setattr("prixlm.evaluation.entity_linking.evaluate_linking", pytest.fail)
    with pytest.raises(PrixError, match=r"has \d+ known links from fi into en.*leave fi out"):
        evaluate_withheld_links(split, [], into="en", more=[FusedLinking(split, "en", QUICK)])


def test_each_kind_of_evidence_is_left_out_once() -> None:
    without = [config.without for config in ablations(QUICK)]
    assert (
        without[0] == () and ("graph",) in without and ("spelling", "romanised", "words") in without
    )
    assert all("encoder" not in kinds for kinds in without)


def test_the_unlinked_are_the_entities_that_no_known_link_leads_to(split: KB) -> None:
    [task] = withheld_tasks(split, "en", ["fi"], "test", None).values()
    concept = split.concepts()
    known = set(concept[list(split.entity_range("fi"))].tolist())
    first = split.entity_range("en").start
    free = [i for i, owner in enumerate(task.owner) if concept[first + owner] not in known]
    assert 0 < len(free) < len(task.names)
    for scorer in spelling_scorers():
        names = [task.names[i] for i in free]
        slow = scorer.ranks(replace(task, names=names, owner=task.owner[free]), "fi")
        ranks = Unlinked(split, "en", scorer).ranks(task, "fi")
        assert ranks.tolist() == slow.tolist()
