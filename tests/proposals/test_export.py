"""Exports, read back by other tools."""

from pathlib import Path

import pyarrow.parquet as pq
import pyoxigraph as ox
import pytest

from prixlm import ExportConfig, PrixError, export, import_kb
from prixlm.proposals.export import VOCABULARY, to_iri
from tests.helpers import fact_row, label_row, link_row, make_proposals
from tests.proposals.conftest import TRICKY

WIKIDATA = {"subject_key": "Q33", "relation_key": "P36", "object_key": "Q1757"}
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"


@pytest.fixture
def three_tables(tmp_path: Path) -> Path:
    """A fact, three labels and a link, with the keys of Wikidata."""
    labels = [
        label_row(name='Douglas "D" Adams'),
        label_row(name='Douglas "D" Adams', confidence=0.2, origin=[]),
        label_row(lang="no"),
    ]
    return make_proposals(
        tmp_path / "p", [fact_row(0, **WIKIDATA, origin=[])], labels, [link_row()]
    )


def test_ntriples_are_read_by_pyoxigraph_and_imported_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "facts.nt"
    assert export(folder, out, ExportConfig(format="nt"))["written"] == 5
    quads = list(ox.parse(path=str(out), format=ox.RdfFormat.N_TRIPLES))
    relation = ox.NamedNode("http://dbpedia.org/ontology/capital")
    facts = [(q.subject, q.object) for q in quads if q.predicate == relation]
    assert len(facts) == 5
    labels = {q.object.value for q in quads if q.predicate.value.endswith("#label")}
    assert TRICKY in labels
    kb = import_kb([out], tmp_path / "kb", format="rdf")
    query = (
        "SELECT s.key, r.key, o.key, t.lang FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN entities o ON o.id = t.object JOIN relations r ON r.id = t.relation"
    )
    expected = {
        (s.value, relation.value, o.value, "fi") for s, o in facts if isinstance(s, ox.NamedNode)
    }
    assert set(kb.query(query).fetchall()) == expected
    assert "CC BY-SA" in (tmp_path / "facts.nt.licence.txt").read_text()


@pytest.mark.parametrize("star", [False, True])
def test_nquads_carry_confidence_and_origin(folder: Path, tmp_path: Path, star: bool) -> None:
    out = tmp_path / "facts.nq"
    export(folder, out, ExportConfig(format="nq", star=star))
    store = ox.Store()
    store.load(path=str(out), format=ox.RdfFormat.N_QUADS)
    (run,) = store.named_graphs()
    assert run.value.startswith("urn:prixlm:run:")
    licence = store.quads_for_pattern(run, ox.NamedNode("http://purl.org/dc/terms/license"), None)
    assert [quad.object.value for quad in licence] == ["CC BY-SA"]
    about = list(store.quads_for_pattern(None, ox.NamedNode(VOCABULARY + "confidence"), None))
    assert len(about) == 5
    for quad in about:
        if star:
            (term,) = store.quads_for_pattern(quad.subject, ox.NamedNode(RDF + "reifies"), None)
            fact = (term.object.subject, term.object.predicate, term.object.object)
        else:
            fact = tuple(
                next(
                    iter(store.quads_for_pattern(quad.subject, ox.NamedNode(RDF + name), None))
                ).object
                for name in ("subject", "predicate", "object")
            )
        assert list(store.quads_for_pattern(*fact, run)), "the fact itself is in the graph"
        origin = ox.NamedNode(VOCABULARY + "statedIn")
        languages = {q.object.value for q in store.quads_for_pattern(quad.subject, origin, None)}
        assert languages == {"en", "sv"}
    levels = sorted(float(quad.object.value) for quad in about)
    assert levels == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])


