"""Staged parts of a work folder of others: an import believes none that a parser did not write."""

import contextlib
import functools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from prixlm import import_kb
from prixlm.errors import PrixError
from tests.conftest import TOY_FACTS, TOY_LINKS
from tests.helpers import count_tried
from tests.hostile.attacks import EVIL, HOW, at_most, budget, damage, draw, lie, put, wrong_kinds

REJECTED = "en\tonly two columns\n"


class _StoppedError(Exception):
    pass


def stop_at_join(stage: str, _done: int, _total: int) -> None:
    if stage == "join":
        raise _StoppedError


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sources, the KB `whole`, and the work of an import that was stopped."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "facts.tsv").write_text(TOY_FACTS + REJECTED, "utf-8")
    (folder / "links.tsv").write_text(TOY_LINKS, "utf-8")
    sources = [folder / "facts.tsv", folder / "links.tsv"]
    import_kb(sources, folder / "whole")
    with pytest.raises(_StoppedError):
        import_kb(sources, folder / "kb", progress=stop_at_join)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def resume(stopped: Path, tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    """Spoil the work of the stopped import, run it again, and compare it with a whole one."""
    count_tried()
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    parts = sorted((tmp_path / "kb.partial").glob("?????-??????"))
    assert [part.name for part in parts] == ["00000-000000", "00001-000000"]
    spoil(parts[0])
    with at_most(60):
        kb = import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")
    assert contents(kb.folder) == contents(tmp_path / "whole")
    shutil.rmtree(kb.folder)


def write_account(part: Path, text: str) -> None:
    (part / "account.json").write_text(text, "utf-8")


ACCOUNTS: list[object] = [[], {}, None, "x", {"samples": [1]}, {"rejected": 5}, {"read": "x"}]
ACCOUNTS += [{"read": 10**6}, {"read": -1}, {"filtered": {"duplicate": -3}}]
ACCOUNTS += [{"samples": [["malformed", 9, 1, "x"]]}, {"samples": [["x", 0, 10**18, EVIL]]}]
ACCOUNTS += [{"rejected": {EVIL: 1}}]


@pytest.mark.parametrize("values", ACCOUNTS, ids=lambda values: str(values)[:30])
def test_an_account_that_no_parser_wrote_is_made_again(
    values: object, stopped: Path, tmp_path: Path
) -> None:
    def spoil(part: Path) -> None:
        given = json.loads((part / "account.json").read_text("utf-8"))
        spoilt = given | values if isinstance(values, dict) and values else values
        write_account(part, json.dumps(spoilt))

    resume(stopped, tmp_path, spoil)


def test_any_other_kind_in_an_account_is_found(stopped: Path, tmp_path: Path) -> None:
    path = stopped / "kb.partial" / "00000-000000" / "account.json"
    values = json.loads(path.read_text("utf-8"))
    for place, wrong in wrong_kinds(values, budget(8, 300), "accounts"):
        text = json.dumps(put(values, place, wrong))
        resume(stopped, tmp_path, functools.partial(write_account, text=text))


def set_column(path: Path, column: str, values: pa.Array) -> None:
    table = pq.read_table(path)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, table.schema.field(place), values), path)


def inject(part: Path) -> None:
    """Put SQL into the code of a language, which the joins name."""
    path, target = part / "facts.parquet", part.parent.parent / "written"
    code = f"en' THEN 0 END AS SMALLINT))); COPY (SELECT 1) TO '{target}'; --"
    for table in ("facts", "names"):
        path = part / f"{table}.parquet"
        if path.is_file():
            rows = pq.read_metadata(path).num_rows
            set_column(path, "lang", pa.array([code] * rows))


def test_a_code_of_a_language_that_is_sql_is_not_run(stopped: Path, tmp_path: Path) -> None:
    resume(stopped, tmp_path, inject)
    assert not (tmp_path / "written").exists()


def move_rows(part: Path) -> None:
    """Say that the rows are of a source that there is not."""
    path = part / "facts.parquet"
    positions = pq.read_table(path)["pos"]
    set_column(path, "pos", pc.add(positions, 9 << 40).combine_chunks())


def test_rows_of_a_source_that_there_is_not_are_made_again(stopped: Path, tmp_path: Path) -> None:
    resume(stopped, tmp_path, move_rows)


@pytest.mark.parametrize("name", ["00000-000001", "00007-000000", "abcde-fghijk"])
def test_parts_that_are_none_of_the_import_are_not_joined(
    name: str, stopped: Path, tmp_path: Path
) -> None:
    resume(stopped, tmp_path, lambda part: shutil.copytree(part, part.with_name(name)))


def test_columns_that_lie_and_damaged_files_are_no_traceback(stopped: Path, tmp_path: Path) -> None:
    """Texts that were changed in place look as texts do: then the KB has them."""
    generator = random.Random("26 parts")
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    path = Path("00000-000000", "facts.parquet")
    every = [(column, how) for column in pq.read_schema(_work(stopped) / path).names for how in HOW]
    asked: list[Callable[[Path], object]] = [
        functools.partial(lie, column=column, how=how)
        for column, how in draw(every, budget(10, 200), "staged")
    ]
    asked += [functools.partial(damage, generator=generator)] * budget(4, 200)
    for spoil in asked:
        count_tried()
        shutil.rmtree(_work(tmp_path), ignore_errors=True)
        shutil.copytree(_work(stopped), _work(tmp_path))
        spoil(_work(tmp_path) / path)
        with at_most(60), contextlib.suppress(PrixError):
            kb = import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")
            shutil.rmtree(kb.folder)


def _work(folder: Path) -> Path:
    return folder / "kb.partial"
