"""RDF in all its syntaxes: one small KB in each, worked out by hand, and malformed lines."""

from pathlib import Path

import pytest

from prixlm import KB, import_kb
from tests.importers.helpers import (
    DATA,
    LABEL,
    SAME_AS,
    bytes_of,
    concept_of,
    import_text,
    names_of,
    rejects_of,
    triples_of,
)

SAMPLE_TRIPLES = {
    ("en", "Helsinki", "is capital of", "Finland"),
    ("fi", "Helsinki", "is capital of", "Suomi"),
    ("ja", "ヘルシンキ", "located in", "フィンランド"),
}
SAMPLE_REJECTED = {
    "blank node": 1,
    "entity without a name": 1,
    "name without a language": 1,
    "object is a literal": 1,
    "unknown language code": 1,
}


@pytest.fixture(scope="module")
def n_triples(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return import_kb([DATA / "sample.nt"], tmp_path_factory.mktemp("rdf") / "kb")


def test_rdf_gives_names_facts_and_links(n_triples: KB) -> None:
    assert triples_of(n_triples) == SAMPLE_TRIPLES
    everywhere = {("en", "Helsinki"), ("fi", "Helsinki"), ("th", "เฮลซิงกิ"), ("ja", "ヘルシンキ")}
    assert concept_of(n_triples, "เฮลซิงกิ", "th") == everywhere
    (finland,) = n_triples.find("Finland", "en")
    assert n_triples.aliases(finland.id) == ["Republic of Finland"]
    assert n_triples.find('Paris "the City"', "en")
    number = n_triples.relation_keys().index("http://example.org/terms#isCapitalOf")
    names = [n_triples.relation_names(lang)[number] for lang in ("en", "fi", "ja")]
    assert names == ["is capital of", "on pääkaupunki", "is capital of"]


def test_rdf_rejects_carry_the_lines_of_the_file(n_triples: KB) -> None:
    assert n_triples.manifest.account["rejected"] == SAMPLE_REJECTED
    assert {(reason, line) for reason, _, line in rejects_of(n_triples)} == {
        ("object is a literal", 17),
        ("entity without a name", 18),
        ("blank node", 19),
        ("name without a language", 20),
        ("unknown language code", 21),
    }


@pytest.mark.parametrize("suffix", ["nq", "ttl", "trig", "rdf"])
def test_every_rdf_syntax_gives_the_tables_of_the_n_triples(
    suffix: str, n_triples: KB, tmp_path: Path
) -> None:
    kb = import_kb([DATA / f"sample.{suffix}"], tmp_path / "kb")
    assert kb.manifest.options["format"] == "rdf"
    assert bytes_of(kb) == bytes_of(n_triples)
    for part in ("imported", "rejected"):
        assert kb.manifest.account[part] == n_triples.manifest.account[part]


def test_a_turtle_error_costs_one_statement_and_shifts_no_number(tmp_path: Path) -> None:
    text = (
        "@prefix e: <http://e.org/> .\n"
        f'e:a {LABEL} "a"@en .\ne:a e:p ] e:a .\ne:b {LABEL} "b"@en .\n'
        'e:a e:p "literal" .\ne:a e:p e:b .\n'
    )
    kb = import_text(tmp_path, "x.ttl", text)
    assert triples_of(kb) == {("en", "a", "p", "b")}
    lines = sorted(line for _, _, line in rejects_of(kb))
    assert lines == [2, 4]  # of five statements, the second is broken and the fourth has no entity


def test_what_looks_like_an_anonymous_node_in_a_text_stays(tmp_path: Path) -> None:
    text = f'@prefix e: <http://e.org/> .\ne:a {LABEL} "_:0123456789abcdef"@en .\n'
    assert names_of(import_text(tmp_path, "x.ttl", text), "en") == ["_:0123456789abcdef"]


def test_an_invalid_byte_in_turtle_does_not_take_the_rest_along(tmp_path: Path) -> None:
    label = LABEL.encode()
    bad = b'e:a %s "\xff"@en .\n' % label
    good = b"".join(b'e:n%d %s "n%d"@en .\n' % (i, label, i) for i in range(20))
    kb = import_text(tmp_path, "x.ttl", b"@prefix e: <http://e.org/> .\n" + bad + good)
    assert len(names_of(kb, "en")) >= 20


SUOMI = "<http://fi.dbpedia.org/resource/Suomi>"
TURKU = "<http://fi.dbpedia.org/resource/Turku>"
BAD_LINES = {
    "malformed line": f'<http://fi.dbpedia.org/resource/Turku {LABEL} "Turku"@fi .',
    "invalid UTF-8": f'{TURKU} {LABEL} "Åbo"@fi .'.encode("latin-1"),
    "unknown language code": f'{TURKU} {LABEL} "Turku"@zz .',
    "empty name": f'{TURKU} {LABEL} "\u00a0 "@fi .',
    "name is not a text": f"{TURKU} {LABEL} <http://x.org/> .",
    "name without a language": f'{TURKU} {LABEL} "Turku" .',
    "blank node": f"{SUOMI} <http://x.org/p> _:x .",
    "object is a literal": f'{SUOMI} <http://x.org/p> "1917" .',
    "entity without a name": f"{SUOMI} <http://x.org/p> <http://x.org/> .",
    "link to an entity that is not there": f"{SUOMI} {SAME_AS} <http://x.org/> .",
}


@pytest.mark.parametrize("name", ["labels_lang=fi.ttl", "labels_fi.nt", "labels.nq"])
@pytest.mark.parametrize("reason", BAD_LINES)
def test_a_bad_line_in_a_dump_is_counted_and_shown_with_its_number(
    reason: str, name: str, tmp_path: Path
) -> None:
    lines = (DATA / "labels_lang=fi.ttl").read_bytes().splitlines()
    good = import_text(tmp_path, f"good {name}", b"\n".join(lines))
    bad = BAD_LINES[reason]
    lines[4:4] = [bad if isinstance(bad, bytes) else bad.encode()]
    kb = import_text(tmp_path, name, b"\n".join(lines))
    assert kb.manifest.account["rejected"] == {reason: 1}
    assert rejects_of(kb) == [(reason, name, 5)]
    assert kb.manifest.account["read"] == good.manifest.account["read"] + 1
    assert bytes_of(kb, "entities") == bytes_of(good, "entities")


@pytest.mark.parametrize("line", [f'<> {LABEL} "b"@en .', "<http://e/a> <> <http://e/a> ."])
def test_an_empty_iri_names_nothing(line: str, tmp_path: Path) -> None:
    kb = import_text(tmp_path, "x.nt", f'<http://e/a> {LABEL} "a"@en .\n{line}\n')
    assert names_of(kb, "en") == ["a"]
    assert all(kb.relation_names("en"))
    assert [line for _, _, line in rejects_of(kb)] == [2]
