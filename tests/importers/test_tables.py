"""Tables of names: TSV, CSV and Parquet, and the authors' folder; rows that are malformed."""

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.importers.format import Chunk, Source
from prixlm.importers.tables import TABLES, _table_chunks
from tests.importers.helpers import (
    bytes_of,
    concept_of,
    import_text,
    names_of,
    rejects_of,
    triples_of,
)

FACTS = [
    ("en", "Finland", "capital", "Helsinki", "train"),
    ("en", "Helsinki, Finland", "is in", "Finland", "valid"),
    ("en", 'Dwayne "The Rock" Johnson', "born in", "Hayward", "test"),
    ("fi", "Suomi", "pääkaupunki", "Helsinki", "train"),
    ("ja", "フィンランド", "首都", "ヘルシンキ", "train"),
    ("te", "ఫిన్లాండ్", "రాజధాని", "హెల్సింకి", "train"),
    ("fi", "NA", "null", "None", "train"),  # names, though other readers take them for nothing
]
COLUMNS = ("lang", "subject", "relation", "object", "split")


def write_table(path: Path, columns: tuple[str, ...] = COLUMNS, header: bool = True) -> Path:
    """`FACTS` as a table in the format of the suffix, with these columns in this order."""
    places = [COLUMNS.index(column) for column in columns]
    rows = [[row[place] for place in places] for row in FACTS]
    if path.suffix == ".tsv":
        lines = ["\t".join(row) for row in ([list(columns)] if header else []) + rows]
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path
    table = pa.table([list(column) for column in zip(*rows, strict=True)], names=list(columns))
    if path.suffix == ".csv":
        pacsv.write_csv(table, path, pacsv.WriteOptions(include_header=header))
    else:
        pq.write_table(table, path)
    return path


@pytest.fixture(scope="module")
def table_kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    folder = tmp_path_factory.mktemp("table")
    return import_kb([write_table(folder / "facts.tsv")], folder / "kb")


def test_a_table_of_facts_gives_them_all(table_kb: KB) -> None:
    assert triples_of(table_kb, "split") == set(FACTS)
    assert table_kb.manifest.account["rejected"] == {}


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".parquet"])
def test_the_same_facts_in_another_table_give_the_same_kb(
    suffix: str, header: bool, table_kb: KB, tmp_path: Path
) -> None:
    path = write_table(tmp_path / f"my facts{suffix}", header=header)
    kb = import_kb([path], tmp_path / "kb")
    assert bytes_of(kb) == bytes_of(table_kb)
    assert kb.manifest.account == table_kb.manifest.account


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".parquet"])
def test_columns_may_come_in_any_order_under_a_header(
    suffix: str, table_kb: KB, tmp_path: Path
) -> None:
    columns = ("object", "split", "subject", "lang", "relation")
    path = write_table(tmp_path / f"facts{suffix}", columns)
    assert bytes_of(import_kb([path], tmp_path / "kb")) == bytes_of(table_kb)


