"""Marks: an append-only log, and the verdict over all reviewers."""

import json
import sqlite3
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prixlm import PrixError
from prixlm.proposals import marks as module
from prixlm.proposals.marks import (
    ACCEPTED,
    DISPUTED,
    STATES,
    TABLES,
    VERDICTS,
    Marks,
    NewMark,
    Replacement,
    Verdicts,
    has_marks,
    read_verdicts,
)
from prixlm.proposals.queue import Queue
from tests.helpers import fact_row, label_row, link_row, make_proposals

TALLINN = Replacement(7, "Q1770", "Tallinn")


@pytest.fixture
def marks(folder: Path) -> Iterator[Marks]:
    found = Marks.open(folder)
    yield found
    found.close()


def states(verdicts: Verdicts) -> dict[int, str]:
    pairs = zip(verdicts.rows.tolist(), verdicts.state.tolist(), strict=True)
    return {row: STATES[state] for row, state in pairs}


def dump(folder: Path) -> list[tuple[object, ...]]:
    """Return all rows of the database."""
    db = sqlite3.connect(folder / "marks.db")
    found = [row for table in ("batches", "marks") for row in db.execute(f"SELECT * FROM {table}")]
    db.close()
    return found


def test_a_mark_says_who_when_and_what(marks: Marks) -> None:
    assert marks.add("Anna", [NewMark("facts", 1, "accept", TALLINN)]) == 1
    [entry] = marks.log()
    assert (entry.reviewer, entry.table, entry.row, entry.verdict) == ("Anna", "facts", 1, "accept")
    assert entry.replacement == TALLINN and not entry.undone and entry.time.endswith("Z")
    assert states(marks.verdicts("facts")) == {1: "accepted"}
    assert marks.verdicts("facts").replacements == {1: TALLINN}


def test_a_batch_is_one_line_of_the_log_however_many_rows_it_marks(marks: Marks) -> None:
    marks.add("Anna", [NewMark("facts", 1, "accept", TALLINN)])
    marks.add("Bo", [NewMark("facts", row, "reject") for row in range(3)], bulk=True)
    marks.undo("Anna")
    marks.add("Anna", [NewMark("facts", 2, "skip")])
    lines = marks.batches()
    assert [(mark.batch, mark.reviewer, mark.row, size) for mark, size in lines] == [
        (4, "Anna", 2, 1),
        (2, "Bo", 0, 3),
        (1, "Anna", 1, 1),
    ]
    assert [mark.undone for mark, _ in lines] == [False, False, True]
    assert marks.batches(1) == lines[:1]
    assert marks.batches(10, before=2) == lines[2:]


def test_nothing_is_written_before_the_first_mark(folder: Path) -> None:
    before = sorted(folder.iterdir())
    marks = Marks.open(folder)
    assert marks.version == 0 and marks.log() == [] and marks.undo("Anna").count == 0
    assert marks.add("Anna", []) == 0 and not len(marks.verdicts("facts").rows)
    for wrong in ("facts", 9, "accept"), ("facts", -1, "accept"), ("labels", 0, "accept"):
        with pytest.raises(PrixError, match="has no such row"):
            marks.add("Anna", [NewMark(*wrong)])
    assert sorted(folder.iterdir()) == before and not has_marks(folder)
    marks.add("Anna", [NewMark("facts", 0, "skip")])
    assert has_marks(folder)
    marks.close()


def test_a_wrong_mark_adds_none_of_its_batch(marks: Marks) -> None:
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    for wrong, message in (
        (NewMark("facts", 5, "accept"), "has no such row of facts"),
        (NewMark("names", 0, "accept"), "expected accept, reject, skip, open of facts, labels"),
        (NewMark("facts", 0, "maybe"), "mark 'maybe' of 'facts'"),
        (NewMark("facts", 0, "reject", TALLINN), "a replacement needs a name, and `accept`"),
        (NewMark("facts", 0, "accept", Replacement(None, "", " ")), "a replacement needs a name"),
    ):
        with pytest.raises(PrixError, match=message):
            marks.add("Anna", [NewMark("facts", 1, "reject"), wrong])
    for reviewer in ("", " ", "a" * 61, "a\nb"):
        with pytest.raises(PrixError, match="expected a name of 1 to 60 characters"):
            marks.add(reviewer, [NewMark("facts", 1, "reject")])
    assert marks.version == 1 and len(marks.log()) == 1


