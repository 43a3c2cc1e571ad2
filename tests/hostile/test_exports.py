"""What is written for other tools, read back by parsers that are not ours."""

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pandas
import pyarrow as pa
import pyoxigraph as ox
import pytest
import rdflib
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from prixlm import ExportConfig, PrixError, export, import_kb
from prixlm.files import write_rows
from prixlm.proposals.export import to_iri
from prixlm.proposals.review import write_review
from prixlm.reports.tables import plain
from prixlm.untrusted import unguard_formula
from tests.helpers import count_tried, fact_row, label_row, link_row, make_proposals
from tests.hostile.attacks import NAMES, SEED, budget

PIECES = st.sampled_from(
    [
        *["|", "||", "\t", "\n", "\r", '"', "'", "\\", "/*", "*/", "=", "+", "-", "@", "<", ">"],
        *[" ", "%", "{", "}", "^", "`", "\u2028", "\u202e", "\x00", "\x1b[31m", "\x85", "Q1", ","],
        *["http://", "urn:", "é", "東京", "క", "＝", "“", "&amp;", "]]>", "_:b", "@en", "^^<x>"],
    ]
)
HOSTILE = st.sampled_from(NAMES) | st.lists(PIECES, max_size=8).map("".join)
CODES = ["et", "zh-min-nan", "be-tarask"]
LANG = (
    st.sampled_from(CODES)
    | HOSTILE
    | st.sampled_from(CODES).flatmap(lambda code: HOSTILE.map(lambda text: code + text))
)
IS_CODE = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*").fullmatch
NAME = HOSTILE.filter(lambda text: bool(text.strip()))
FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
IRI = re.compile(r'[^\x00-\x20<>"{}|^`\\]+').fullmatch

T = TypeVar("T", bound=Callable[..., object])


def few(test: T, number: int = SEED) -> T:
    """Draw the same examples for the same seed; a folder is written for each, so they are few."""
    how = settings(
        max_examples=budget(12, 400),
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    return seed(number)(how(test))


def test_another_seed_draws_other_examples() -> None:
    drawn: dict[int, list[list[str]]] = {}

    def record(number: int) -> None:
        @given(names=st.lists(NAME, min_size=1, max_size=4))
        def draw_names(names: list[str]) -> None:
            drawn[number].append(names)

        drawn[number] = []
        few(draw_names, number)()

    record(SEED)
    first = drawn[SEED]
    record(SEED)
    record(SEED + 1)
    assert drawn[SEED] == first != drawn[SEED + 1]


def on_one_line(text: str) -> str:
    return " ".join(text.split())


def written(tmp_path: Path, names: list[str], config: ExportConfig, key: str = "name") -> str:
    """Export proposals with these names and return the file's text."""
    count_tried()
    folder = tmp_path / "p"
    shutil.rmtree(folder, ignore_errors=True)
    keys = {"name": lambda n, i: n, "item": lambda n, i: f"Q{i + 1}"}[key]
    facts = [
        fact_row(
            i,
            subject_name=name,
            subject_key=keys(name, i),
            relation_name=name,
            relation_key="P31" if key == "item" else name,
            object_name=name,
            object_key=keys(name, i + 100),
            confidence=0.5,
            why="usual",
            origin=[],
            runner_up=name,
        )
        for i, name in enumerate(names)
    ]
    labels = [label_row(name=n, key=keys(n, i + 200)) for i, n in enumerate(names)]
    links = [link_row(key=n, name=n, other_key=n, other_name=n) for n in names]
    make_proposals(folder, facts, labels, links if key == "name" else ())
    to = tmp_path / "out"
    to.unlink(missing_ok=True)
    export(folder, to, config)
    return to.read_bytes().decode("utf-8")


@few
@given(names=st.lists(NAME, min_size=1, max_size=4))
@pytest.mark.parametrize("format", ["nt", "nq"])
@pytest.mark.filterwarnings("ignore:Dataset.default_context")  # rdflib, of its own use
def test_rdf_is_read_by_rdflib_and_pyoxigraph(
    format: str, names: list[str], tmp_path: Path
) -> None:
    text = written(tmp_path, names, ExportConfig(format=format))
    syntax = ox.RdfFormat.N_TRIPLES if format == "nt" else ox.RdfFormat.N_QUADS
    quads = list(ox.parse(text.encode(), format=syntax))  # strict: every IRI is checked
    graph: Any = rdflib.Graph() if format == "nt" else rdflib.Dataset()
    graph.parse(data=text, format={"nt": "nt", "nq": "nquads"}[format])
    found = graph.objects(None, rdflib.RDFS.label)
    if format == "nq":
        found = (quad[2] for quad in graph.quads((None, rdflib.RDFS.label, None, None)))
    assert {str(label) for label in found} == set(names), "rdflib reads the names as they are"
    for quad in quads:
        for node in (quad.subject, quad.predicate, quad.object):
            assert not isinstance(node, ox.NamedNode) or IRI(node.value), node
    facts = {(q.subject.value, q.predicate.value) for q in quads if "label" not in str(q.predicate)}
    assert len(facts) >= len(set(names)), "different keys stay different IRIs"


@few
@given(names=st.lists(NAME, min_size=1, max_size=4))
def test_a_tsv_has_its_rows_and_columns_and_no_formula(names: list[str], tmp_path: Path) -> None:
    text = written(tmp_path, names, ExportConfig(format="tsv"))
    plain = list(csv.reader(io.StringIO(text, newline=""), "excel-tab", quoting=csv.QUOTE_NONE))
    quoted = list(csv.reader(io.StringIO(text, newline=""), "excel-tab"))
    table = pandas.read_csv(
        io.StringIO(text, newline=""), sep="\t", dtype=str, keep_default_na=False, encoding="utf-8"
    )
    assert plain == quoted == [list(table.columns), *table.to_numpy().tolist()]
    assert len(table) == len(names) and list(table.columns)[:4] == [
        *("lang", "subject", "relation", "object")
    ]
    for row, name in zip(plain[1:], names, strict=True):
        assert not any(cell.startswith(FORMULA) for cell in row)
        assert [unguard_formula(cell) for cell in row[1:4]] == [on_one_line(name)] * 3


def test_names_that_look_like_formulas_come_back_from_a_tsv(tmp_path: Path) -> None:
    names = ["=1+1", "'=1", "''@x", '"q"', "-5", "plain", "it's"]
    written(tmp_path, names, ExportConfig(format="tsv"))
    (tmp_path / "out").rename(tmp_path / "facts.tsv")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    found = kb.query("SELECT name FROM entities").fetchall()
    assert {name for (name,) in found} == set(names)
    assert set(kb.relation_keys()) == set(names)


def test_an_apostrophe_in_a_table_of_the_user_stays(tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("lang\tsubject\trelation\tobject\nen\t'=a\tr\t'-b\n")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    assert {name for (name,) in kb.query("SELECT name FROM entities").fetchall()} == {"'=a", "'-b"}


@few
@given(names=st.lists(NAME, min_size=1, max_size=5))
@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_answers_have_no_formula_and_their_numbers_stay(
    suffix: str, names: list[str], tmp_path: Path
) -> None:
    schema = pa.schema({"name": pa.string(), "score": pa.float64()})
    table = pa.table({"name": names, "score": [-1.5] * len(names)}, schema=schema)
    out = tmp_path / f"answers{suffix}"
    write_rows([table], schema, out)
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, "excel-tab" if suffix == ".tsv" else "excel"))
    assert rows[0] == ["name", "score"] and [row[1] for row in rows[1:]] == ["-1.5"] * len(names)
    shown = [unguard_formula(row[0]) for row in rows[1:]]
    assert not any(row[0].startswith(FORMULA) for row in rows[1:])
    assert shown == ([on_one_line(name) for name in names] if suffix == ".tsv" else names)


