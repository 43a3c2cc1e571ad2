"""Whole imports, worked out by hand: what a source says is in the KB, and what is bad is counted.

The files in `tests/data` are in the published formats: DBpedia's as they come from the Databus, and
one small KB in each syntax of RDF.
"""

import bz2
import gzip
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.importers.format import Chunk
from prixlm.importers.tables import TABLES

DATA = Path(__file__).parents[1] / "data"
TABLE_NAMES = ("entities", "aliases", "relations", "relation_names", "triples", "links")
LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"
SAME_AS = "<http://www.w3.org/2002/07/owl#sameAs>"

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": lambda data: bz2.compress(data, 1),  # blocks of 100 kB: a cut leaves whole ones
    ".xz": lzma.compress,
    ".zst": lambda data: pa.compress(data, codec="zstd", asbytes=True),
}


def triples_of(kb: KB, *columns: str) -> set[tuple[str, ...]]:
    """Triples by their names: language, subject, relation and object, and further columns."""
    wanted = ", ".join(["t.lang", "s.name", "r.name", "o.name", *columns])
    query = (
        f"SELECT {wanted} FROM triples t JOIN entities s ON s.id = t.subject "
        "JOIN relations r ON r.id = t.relation JOIN entities o ON o.id = t.object"
    )
    return set(kb.query(query).fetchall())


def names_of(kb: KB, lang: str) -> list[str]:
    query = "SELECT name FROM entities WHERE lang = ? ORDER BY name"
    return [row[0] for row in kb.query(query, [lang]).fetchall()]


def concept_of(kb: KB, name: str, lang: str) -> set[tuple[str, str]]:
    """The names, with their languages, of whatever means the same as the one entity `name`."""
    (entity,) = kb.find(name, lang)
    query = "SELECT lang, name FROM entities WHERE concept = ?"
    return set(kb.query(query, [entity.concept]).fetchall())


def rejects_of(kb: KB) -> list[tuple[str, str, int]]:
    """Reason, source and line of each row of the rejects file."""
    rows = (kb.folder / "rejects.tsv").read_text("utf-8").split("\n")
    assert rows[0] == "reason\tsource\tline\ttext" and rows[-1] == ""
    cells = [row.split("\t") for row in rows[1:-1]]
    return [(reason, source, int(line)) for reason, source, line, _text in cells]


def bytes_of(kb: KB, *tables: str) -> dict[str, bytes]:
    return {table: kb.path(table).read_bytes() for table in tables or TABLE_NAMES}


