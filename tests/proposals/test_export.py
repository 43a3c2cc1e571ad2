"""Exports, read back by other tools."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pyoxigraph as ox
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prixlm import ExportConfig, PrixError, export, import_kb
from prixlm.proposals.export import VOCABULARY, to_iri
from prixlm.proposals.marks import Marks, NewMark, Replacement
from tests.helpers import fact_row, label_row, link_row, make_proposals
from tests.proposals.conftest import TRICKY
from tests.proposals.test_quickstatements import HOSTILE, read_batch

WIKIDATA = {"subject_key": "Q33", "relation_key": "P36", "object_key": "Q1757"}
RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
SOURCE = ("S248:Q5",)
CHOSEN = Replacement(7, "Q64", "Berliini")
"""What a reviewer accepts instead of the proposed object."""


def mark(
    folder: Path,
    verdict: str,
    row: int = 0,
    *,
    table: str = "facts",
    instead: Replacement | None = None,
    reviewer: str = "Anna",
) -> None:
    """Mark a proposal."""
    Marks.open(folder).add(reviewer, [NewMark(table, row, verdict, instead)])


def read_triples(path: Path) -> set[tuple[str, str, str]]:
    """Return subject, predicate and object of an RDF file, named nodes and literals as text."""
    format = ox.RdfFormat.N_TRIPLES if path.suffix == ".nt" else ox.RdfFormat.N_QUADS
    quads = ox.parse(path=str(path), format=format)
    return {(str(q.subject), q.predicate.value, getattr(q.object, "value", "")) for q in quads}


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
    assert (tmp_path / "y.qs").read_text() == (
        'Q33\tP36\tQ1757\tS854\t"https://example.org/run" '
        "/* prixlm test, confidence 0.90, another language has an answer, model rank 1 */\n"
    )
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
    config = ExportConfig(format="quickstatements", references=SOURCE)
    counts = export(folder, tmp_path / "a.qs", config)
    assert counts["written"] == 1
    assert counts["stated already"] == 2
    assert counts["the same statement for another language"] == 1


def test_labels_become_quickstatements_but_for_names_that_would_be_misread(
    three_tables: Path, tmp_path: Path
) -> None:
    config = ExportConfig(format="quickstatements", references=SOURCE, min_confidence=0.5)
    counts = export(three_tables, tmp_path / "a.qs", config)
    assert read_batch((tmp_path / "a.qs").read_text("utf-8")) == [
        (
            ["Q33", "P36", "Q1757", "S248", "Q5"],
            "prixlm test, confidence 0.90, another language has an answer, model rank 1",
        ),
        (["Q42", "Lnb", '"Douglas Adams"'], "prixlm test, confidence 0.90, name in en"),
    ]
    assert counts["labels"] == 1 and counts["names that QuickStatements would misread"] == 1
    assert counts["links (not in this format)"] == 1


def test_quickstatements_write_every_reference(tmp_path: Path) -> None:
    folder = make_proposals(tmp_path / "p", [fact_row(0, **WIKIDATA, origin=[])])
    references = ("S854:https://example.org/a,S813:+2026-11-18T00:00:00Z/11", "S248:Q5")
    config = ExportConfig(format="quickstatements", references=references)
    export(folder, tmp_path / "a.qs", config)
    ((cells, _),) = read_batch((tmp_path / "a.qs").read_text("utf-8"))
    assert cells[3:] == [
        *("S854", '"https://example.org/a"', "S813", "+2026-11-18T00:00:00Z/11"),
        *("!S248", "Q5"),
    ]


def test_the_summary_says_that_a_reviewer_accepted_or_chose(tmp_path: Path) -> None:
    rows = [
        fact_row(0, **WIKIDATA, origin=[], why="usual", model_rank=None, graph_rank=2),
        fact_row(1, **(WIKIDATA | {"object_key": "Q2"}), object_name='a */ "b"\n|', origin=["en"]),
    ]
    folder = make_proposals(tmp_path / "p", rows, [label_row(name="Wien")])
    mark(folder, "accept", 0)
    mark(folder, "accept", 1, instead=CHOSEN)
    mark(folder, "accept", 0, table="labels", instead=Replacement(None, "", "Viin"))
    config = ExportConfig(format="quickstatements", references=SOURCE, accepted=True)
    counts = export(folder, tmp_path / "a.qs", config)
    assert counts["written"] == 2 and counts["labels"] == 1 and counts["stated already"] == 0
    accepted, chosen, label = read_batch((tmp_path / "a.qs").read_text("utf-8"))
    assert accepted[1] is not None and accepted[1].endswith(
        ", accepted by a reviewer, usual for similar entities, graph rank 2"
    )
    instead = "prixlm test, chosen by a reviewer instead of"
    assert chosen == (["Q33", "P36", "Q64", "S248", "Q5"], f"{instead} a / b (Q2)")
    assert label == (["Q42", "Let", '"Viin"'], f"{instead} Wien")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(HOSTILE, min_size=5, max_size=5))
def test_no_name_changes_how_a_line_of_quickstatements_splits(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("names")
    subject, relation, obj, label, runner_up = names
    row = fact_row(0, **WIKIDATA, origin=[], runner_up=runner_up)
    row |= {"subject_name": subject, "relation_name": relation, "object_name": obj}
    proposals = make_proposals(folder / "p", [row], [label_row(name=label)])
    mark(proposals, "accept", instead=CHOSEN)
    config = ExportConfig(format="quickstatements", references=SOURCE)
    counts = export(proposals, folder / "a.qs", config)
    text = (folder / "a.qs").read_bytes().decode()
    expected = [["Q33", "P36", "Q64", "S248", "Q5"]]
    if counts["labels"]:
        expected.append(["Q42", "Let", f'"{" ".join(label.split())}"'])
    assert [cells for cells, _ in read_batch(text)] == expected
    assert len(text.splitlines()) == len(expected)


def test_a_label_is_not_written_over_one_that_the_proposals_show(tmp_path: Path) -> None:
    """A KB that withholds links proposes a name for an entity that it has under the same key."""
    facts = [fact_row(0, **WIKIDATA, origin=[], lang="et")]
    labels = [label_row(key=key, concept=n) for n, key in enumerate(("Q33", "Q1757", "Q7", "Q8"))]
    links = [link_row(key="Q7")]
    folder = make_proposals(tmp_path / "p", facts, labels, links)
    mark(folder, "accept", 0, table="labels")  # not even then
    config = ExportConfig(format="quickstatements", references=SOURCE)
    counts = export(folder, tmp_path / "a.qs", config)
    assert (counts["labels"], counts["labels that exist"]) == (1, 3)
    assert (tmp_path / "a.qs").read_text("utf-8").count("\tLet\t") == 1


def test_a_label_is_not_written_over_one_of_a_newer_kb(tmp_path: Path) -> None:
    item = {"entity-type": "item", "numeric-id": 5, "id": "Q5"}
    value = {"type": "wikibase-entityid", "value": item}
    snak = {"snaktype": "value", "property": "P31", "datavalue": value}
    claims = {"P31": [{"mainsnak": snak, "type": "statement", "rank": "normal"}]}
    dump = [
        {"type": "item", "id": key, "labels": {lang: {"language": lang, "value": name}}}
        | {"claims": claims if key == "Q42" else {}}
        for key, lang, name in (("Q42", "nb", "Douglas Adams"), ("Q5", "nb", "menneske"))
    ]
    (tmp_path / "new.json").write_text("\n".join(map(json.dumps, dump)), "utf-8")
    new_kb = import_kb([tmp_path / "new.json"], tmp_path / "kb", format="wikidata")
    labels = [label_row(lang="no"), label_row(lang="et")]
    folder = make_proposals(tmp_path / "p", [fact_row(0, **WIKIDATA, origin=[])], labels)
    for kb, expected in ((None, (2, 0)), (tmp_path / "kb", (1, 1))):
        config = ExportConfig(format="quickstatements", references=SOURCE, kb=kb)
        counts = export(folder, tmp_path / f"{kb is None}.qs", config)
        assert (counts["labels"], counts["labels that exist"]) == expected
    assert "\tLnb\t" not in (tmp_path / "False.qs").read_text("utf-8")
    # In a work folder the KB that was enriched is known without naming it.
    state = {"format": "prixlm-work", "version": 1, "source": {"kb": "ab"}, "kb": "kb"}
    (tmp_path / "work.json").write_text(json.dumps(state))
    manifest = json.loads((folder / "manifest.json").read_text()) | {"kb": new_kb.fingerprint()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    config = ExportConfig(format="quickstatements", references=SOURCE)
    assert export(folder, tmp_path / "work.qs", config)["labels that exist"] == 1


def test_an_item_gets_one_label_in_a_language(tmp_path: Path) -> None:
    labels = [label_row(name="Adams"), label_row(name="Douglas", confidence=0.6)]
    folder = make_proposals(tmp_path / "p", [fact_row(0, **WIKIDATA, origin=[])], labels)
    config = ExportConfig(format="quickstatements", references=SOURCE)
    counts = export(folder, tmp_path / "a.qs", config)
    assert (counts["labels"], counts["labels that exist"]) == (1, 1)
    assert '"Adams"' in (tmp_path / "a.qs").read_text("utf-8")


@pytest.mark.parametrize("format", ["nt", "nq", "quickstatements", "tsv", "parquet"])
@pytest.mark.parametrize("accepted", [False, True])
def test_an_object_that_a_reviewer_chose_is_written_in_every_format(
    tmp_path: Path, format: str, accepted: bool
) -> None:
    rows = [fact_row(0, **WIKIDATA), fact_row(1, **(WIKIDATA | {"object_key": "Q2"}), origin=[])]
    folder = make_proposals(tmp_path / "p", rows)
    mark(folder, "accept", instead=CHOSEN)
    config = ExportConfig(format=format, accepted=accepted, references=SOURCE, min_confidence=0.99)
    out = tmp_path / f"a.{format}"
    assert export(folder, out, config)["written"] == 1
    if format == "parquet":
        (row,) = pq.read_table(out).to_pylist()
        assert (row["object"], row["object_key"], row["object_name"]) == (7, "Q64", "Berliini")
        assert row["confidence"] is None and row["model_rank"] is None and row["origin"] == []
        assert row["subject_key"] == "Q33" and row["why"] == "elsewhere"
    else:
        text = out.read_text("utf-8")
        assert "Berliini" in text or format == "quickstatements"
        assert "Q64" in text or format == "tsv"
        assert "kohde 0" not in text or format == "quickstatements"
    if format == "tsv":
        assert text.splitlines()[1].split("\t") == [
            *("fi", "aihe 0", "pääkaupunki", "Berliini", "", "elsewhere", "")
        ]
        assert import_kb([out], tmp_path / "kb").num_triples("fi") == 1


def test_rdf_says_what_a_reviewer_replaced(tmp_path: Path) -> None:
    folder = make_proposals(
        tmp_path / "p", [fact_row(0, **WIKIDATA)], [label_row(name="Wien")], [link_row()]
    )
    mark(folder, "accept", instead=CHOSEN)
    mark(folder, "accept", table="labels", instead=Replacement(None, "", "Viin"))
    mark(folder, "accept", table="links", instead=Replacement(9, "Q9", "c"))
    counts = export(folder, tmp_path / "a.nq", ExportConfig(format="nq", accepted=True))
    assert (counts["written"], counts["labels"], counts["links"]) == (1, 1, 1)
    triples = read_triples(tmp_path / "a.nq")
    wikidata = "http://www.wikidata.org/entity/"
    objects = {(predicate, value) for _, predicate, value in triples}
    assert ("http://www.w3.org/2002/07/owl#sameAs", wikidata + "Q9") in objects
    assert ("http://www.w3.org/2000/01/rdf-schema#label", "Viin") in objects
    assert {value for predicate, value in objects if predicate == VOCABULARY + "insteadOf"} == {
        *(wikidata + "Q1757", "Wien", wikidata + "Q7")
    }
    for about in ("confidence", "modelScore", "runnerUp", "statedIn"):
        assert not any(predicate == VOCABULARY + about for predicate, _ in objects)
    export(folder, tmp_path / "a.nt", ExportConfig(format="nt", accepted=True))
    assert {value for _, _, value in read_triples(tmp_path / "a.nt")} == {
        *(wikidata + "Q64", "aihe 0", "pääkaupunki", "Berliini", "Viin", wikidata + "Q9")
    }


def test_a_chosen_object_without_a_key_is_refused(folder: Path, tmp_path: Path) -> None:
    mark(folder, "accept", 2, instead=Replacement(None, "", "Berliini"))
    with pytest.raises(PrixError, match="row 2 of the facts was accepted as 'Berliini', which is"):
        export(folder, tmp_path / "a.nt", ExportConfig(format="nt"))
    assert not (tmp_path / "a.nt").exists()


@pytest.mark.parametrize("format", ["nt", "quickstatements", "tsv"])
def test_a_disputed_proposal_is_still_open(tmp_path: Path, format: str) -> None:
    rows = [fact_row(n, **(WIKIDATA | {"object_key": f"Q{n + 1}"}), origin=[]) for n in range(3)]
    folder = make_proposals(tmp_path / "p", rows)
    mark(folder, "accept", 0, instead=CHOSEN)
    mark(folder, "reject", 0, reviewer="Ben")
    mark(folder, "reject", 1)
    mark(folder, "skip", 2)
    config = ExportConfig(format=format, references=SOURCE)
    assert export(folder, tmp_path / "a", config)["written"] == 2
    text = (tmp_path / "a").read_text("utf-8")
    assert "Q64" not in text and "Berliini" not in text
    config = ExportConfig(format=format, references=SOURCE, accepted=True)
    counts = export(folder, tmp_path / "b", config)
    assert counts["written"] == 0 and counts["not accepted"] == 3


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
        ({"format": "nt", "references": ("S854:x",)}, "is not a part of a reference"),
        ({"format": "quickstatements", "references": ()}, "--reference S854:URL"),
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
    with pytest.raises(PrixError, match=r"cannot be read .* Run `prixlm enrich` again"):
        export(folder, out, ExportConfig(format="nt"))
    assert [path.name for path in tmp_path.iterdir()] == ["proposals"]


def test_a_file_that_exists_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x.nt").write_text("mine")
    with pytest.raises(PrixError, match="already"):
        export(folder, tmp_path / "x.nt", ExportConfig(format="nt"))
    assert (tmp_path / "x.nt").read_text() == "mine"
