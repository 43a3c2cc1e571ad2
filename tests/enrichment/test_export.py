"""Exports read back by other tools, and reviews."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyoxigraph as ox
import pytest

from prixlm import PrixError, import_kb
from prixlm.enrichment.export import VOCABULARY, ExportConfig, export_proposals, to_iri
from prixlm.enrichment.labels import SCHEMA as LABELS
from prixlm.enrichment.links import SCHEMA as LINKS
from prixlm.enrichment.proposals import FORMAT, SCHEMA
from prixlm.enrichment.review import read_marks, read_review, refit, write_review

TRICKY = 'Zürich "the\tcity"\n<b>=1+1</b> |\\ 東京 ✓'


def proposal(number: int, **values: object) -> dict[str, object]:
    row: dict[str, object] = {
        "id": number,
        "lang": "fi",
        "subject": number,
        "subject_key": f"http://fi.dbpedia.org/resource/S{number}",
        "subject_name": f"aihe {number}",
        "relation": 0,
        "relation_key": "http://dbpedia.org/ontology/capital",
        "relation_name": "pääkaupunki",
        "relation_is_named": True,
        "object": 100 + number,
        "object_key": f"http://fi.dbpedia.org/resource/O{number}",
        "object_name": f"kohde {number}",
        "confidence": 0.9 - 0.1 * number,
        "why": "elsewhere",
        "origin": ["en", "sv"],
        "model_score": -1.5,
        "model_rank": 1,
        "graph_rank": None,
        "runner_up": "toinen",
        "runner_up_confidence": 0.1,
    }
    return row | values


def make(folder: Path, rows: list[dict[str, object]]) -> Path:
    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), folder / "proposals.parquet")
    manifest = {
        "format": FORMAT,
        "tool": "prixlm test",
        "kb": "ab" * 32,
        "licence": "CC BY-SA",
        "sources": ["a.nt", "b.nt"],
        "config": {"into": sorted({str(row["lang"]) for row in rows})},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [proposal(number) for number in range(5)]
    rows[1] |= {"subject_name": TRICKY, "subject_key": "territory/a b<c>"}
    return make(tmp_path / "proposals", rows)


def test_ntriples_are_read_by_pyoxigraph_and_imported_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "facts.nt"
    counts = export_proposals(folder, out, ExportConfig(format="nt"))
    assert counts["written"] == 5
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
    wanted = {
        (s.value, relation.value, o.value, "fi") for s, o in facts if isinstance(s, ox.NamedNode)
    }
    assert set(kb.query(query).fetchall()) == wanted
    assert "CC BY-SA" in (tmp_path / "facts.nt.licence.txt").read_text()


@pytest.mark.parametrize("star", [False, True])
def test_nquads_carry_confidence_and_origin(folder: Path, tmp_path: Path, star: bool) -> None:
    out = tmp_path / "facts.nq"
    export_proposals(folder, out, ExportConfig(format="nq", star=star))
    store = ox.Store()
    store.load(path=str(out), format=ox.RdfFormat.N_QUADS)
    (run,) = store.named_graphs()
    assert run.value.startswith("urn:prixlm:run:")
    licence = store.quads_for_pattern(run, ox.NamedNode("http://purl.org/dc/terms/license"), None)
    assert [quad.object.value for quad in licence] == ["CC BY-SA"]
    rdf = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
    about = list(store.quads_for_pattern(None, ox.NamedNode(VOCABULARY + "confidence"), None))
    assert len(about) == 5
    for quad in about:
        if star:
            (term,) = store.quads_for_pattern(quad.subject, ox.NamedNode(rdf + "reifies"), None)
            fact = (term.object.subject, term.object.predicate, term.object.object)
        else:
            fact = tuple(
                next(
                    iter(store.quads_for_pattern(quad.subject, ox.NamedNode(rdf + name), None))
                ).object
                for name in ("subject", "predicate", "object")
            )
        assert list(store.quads_for_pattern(*fact, run)), "the fact itself is in the graph"
        origin = ox.NamedNode(VOCABULARY + "statedIn")
        said = {q.object.value for q in store.quads_for_pattern(quad.subject, origin, None)}
        assert said == {"en", "sv"}
    levels = sorted(float(quad.object.value) for quad in about)
    assert levels == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])


def test_facts_of_two_languages_with_the_same_keys_come_back_one_file_each(tmp_path: Path) -> None:
    """In RDF a fact holds in every language that names both ends: files keep them apart."""
    keys = {"subject_key": "Q1", "object_key": "Q2"}
    rows = [
        proposal(0, **keys, relation_key="P1"),
        proposal(1, **keys, relation_key="P2", lang="et"),
    ]
    own = make(tmp_path / "p", rows)
    found = set()
    for lang in ("fi", "et"):
        out = tmp_path / f"{lang}.nt"
        export_proposals(own, out, ExportConfig(format="nt", lang=lang))
        kb = import_kb([out], tmp_path / lang, format="rdf")
        query = "SELECT t.lang, r.key FROM triples t JOIN relations r ON r.id = t.relation"
        found |= set(kb.query(query).fetchall())
    wikidata = "http://www.wikidata.org/prop/direct/"
    assert found == {("fi", wikidata + "P1"), ("et", wikidata + "P2")}


def test_tsv_is_imported_again(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "facts.tsv"
    export_proposals(folder, out, ExportConfig(format="tsv", min_confidence=0.65))
    lines = out.read_text("utf-8").splitlines()
    assert lines[0].split("\t")[:4] == ["lang", "subject", "relation", "object"]
    assert len(lines) == 4 and all(len(line.split("\t")) == 7 for line in lines)
    kb = import_kb([out], tmp_path / "kb")
    assert kb.num_triples("fi") == 3


def test_parquet_has_the_rows_as_they_are(folder: Path, tmp_path: Path) -> None:
    export_proposals(folder, tmp_path / "p.parquet", ExportConfig(format="parquet"))
    ours = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert ours == pq.read_table(folder / "proposals.parquet").to_pylist()


def test_quickstatements_need_ids_and_a_reference(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="--reference S854:URL"):
        ExportConfig(format="quickstatements")
    config = ExportConfig(format="quickstatements", reference="S854:https://example.org/run")
    with pytest.raises(PrixError, match="needs Wikidata's ids"):
        export_proposals(folder, tmp_path / "x.qs", config)
    assert not (tmp_path / "x.qs").exists()
    keys = {"subject_key": "Q33", "relation_key": "P36", "object_key": "Q1757"}
    rows = [
        proposal(0, **keys, origin=[]),
        proposal(1, **keys, origin=[], lang="et"),  # the same statement in another language
        proposal(2, **keys, origin=["en"]) | {"object_key": "Q2"},  # Wikidata has it
    ]
    own = make(tmp_path / "wikidata", rows)
    counts = export_proposals(own, tmp_path / "y.qs", config)
    assert (tmp_path / "y.qs").read_text() == 'Q33\tP36\tQ1757\tS854\t"https://example.org/run"\n'
    assert counts["written"] == 1 and counts["stated already"] == 2


def test_labels_and_links_are_exported_too(tmp_path: Path) -> None:
    keys = {"subject_key": "Q33", "relation_key": "P36", "object_key": "Q1757", "origin": []}
    own = make(tmp_path / "p", [proposal(0, **keys)])
    label = {"lang": "et", "concept": 1, "key": "Q42", "name": 'Douglas "D" Adams'}
    rows = [
        label | {"confidence": 0.9, "origin": ["en"]},
        label | {"confidence": 0.2, "origin": []},
        label | {"confidence": 0.9, "origin": ["en"], "lang": "no", "name": "Douglas Adams"},
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=LABELS), own / "labels.parquet")
    link = {
        "lang": "et",
        "entity": 1,
        "key": "http://a",
        "name": "a",
        "other_lang": "en",
        "other": 2,
    }
    link |= {"other_key": "Q7", "other_name": "b", "confidence": 0.8, "similarity": 0.9}
    pq.write_table(pa.Table.from_pylist([link], schema=LINKS), own / "links.parquet")
    config = ExportConfig(format="quickstatements", reference="S248:Q5", min_confidence=0.5)
    counts = export_proposals(own, tmp_path / "a.qs", config)
    lines = (tmp_path / "a.qs").read_text("utf-8").splitlines()
    assert lines == ["Q33\tP36\tQ1757\tS248\tQ5", 'Q42\tLnb\t"Douglas Adams"']
    assert counts["labels"] == 1 and counts["names with quotation marks"] == 1
    counts = export_proposals(own, tmp_path / "a.nq", ExportConfig(format="nq", min_confidence=0.5))
    assert (counts["labels"], counts["links"]) == (2, 1)
    accepted = ExportConfig(format="nt", accepted=True)
    counts = export_proposals(own, tmp_path / "b.nt", accepted)
    assert (counts["labels"], counts["links"], counts["written"]) == (0, 0, 0)
    quads = list(ox.parse(path=str(tmp_path / "a.nq"), format=ox.RdfFormat.N_QUADS))
    assert any(q.object == ox.Literal('Douglas "D" Adams', language="et") for q in quads)
    same = [q for q in quads if q.predicate.value.endswith("sameAs")]
    assert same[0].object.value == "http://www.wikidata.org/entity/Q7"


def test_names_and_links_are_reviewed_too(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", [proposal(0)])
    names = [
        {"lang": "et", "concept": n, "key": f"Q{n}", "name": f"n {n}", "confidence": 0.6}
        | {"origin": ["fi"]}
        for n in range(3)
    ]
    pq.write_table(pa.Table.from_pylist(names, LABELS), folder / "labels.parquet")
    link = {"lang": "et", "entity": 1, "key": "a", "name": "a", "other_lang": "en", "other": 2}
    link |= {"other_key": "b", "other_name": "b", "confidence": 0.8, "similarity": 0.9}
    pq.write_table(pa.Table.from_pylist([link], LINKS), folder / "links.parquet")
    assert write_review(folder, tmp_path / "r.tsv") == 5
    mark(tmp_path / "r.tsv", {2: "reject", 3: "accept", 4: "accept"})
    found = read_review(folder, tmp_path / "r.tsv")
    assert (found.accepted, found.rejected, found.open) == (2, 1, 2)
    assert read_marks(folder, "labels") == {1: False, 2: True}
    assert read_marks(folder, "links") == {0: True} and read_marks(folder) == {}
    counts = export_proposals(folder, tmp_path / "a.nt", ExportConfig(format="nt"))
    assert (counts["written"], counts["labels"], counts["links"]) == (1, 2, 1)
    counts = export_proposals(folder, tmp_path / "b.nt", ExportConfig(format="nt", accepted=True))
    assert (counts["written"], counts["labels"], counts["links"]) == (0, 1, 1)
    (tmp_path / "s.tsv").write_text("mark\tid\naccept\tname 7\n", "utf-8")
    with pytest.raises(PrixError, match="no proposal 'name 7'"):
        read_review(folder, tmp_path / "s.tsv")


def test_keys_become_iris() -> None:
    base = "urn:prixlm:"
    assert to_iri("Q42", base).value == "http://www.wikidata.org/entity/Q42"
    assert to_iri("P36", base).value == "http://www.wikidata.org/prop/direct/P36"
    assert to_iri("http://x/y z", base).value == "http://x/y%20z"
    assert to_iri("territory/Å<", base).value == "urn:prixlm:entity:territory/%C3%85%3C"
    odd = ("en:100%", "en:Foo [bar]", "en:C# and F#", "http://x/100%", "http://x/a#b#c", "http:")
    for key in odd:
        assert to_iri(key, base).value.startswith(("urn:prixlm:entity:", "http://x/"))
    with pytest.raises(PrixError, match="beginning of an IRI"):
        ExportConfig(format="nt", base="no base")


def mark(path: Path, marks: dict[int, str], *, quoted: bool = False) -> None:
    """What a person does in a spreadsheet, which may quote cells when it saves them."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, delimiter="\t"))
    for place, row in enumerate(rows[1:]):
        row[0] = marks.get(place, row[0])
    with path.open("w", encoding="utf-8", newline="") as file:
        if quoted:
            csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL).writerows(rows)
        else:
            plain = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL, lineterminator="\n")
            plain.writerows(rows)


