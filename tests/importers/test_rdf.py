"""RDF in all its syntaxes: one small KB in each, worked out by hand, and malformed lines."""

import bz2
import subprocess
import sys
from pathlib import Path

import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.importers.format import Limits
from prixlm.importers.rdf import _TextReader
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


HEAD = (
    '<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    'xmlns:rdfs="http://www.w3.org/2000/01/rdf-schema#">'
)


def described(name: str, text: str) -> str:
    label = f'<rdfs:label xml:lang="en">{text}</rdfs:label>'
    return f'<rdf:Description rdf:about="http://e/{name}">{label}</rdf:Description>'


def nested(levels: int) -> str:
    """Return declarations of entities, each ten times as long as the one before."""
    declared = [f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, levels)]
    return '<!ENTITY a0 "aaaaaaaaaa">' + "".join(declared)


@pytest.mark.parametrize("place", ["before", "inside"])
def test_nested_entities_are_not_expanded_beyond_the_longest_name(
    place: str, tmp_path: Path
) -> None:
    bomb = f"<!DOCTYPE r [{nested(9)}]>"
    prolog, inner = (bomb, "") if place == "before" else ("", bomb)
    text = prolog + HEAD + described("b", "Good") + inner + described("a", "&a8;") + "</rdf:RDF>"
    (tmp_path / "x.rdf").write_text(text)
    if place == "before":
        with pytest.raises(PrixError, match=r"found no named entity \(XML entity too long 1\)"):
            import_kb([tmp_path / "x.rdf"], tmp_path / "kb")
        return
    kb = import_kb([tmp_path / "x.rdf"], tmp_path / "kb")
    assert names_of(kb, "en") == ["Good"]
    assert kb.manifest.account["rejected"] == {"XML entity too long": 1}
    assert "the rest of the file was not read" in (kb.folder / "rejects.tsv").read_text()


def test_a_hostile_file_does_not_take_memory(tmp_path: Path) -> None:
    """Entities of 100 MB, and 300 MB of text in an archive of 500 bytes."""
    bomb = f"<!DOCTYPE r [{nested(8)}]>" + HEAD + described("b", "Good") + described("a", "&a7;")
    (tmp_path / "entities.rdf").write_text(bomb + "</rdf:RDF>")
    start, end = (HEAD + described("b", "Good") + described("a", "@") + "</rdf:RDF>").split("@")
    with bz2.open(tmp_path / "text.rdf.bz2", "w") as file:
        file.write(start.encode())
        for _ in range(300):
            file.write(b"a" * (1 << 20))
        file.write(end.encode())
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom prixlm import PrixError, import_kb\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "folder = Path(sys.argv[1])\n"
        "good = 'http://www.w3.org/2000/01/rdf-schema#label'\n"
        "(folder / 'good.nt').write_text(f'<http://e/b> <{good}> \"Good\"@en .\\n')\n"
        "import_kb([folder / 'good.nt'], folder / 'good')\n"
        "before = peak()\n"
        "for name in ('entities.rdf', 'text.rdf.bz2'):\n"
        "    try: import_kb([folder / name], folder / f'{name} KB')\n"
        "    except PrixError as error: assert 'XML entity too long' in str(error)\n"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 400, "MiB above a small import; it was 3,000"
    assert names_of(KB(tmp_path / "text.rdf.bz2 KB"), "en") == ["Good"]


def test_entities_that_abbreviate_iris_are_read(tmp_path: Path) -> None:
    declared = '<!ENTITY base "http://e/">\n<!ENTITY ns\t"&base;ns#">'
    label = '<rdfs:label xml:lang="en">R&amp;D &lt;x&gt;</rdfs:label>'
    body = f'<rdf:Description rdf:about="&ns;a">{label}</rdf:Description>'
    kb = import_text(tmp_path, "x.rdf", f"<!DOCTYPE r [{declared}]>{HEAD}{body}</rdf:RDF>")
    (entity,) = kb.find("R&D <x>")
    assert entity.key == "http://e/ns#a"


@pytest.mark.parametrize("suffix", [".ttl", ".trig", ".rdf"])
def test_a_statement_without_an_end_ends_the_file_and_says_so(suffix: str, tmp_path: Path) -> None:
    long = "a" * (20 << 20)
    if suffix == ".rdf":
        text = HEAD + described("b", "Good") + described("a", long) + "</rdf:RDF>"
    else:
        prefixes = "@prefix e: <http://e/> .\n"
        text = f'{prefixes}e:b {LABEL} "Good"@en .\ne:a {LABEL} "{long}"@en .\n'
    kb = import_text(tmp_path, f"x{suffix}", text)
    assert names_of(kb, "en") == ["Good"]
    assert kb.manifest.account["rejected"] == {"statement too long": 1}
    assert rejects_of(kb) == [("statement too long", f"x{suffix}", 2)]


@pytest.mark.parametrize("size", range(1, 40))
def test_a_declaration_is_found_however_it_is_cut(size: int) -> None:
    class Small:
        damage = None

        def __init__(self, data: bytes) -> None:
            self.data = data

        def read(self, _: int) -> bytes:
            block, self.data = self.data[:size], self.data[size:]
            return block

    text = f"<!DOCTYPE r [{nested(6)}]>{HEAD}".encode()
    reader = _TextReader(Small(text), True, Limits())  # type: ignore[arg-type]
    blocks = iter(lambda: reader.read(2048), b"")
    assert text.startswith(b"".join(blocks)) and reader.stopped == "XML entity too long"
    harmless = text.replace(nested(6).encode(), nested(2).encode())
    reader = _TextReader(Small(harmless), True, Limits())  # type: ignore[arg-type]
    assert b"".join(iter(lambda: reader.read(2048), b"")) == harmless and not reader.stopped


def test_a_declaration_without_an_end_is_not_waited_for() -> None:
    class Endless:
        served = 0

        def read(self, size: int) -> bytes:
            self.served += size
            return b"a" * size if self.served > size else b'<!ENTITY a "'

    endless = Endless()
    reader = _TextReader(endless, True, Limits())  # type: ignore[arg-type]
    assert reader.read(2048) == b"" and reader.stopped == "XML entity too long"
    assert endless.served < 10_000
