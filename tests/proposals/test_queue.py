"""The queue against a slow reading of the same rows, and what it does when marks come in."""

import dataclasses
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.proposals.confidence import Correction, log_odds
from prixlm.proposals.facets import BANDS, FacetCount
from prixlm.proposals.marks import STATES, TABLES, VERDICTS, Marks, NewMark
from prixlm.proposals.queue import (
    Place,
    Queue,
    Selection,
    format_id,
    parse_id,
)
from tests.helpers import fact_row, label_row, link_row, make_proposals

LANGS, KINDS, STATES_AND_ALL = ["et", "fi", "te"], ["elsewhere", "usual"], [*STATES, "all"]
REVIEWERS = ["Anna", "Bo"]


class SlowQueue:
    """The promises of `Queue`, read off a list of rows one by one."""

    def __init__(self, queue: Queue) -> None:
        self.rows: list[dict[str, Any]] = []
        for table in TABLES:
            numbers = range(queue.num_rows(table))
            for number, row in enumerate(queue.rows(table, numbers)):
                self.rows.append(
                    {
                        "place": Place(table, number),
                        "table": table,
                        "lang": row["lang"],
                        "relation": row.get("relation"),
                        "kind": row.get("why"),
                        "subject": row.get("subject", row.get("concept", row.get("entity"))),
                        "original": row["confidence"],
                        "confidence": float(queue.confidence(table, [number])[0]),
                        "state": self.state(queue, table, number, None),
                        "state of": {
                            reviewer: self.state(queue, table, number, reviewer)
                            for reviewer in REVIEWERS
                        },
                    }
                )
        self.corrections = {
            table: Correction(max(0.1, round(one.scale, 1)), round(one.shift, 1))
            for table, one in queue._corrections.items()
        }

    @staticmethod
    def state(queue: Queue, table: str, row: int, reviewer: str | None) -> str:
        verdicts = {entry.reviewer: entry.verdict for entry in queue.marks.last(table, row)}
        accepts, rejects = (
            list(verdicts.values()).count(verdict) for verdict in ("accept", "reject")
        )
        if accepts != rejects:
            return "accepted" if accepts > rejects else "rejected"
        if accepts:
            return "disputed"
        if reviewer is not None:
            return "skipped" if reviewer in verdicts else "open"
        return "skipped" if verdicts else "open"

    def passes(self, row: dict[str, Any], wanted: Selection, ignored: str = "") -> bool:
        about = wanted.concepts if row["table"] == "labels" else wanted.subject
        is_filtered = wanted.subject is not None or wanted.concepts is not None
        state = row["state"] if wanted.reviewer is None else row["state of"][wanted.reviewer]
        low, high = wanted.min_confidence, wanted.max_confidence
        conditions = {
            "subject": not is_filtered or row["subject"] in (about or ()),
            "state": wanted.state in ("all", state),
            "confidence": low <= row["confidence"] and (row["confidence"] < high or high == 1),
        }
        for name in ("table", "lang", "relation", "kind"):
            conditions[name] = getattr(wanted, name) in (None, row[name])
        return all(holds for name, holds in conditions.items() if name != ignored)

    def order(self, rows: list[dict[str, Any]], order: str) -> list[dict[str, Any]]:
        certain = sorted(
            rows,
            key=lambda row: (
                -row["confidence"], TABLES.index(row["table"]), -row["original"], row["place"].row
            ),
        )  # fmt: skip
        if order == "certain":
            return certain
        by_group: dict[object, list[dict[str, Any]]] = defaultdict(list)
        for row in sorted(certain, key=lambda row: TABLES.index(row["table"])):
            by_group[row["relation"] if row["relation"] is not None else row["table"]].append(row)
        turns = []
        for group in by_group.values():
            group.sort(key=self.distance)
            turns += [(turn, self.distance(row), row) for turn, row in enumerate(group)]
        place = {row["place"]: n for n, row in enumerate(self.order(self.rows, "certain"))}
        turns.sort(
            key=lambda one: (one[0], one[1], TABLES.index(one[2]["table"]), place[one[2]["place"]])
        )
        return [row for _, _, row in turns]

    def distance(self, row: dict[str, Any]) -> float:
        one = self.corrections[row["table"]]
        return float(abs(one.scale * log_odds(np.array(row["original"])) + one.shift))

    def select(self, wanted: Selection, order: str) -> list[Place]:
        base = dataclasses.replace(wanted, state="all", reviewer=None)
        # Rows in other states keep their turn, so that a mark does not move the others.
        ordered = self.order([row for row in self.rows if self.passes(row, base)], order)
        return [row["place"] for row in ordered if self.passes(row, wanted)]

    def facet(self, wanted: Selection, name: str) -> dict[Any, tuple[int, float]]:
        found = defaultdict(list)
        for row in self.rows:
            if self.passes(row, wanted, ignored=name):
                value = row[name]
                if name == "state" and wanted.reviewer is not None:
                    value = row["state of"][wanted.reviewer]
                if name == "confidence":
                    edges = [edge for edge in BANDS[:-1] if edge <= value]
                    value = (edges[-1], BANDS[BANDS.index(edges[-1]) + 1])
                if value is not None:
                    found[value].append(row["confidence"])
        return {value: (len(all_), sum(all_) / len(all_)) for value, all_ in found.items()}