def test_facts_of_two_languages_with_the_same_keys_come_back_one_file_each(tmp_path: Path) -> None:
    """In RDF a fact holds in every language that names both ends: files keep them apart."""
    keys = {"subject_key": "Q1", "object_key": "Q2"}
    rows = [
        fact_row(0, **keys, relation_key="P1"),
        fact_row(1, **keys, relation_key="P2", lang="et"),
    ]
    folder = make_proposals(tmp_path / "p", rows)
    facts = set()
    for lang in ("fi", "et"):
        out = tmp_path / f"{lang}.nt"
        export(folder, out, ExportConfig(format="nt", lang=lang))
        kb = import_kb([out], tmp_path / lang, format="rdf")
        query = "SELECT t.lang, r.key FROM triples t JOIN relations r ON r.id = t.relation"
        facts |= set(kb.query(query).fetchall())
    wikidata = "http://www.wikidata.org/prop/direct/"
    assert facts == {("fi", wikidata + "P1"), ("et", wikidata + "P2")}


def test_tsv_is_imported_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "facts.tsv"
    export(folder, out, ExportConfig(format="tsv", min_confidence=0.65))
    lines = out.read_text("utf-8").splitlines()
    assert lines[0].split("\t")[:4] == ["lang", "subject", "relation", "object"]
    assert len(lines) == 4 and all(len(line.split("\t")) == 7 for line in lines)
    kb = import_kb([out], tmp_path / "kb")
    assert kb.num_triples("fi") == 3


def test_parquet_has_the_rows_as_they_are(folder: Path, tmp_path: Path) -> None:
    export(folder, tmp_path / "p.parquet", ExportConfig(format="parquet"))
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert rows == pq.read_table(folder / "proposals.parquet").to_pylist()


def test_quickstatements_need_ids_and_a_reference(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="--reference S854:URL"):
        ExportConfig(format="quickstatements")
    config = ExportConfig(format="quickstatements", reference="S854:https://example.org/run")
    with pytest.raises(PrixError, match="needs Wikidata ids"):
        export(folder, tmp_path / "x.qs", config)
    assert not (tmp_path / "x.qs").exists()
    rows = [
        fact_row(0, **WIKIDATA, origin=[]),
        fact_row(1, **WIKIDATA, origin=[], lang="et"),  # the same statement in another language
        fact_row(2, **(WIKIDATA | {"object_key": "Q2"}), origin=["en"]),  # Wikidata has it
    ]
    with_ids = make_proposals(tmp_path / "wikidata", rows)
    counts = export(with_ids, tmp_path / "y.qs", config)
    assert (tmp_path / "y.qs").read_text() == 'Q33\tP36\tQ1757\tS854\t"https://example.org/run"\n'
    assert counts["written"] == 1


def test_quickstatements_count_a_statement_of_two_languages_apart_from_a_stated_one(
    tmp_path: Path,
) -> None:
    rows = [
        fact_row(0, **WIKIDATA, origin=[]),
        fact_row(1, **WIKIDATA, origin=[], lang="et"),
        fact_row(2, **(WIKIDATA | {"object_key": "Q2"}), origin=["en"]),
        fact_row(3, **(WIKIDATA | {"object_key": "Q3"}), origin=["en"]),
    ]
    folder = make_proposals(tmp_path / "p", rows)
    config = ExportConfig(format="quickstatements", reference="S248:Q5")
    counts = export(folder, tmp_path / "a.qs", config)
    assert counts["written"] == 1
    assert counts["stated already"] == 2
    assert counts["the same statement for another language"] == 1


def test_labels_become_quickstatements_but_for_names_with_quotation_marks(
    three_tables: Path, tmp_path: Path
) -> None:
    config = ExportConfig(format="quickstatements", reference="S248:Q5", min_confidence=0.5)
    counts = export(three_tables, tmp_path / "a.qs", config)
    lines = (tmp_path / "a.qs").read_text("utf-8").splitlines()
    assert lines == ["Q33\tP36\tQ1757\tS248\tQ5", 'Q42\tLnb\t"Douglas Adams"']
    assert counts["labels"] == 1 and counts["names with quotation marks"] == 1


