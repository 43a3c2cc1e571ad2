"""What an import would read: formats recognised or refused, and estimates that write nothing."""

import json
import typing
from pathlib import Path

import pytest

from prixlm import PrixError, import_kb
from prixlm.importers.plan import FORMATS, estimate_import, plan_import
from tests.importers.helpers import DATA, import_text, write_dump


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        (["nowhere.nt"], {}, "no such file"),
        ([], {}, "no source given"),
        (["dump.nt"], {"format": "sparql"}, "unknown format sparql: expected one of"),
        (["dump.nt"], {"langs": ["fi", "klingonese"]}, "unknown language klingonese"),
        (["dump.nt"], {"max_triples": 0}, "expected 1 or more"),
        (["dump.nt"], {"max_name": 0}, "--max-name 0: expected 1 character or more"),
        (["dump.nt"], {"max_line": 7}, "--max-line 7: expected 8 MiB or more"),
        (["dump.nt"], {"seed": -1}, "--seed -1: expected 0 or more"),
        (["dump.nt"], {"format": "world"}, "reads no source. Leave out"),
        (["dump.nt"], {"format": "benchmark"}, "not what benchmark reads"),
        (["notes.doc"], {}, "not recognised. Looked for"),
        (["dump.nt", "facts.tsv"], {}, "different formats"),
        (["dump.nt"], {"memory": "lots"}, "--memory lots: expected a size such as"),
    ],
)
def test_a_wrong_argument_is_answered_with_what_was_expected(
    sources: list[str], options: dict[str, object], message: str, tmp_path: Path, toy_files: object
) -> None:
    write_dump(tmp_path / "dump.nt", 3)
    (tmp_path / "notes.doc").write_text("x")
    with pytest.raises(PrixError, match=message):
        import_kb([tmp_path / s for s in sources], tmp_path / "kb", **options)  # type: ignore[arg-type]


def test_a_dry_run_estimates_without_writing(tmp_path: Path) -> None:
    dump = write_dump(tmp_path / "dump.nt")
    estimate = estimate_import(plan_import([dump]))
    assert estimate.num_rows == dump.read_bytes().count(b"\n")
    assert "dump.nt" in estimate.as_text() and "rdf" in estimate.as_text()
    assert json.dumps(estimate.as_dict())
    assert list(tmp_path.iterdir()) == [dump]


@pytest.mark.parametrize("format_", ["rdf", "dbpedia", "table", "wikidata", "benchmark", "authors"])
def test_a_forced_format_that_does_not_fit_is_an_error(format_: str, tmp_path: Path) -> None:
    with pytest.raises(PrixError):
        import_text(tmp_path, "notes.md", "# Notes\n\nNothing here is a fact.\n", format=format_)


def test_every_format_is_in_the_help_and_the_docs() -> None:
    from prixlm.cli import kb

    option = typing.get_type_hints(kb.import_, include_extras=True)["format"].__metadata__[0]
    docs = (Path(__file__).parents[2] / "docs" / "reference" / "formats.md").read_text("utf-8")
    for name in FORMATS:
        assert name in option.help and name in docs.lower(), name


def test_a_source_is_of_the_first_format_that_recognises_it(tmp_path: Path) -> None:
    expected = {
        "sample.nt": "rdf",
        "sample.trig": "rdf",
        "labels_lang=fi.ttl": "dbpedia",
        "wikidata-sample.json": "wikidata",
    }
    for name, format_ in expected.items():
        assert plan_import([DATA / name]).format.name == format_
    (tmp_path / "facts.csv").write_text("en,a,r,b\n")
    assert plan_import([tmp_path / "facts.csv"]).format.name == "table"


def test_an_ontology_beside_dbpedias_dumps_is_read_with_them(tmp_path: Path) -> None:
    dumps = [DATA / "labels_lang=fi.ttl", DATA / "sample.rdf"]
    assert plan_import(dumps).format.name == "dbpedia"
    for path in dumps:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "notes.md").write_text("not a dump")
    plan = plan_import([tmp_path])
    assert plan.format.name == "dbpedia"
    assert [source.name for source in plan.sources] == sorted(path.name for path in dumps)


def test_a_folder_of_several_formats_is_refused(tmp_path: Path) -> None:
    for name in ("sample.nt", "wikidata-sample.json"):
        (tmp_path / name).write_bytes((DATA / name).read_bytes())
    with pytest.raises(PrixError, match=r"are of different formats \(rdf, wikidata\)"):
        plan_import([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(PrixError, match="no file in it that rdf reads"):
        plan_import([tmp_path / "empty"], format="rdf")


def test_languages_are_all_but_for_the_world_kb() -> None:
    assert plan_import([DATA / "sample.nt"]).langs is None
    assert plan_import([DATA / "sample.nt"], langs=["nb", "fi"]).langs == ("fi", "no")
    assert len(plan_import([], format="world").langs or ()) == 17
    assert plan_import([], format="world", langs="all").langs is None