def test_undo_is_a_row_and_nothing_is_changed_or_deleted(folder: Path, marks: Marks) -> None:
    marks.add("Anna", [NewMark("facts", 0, "accept"), NewMark("facts", 1, "reject")])
    marks.add("Bo", [NewMark("facts", 0, "reject")])
    before = dump(folder)
    undone = marks.undo("Anna")
    assert [(entry.row, entry.undone) for entry in undone.shown] == [(0, True), (1, True)]
    assert set(before) < set(dump(folder))
    assert states(marks.verdicts("facts")) == {0: "rejected"}
    assert [entry.undone for entry in marks.log()] == [False, True, True]
    assert marks.undo("Anna").count == 0
    db = sqlite3.connect(folder / "marks.db")
    for statement in ("UPDATE marks SET row = 3", "DELETE FROM marks", "DELETE FROM batches"):
        with pytest.raises(sqlite3.IntegrityError, match="marks are only appended"):
            db.execute(statement)
    db.close()


def test_undo_has_no_limit(marks: Marks) -> None:
    for number in range(40):
        marks.add("Anna", [NewMark("facts", number % 5, VERDICTS[number % 3])])
    for number in reversed(range(40)):
        assert (
            states(marks.verdicts("facts"))[number % 5]
            == ("accepted", "rejected", "skipped")[number % 3]
        )
        assert [entry.row for entry in marks.undo("Anna").shown] == [number % 5]
    assert marks.undo("Anna").count == 0 and not len(marks.verdicts("facts").rows)


def test_a_bulk_mark_of_100_000_rows_is_undone_at_once(tmp_path: Path) -> None:
    row = label_row()
    folder = make_proposals(tmp_path / "p", [fact_row(0)], [row] * 100_000)
    marks = Marks.open(folder)
    marks.add("Bo", [NewMark("labels", 5, "reject")])
    marks.add("Anna", (NewMark("labels", n, "accept") for n in range(100_000)), bulk=True)
    verdicts = marks.verdicts("labels")
    assert Counter(verdicts.state.tolist()) == {ACCEPTED: 99_999, DISPUTED: 1}
    assert marks.disagreements() == [("labels", 5)]
    assert len(marks.changed("labels", 1)) == 100_000
    assert marks.undo("Anna").count == 100_000
    assert states(marks.verdicts("labels")) == {5: "rejected"}
    assert len(marks.changed("labels", 2)) == 100_000, "of the undone batch"
    marks.close()


