"""Parts that an earlier import left: checked before they are joined, else made again.

    drop_damaged_parts(work.folder, num_sources=3)

A work folder may come from anyone, with the stamp of sources that are here. So a part is used only
if its tables and its account are what a parser writes, and if they agree: no row is lost.
"""

import logging
import re
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa

from prixlm.errors import PrixError
from prixlm.files import remove_path
from prixlm.importers.format import STAGED, Account
from prixlm.importers.stage import LINE_BITS, PARTS, on_disk, read_account
from prixlm.kb.checks import check_table, query_file
from prixlm.kb.store import CODE, SPLITS, quote_texts
from prixlm.untrusted import printable

logger = logging.getLogger(__name__)

_PART = re.compile(r"([0-9]{5})-([0-9]{6})").fullmatch
_NULLABLE = {"facts": {"lang", "split"}, "relations": {"lang", "name", "rank"}}
"""Columns of staged tables that may have nulls."""
_WRONG = {
    "lang": "NOT regexp_full_match(lang, $code, 'i')",
    "split": f"split NOT IN ({quote_texts(SPLITS)})",
}
"""What no value of a column may be, as SQL."""
_PARAMETERS = {"lang": {"code": CODE}}
_ROWS = "{rows}"


def drop_damaged_parts(folder: Path, num_sources: int) -> None:
    """Delete the parts that no parser has written; an import then makes them again."""
    for part in sorted(folder.iterdir()):
        name = _PART(part.name)
        if name is None or not part.is_dir():
            continue
        source = int(name[1])
        try:
            if source >= num_sources:
                raise ValueError("of a source that there is not")
            _check_part(part, source)
        except (OSError, ValueError, PrixError, duckdb.Error, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [""])[0]
            logger.warning("%s is made again: %s", part, reason)
            shutil.rmtree(part)


def drop_other_parts(folder: Path, names: set[str]) -> None:
    """Delete what is named as a part is, but is none of this import: all of these are joined."""
    for path in folder.glob(PARTS):
        if path.name not in names:
            logger.warning("%s is no part of this import: it is deleted", path)
            remove_path(path)


def _check_part(part: Path, source: int) -> None:
    """Raise ValueError, or an error of a reader, unless a part is what a parser writes."""
    rows = 0
    for table in STAGED:
        path = part / f"{table}.parquet"
        if path.is_file():
            rows += _check_staged(path, table, source)
    account = read_account(part)
    _check_account(account, source)
    if account.read != rows + account.rejected.total() + account.filtered.total():
        raise ValueError(f"its account is of other rows than its {rows:,}")


def _check_staged(path: Path, table: str, source: int) -> int:
    """Check a staged table and return its number of rows."""
    schema = on_disk(STAGED[table])
    rows = check_table(path, schema, "", nullable=schema.names)
    nullable = _NULLABLE.get(table, set())
    nulls = " + ".join(f"count(*) - count({name})" for name in schema.names if name not in nullable)
    sources = f"min(pos) >> {LINE_BITS}, max(pos) >> {LINE_BITS}"
    [(first, last, missing)] = query_file(f"SELECT {sources}, {nulls} FROM {_ROWS}", path)
    if missing or (rows and not first == last == source):
        raise ValueError(f"{path.name} has nulls or rows of another source")
    for column in _WRONG.keys() & set(schema.names):
        distinct = f"(SELECT DISTINCT {column} FROM {_ROWS})"
        query = f"SELECT count(*) FROM {distinct} WHERE {_WRONG[column]}"
        [(wrong,)] = query_file(query, path, **_PARAMETERS.get(column, {}))
        if wrong:
            raise ValueError(f"{path.name} has a {column} that no parser writes")
    return rows


def _check_account(account: Account, source: int) -> None:
    """Raise ValueError for reasons and samples that nobody may print; counts are above 0."""
    for sample in account.samples:
        is_line = 0 <= sample.line < 1 << LINE_BITS
        if sample.source != source or not is_line or printable(sample.text) != sample.text:
            raise ValueError("its account has samples of no source")
    if any(printable(reason) != reason for reason in account.rejected | account.filtered):
        raise ValueError("its account has reasons that no parser gives")