@pytest.mark.parametrize("quoted", [False, True])
def test_a_review_goes_there_and_back(folder: Path, tmp_path: Path, quoted: bool) -> None:
    path = tmp_path / "review.tsv"
    assert write_review(folder, path) == 5
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) == 6, "a name's line end does not break the table"
    mark(path, {0: "accept", 2: "Reject"}, quoted=quoted)
    found = read_review(folder, path)
    assert (found.accepted, found.rejected, found.open) == (1, 1, 3)
    assert read_marks(folder) == {0: True, 2: False}
    counts = export_proposals(folder, tmp_path / "a.tsv", ExportConfig(format="tsv", accepted=True))
    assert counts["written"] == 1 and counts["not accepted"] == 4
    counts = export_proposals(folder, tmp_path / "b.tsv", ExportConfig(format="tsv"))
    assert counts["written"] == 4 and counts["not accepted"] == 1
    # What is accepted is exported, however unsure it was.
    sure = ExportConfig(format="tsv", min_confidence=0.99)
    assert export_proposals(folder, tmp_path / "c.tsv", sure)["written"] == 1
    mark(path, {0: "open"}, quoted=quoted)
    assert read_review(folder, path).accepted == 0
    mark(path, {0: "accept"}, quoted=quoted)
    read_review(folder, path)
    write_review(folder, tmp_path / "again.tsv")
    assert (tmp_path / "again.tsv").read_text("utf-8").splitlines()[1].startswith("accept\t0\t")