@pytest.mark.parametrize("space", ["\n", "\r\n", " \n ", "\v", "\u2028", "\u00a0", "'\n"])
def test_a_formula_after_a_line_end_is_guarded_and_comes_back(space: str, tmp_path: Path) -> None:
    """Some spreadsheets drop the space before `=`."""
    names = [f"{space}{begin}1+1" for begin in FORMULA]
    table = pa.table({"name": names})
    write_rows([table], table.schema, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        cells = [cell for [cell] in csv.reader(file)][1:]
    assert not any(cell.strip().startswith(FORMULA) for cell in cells)
    assert all(cell.startswith("'") for cell in cells)
    assert [unguard_formula(cell) for cell in cells] == names


@few
@given(name=st.lists(st.sampled_from(list("\\\\\\|`*_[]!ab ")), max_size=9).map("".join))
def test_a_cell_of_markdown_is_the_name(name: str) -> None:
    text = f"| a | b |\n| --- | --- |\n| x{plain(name)}x | second |\n"
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    cells = [token for token in tokens if token.type == "inline"][2:]
    assert [cell.content for cell in cells[1:]] == ["second"]
    children = cells[0].children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    assert "".join(child.content for child in children) == f"x{on_one_line(name)}x"


@few
@given(names=st.lists(NAME, min_size=1, max_size=4))
def test_a_review_sheet_is_read_by_a_spreadsheet(names: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "p"
    shutil.rmtree(folder, ignore_errors=True)
    make_proposals(folder, [fact_row(i, subject_name=n, why=n) for i, n in enumerate(names)])
    (tmp_path / "sheet.tsv").unlink(missing_ok=True)
    write_review(folder, tmp_path / "sheet.tsv")
    table = pandas.read_csv(tmp_path / "sheet.tsv", sep="\t", dtype=str, keep_default_na=False)
    assert [unguard_formula(cell) for cell in table["subject"]] == list(map(on_one_line, names))
    assert not table.map(lambda cell: str(cell).startswith(FORMULA)).to_numpy().any()


def read_second_version(text: str) -> list[list[str]]:
    """Split a batch as QuickStatements 2 does, which knows no quotation marks while it splits."""
    if "\n" not in text:
        text = text.replace("||", "\n")
    if "\t" not in text:
        text = text.replace("|", "\t")
    rows = [re.sub(r"^(.*?) */\* *(.*?) *\*/ *$", r"\1", row.strip()) for row in text.split("\n")]
    return [row.split("\t") for row in rows if row]


@few
@given(name=NAME)
def test_a_batch_of_one_label_is_one_command(name: str, tmp_path: Path) -> None:
    config = ExportConfig(format="quickstatements", references=("S248:Q5",))
    text = written(tmp_path, [name], config, key="item")
    [fact, *label] = read_second_version(text)
    assert fact == ["Q1", "P31", "Q101", "S248", "Q5"]
    # A page trims what is pasted, so that one line has no line end.
    for row in label:
        line = "\t".join(row)
        assert read_second_version(line) == [row] == [["Q201", "Let", f'"{on_one_line(name)}"']]


@few
@given(lang=LANG)
@pytest.mark.parametrize("format", ["nt", "nq", "quickstatements"])
@pytest.mark.parametrize("table", ["facts", "labels"])
def test_a_language_is_a_code_or_the_table_is_refused(
    table: str, format: str, lang: str, tmp_path: Path
) -> None:
    """The column `lang` became a part of commands and literals as it was."""
    count_tried()
    folder, to = tmp_path / "p", tmp_path / "out"
    shutil.rmtree(folder, ignore_errors=True)
    to.unlink(missing_ok=True)
    keys = {"subject_key": "Q1", "relation_key": "P31", "object_key": "Q2"}
    facts = [fact_row(0, lang=lang if table == "facts" else "et", origin=[], **keys)]
    labels = [label_row(lang=lang if table == "labels" else "et", key="Q5", name="x")]
    make_proposals(folder, facts, labels)
    references = ("S248:Q5",) if format == "quickstatements" else ()
    config = ExportConfig(format=format, references=references)
    if not IS_CODE(lang):
        file = {"facts": "proposals", "labels": "labels"}[table]
        with pytest.raises(
            PrixError, match=rf"{file}\.parquet: .*not the code of a lang"
        ) as refused:
            export(folder, to, config)
        assert "\n" not in str(refused.value) and not to.exists()
        return
    export(folder, to, config)
    if format == "quickstatements":
        label = f"L{lang if table == 'labels' else 'et'}"
        rows = read_second_version(to.read_text("utf-8"))
        assert rows == [["Q1", "P31", "Q2", "S248", "Q5"], ["Q5", label, '"x"']]
    else:
        assert list(ox.parse(to.read_bytes(), format=ox.RdfFormat.N_QUADS))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_no_decimal_has_are_left_out_of_n_quads(value: float, tmp_path: Path) -> None:
    make_proposals(tmp_path / "p", [fact_row(0, model_score=value)])
    export(tmp_path / "p", tmp_path / "out.nq", ExportConfig(format="nq"))
    quads = list(ox.parse((tmp_path / "out.nq").read_bytes(), format=ox.RdfFormat.N_QUADS))
    decimals = [
        quad.object.value
        for quad in quads
        if isinstance(quad.object, ox.Literal) and quad.object.datatype.value.endswith("decimal")
    ]
    assert decimals, "the confidence is a number"
    assert all(re.fullmatch(r"-?[0-9]+\.[0-9]+", text) for text in decimals)


def test_an_iri_does_not_turn_the_direction_of_what_follows() -> None:
    """RFC 3987, 4.1: an IRI has no characters that format its direction."""
    for mark in "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2069\u0085\ufeff":
        iri = to_iri(f"http://example.org/{mark}gpj.exe", "urn:prixlm:").value
        assert iri.isascii() and "%" in iri, ascii(iri)
    assert to_iri("http://example.org/می‌خواهم", "urn:prixlm:").value.endswith("می‌خواهم")


@pytest.mark.parametrize("name", NAMES)
def test_rejected_rows_are_a_table(name: str, tmp_path: Path) -> None:
    path = tmp_path / "facts.tsv"
    rows = ["lang\tsubject\trelation\tobject", "en\ta\tr\tb", name, f"xx\t{name}\tr\tb"]
    path.write_text("\n".join(rows), "utf-8")
    try:
        kb = import_kb([path], tmp_path / "kb")
    except PrixError as error:
        assert "\n" not in str(error)
        return
    with (kb.folder / "rejects.tsv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file, "excel-tab"))
    assert all(len(row) == 4 for row in table) and len(table) > 1
    assert not any(cell.startswith(FORMULA) for row in table for cell in row)
