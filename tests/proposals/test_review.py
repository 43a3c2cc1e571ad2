"""A review in a spreadsheet and back, over the same marks as the page."""

import csv
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prixlm import ExportConfig, PrixError, export
from prixlm.proposals.marks import ACCEPTED, Marks, NewMark, Replacement, read_verdicts
from prixlm.proposals.review import read_review, write_review
from tests.helpers import fact_row, label_row, link_row, make_proposals


def read_marks(folder: Path, table: str = "facts") -> dict[int, bool]:
    """Return whether a row is accepted, by its number."""
    verdicts = read_verdicts(folder, table)
    return dict(zip(verdicts.rows.tolist(), (verdicts.state == ACCEPTED).tolist(), strict=True))


def mark(path: Path, marks: dict[int, str], *, quoted: bool = False) -> None:
    """Fill in marks by line as a person does in a spreadsheet, which may quote all cells."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    for number, row in enumerate(rows[1:]):
        row[0] = marks.get(number, row[0])
    with path.open("w", encoding="utf-8", newline="") as file:
        if quoted:
            csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL).writerows(rows)
        else:
            plain = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL, lineterminator="\n")
            plain.writerows(rows)


@pytest.mark.parametrize("quoted", [False, True])
def test_marks_are_read_back_and_decide_what_is_exported(
    folder: Path, tmp_path: Path, quoted: bool
) -> None:
    path = tmp_path / "review.tsv"
    assert write_review(folder, path) == 5
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) == 6, "the line end in a name does not break the table"
    mark(path, {0: "accept", 2: "Reject"}, quoted=quoted)
    counts = read_review(folder, path)
    assert (counts.accepted, counts.rejected, counts.open) == (1, 1, 3)
    assert read_marks(folder) == {0: True, 2: False}
    written = export(folder, tmp_path / "a.tsv", ExportConfig(format="tsv", accepted=True))
    assert written["written"] == 1 and written["not accepted"] == 4
    written = export(folder, tmp_path / "b.tsv", ExportConfig(format="tsv"))
    assert written["written"] == 4 and written["not accepted"] == 1
    # An accepted proposal is exported whatever its confidence.
    confident = ExportConfig(format="tsv", min_confidence=0.99)
    assert export(folder, tmp_path / "c.tsv", confident)["written"] == 1


def test_a_mark_is_taken_back_with_open_and_shown_in_the_next_sheet(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "review.tsv"
    write_review(folder, path)
    mark(path, {0: "accept"})
    assert read_review(folder, path).accepted == 1
    mark(path, {0: "open"})
    assert read_review(folder, path).accepted == 0
    mark(path, {0: "accept"})
    read_review(folder, path)
    write_review(folder, tmp_path / "again.tsv")
    assert (tmp_path / "again.tsv").read_text("utf-8").splitlines()[1].startswith("accept\t0\t")


def test_labels_and_links_are_reviewed_too(tmp_path: Path) -> None:
    labels = [label_row(concept=n, key=f"Q{n}", name=f"n {n}") for n in range(3)]
    folder = make_proposals(tmp_path / "p", [fact_row(0)], labels, [link_row()])
    assert write_review(folder, tmp_path / "r.tsv") == 5
    mark(tmp_path / "r.tsv", {2: "reject", 3: "accept", 4: "accept"})
    counts = read_review(folder, tmp_path / "r.tsv")
    assert (counts.accepted, counts.rejected, counts.open) == (2, 1, 2)
    assert read_marks(folder, "labels") == {1: False, 2: True}
    assert read_marks(folder, "links") == {0: True} and read_marks(folder) == {}
    written = export(folder, tmp_path / "a.nt", ExportConfig(format="nt"))
    assert (written["written"], written["labels"], written["links"]) == (1, 2, 1)
    written = export(folder, tmp_path / "b.nt", ExportConfig(format="nt", accepted=True))
    assert (written["written"], written["labels"], written["links"]) == (0, 1, 1)
    (tmp_path / "s.tsv").write_text("mark\tid\naccept\tname 7\n", "utf-8")
    with pytest.raises(PrixError, match="no proposal 'name 7'"):
        read_review(folder, tmp_path / "s.tsv")


def test_a_sheet_may_have_the_first_proposals_of_each_table_only(tmp_path: Path) -> None:
    rows = [fact_row(number) for number in range(5)]
    folder = make_proposals(tmp_path / "p", rows, [label_row(), label_row()])
    assert write_review(folder, tmp_path / "r.tsv", most=1) == 2
    with pytest.raises(PrixError, match="--most 0: expected 1 or more"):
        write_review(folder, tmp_path / "s.tsv", most=0)


def test_marks_correct_what_is_exported(tmp_path: Path) -> None:
    """Three of four proposals at 0.9 are rejected, so the open ones are less certain."""
    rows = [fact_row(number, confidence=0.9) for number in range(80)]
    folder = make_proposals(tmp_path / "p", rows)
    write_review(folder, tmp_path / "r.tsv")
    mark(tmp_path / "r.tsv", {n: "accept" if n % 4 == 0 else "reject" for n in range(60)})
    read_review(folder, tmp_path / "r.tsv")
    export(folder, tmp_path / "x.parquet", ExportConfig(format="parquet"))
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.num_rows == 15 + 20
    assert 0.2 < table["confidence"].to_numpy().max() < 0.5


def test_a_formula_in_a_name_is_text(tmp_path: Path) -> None:
    folder = make_proposals(tmp_path / "p", [fact_row(0, subject_name="=HYPERLINK(1)")])
    write_review(folder, tmp_path / "r.tsv")
    assert "\t'=HYPERLINK(1)\t" in (tmp_path / "r.tsv").read_text("utf-8")
    mark(tmp_path / "r.tsv", {0: "accept"})
    assert read_review(folder, tmp_path / "r.tsv").accepted == 1


def test_a_name_that_a_spreadsheet_changed_still_belongs_to_its_proposal(tmp_path: Path) -> None:
    rows = [fact_row(0, subject_name="007"), fact_row(1, object_name="3/4")]
    folder = make_proposals(tmp_path / "p", rows)
    write_review(folder, tmp_path / "r.tsv")
    mark(tmp_path / "r.tsv", {0: "accept", 1: "reject"})
    text = (tmp_path / "r.tsv").read_text("utf-8")
    (tmp_path / "r.tsv").write_text(text.replace("007", "7").replace("3/4", "2026-03-04"), "utf-8")
    counts = read_review(folder, tmp_path / "r.tsv")
    assert (counts.accepted, counts.rejected) == (1, 1)


def test_a_wrong_line_is_named_and_no_mark_is_taken(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "review.tsv"
    write_review(folder, path)
    good = path.read_text("utf-8")
    mark(path, {0: "accept", 1: "maybe"})
    with pytest.raises(PrixError, match="line 3: mark 'maybe'"):
        read_review(folder, path)
    without_check = "\n".join(line.rsplit("\t", 1)[0] for line in good.splitlines())
    line = good.splitlines()[1]
    twice = f"{good}accept{line}\nreject{line}\n"
    for text, message in (
        (good.replace("\t3\tfi", "\t33\tfi"), "no proposal '33'"),
        (good.replace("\t3\tfi", "\t²\tfi"), "no proposal '²'"),
        (good.replace("\t3\tfi", "\t4\tfi"), "of other proposals"),
        (without_check.replace("pääkaupunki", "naapuri"), "of other proposals"),
        (twice, "line 8: proposal 0 has two different marks"),
        ("a\tb\n1\t2\n", "no column 'mark'"),
    ):
        path.write_text(text, "utf-8")
        with pytest.raises(PrixError, match=message):
            read_review(folder, path)
    assert read_marks(folder) == {}


def test_a_damaged_folder_is_neither_written_as_a_sheet_nor_marked(
    folder: Path, tmp_path: Path
) -> None:
    whole = (folder / "proposals.parquet").read_bytes()
    (folder / "proposals.parquet").write_bytes(whole[:-20])
    for work in (write_review, read_review):
        with pytest.raises(PrixError, match=r"cannot be read .* Run `prixlm enrich` again"):
            work(folder, tmp_path / "r.tsv")
    assert [path.name for path in tmp_path.iterdir()] == ["proposals"]


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_a_sheet_and_the_page_share_their_marks(folder: Path, tmp_path: Path) -> None:
    marks = Marks.open(folder)
    instead = Replacement(7, "Q1770", "Tallinn")
    marks.add("Anna", [NewMark("facts", 0, "accept", instead), NewMark("facts", 1, "skip")])
    marks.add("Anna", [NewMark("facts", 2, "reject"), NewMark("facts", 3, "reject")])
    marks.add("Bo", [NewMark("facts", 3, "accept")])
    write_review(folder, tmp_path / "r.tsv")
    shown = [(row["mark"], row["was"], row["instead"]) for row in cells(tmp_path / "r.tsv")]
    assert shown == [
        ("accept", "accept", "Tallinn"),
        ("skip", "skip", ""),
        ("reject", "reject", ""),
        ("", "disputed", ""),
        ("", "", ""),
    ]
    mark(tmp_path / "r.tsv", {3: "accept", 4: "reject"})
    counts = read_review(folder, tmp_path / "r.tsv", reviewer="Cy")
    assert (counts.accepted, counts.rejected, counts.open) == (2, 2, 1)
    assert [(entry.reviewer, entry.row, entry.verdict) for entry in marks.log(limit=2)] == [
        ("Cy", 4, "reject"),
        ("Cy", 3, "accept"),
    ]
    assert read_verdicts(folder, "facts").replacements == {0: instead}
    assert [entry.row for entry in marks.undo("Cy").shown] == [3, 4], "a sheet is one batch"
    marks.close()


def test_a_sheet_that_is_read_back_unchanged_appends_nothing(folder: Path, tmp_path: Path) -> None:
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 0, "accept"), NewMark("facts", 1, "skip")])
    write_review(folder, tmp_path / "r.tsv")
    read_review(folder, tmp_path / "r.tsv")
    assert marks.version == 1
    # Nor if others have marked since: the sheet is not their opponent.
    marks.add("Anna", [NewMark("facts", 0, "reject"), NewMark("facts", 3, "accept")])
    read_review(folder, tmp_path / "r.tsv")
    assert marks.version == 2 and read_marks(folder)[0] is False
    # Nor a second time.
    mark(tmp_path / "r.tsv", {4: "reject"})
    for _ in range(2):
        read_review(folder, tmp_path / "r.tsv")
        assert marks.version == 3
    marks.close()


def test_a_sheet_of_an_older_version_is_read(folder: Path, tmp_path: Path) -> None:
    """It has no column that says what it showed."""
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    write_review(folder, tmp_path / "r.tsv")
    text = (tmp_path / "r.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in text.splitlines()]
    older = ["\t".join([*row[:-3], row[-1]]) for row in rows]
    (tmp_path / "r.tsv").write_text("\n".join(older) + "\n", "utf-8")
    read_review(folder, tmp_path / "r.tsv")
    assert marks.version == 1
    mark(tmp_path / "r.tsv", {0: "reject"})
    assert read_review(folder, tmp_path / "r.tsv").open == 5
    assert read_verdicts(folder, "facts").rows.tolist() == [0], "disputed"
    marks.close()


def test_open_takes_back_the_reviewers_own_mark_only(folder: Path, tmp_path: Path) -> None:
    marks = Marks.open(folder)
    marks.add("Anna", [NewMark("facts", 0, "accept")])
    write_review(folder, tmp_path / "r.tsv")
    mark(tmp_path / "r.tsv", {0: "open"})
    assert read_review(folder, tmp_path / "r.tsv", reviewer="Bo").accepted == 1
    assert read_review(folder, tmp_path / "r.tsv", reviewer="Anna").accepted == 0
    marks.close()


def test_a_reviewer_without_a_name_is_refused(folder: Path, tmp_path: Path) -> None:
    write_review(folder, tmp_path / "r.tsv")
    mark(tmp_path / "r.tsv", {0: "accept"})
    with pytest.raises(PrixError, match="expected a name of 1 to 60 characters"):
        read_review(folder, tmp_path / "r.tsv", reviewer=" ")
    assert read_marks(folder) == {}