def test_marks_correct_what_is_exported(tmp_path: Path) -> None:
    """Three of four proposals at 0.9 are rejected: the open ones are no longer sure."""
    rows = [proposal(number, confidence=0.9) for number in range(80)]
    folder = make(tmp_path / "p", rows)
    write_review(folder, tmp_path / "r.tsv")
    mark(tmp_path / "r.tsv", {n: "accept" if n % 4 == 0 else "reject" for n in range(60)})
    read_review(folder, tmp_path / "r.tsv")
    export_proposals(folder, tmp_path / "x.parquet", ExportConfig(format="parquet"))
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.num_rows == 15 + 20
    assert 0.2 < table["confidence"].to_numpy().max() < 0.5


def test_a_formula_in_a_name_is_text(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", [proposal(0, subject_name="=HYPERLINK(1)")])
    write_review(folder, tmp_path / "r.tsv")
    assert "\t'=HYPERLINK(1)\t" in (tmp_path / "r.tsv").read_text("utf-8")
    mark(tmp_path / "r.tsv", {0: "accept"})
    assert read_review(folder, tmp_path / "r.tsv").accepted == 1


def test_a_name_that_a_spreadsheet_changed_is_still_its_proposal(tmp_path: Path) -> None:
    folder = make(tmp_path / "p", [proposal(0, subject_name="007"), proposal(1, object_name="3/4")])
    write_review(folder, tmp_path / "r.tsv")
    mark(tmp_path / "r.tsv", {0: "accept", 1: "reject"})
    text = (tmp_path / "r.tsv").read_text("utf-8")
    (tmp_path / "r.tsv").write_text(text.replace("007", "7").replace("3/4", "2026-03-04"), "utf-8")
    found = read_review(folder, tmp_path / "r.tsv")
    assert (found.accepted, found.rejected) == (1, 1)


def test_a_name_of_another_language_is_no_label(tmp_path: Path) -> None:
    rows = [proposal(0, relation_name="capital", relation_is_named=False)]
    export_proposals(make(tmp_path / "p", rows), tmp_path / "x.nt", ExportConfig(format="nt"))
    quads = ox.parse(path=str(tmp_path / "x.nt"), format=ox.RdfFormat.N_TRIPLES)
    labels = {q.object.value for q in quads if q.predicate.value.endswith("#label")}
    assert labels == {"aihe 0", "kohde 0"}


def test_half_a_folder_and_a_refusal_leave_nothing_behind(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.qs"
    config = ExportConfig(format="quickstatements", reference="S854:http://example.org")
    with pytest.raises(PrixError, match="needs Wikidata's ids"):
        export_proposals(folder, out, config)
    with pytest.raises(PrixError, match=r"--lang sv: .* has proposals in fi"):
        export_proposals(folder, out, ExportConfig(format="nt", lang="sv"))
    whole = (folder / "proposals.parquet").read_bytes()
    (folder / "proposals.parquet").write_bytes(whole[:-20])
    for work in (
        lambda: export_proposals(folder, out, ExportConfig(format="nt")),
        lambda: write_review(folder, tmp_path / "r.tsv"),
        lambda: read_review(folder, tmp_path / "r.tsv"),
    ):
        with pytest.raises(PrixError, match=r"cannot be read .* run `prixlm enrich` again"):
            work()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["proposals"]


def test_wrong_marks_and_rows_are_said_and_nothing_is_taken(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "review.tsv"
    write_review(folder, path)
    good = path.read_text("utf-8")
    mark(path, {0: "accept", 1: "maybe"})
    with pytest.raises(PrixError, match="line 3: mark 'maybe'"):
        read_review(folder, path)
    path.write_text(good.replace("\t3\tfi", "\t33\tfi"), "utf-8")
    with pytest.raises(PrixError, match="no proposal '33'"):
        read_review(folder, path)
    path.write_text(good.replace("\t3\tfi", "\t4\tfi"), "utf-8")
    with pytest.raises(PrixError, match="of other proposals"):
        read_review(folder, path)
    old = "\n".join(line.rsplit("\t", 1)[0] for line in good.splitlines())  # as 0.1 wrote it
    path.write_text(old.replace("pääkaupunki", "naapuri"), "utf-8")
    with pytest.raises(PrixError, match="of other proposals"):
        read_review(folder, path)
    path.write_text(good.replace("\t3\tfi", "\t²\tfi"), "utf-8")
    with pytest.raises(PrixError, match="no proposal '²'"):
        read_review(folder, path)
    path.write_text("a\tb\n1\t2\n", "utf-8")
    with pytest.raises(PrixError, match="no column 'mark'"):
        read_review(folder, path)
    assert read_marks(folder) == {}


def test_marks_correct_the_confidence() -> None:
    confidence = np.linspace(0.5, 1, 200)
    marks = {number: number % 10 < 3 for number in range(200)}  # 30 % hold at every level
    fitted = refit(confidence, marks)
    assert fitted.mean() == pytest.approx(0.33, abs=0.06)
    assert (np.diff(fitted) >= 0).all()
    np.testing.assert_array_equal(refit(confidence, {}), confidence)
    assert refit(confidence, {0: False}).mean() > 0.6, "one mark moves little"
    assert refit(confidence, {180: False})[180] > 0.85


@pytest.mark.parametrize(("true", "number", "most"), [(0.0, 20, 0.07), (0.25, 200, 0.07)])
def test_marks_make_the_confidence_better(true: float, number: int, most: float) -> None:
    """Marks of a calibrated confidence move it little; many put one right that is too sure."""
    errors = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        confidence = np.sort(generator.uniform(0.5, 1, 500))
        chance = np.clip(confidence - true, 0, 1)
        marked = generator.permutation(500)[:number]
        marks = {int(n): bool(generator.random() < chance[n]) for n in marked}
        errors.append(np.abs(refit(confidence, marks) - chance).mean())
    assert np.mean(errors) < most