def test_labels_and_links_are_exported_as_rdf(three_tables: Path, tmp_path: Path) -> None:
    counts = export(three_tables, tmp_path / "a.nq", ExportConfig(format="nq", min_confidence=0.5))
    assert (counts["labels"], counts["links"]) == (2, 1)
    quads = list(ox.parse(path=str(tmp_path / "a.nq"), format=ox.RdfFormat.N_QUADS))
    assert any(q.object == ox.Literal('Douglas "D" Adams', language="et") for q in quads)
    same = [q for q in quads if q.predicate.value.endswith("sameAs")]
    assert same[0].object.value == "http://www.wikidata.org/entity/Q7"
    counts = export(three_tables, tmp_path / "b.nt", ExportConfig(format="nt", accepted=True))
    assert (counts["labels"], counts["links"], counts["written"]) == (0, 0, 0)


def test_a_table_format_counts_the_labels_and_links_that_it_leaves_out(
    three_tables: Path, tmp_path: Path
) -> None:
    counts = export(three_tables, tmp_path / "a.tsv", ExportConfig(format="tsv"))
    assert counts["labels (not in this format)"] == 3
    assert counts["links (not in this format)"] == 1


def test_keys_become_iris() -> None:
    base = "urn:prixlm:"
    assert to_iri("Q42", base).value == "http://www.wikidata.org/entity/Q42"
    assert to_iri("P36", base).value == "http://www.wikidata.org/prop/direct/P36"
    assert to_iri("http://x/y z", base).value == "http://x/y%20z"
    assert to_iri("territory/Å<", base).value == "urn:prixlm:entity:territory/%C3%85%3C"
    odd = ("en:100%", "en:Foo [bar]", "en:C# and F#", "http://x/100%", "http://x/a#b#c", "http:")
    for key in odd:
        assert to_iri(key, base).value.startswith(("urn:prixlm:entity:", "http://x/"))


def test_a_relation_name_of_another_language_is_not_a_label(tmp_path: Path) -> None:
    rows = [fact_row(0, relation_name="capital", relation_is_named=False)]
    export(make_proposals(tmp_path / "p", rows), tmp_path / "x.nt", ExportConfig(format="nt"))
    quads = ox.parse(path=str(tmp_path / "x.nt"), format=ox.RdfFormat.N_TRIPLES)
    labels = {q.object.value for q in quads if q.predicate.value.endswith("#label")}
    assert labels == {"aihe 0", "kohde 0"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "xml"}, "--format xml: expected nt, nq"),
        ({"format": "nt", "base": "no base"}, "beginning of an IRI"),
        ({"format": "nt", "star": True}, "--star requires --format nq"),
        ({"format": "nt", "min_confidence": 2.0}, "expected 0 to 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        ExportConfig(**settings)  # type: ignore[arg-type]


def test_a_refused_export_leaves_nothing_behind(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.qs"
    config = ExportConfig(format="quickstatements", reference="S854:http://example.org")
    with pytest.raises(PrixError, match="needs Wikidata ids"):
        export(folder, out, config)
    with pytest.raises(PrixError, match=r"--lang sv: .* has proposals in fi"):
        export(folder, out, ExportConfig(format="nt", lang="sv"))
    whole = (folder / "proposals.parquet").read_bytes()
    (folder / "proposals.parquet").write_bytes(whole[:-20])
    with pytest.raises(PrixError, match=r"cannot be read .* run `prixlm enrich` again"):
        export(folder, out, ExportConfig(format="nt"))
    assert [path.name for path in tmp_path.iterdir()] == ["proposals"]


def test_a_file_that_exists_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.nt").write_text("mine")
    with pytest.raises(PrixError, match="already"):
        export(folder, tmp_path / "x.nt", ExportConfig(format="nt"))
    assert (tmp_path / "x.nt").read_text() == "mine"