def test_undo_of_a_bulk_mark_holds_only_what_is_shown(tmp_path: Path) -> None:
    """A list of 100,000 entries takes 30 MB; a bulk mark may have millions."""
    folder = make_proposals(tmp_path / "p", [fact_row(0)], [label_row()] * 100_000)
    queue = Queue(folder, Marks.open(folder))
    queue.marks.add("Anna", (NewMark("labels", n, "accept") for n in range(100_000)), bulk=True)
    queue.refresh()
    tracemalloc.start()
    undone = queue.marks.undo("Anna", 3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert undone.count == 100_000 and [entry.row for entry in undone.shown] == [0, 1, 2]
    assert peak < 1_000_000
    queue.refresh()
    assert queue.num_open == 100_001
    queue.marks.close()


def test_a_clock_that_jumps_back_changes_no_order(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(datetime):
        hours = 23

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            Clock.hours -= 1
            return cls(2030, 1, 1, Clock.hours, tzinfo=tz)

    monkeypatch.setattr(module, "datetime", Clock)
    for verdict in ("accept", "reject"):
        marks.add("Anna", [NewMark("facts", 0, verdict)])
    times = [entry.time for entry in marks.log()]
    assert times == sorted(times), "the newest mark has the oldest time"
    assert states(marks.verdicts("facts")) == {0: "rejected"}
    assert [entry.verdict for entry in marks.log()] == ["reject", "accept"]
    assert [entry.verdict for entry in marks.undo("Anna").shown] == ["reject"]
    assert states(marks.verdicts("facts")) == {0: "accepted"}
    assert [entry.verdict for entry, _ in marks.batches()] == ["reject", "accept"]


def test_the_majority_decides_and_a_tie_is_disputed(marks: Marks) -> None:
    def mark(reviewer: str, verdict: str, row: int = 0) -> str:
        marks.add(reviewer, [NewMark("facts", row, verdict)])
        return states(marks.verdicts("facts")).get(row, "open")

    assert mark("Anna", "accept") == "accepted"
    assert mark("Bo", "skip") == "accepted", "a skip decides nothing"
    assert marks.disagreements() == []
    assert mark("Bo", "reject") == "disputed"
    assert mark("Cy", "reject") == "rejected"
    assert mark("Anna", "accept") == "rejected", "a second mark of a reviewer is not a second vote"
    assert marks.disagreements() == [("facts", 0)]
    assert [entry.reviewer for entry in marks.last("facts", 0)] == ["Bo", "Cy", "Anna"]
    assert mark("Bo", "open") == "disputed"
    assert [entry.reviewer for entry in marks.last("facts", 0)] == ["Cy", "Anna"]
    assert mark("Cy", "open") == "accepted" and marks.disagreements() == []
    assert mark("Anna", "skip") == "skipped" and mark("Anna", "open") == "open"
    assert marks.rows_of("Anna", "facts", "open").tolist() == [0]


def test_the_last_accepting_reviewer_chooses_the_value(marks: Marks) -> None:
    tartu = Replacement(8, "Q13972", "Tartu")
    marks.add("Anna", [NewMark("facts", 0, "accept", TALLINN)])
    marks.add("Bo", [NewMark("facts", 0, "accept", TALLINN)])
    assert marks.disagreements() == []
    marks.add("Cy", [NewMark("facts", 0, "accept", tartu)])
    assert marks.verdicts("facts").replacements == {0: tartu}
    assert marks.disagreements() == [("facts", 0)], "they accept different values"
    marks.add("Cy", [NewMark("facts", 0, "reject")])
    assert marks.verdicts("facts").replacements == {0: TALLINN}
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    assert marks.verdicts("facts").replacements == {}, "the proposed value itself"
    marks.add("Bo", [NewMark("facts", 0, "reject")])
    assert states(marks.verdicts("facts")) == {0: "rejected"}


def test_a_replaced_value_counts_as_wrong_and_a_bulk_mark_not_at_all(marks: Marks) -> None:
    marks.add("Anna", [NewMark("facts", 0, "accept"), NewMark("facts", 1, "accept", TALLINN)])
    marks.add("Anna", [NewMark("facts", 2, "reject"), NewMark("facts", 3, "skip")])
    marks.add("Anna", [NewMark("facts", 4, "accept"), NewMark("facts", 2, "reject")], bulk=True)
    rows, right = marks.verdicts("facts").judged()
    assert dict(zip(rows.tolist(), right.tolist(), strict=True)) == {0: True, 1: False}
    marks.add("Bo", [NewMark("facts", 4, "accept")])
    rows, right = marks.verdicts("facts").judged()
    assert rows.tolist() == [0, 1, 4] and right.tolist() == [True, False, True]


def test_tables_do_not_mix(tmp_path: Path) -> None:
    folder = make_proposals(tmp_path / "p", [fact_row(0)], [label_row()], [link_row()])
    marks = Marks.open(folder)
    name = Replacement(None, "", "Douglas N. Adams")
    marks.add("Anna", [NewMark("labels", 0, "accept", name), NewMark("links", 0, "reject")])
    marks.close()
    assert [states(read_verdicts(folder, table)) for table in TABLES] == [
        {},
        {0: "accepted"},
        {0: "rejected"},
    ]
    assert read_verdicts(folder, "labels").replacements == {0: name}


def test_the_log_is_read_in_pages_from_the_newest(marks: Marks) -> None:
    for number in range(5):
        marks.add("Anna", [NewMark("facts", number, "skip")])
    first = marks.log(limit=2)
    assert [entry.row for entry in first] == [4, 3]
    assert [entry.row for entry in marks.log(limit=9, before=first[-1].seq)] == [2, 1, 0]


def test_old_marks_are_imported_once(folder: Path) -> None:
    old = {"proposals": {"0": True, "2": False}, "labels": {}}
    (folder / "marks.json").write_text(json.dumps(old))
    assert has_marks(folder)
    assert states(read_verdicts(folder, "facts")) == {0: "accepted", 2: "rejected"}
    assert not (folder / "marks.db").exists(), "reading writes nothing"
    for _ in range(2):
        marks = Marks.open(folder)
        assert states(marks.verdicts("facts")) == {0: "accepted", 2: "rejected"}
        assert {entry.reviewer for entry in marks.log()} == {"sheet"} and marks.version == 1
        marks.close()
    assert not (folder / "marks.json").exists()
    # A crash between the import and the new name leaves the file; its marks are not taken again.
    marks = Marks.open(folder)
    marks.undo("sheet")
    (folder / "marks.json").write_text(json.dumps(old))
    assert states(read_verdicts(folder, "facts")) == {}
    reopened = Marks.open(folder)
    assert reopened.version == 2 and not len(reopened.verdicts("facts").rows)
    marks.close()
    reopened.close()


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '{"facts": {}}', '{"proposals": {"a": true}}', '{"proposals": {"9": true}}'],
)
def test_damaged_old_marks_are_refused(folder: Path, text: str) -> None:
    (folder / "marks.json").write_text(text)
    for read_only in (False, True):
        with pytest.raises(PrixError, match=r"marks.json cannot be read .* delete it"):
            Marks.open(folder, read_only=read_only)
    assert not (folder / "marks.db").exists()


