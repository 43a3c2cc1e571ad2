"""Parts that an earlier import left: used if a parser wrote them, else deleted."""

import json
from pathlib import Path

import pytest

from prixlm.importers.format import Chunk
from prixlm.importers.plan import plan_import
from prixlm.importers.resumed import drop_damaged_parts, drop_other_parts
from prixlm.importers.stage import PartMaker

ROWS = "lang\tsubject\trelation\tobject\nen\ta\tr\tb\nxx yy\ta\tr\tb\n"


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """The part of a source with a fact and a rejected row."""
    path = tmp_path / "facts.tsv"
    path.write_text(ROWS, "utf-8")
    plan = plan_import([path])
    folder = tmp_path / "work" / "00000-000000"
    folder.parent.mkdir()
    chunks: list[Chunk] = list(plan.chunks(0))
    PartMaker(plan.chunks, plan.parser, [path])((0, 0, len(chunks), None), folder)
    return folder


def test_a_part_that_a_parser_wrote_stays(part: Path) -> None:
    drop_damaged_parts(part.parent, 1)
    assert part.is_dir()


@pytest.mark.parametrize("values", [[], {"read": 0}, {"rejected": {"x": 5}}, {"samples": [[1]]}])
def test_a_part_with_another_account_is_deleted(values: object, part: Path) -> None:
    path = part / "account.json"
    account = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(account | values if isinstance(values, dict) else values), "utf-8")
    drop_damaged_parts(part.parent, 1)
    assert not part.exists()


def test_a_part_of_a_source_that_there_is_not_is_deleted(part: Path) -> None:
    moved = part.rename(part.with_name("00003-000000"))
    drop_damaged_parts(part.parent, 3)
    assert not moved.exists()


def test_what_is_named_as_a_part_and_is_none_is_deleted(part: Path) -> None:
    for name in ("00000-000001", "abcde-fghijk", "kb"):
        part.with_name(name).mkdir()
    drop_other_parts(part.parent, {part.name})
    assert sorted(path.name for path in part.parent.iterdir()) == [part.name, "kb"]