def random_folder(path: Path, generator: np.random.Generator) -> Path:
    """Make proposals with many equal confidences; sometimes without labels or links."""

    def confidence() -> float:
        return float(generator.choice([0.0, 0.2, 0.5, 0.55, 0.8, 0.9, 0.95, 0.99, 1.0]))

    def lang() -> str:
        return str(generator.choice(LANGS))

    facts = [
        fact_row(
            number,
            lang=lang(),
            relation=int(generator.integers(4)),
            why=str(generator.choice(KINDS)),
            subject=int(generator.integers(5)),
            confidence=confidence(),
        )
        for number in range(int(generator.integers(0, 40)))
    ]
    labels = [
        label_row(lang=lang(), concept=int(generator.integers(5)), confidence=confidence())
        for _ in range(int(generator.integers(0, 12)))
    ]
    links = [
        link_row(lang=lang(), entity=int(generator.integers(5)), confidence=confidence())
        for _ in range(int(generator.integers(0, 3)))
    ]
    return make_proposals(path, facts, labels, links)


def random_selection(generator: np.random.Generator) -> Selection:
    def sometimes(*values: Any) -> Any:
        return values[generator.integers(len(values))] if generator.random() < 0.3 else None

    subject = sometimes(frozenset({1}), frozenset({0, 3}), frozenset())
    return Selection(
        table=sometimes(*TABLES),
        lang=sometimes(*LANGS, "xx"),
        relation=sometimes(0, 1, 9, -1),
        kind=sometimes(*KINDS, "other"),
        min_confidence=sometimes(0.5, 0.9) or 0.0,
        max_confidence=sometimes(0.5, 0.9) or 1.0,
        state=sometimes(*STATES_AND_ALL) or "open",
        subject=subject,
        concepts=subject if generator.random() < 0.5 else None,
        reviewer=sometimes(*REVIEWERS),
    )


def random_mark(queue: Queue, generator: np.random.Generator) -> None:
    places = [Place(table, row) for table in TABLES for row in range(queue.num_rows(table))]
    if not places:
        return
    if generator.random() < 0.15:
        queue.marks.undo(str(generator.choice(REVIEWERS)))
        return
    new_marks = [
        NewMark(*places[generator.integers(len(places))], str(generator.choice(VERDICTS)))
        for _ in range(int(generator.integers(1, 6)))
    ]
    queue.marks.add(str(generator.choice(REVIEWERS)), new_marks)