def test_threads_that_mark_at_once_lose_nothing(folder: Path) -> None:
    marks = Marks.open(folder)

    def work(reviewer: str) -> None:
        for number in range(20):
            marks.add(reviewer, [NewMark("facts", number % 5, "accept")])
            assert len(marks.verdicts("facts").rows)

    threads = [threading.Thread(target=work, args=(f"r{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries = marks.log(limit=1000)
    assert Counter(entry.reviewer for entry in entries) == {f"r{n}": 20 for n in range(8)}
    assert sorted(entry.batch for entry in entries) == list(range(1, 161)) and marks.version == 160
    marks.close()


# A slow, obvious reading of the rule, for the property test.
Step = tuple[str, list[tuple[int, str, str | None]] | None]  # reviewer, and marks or None to undo
ROWS = 4


def slow_states(steps: list[Step]) -> dict[int, tuple[str, str | None]]:
    """Return state and replacement by row, replaying the steps."""
    batches: list[tuple[str, list[tuple[int, str, str | None]], int]] = []
    for time, (reviewer, new_marks) in enumerate(steps):
        if new_marks is not None:
            batches.append((reviewer, new_marks, time))
        else:
            own = [batch for batch in batches if batch[0] == reviewer]
            if own:
                batches.remove(own[-1])
    found = {}
    for row in range(ROWS):
        last: dict[str, tuple[str, str | None]] = {}
        for reviewer, new_marks, _ in batches:
            for number, verdict, name in new_marks:
                if number == row:
                    last.pop(reviewer, None)  # so that the last mark is the last entry
                    if verdict != "open":
                        last[reviewer] = (verdict, name)
        votes = Counter(verdict for verdict, _ in last.values())
        accepting = [name for verdict, name in last.values() if verdict == "accept"]
        if votes["accept"] > votes["reject"]:
            found[row] = ("accepted", accepting[-1])
        elif votes["accept"] < votes["reject"]:
            found[row] = ("rejected", None)
        elif votes["accept"]:
            found[row] = ("disputed", None)
        elif votes["skip"]:
            found[row] = ("skipped", None)
    return found


def one_mark() -> st.SearchStrategy[tuple[int, str, str | None]]:
    plain = st.tuples(st.integers(0, ROWS - 1), st.sampled_from(VERDICTS), st.none())
    replaced = st.tuples(st.integers(0, ROWS - 1), st.just("accept"), st.sampled_from("xyz"))
    return st.one_of(plain, replaced)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Anna", "Bo", "Cy"]),
            st.one_of(st.none(), st.lists(one_mark(), min_size=1, max_size=4)),
        ),
        max_size=12,
    )
)
def test_the_verdict_agrees_with_a_slow_reading_of_the_log(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_proposals(Path(scratch, "p"), [fact_row(number) for number in range(ROWS)])
        marks = Marks.open(folder)
        followed: dict[int, str] = {}  # by the changed rows alone, as the queue follows marks
        version = 0
        for number, (reviewer, new_marks) in enumerate(steps, start=1):
            if new_marks is None:
                marks.undo(reviewer)
            else:
                marks.add(
                    reviewer,
                    [
                        NewMark(
                            "facts", row, verdict, Replacement(None, "", name) if name else None
                        )
                        for row, verdict, name in new_marks
                    ],
                )
            rows = marks.changed("facts", version)
            version = marks.version
            followed = {row: state for row, state in followed.items() if row not in rows}
            followed |= states(marks.verdicts("facts", rows))
            expected = slow_states(steps[:number])
            verdicts = marks.verdicts("facts")
            assert states(verdicts) == {row: state for row, (state, _) in expected.items()}
            assert followed == states(verdicts)
            assert {row: new.name for row, new in verdicts.replacements.items()} == {
                row: name for row, (_, name) in expected.items() if name
            }
        marks.close()