@pytest.mark.parametrize("end", ["\r\n", "\n\n", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks_change_nothing(
    end: str, mark: str, table_kb: KB, tmp_path: Path
) -> None:
    text = write_table(tmp_path / "facts.tsv").read_text("utf-8")
    kb = import_text(tmp_path, "other.tsv", mark + text.replace("\n", end))
    assert bytes_of(kb) == bytes_of(table_kb)
    assert kb.manifest.account["imported"] == table_kb.manifest.account["imported"]


def test_a_column_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    text = "lang\tsubject\trelation\tobject\tnote\nen\ta\tr\tb\t\nen\tb\tr\tc\tsure\n"
    kb = import_text(tmp_path, "facts.tsv", text)
    assert triples_of(kb) == {("en", "a", "r", "b"), ("en", "b", "r", "c")}


@pytest.mark.parametrize(
    "header",
    ["lang\tsubject\trelation\tobject\tlang", "lang\rsubject\trelation\tobject\tnote", '"lang'],
)
def test_an_odd_header_does_not_crash(header: str, tmp_path: Path) -> None:
    try:
        kb = import_text(tmp_path, "facts.tsv", f"{header}\nen\ta\tr\tb\ten\n")
    except PrixError:
        return
    assert kb.num_entities


def test_a_truncated_parquet_file_is_a_clear_error(tmp_path: Path) -> None:
    data = write_table(tmp_path / "facts.parquet").read_bytes()
    with pytest.raises(PrixError, match=r"cut\.parquet"):
        import_text(tmp_path, "cut.parquet", data[:-100])


def test_a_parquet_column_that_is_not_text_does_not_crash(tmp_path: Path) -> None:
    columns = {
        "lang": ["en"] * 2,
        "subject": [b"a\xff", b"a"],
        "relation": [1, 2],
        "object": ["b"] * 2,
    }
    pq.write_table(pa.table(columns), tmp_path / "facts.parquet")
    kb = import_kb([tmp_path / "facts.parquet"], tmp_path / "kb")
    assert ("en", "a", "2", "b") in triples_of(kb)


BAD_ROWS = {
    "3 columns, expected 4": b"en\tFinland\tcapital",
    "5 columns, expected 4": b"en\tFinland\tcapital\tHelsinki\tnow",
    "unknown language code": b"zz\tFinland\tcapital\tHelsinki",
    "empty name": b"en\tFinland\t \tHelsinki",
    "invalid UTF-8": b"en\tFinland\tcapital\tHels\xffnki",
}


@pytest.mark.parametrize("name", ["facts.tsv", "facts.csv"])
@pytest.mark.parametrize("reason", BAD_ROWS)
def test_a_bad_row_in_a_table_is_counted_and_shown_with_its_number(
    reason: str, name: str, tmp_path: Path
) -> None:
    rows = [b"lang\tsubject\trelation\tobject", b"en\ta\tr\tb", BAD_ROWS[reason], b"en\tb\tr\tc"]
    text = b"\n".join(rows) + b"\n"
    kb = import_text(tmp_path, name, text if name == "facts.tsv" else text.replace(b"\t", b","))
    assert kb.manifest.account["rejected"] == {reason: 1}
    assert rejects_of(kb) == [(reason, name, 3)]
    assert triples_of(kb) == {("en", "a", "r", "b"), ("en", "b", "r", "c")}


def test_a_bad_row_that_is_not_text_either_is_one_bad_row(tmp_path: Path) -> None:
    kb = import_text(tmp_path, "facts.tsv", b"en\ta\tr\tb\nen\t\xff\nen\tb\tr\tc\n")
    assert sum(kb.manifest.account["rejected"].values()) == 1
    assert [line for _, _, line in rejects_of(kb)] == [2]


def test_blank_lines_in_a_table_are_not_bad_rows(tmp_path: Path) -> None:
    kb = import_text(tmp_path, "facts.tsv", "en\ta\tr\tb\n\nen\tb\tr\tc\n\n", strict=True)
    assert kb.manifest.account["filtered"] == {"comment or blank line": 2}


def test_a_carriage_return_inside_a_row_ends_no_line(tmp_path: Path) -> None:
    kb = import_text(tmp_path, "facts.tsv", "en\ta\rx\tr\tb\nen\tb\tr\n")
    assert kb.manifest.account["read"] == 2
    assert rejects_of(kb) == [("3 columns, expected 4", "facts.tsv", 2)]


def test_a_quote_that_is_not_closed_costs_its_own_line_only(tmp_path: Path) -> None:
    rows = [f"en,s{number},r,o{number}" for number in range(50)]
    rows[7] = 'en,"s7,r,o7'
    rows[20] = 'en,"New, York",r,o20'
    kb = import_text(tmp_path, "facts.csv", "lang,subject,relation,object\n" + "\n".join(rows))
    assert len(triples_of(kb)) == 49
    assert ("en", "New, York", "r", "o20") in triples_of(kb)
    assert kb.manifest.account["rejected"] == {"1 columns, expected 4": 1}
    assert "\t9\t" in (kb.folder / "rejects.tsv").read_text("utf-8")


def test_a_header_with_other_words_is_refused_not_guessed(tmp_path: Path) -> None:
    text = "language,object,relation,subject\nen,Helsinki,capital,Finland\n"
    with pytest.raises(PrixError, match="expected lang, subject, relation, object for facts"):
        import_text(tmp_path, "facts.csv", text)


def test_bad_links_between_names_are_counted(tmp_path: Path) -> None:
    text = "lang_a\tname_a\tlang_b\tname_b\nen\tFinland\tfi\tSuomi\nen\tFinland\tzz\tX\nen\tx\tfi\n"
    kb = import_text(tmp_path, "links.tsv", text)
    assert concept_of(kb, "Suomi", "fi") == {("en", "Finland"), ("fi", "Suomi")}
    expected = {
        ("unknown language code", "links.tsv", 3),
        ("3 columns, expected 4", "links.tsv", 4),
    }
    assert set(rejects_of(kb)) == expected


def test_a_chunk_after_the_first_has_no_header(tmp_path: Path) -> None:
    path = write_table(tmp_path / "facts.tsv")
    parser = TABLES.parser(TABLES.sources([path]), 0, None)
    header = b"lang\tsubject\trelation\tobject\tsplit\n"
    assert parser(Chunk(0, 1, header)).read == 0
    assert dict(parser(Chunk(0, 9, header)).rejected) == {"unknown language code": 1}


AUTHORS_FILES = {
    "triples": "Finland\tcapital\tHelsinki\ten\nSuomi\tpääkaupunki\tHelsinki\tfi\nbad row\n",
    "filtered": "Finland\tcapital\tHelsinki\ten\nFinland\tcurrency\tEuro\ten\n"
    "Suomi\tvaluutta\tEuro\tfi\nSuomi\tvaluutta\tEuro\txx\n",
    "entities": "Finland\ten\nHelsinki\ten\nEuro\ten\n"
    "Suomi\tfi\nHelsinki\tfi\nEuro\tfi\nTurku\tfi\n",
}


def write_authors(folder: Path, packed: bool = False) -> Path:
    folder.mkdir()
    for name, text in AUTHORS_FILES.items():
        if packed:
            with zipfile.ZipFile(folder / f"{name}.txt.zip", "w") as archive:
                archive.writestr(f"{name}.txt", text)
        else:
            (folder / f"{name}.txt").write_text(text, "utf-8")
    return folder


def test_authors_files_are_test_and_known_facts(tmp_path: Path) -> None:
    kb = import_kb([write_authors(tmp_path / "lp")], tmp_path / "kb")
    assert kb.manifest.options["format"] == "authors"
    assert triples_of(kb, "split") == {
        ("en", "Finland", "capital", "Helsinki", "test"),
        ("fi", "Suomi", "pääkaupunki", "Helsinki", "test"),
        ("en", "Finland", "currency", "Euro", "known"),
        ("fi", "Suomi", "valuutta", "Euro", "known"),
    }
    assert names_of(kb, "fi") == ["Euro", "Helsinki", "Suomi", "Turku"]
    assert kb.manifest.account == {
        "read": 3 + 4 + 7,
        "imported": {"facts": 4, "names": 7},
        "rejected": {"1 columns, expected 4": 1, "unknown language code": 1},
        "filtered": {"stands in an earlier split too": 1},
    }
    lines = [(source, line) for _, source, line in rejects_of(kb)]
    assert lines == [("lp/triples.txt", 3), ("lp/filtered.txt", 4)]


def test_authors_files_may_be_zipped_as_they_are_published(tmp_path: Path) -> None:
    plain = import_kb([write_authors(tmp_path / "plain")], tmp_path / "a")
    zipped = import_kb([write_authors(tmp_path / "zipped", packed=True)], tmp_path / "b")
    assert bytes_of(zipped) == bytes_of(plain)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_a_long_text_in_parquet_is_cut_before_it_expands(kind: pa.DataType, tmp_path: Path) -> None:
    """A dictionary of one megabyte stands for a gigabyte of text."""
    words = pa.array(["a" * (1 << 20), "Good"], pa.string()).cast(kind)
    subjects = pa.DictionaryArray.from_arrays(pa.array([0] * 1000 + [1, None], pa.int32()), words)
    table = pa.table(
        {
            "lang": ["en"] * 1002,
            "subject": subjects.cast(kind) if kind == pa.large_string() else subjects,
            "relation": ["r"] * 1002,
            "object": list(range(1002)),
        }
    )
    pq.write_table(table, tmp_path / "facts.parquet")
    batches = [chunk.data for chunk in _table_chunks(Source(tmp_path / "facts.parquet", "x"), 0)]
    assert sum(batch.nbytes for batch in batches) < 20 << 20
    kb = import_kb([tmp_path / "facts.parquet"], tmp_path / "kb")
    assert kb.manifest.account["rejected"] == {"name or key too long": 1000, "empty name": 1}
    assert triples_of(kb) == {("en", "Good", "r", "1000")}