@pytest.mark.parametrize("seed", range(6))
def test_the_queue_agrees_with_a_slow_reading_of_the_rows(tmp_path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    folder = random_folder(tmp_path / "p", generator)
    marks = Marks.open(folder)
    queue = Queue(folder, marks)
    for _ in range(6):
        random_mark(queue, generator)
        queue.refresh()
        slow = SlowQueue(queue)
        assert queue.num_open == sum(row["state"] == "open" for row in slow.rows)
        for _ in range(6):
            wanted = random_selection(generator)
            for order in ("certain", "informative"):
                expected = slow.select(wanted, order)
                places = queue.select(wanted, order)
                assert places.head(len(places)) == expected, (order, wanted)
                check_neighbours(queue, slow, wanted, order)
            check_counts(queue, slow, wanted)
    marks.close()


def check_neighbours(queue: Queue, slow: SlowQueue, wanted: Selection, order: str) -> None:
    """Every row is between the rows that it would be between if it passed too."""
    selected = set(slow.select(wanted, order))
    for row in slow.rows[::9]:
        base = dataclasses.replace(wanted, state="all", reviewer=None)
        with_it = [one for one in slow.rows if slow.passes(one, base) or one is row]
        line = [one["place"] for one in slow.order(with_it, order)]
        line = [place for place in line if place in selected or place == row["place"]]
        here = line.index(row["place"])
        expected = (
            line[here - 1] if here else None,
            line[here + 1] if here + 1 < len(line) else None,
        )
        # A row of another filter takes a turn of its relation, which may move the ones after it.
        if order == "certain" or slow.passes(row, base):
            assert queue.neighbours(wanted, order, *row["place"]) == expected
        else:
            before, after = queue.neighbours(wanted, order, *row["place"])
            assert {before, after} <= selected | {None}
            assert selected == set() or before != after


def check_counts(queue: Queue, slow: SlowQueue, wanted: Selection) -> None:
    found = [row for row in slow.rows if slow.passes(row, wanted)]
    assert queue.count(wanted) == len(found)
    mean = queue.expected_precision(wanted)
    if found:
        assert mean == pytest.approx(np.mean([row["confidence"] for row in found]))
    else:
        assert mean is None
    facets = queue.facets(wanted)
    assert facets.total.count == len(found)
    for name, values in (
        ("lang", facets.langs),
        ("relation", facets.relations),
        ("kind", facets.kinds),
        ("confidence", facets.confidence),
        ("state", facets.states),
        ("table", facets.tables),
    ):
        expected = slow.facet(wanted, name)
        counts: dict[Any, FacetCount] = dict(values)
        assert {value: one.count for value, one in counts.items()} == {
            value: count for value, (count, _) in expected.items()
        }, (name, wanted)
        for value, one in counts.items():
            assert one.expected_precision == pytest.approx(expected[value][1])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Six facts of two relations, three labels and a link."""
    facts = [
        fact_row(number, relation=number % 2, confidence=0.95 - 0.1 * number) for number in range(6)
    ]
    labels = [label_row(concept=n, confidence=0.9 - 0.2 * n) for n in range(3)]
    folder = make_proposals(tmp_path / "p", facts, labels, [link_row()])
    found = Queue(folder, Marks.open(folder))
    yield found
    found.marks.close()


def test_a_row_that_was_just_marked_keeps_its_neighbours(queue: Queue) -> None:
    for order in ("certain", "informative"):
        line = queue.select(Selection(), order).head(20)
        here = line[4]
        before = queue.neighbours(Selection(), order, *here)
        assert before == (line[3], line[5])
        queue.marks.add("Anna", [NewMark(*here, "accept")])
        queue.refresh()
        assert here not in queue.select(Selection(), order).head(20)
        assert queue.neighbours(Selection(), order, *here) == before
        queue.marks.undo("Anna")
        queue.refresh()


def test_going_through_the_queue_meets_every_proposal_once(queue: Queue) -> None:
    """Also while marks change the confidence, and with it the order."""
    for order in ("certain", "informative"):
        met = []
        here: Place | None = queue.select(Selection(), order)[0]
        while here is not None:
            met.append(here)
            queue.marks.add("Anna", [NewMark(*here, "reject" if len(met) % 2 else "accept")])
            queue.refresh()
            before, here = queue.neighbours(Selection(), order, *here)
            here = here or before
        assert len(met) == len(set(met)) == 10 and queue.num_open == 0
        while queue.marks.undo("Anna").count:
            queue.refresh()


def test_the_informative_order_takes_relations_in_turn(queue: Queue) -> None:
    facts = queue.select(Selection(table="facts"), "informative")
    confidence = queue.confidence("facts", facts.row)
    turns = (facts.row % 2).reshape(3, 2)
    assert np.sort(turns).tolist() == [[0, 1]] * 3
    for relation in (0, 1):
        distance = np.abs(confidence[facts.row % 2 == relation] - 0.5)
        assert (np.diff(distance) >= 0).all()
    assert len({place.table for place in queue.select(Selection(), "informative").head(4)}) == 3


def test_marks_move_the_confidence_of_what_is_open(queue: Queue) -> None:
    before = queue.confidence("facts")
    labels = queue.confidence("labels")
    queue.marks.add("Anna", [NewMark("facts", 0, "reject"), NewMark("facts", 1, "reject")])
    assert (queue.confidence("facts") == before).all(), "until it is refreshed"
    queue.refresh()
    assert (queue.confidence("facts") < before).all()
    assert (queue.confidence("labels") == labels).all(), "labels have a confidence of their own"
    assert queue.num_open == 8 and queue.states("facts", [0, 2]).tolist() == [3, 0]
    queue.marks.undo("Anna")
    queue.refresh()
    np.testing.assert_array_equal(queue.confidence("facts"), before)
    assert queue.num_open == 10


def test_a_queue_opened_later_is_the_same(queue: Queue, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        random_mark(queue, generator)
        queue.refresh()
    later = Queue(queue.folder)
    for table in TABLES:
        np.testing.assert_array_equal(queue.states(table), later.states(table))
        np.testing.assert_array_equal(queue.confidence(table), later.confidence(table))
    later.marks.close()


def test_what_another_reviewer_skipped_is_open_to_me(queue: Queue) -> None:
    queue.marks.add("Anna", [NewMark("facts", 0, "skip")])
    queue.refresh()
    assert queue.count(Selection(table="facts")) == 5
    assert len(queue.select(Selection(table="facts"), reviewer="Bo")) == 6
    assert len(queue.select(Selection(table="facts"), reviewer="Anna")) == 5
    assert queue.count(Selection(table="facts", state="skipped", reviewer="Bo")) == 0


def test_a_sample_is_random_but_repeatable(queue: Queue) -> None:
    samples = [queue.sample(Selection(), 4, seed).head(4) for seed in range(20)]
    assert samples[0] == queue.sample(Selection(), 4, 0).head(4)
    assert len({place for sample in samples for place in sample}) == 10
    assert all(len(set(sample)) == 4 for sample in samples)
    assert len(queue.sample(Selection(lang="xx"), 4, 0)) == 0
    assert len(queue.sample(Selection(), 99, 0)) == 10


def test_rows_come_as_they_are_in_the_order_asked_for(tmp_path: Path) -> None:
    """Also from a file of several row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from prixlm.proposals.tables import FACT_SCHEMA

    rows = [fact_row(number) for number in range(9)]
    folder = make_proposals(tmp_path / "p", rows)
    table = pa.Table.from_pylist(rows, schema=FACT_SCHEMA)
    pq.write_table(table, folder / "proposals.parquet", row_group_size=4)
    queue = Queue(folder)
    assert queue.rows("facts", [8, 0, 3, 4, 3]) == [rows[number] for number in (8, 0, 3, 4, 3)]
    assert queue.rows("facts", []) == [] and queue.rows("labels", []) == []
    for wrong in (9, -1):
        with pytest.raises(PrixError, match=f"fact-{wrong} is not in"):
            queue.rows("facts", [0, wrong])
    with pytest.raises(PrixError, match="link-0 is not in"):
        queue.neighbours(Selection(), "certain", "links", 0)
    queue.marks.close()


def test_a_folder_without_proposals_is_an_empty_queue(tmp_path: Path) -> None:
    queue = Queue(make_proposals(tmp_path / "p", []))
    assert len(queue.select(Selection())) == queue.count(Selection()) == queue.num_open == 0
    assert len(queue.select(Selection(), "informative")) == 0
    facets = queue.facets(Selection())
    assert facets.total == FacetCount(0, 0.0) and facets.langs == {} and facets.tables == {}
    queue.marks.close()


def test_an_unknown_value_is_refused(queue: Queue) -> None:
    for wrong in ({"table": "names"}, {"state": "done"}):
        with pytest.raises(PrixError, match="expected"):
            Selection(**wrong)  # type: ignore[arg-type]
    with pytest.raises(PrixError, match="expected certain or informative"):
        queue.select(Selection(), "random")


def test_ids_are_read_back(tmp_path: Path) -> None:
    for table, text in zip(TABLES, ("fact-12", "label-12", "link-12"), strict=True):
        assert format_id(table, 12) == text and parse_id(text) == (table, 12)
    for wrong in (
        "",
        "fact",
        "fact-",
        "fact--1",
        "fact-01",
        "facts-1",
        "name 3",
        "fact-²",
        "x" * 99,
    ):
        with pytest.raises(PrixError, match="is not a proposal"):
            parse_id(wrong)
    with pytest.raises(PrixError, match="is not a proposal"):
        parse_id("fact-1" + "0" * 30)


def test_marks_that_were_moved_away_are_gone_from_the_queue(queue: Queue) -> None:
    for number in range(3):
        queue.marks.add("Anna", [NewMark("facts", number, "reject")])
    queue.refresh()
    assert queue.num_open == 7
    for path in queue.folder.glob("marks.db*"):
        path.unlink()
    queue.refresh()
    assert queue.num_open == 10 and queue.count(Selection(state="rejected")) == 0
    queue.marks.add("Anna", [NewMark("facts", 5, "reject")])
    queue.refresh()
    assert queue.states("facts").tolist() == [0, 0, 0, 0, 0, STATES.index("rejected")]


def test_marks_of_a_copied_folder_are_its_own(queue: Queue, tmp_path: Path) -> None:
    queue.marks.add("Anna", [NewMark("facts", 0, "accept")])
    queue.refresh()
    queue.marks.close()
    copy = Queue(shutil.copytree(queue.folder, tmp_path / "copy"))
    assert copy.states("facts").tolist() == queue.states("facts").tolist()
    copy.marks.close()
