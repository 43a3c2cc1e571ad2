"""Descriptions of entities: what each format states, which one is kept, and who carries it on."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, SplitConfig, import_kb, split_kb
from prixlm.importers.format import Limits
from prixlm.kb.lookup import build_lookup
from prixlm.kb.unsplit import unsplit_kb
from tests.importers.helpers import LABEL, import_text, rejects_of, sums

COMMENT = "<http://www.w3.org/2000/01/rdf-schema#comment>"
SCHEMA = "<http://schema.org/description>"
ABSTRACT = "<http://dbpedia.org/ontology/abstract>"
REDIRECTS = "<http://dbpedia.org/ontology/wikiPageRedirects>"
RELATION = "<http://e.org/r>"


def iri(name: str) -> str:
    return f"<http://e.org/{name}>"


def described(kb: KB) -> dict[tuple[str, str], str]:
    """The descriptions of a KB by language and name."""
    entities = kb.entities(range(kb.num_entities))
    texts = kb.descriptions(entity.id for entity in entities)
    return {(e.lang, e.name): text for e, text in zip(entities, texts, strict=True) if text}


def wikidata_item(key: str, labels: dict[str, str], texts: dict[str, object]) -> str:
    terms = {code: {"language": code, "value": text} for code, text in labels.items()}
    values = {code: {"language": code, "value": text} for code, text in texts.items()}
    item = {"type": "item", "id": key, "labels": terms, "descriptions": values, "claims": {}}
    return json.dumps(item, ensure_ascii=False)


def test_wikidata_descriptions_are_those_of_the_items(tmp_path: Path) -> None:
    lines = [
        wikidata_item("Q1", {"en": "Paris"}, {"en-gb": "variant", "en": "city in France"}),
        wikidata_item("Q2", {"en": "Paris", "ja": "パリス"}, {"en": "a\tprince\u2028of Troy"}),
        wikidata_item("Q3", {"en": "Troy"}, {"en-gb": "only a variant", "fi": "no Finnish name"}),
        wikidata_item("Q4", {"en": "Rest"}, {"en": " ", "ja": 7, "xx-nothing": "what"}),
    ]
    kb = import_text(tmp_path, "w.json", "\n".join(lines) + "\n")
    ids = {entity.key: entity.id for entity in kb.find("Paris") + kb.find("Troy")}
    texts = kb.descriptions([ids["Q3"], ids["Q2"], ids["Q1"], ids["Q2"]])
    assert texts == ["only a variant", "a prince of Troy", "city in France", "a prince of Troy"]
    account = kb.manifest.account
    assert account["imported"]["descriptions"] == kb.manifest.counts["descriptions"] == 3
    assert account["filtered"] == {
        "description of what its language does not name": 1,
        "further description": 1,
    }
    assert account["rejected"] == {
        "empty description": 1,
        "malformed description": 1,
        "unknown language code": 1,
    }
    assert sums(kb)[0] == sums(kb)[1] == 5 + 8


def test_rdf_keeps_the_shortest_kind_in_the_language_itself(tmp_path: Path) -> None:
    lines = [
        f'{iri("a")} {LABEL} "A"@en .',
        f'{iri("a")} {ABSTRACT} "long"@en .',
        f'{iri("a")} {COMMENT} "comment"@en .',
        f'{iri("a")} {SCHEMA} "in a variant"@en-GB .',
        f'{iri("b")} {LABEL} "B"@en .',
        f'{iri("b")} {ABSTRACT} "an \\"abstract\\"\\nof B"@en .',
        f'{iri("b")} {COMMENT} "without a language" .',
        f"{iri('b')} {COMMENT} {iri('a')} .",
        f'{RELATION} {COMMENT} "a relation"@en .',
        f"{iri('a')} {RELATION} {iri('b')} .",
    ]
    kb = import_text(tmp_path, "x.nt", "\n".join(lines) + "\n")
    assert described(kb) == {("en", "A"): "comment", ("en", "B"): 'an "abstract" of B'}
    assert kb.num_triples() == 2  # a comment that is an IRI is a fact, as any statement
    assert kb.manifest.account["filtered"] == {
        "description of what its language does not name": 1,
        "description without a language": 1,
        "further description": 2,
    }
    assert sums(kb)[0] == sums(kb)[1] == len(lines)


def test_descriptions_follow_redirects_and_lose_to_the_targets_own(tmp_path: Path) -> None:
    def resource(name: str) -> str:
        return f"<http://dbpedia.org/resource/{name}>"

    lines = [
        f"{resource('Old')} {REDIRECTS} {resource('New')} .",
        f'{resource("Old")} {COMMENT} "of the old name"@en .',
        f'{resource("New")} {COMMENT} "of the new name"@en .',
        f"{resource('Gone')} {REDIRECTS} {resource('There')} .",
        f'{resource("Gone")} {COMMENT} "moved"@en .',
        f"{resource('New')} {RELATION} {resource('There')} .",
    ]
    kb = import_text(tmp_path, "d.nt", "\n".join(lines) + "\n", format="dbpedia")
    assert described(kb) == {("en", "New"): "of the new name", ("en", "There"): "moved"}


TABLE = [("en", "Paris", "city in France"), ("fi", "Pariisi", ""), ("zh-hans", "巴黎", "法国首都")]


@pytest.mark.parametrize("suffix", ["tsv", "csv", "parquet"])
def test_a_table_of_names_may_have_descriptions(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"things.{suffix}"
    columns = ("description", "lang", "name")
    rows = [(text, lang, name) for lang, name, text in TABLE]
    if suffix == "parquet":
        arrays = [[value or None for value in column] for column in zip(*rows, strict=True)]
        pq.write_table(pa.table(arrays, names=list(columns)), path)
    else:
        mark = "\t" if suffix == "tsv" else ","
        path.write_text("\n".join(mark.join(row) for row in [columns, *rows]) + "\n", "utf-8")
    kb = import_kb([path], tmp_path / "kb")
    assert described(kb) == {("en", "Paris"): "city in France", ("zh", "巴黎"): "法国首都"}
    assert kb.num_entities == 3 and sums(kb) == (5, 5)


def test_a_column_description_of_facts_is_left_alone(tmp_path: Path) -> None:
    text = "lang\tsubject\trelation\tobject\tdescription\nen\ta\tr\tb\t\xff\nen\tb\tr\tc\t\n"
    kb = import_text(tmp_path, "facts.tsv", text.encode("latin-1"))
    assert kb.num_triples() == 2 and not kb.has_descriptions


@pytest.mark.parametrize("extra", [0, 1])
def test_a_description_beyond_the_limit_is_rejected_and_the_name_stays(
    extra: int, tmp_path: Path
) -> None:
    text = "ä" * (Limits.description + extra)
    kb = import_text(tmp_path, "x.tsv", f"lang\tname\tdescription\nen\tA\t{text}\n", max_name=10)
    assert kb.num_entities == 1
    assert described(kb) == ({} if extra else {("en", "A"): text})
    expected = [("description too long", "x.tsv", 2)] if extra else []
    assert rejects_of(kb) == expected


def test_without_descriptions_the_tables_are_those_of_a_source_without_them(tmp_path: Path) -> None:
    lines = [wikidata_item("Q1", {"en": "Paris"}, {"en": "city"}), wikidata_item("Q2", {}, {})]
    (tmp_path / "w.json").write_text("\n".join(lines))
    whole = import_kb([tmp_path / "w.json"], tmp_path / "whole")
    kb = import_kb([tmp_path / "w.json"], tmp_path / "kb", descriptions=False)
    assert whole.has_descriptions and not kb.has_descriptions
    assert kb.manifest.account["filtered"]["description not asked for"] == 1
    assert kb.descriptions([0, 0]) == ["", ""]
    assert "descriptions" not in kb.manifest.counts
    for table in ("entities", "aliases", "triples"):
        assert kb.path(table).read_bytes() == whole.path(table).read_bytes()


def test_a_kb_without_descriptions_has_the_manifest_that_it_had(tmp_path: Path) -> None:
    kb = import_text(tmp_path, "f.tsv", "lang\tsubject\trelation\tobject\nen\ta\tr\tb\n")
    assert set(kb.manifest.options) == {
        "format",
        "langs",
        "max_triples",
        "seed",
        "max_name",
        "max_line",
    }
    assert "descriptions" not in json.dumps(kb.manifest.counts | kb.manifest.account)
    assert not kb.path("descriptions").exists()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """A KB in which about half of the entities have a description."""
    folder, rng = tmp_path_factory.mktemp("many"), random.Random(0)
    lines = []
    for number in range(300):
        item = iri(str(number))
        for lang in ("en", "fi"):
            lines.append(f'{item} {LABEL} "{lang} {number}"@{lang} .')
            if rng.random() < 0.5:
                lines.append(f'{item} {COMMENT} "of {number} 名 in {lang}"@{lang} .')
        lines.append(f"{item} {RELATION} {iri(str(rng.randrange(300)))} .")
    rng.shuffle(lines)
    return import_text(folder, "m.nt", "\n".join(lines) + "\n")


def test_splits_and_their_opposite_carry_descriptions(many: KB, tmp_path: Path) -> None:
    text = many.path("descriptions").read_bytes()
    for config in (SplitConfig(), SplitConfig(unseen=0.2), SplitConfig(hide_links=0.3)):
        kb = split_kb(many, tmp_path / "split", config, overwrite=True)
        assert kb.path("descriptions").read_bytes() == text
        whole = unsplit_kb(kb, tmp_path / "unsplit", overwrite=True)
        assert whole.path("descriptions").read_bytes() == text


def test_the_lookup_and_the_stream_say_what_the_kb_says(many: KB) -> None:
    lookup = build_lookup(many)
    texts = many.descriptions(range(many.num_entities))
    assert [lookup.description(entity) for entity in range(many.num_entities)] == texts
    assert 100 < sum(map(bool, texts)) < 500
    written: dict[int, list[str]] = {}
    for ids, names in many.all_names(descriptions=True, batch_rows=97):
        for entity, name in zip(ids.tolist(), names, strict=True):
            written.setdefault(entity, []).append(name)
    assert written == {entity: lookup.texts(entity) for entity in range(many.num_entities)}


def test_a_kb_without_the_table_has_no_descriptions(shared_toy: KB) -> None:
    assert shared_toy.descriptions(range(3)) == [""] * 3
    assert build_lookup(shared_toy).description(0) == ""
    plain, all_ = (list(shared_toy.all_names(descriptions=d)) for d in (False, True))
    assert [names for _, names in plain] == [names for _, names in all_]


def test_the_order_of_the_source_does_not_change_the_table(many: KB, tmp_path: Path) -> None:
    lines = (many.folder.parent / "m.nt").read_text("utf-8").splitlines()
    kb = import_text(tmp_path, "m.nt", "\n".join(sorted(lines)) + "\n", memory="200MiB")
    assert kb.path("descriptions").read_bytes() == many.path("descriptions").read_bytes()