def import_text(folder: Path, name: str, text: str | bytes, **options: Any) -> KB:
    """The KB of one file with this content."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return import_kb([path], folder / f"{name} KB", **options)


@pytest.fixture(scope="module")
def dbpedia(tmp_path_factory: pytest.TempPathFactory) -> KB:
    return import_kb(sorted(DATA.glob("*_lang=*.ttl")), tmp_path_factory.mktemp("dbpedia") / "kb")


def test_dbpedia_is_recognised_and_its_licence_is_stated(dbpedia: KB) -> None:
    assert dbpedia.manifest.options["format"] == "dbpedia"
    assert dbpedia.manifest.licence.startswith("CC BY-SA")
    assert len(dbpedia.manifest.sources) == 9


def test_dbpedia_entities_are_named_by_labels_and_else_by_their_iris(dbpedia: KB) -> None:
    labels = ["Alvar Aalto", "Helsinki", "Jyväskylä", "Suomi", 'Tauno "Tatu" Palo', "Äänekoski"]
    assert names_of(dbpedia, "fi") == sorted([*labels, "Hämeenlinna", "Kuortane", "Suomen kieli"])
    assert names_of(dbpedia, "ja") == sorted(["フィンランド", "ヘルシンキ", "ユーロ", "北欧理事会"])
    assert names_of(dbpedia, "en") == ["AT&T", "Alvar Aalto", "Finland"]
    assert names_of(dbpedia, "sv") == ["Finland"]  # the end of a link, and nothing else


def test_dbpedia_facts_hold_between_the_ends_that_redirects_lead_to(dbpedia: KB) -> None:
    assert triples_of(dbpedia, "split") == {
        ("fi", "Alvar Aalto", "birth place", "Kuortane", "train"),
        ("fi", "Alvar Aalto", "birth place", "Suomi", "train"),
        ("fi", "Alvar Aalto", "death place", "Helsinki", "train"),  # through two redirects
        ("fi", "Helsinki", "country", "Suomi", "train"),
        ("fi", "Jyväskylä", "country", "Suomi", "train"),
        ("fi", "Äänekoski", "country", "Suomi", "train"),  # from Suomen_tasavalta
        ("fi", "Suomi", "capital", "Helsinki", "train"),  # and again from Helsingin_kaupunki
        ("fi", 'Tauno "Tatu" Palo', "birth place", "Hämeenlinna", "train"),
        ("ja", "フィンランド", "capital", "ヘルシンキ", "train"),
        ("ja", "ヘルシンキ", "country", "フィンランド", "train"),
        ("ja", "フィンランド", "currency", "ユーロ", "train"),
        ("en", "Alvar Aalto", "birth place", "Finland", "train"),
    }


def test_dbpedia_spellings_of_an_iri_meet_in_one_entity(dbpedia: KB) -> None:
    for name, lang in [("Jyväskylä", "fi"), ("Äänekoski", "fi"), ("ヘルシンキ", "ja")]:
        (entity,) = dbpedia.find(name, lang)
        assert entity.key == f"http://{lang}.dbpedia.org/resource/{name}"
    assert len(dbpedia.find_key("http://fi.dbpedia.org/resource/Tauno_%22Tatu%22_Palo")) == 1


def test_dbpedia_label_of_a_redirected_page_is_an_alias(dbpedia: KB) -> None:
    (aalto,) = dbpedia.find("Alvar Aalto", "fi")
    assert dbpedia.aliases(aalto.id) == ["Aalto (arkkitehti)", "Hugo Alvar Henrik Aalto"]
    assert dbpedia.find("Hugo Alvar Henrik Aalto") == [aalto]


def test_dbpedia_links_make_one_concept(dbpedia: KB) -> None:
    finland = {("fi", "Suomi"), ("ja", "フィンランド"), ("en", "Finland"), ("sv", "Finland")}
    assert concept_of(dbpedia, "Suomi", "fi") == finland
    aalto = {("fi", "Alvar Aalto"), ("en", "Alvar Aalto")}  # the link is from a redirected page
    assert concept_of(dbpedia, "Alvar Aalto", "fi") == aalto
    assert concept_of(dbpedia, "Kuortane", "fi") == {("fi", "Kuortane")}
    explicit = [batch.num_rows for batch in dbpedia.link_pairs(explicit=True)]
    every = [batch.num_rows for batch in dbpedia.link_pairs()]
    assert (sum(explicit), sum(every)) == (4, 6 + 1 + 1)


def test_dbpedia_languages_meet_in_the_same_wikidata_item(dbpedia: KB) -> None:
    assert concept_of(dbpedia, "Helsinki", "fi") == {("fi", "Helsinki"), ("ja", "ヘルシンキ")}
    assert not dbpedia.find_key("http://www.wikidata.org/entity/Q1757")


def test_dbpedia_rows_are_all_accounted_for(dbpedia: KB) -> None:
    assert dbpedia.manifest.account == {
        "read": 66,
        "imported": {"facts": 12, "links": 4 + 2, "names": 14, "redirects": 4},
        "rejected": {
            "entity without a name": 1,
            "link to an entity that is not there": 3,
            "no language names both ends": 1,
            "object is a literal": 2,
            "redirect in a circle": 2,
        },
        "filtered": {"comment or blank line": 18, "duplicate": 3},
    }
    objects, links = "mappingbased-objects_lang=fi.ttl", "interlanguage-links_lang=fi.ttl"
    expected = {
        ("entity without a name", objects, 13),
        ("object is a literal", objects, 11),
        ("object is a literal", objects, 12),
        ("no language names both ends", "mappingbased-objects_lang=ja.ttl", 6),
        *(("link to an entity that is not there", links, line) for line in (5, 7, 8)),
    }
    assert expected <= set(rejects_of(dbpedia))


def test_dbpedia_rejects_show_redirects_in_a_circle(dbpedia: KB) -> None:
    circles = [row[1:] for row in rejects_of(dbpedia) if row[0] == "redirect in a circle"]
    assert circles == [("redirects_lang=fi.ttl", 6), ("redirects_lang=fi.ttl", 7)]


def test_dbpedia_can_be_limited_to_some_languages(dbpedia: KB, tmp_path: Path) -> None:
    files = sorted(DATA.glob("*_lang=*.ttl"))
    kb = import_kb(files, tmp_path / "kb", langs=["ja", "fin"])
    assert kb.languages == ["fi", "ja"]
    assert names_of(kb, "fi") == names_of(dbpedia, "fi")
    assert triples_of(kb) == {row for row in triples_of(dbpedia) if row[0] in ("fi", "ja")}
    assert concept_of(kb, "Helsinki", "fi") == {("fi", "Helsinki"), ("ja", "ヘルシンキ")}
    assert concept_of(kb, "Suomi", "fi") == {("fi", "Suomi"), ("ja", "フィンランド")}
    assert kb.manifest.account["filtered"]["language not asked for"] >= 3 + 1


def test_dbpedia_without_redirects_names_the_redirected_pages(tmp_path: Path) -> None:
    files = [DATA / f"{kind}_lang=fi.ttl" for kind in ("labels", "mappingbased-objects")]
    kb = import_kb(files, tmp_path / "kb")
    assert ("fi", "Aalto (arkkitehti)", "death place", "Helsinki") in triples_of(kb)
    assert ("fi", "Äänekoski", "country", "Suomen tasavalta") in triples_of(kb)
    assert kb.manifest.counts["aliases"] == 0


def test_dbpedia_folder_and_order_of_files_do_not_matter(dbpedia: KB, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    for number, file in enumerate(sorted(DATA.glob("*_lang=*.ttl"), reverse=True)):
        shutil.copy(file, folder / f"{number}-{file.name}")
    assert bytes_of(import_kb([folder], tmp_path / "kb")) == bytes_of(dbpedia)


def test_dbpedia_with_english_iris_takes_the_language_of_the_label(tmp_path: Path) -> None:
    resource = "<http://dbpedia.org/resource/"
    text = (
        f'{resource}Finland> {LABEL} "Suomi"@fi .\n{resource}Finland> {LABEL} "Finland"@en .\n'
        f'{resource}Helsinki> {LABEL} "Helsinki"@fi .\n'
        f"{resource}Finland> <http://dbpedia.org/ontology/capital> {resource}Helsinki> .\n"
    )
    kb = import_text(tmp_path, "en_uris_fi.ttl", text)
    both = {("fi", "Suomi", "capital", "Helsinki"), ("en", "Finland", "capital", "Helsinki")}
    assert triples_of(kb) == both
    assert triples_of(import_text(tmp_path, "facts_en_uris_fi.ttl", text, langs=["fi"])) == {
        ("fi", "Suomi", "capital", "Helsinki")
    }
    kb = import_text(tmp_path, "fi.ttl", text, langs=["fi"])
    assert triples_of(kb) == set()
    assert kb.manifest.account["filtered"] == {"language not asked for": 2}


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
def test_an_odd_header_is_no_crash(header: str, tmp_path: Path) -> None:
    try:
        kb = import_text(tmp_path, "facts.tsv", f"{header}\nen\ta\tr\tb\ten\n")
    except PrixError:
        return
    assert kb.num_entities


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("name", ["facts.tsv", "labels_lang=fi.ttl", "sample.ttl", "sample.nq"])
def test_a_compressed_source_gives_the_bytes_of_the_plain_one(
    name: str, suffix: str, tmp_path: Path
) -> None:
    data = (write_table(tmp_path / name) if name == "facts.tsv" else DATA / name).read_bytes()
    plain = import_text(tmp_path, name, data)
    packed = import_text(tmp_path, name + suffix, COMPRESS[suffix](data))
    assert bytes_of(packed) == bytes_of(plain)
    assert packed.manifest.account == plain.manifest.account


def numbered_facts(first: int, end: int) -> bytes:
    """Facts that hardly compress, so that half an archive is about half of the facts."""
    names = (
        (i, i * 0x9E3779B97F4A7C15 % 2**64, i * 0xC2B2AE3D27D4EB4F % 2**64) for i in range(end)
    )
    return b"".join(b"en\t%d %x\tr\t%d %x\n" % (i, x, i, y) for i, x, y in names if i >= first)


def decompress_prefix(data: bytes, suffix: str) -> bytes:
    """All that can be known of an archive that ends too early."""
    match suffix:
        case ".gz":
            return zlib.decompressobj(31).decompress(data)
        case ".bz2":
            return bz2.BZ2Decompressor().decompress(data)
        case ".xz":
            return lzma.LZMADecompressor().decompress(data)
    known = b""
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        try:
            while byte := stream.read(1):
                known += byte
        except OSError:
            pass
    return known


def num_whole_lines(data: bytes) -> int:
    return data.count(b"\n")


@pytest.mark.parametrize("part", [0.3, 0.9])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_truncated_archive_gives_all_the_lines_before_the_damage(
    suffix: str, part: float, tmp_path: Path
) -> None:
    packed = COMPRESS[suffix](numbered_facts(0, 12_000))
    cut = packed[: int(len(packed) * part)]
    num_known = num_whole_lines(decompress_prefix(cut, suffix))
    kb = import_text(tmp_path, f"facts.tsv{suffix}", cut)
    assert kb.manifest.account["rejected"] == {"truncated or damaged archive": 1}
    num_facts = kb.manifest.account["imported"]["facts"]
    assert num_facts == kb.num_triples() > 0
    assert rejects_of(kb) == [("truncated or damaged archive", f"facts.tsv{suffix}", num_facts + 1)]
    whole = import_text(tmp_path, "facts.tsv", numbered_facts(0, num_facts))
    assert bytes_of(kb) == bytes_of(whole)
    assert num_facts == num_known


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_truncated_dump_of_dbpedia_is_still_read_as_lines(suffix: str, tmp_path: Path) -> None:
    names = [f"{i * 0x9E3779B97F4A7C15 % 2**64:x}" for i in range(6_000)]
    lines = [
        f'<http://fi.dbpedia.org/resource/N{i}> {LABEL} "{x}"@fi .' for i, x in enumerate(names)
    ]
    packed = COMPRESS[suffix]("\n".join(lines).encode())
    kb = import_text(tmp_path, f"labels_lang=fi.ttl{suffix}", packed[: len(packed) * 2 // 3])
    assert kb.manifest.account["rejected"] == {"truncated or damaged archive": 1}
    assert rejects_of(kb)[0][2] == kb.num_entities + 1


def test_a_truncated_parquet_file_is_a_clear_error(tmp_path: Path) -> None:
    data = write_table(tmp_path / "facts.parquet").read_bytes()
    with pytest.raises(PrixError, match=r"cut\.parquet"):
        import_text(tmp_path, "cut.parquet", data[:-100])


def test_a_parquet_column_that_is_no_text_is_no_crash(tmp_path: Path) -> None:
    columns = {
        "lang": ["en"] * 2,
        "subject": [b"a\xff", b"a"],
        "relation": [1, 2],
        "object": ["b"] * 2,
    }
    pq.write_table(pa.table(columns), tmp_path / "facts.parquet")
    kb = import_kb([tmp_path / "facts.parquet"], tmp_path / "kb")
    assert ("en", "a", "2", "b") in triples_of(kb)


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


def test_a_bad_row_that_is_no_text_either_is_one_bad_row(tmp_path: Path) -> None:
    kb = import_text(tmp_path, "facts.tsv", b"en\ta\tr\tb\nen\t\xff\nen\tb\tr\tc\n")
    assert sum(kb.manifest.account["rejected"].values()) == 1
    assert [line for _, _, line in rejects_of(kb)] == [2]


def test_blank_lines_in_a_table_are_no_bad_rows(tmp_path: Path) -> None:
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


def write_benchmark(folder: Path, **files: bytes) -> Path:
    """A folder in the shape of DBP-5L; `en`, `ja`, `relations`, `facts` and `links` replace one."""
    content = {
        "en": b"http://dbpedia.org/resource/Finland\r\nhttp://dbpedia.org/resource/Helsinki\r\n",
        "ja": "http://ja.dbpedia.org/resource/フィンランド\r\nヘルシンキ\r\n".encode(),
        "relations": b"http://dbpedia.org/ontology/capital\r\nhttp://dbpedia.org/ontology/seat\r\n",
        "facts": b"0\t0\t1\r\n",
        "links": b"0.0\t0.0\r\n1.0\t1.0\r\n",
    }
    places = {
        "en": "entity/en.tsv",
        "ja": "entity/ja.tsv",
        "relations": "relations.txt",
        "facts": "kg/en-train.tsv",
        "links": "seed_alignlinks/en-ja.tsv",
    }
    for name, place in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(files.get(name, content[name]))
    return folder


def test_a_benchmark_list_may_hold_names_instead_of_iris(tmp_path: Path) -> None:
    kb = import_kb([write_benchmark(tmp_path / "b")], tmp_path / "kb")
    assert names_of(kb, "ja") == sorted(["フィンランド", "ヘルシンキ"])
    assert concept_of(kb, "Helsinki", "en") == {("en", "Helsinki"), ("ja", "ヘルシンキ")}
    assert triples_of(kb) == {("en", "Finland", "capital", "Helsinki")}


def test_bad_rows_of_a_benchmark_folder_are_counted_with_their_lines(tmp_path: Path) -> None:
    facts = b" 0\t0\t1 \r\n0\t0\r\n0\t0\tx\n0\t0\t2\n\n0\t0\t1.0\n0\t0\xff\n"
    kb = import_kb([write_benchmark(tmp_path / "b", facts=facts)], tmp_path / "kb")
    assert triples_of(kb) == {("en", "Finland", "capital", "Helsinki")}
    found = {(reason, line) for reason, source, line in rejects_of(kb) if "kg" in source}
    bad = {("2 columns, expected 3", 2), ("id is not a number", 3), ("id that no list has", 4)}
    assert bad <= found
    assert {line for _, line in found} - {5} == {2, 3, 4, 7}


def test_an_entity_of_a_benchmark_folder_that_is_no_text_is_rejected(tmp_path: Path) -> None:
    entities = b"\xef\xbb\xbfSuomi\r\n\xff\xfe\r\nhttp://dbpedia.org/resource/_\r\n"
    kb = import_kb([write_benchmark(tmp_path / "b", en=entities)], tmp_path / "kb")
    assert names_of(kb, "en") == ["Suomi"]
    found = {(reason, line) for reason, source, line in rejects_of(kb) if "en.tsv" in source}
    assert {("invalid UTF-8", 2), ("empty name", 3)} <= found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("facts.tsv", "lang\tsubject\trelation\tobject\n"),
        ("facts.tsv", "zz\ta\tr\tb\n"),
        ("empty.tsv", ""),
        ("empty.nt", ""),
        ("empty.rdf", ""),
        ("nothing.nt", "# started 2022-12-09T18:27:11Z\n"),
        ("names.nt", "<http://a.org/a> <http://a.org/p> <http://a.org/b> .\n"),
    ],
)
def test_nothing_to_import_is_an_error_that_says_what_was_looked_for(
    name: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match=rf"nothing to import in {name}.*Looked for"):
        import_text(tmp_path, name, text)
    assert not (tmp_path / f"{name} KB").exists()


@pytest.mark.parametrize("format_", ["rdf", "dbpedia", "table", "wikidata", "benchmark", "authors"])
def test_a_forced_format_that_does_not_fit_is_an_error(format_: str, tmp_path: Path) -> None:
    with pytest.raises(PrixError):
        import_text(tmp_path, "notes.md", "# Notes\n\nNothing here is a fact.\n", format=format_)


@pytest.mark.parametrize("line", [f'<> {LABEL} "b"@en .', "<http://e/a> <> <http://e/a> ."])
def test_an_empty_iri_names_nothing(line: str, tmp_path: Path) -> None:
    kb = import_text(tmp_path, "x.nt", f'<http://e/a> {LABEL} "a"@en .\n{line}\n')
    assert names_of(kb, "en") == ["a"]
    assert all(kb.relation_names("en"))
    assert [line for _, _, line in rejects_of(kb)] == [2]


def test_a_chunk_after_the_first_has_no_header(tmp_path: Path) -> None:
    path = write_table(tmp_path / "facts.tsv")
    parser = TABLES.parser(TABLES.sources([path]), 0, None)
    header = b"lang\tsubject\trelation\tobject\tsplit\n"
    assert parser(Chunk(0, 1, header)).read == 0
    assert dict(parser(Chunk(0, 9, header)).rejected) == {"unknown language code": 1}
