"""DBpedia's dump files, as they come from the Databus: a small dump worked out by hand."""

import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from prixlm import KB, import_kb
from prixlm.importers.dbpedia import decode_iri
from tests.importers.helpers import (
    DATA,
    LABEL,
    bytes_of,
    concept_of,
    import_text,
    names_of,
    rejects_of,
    triples_of,
)


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


FORBIDDEN = frozenset('<>"{}|^`\\') | frozenset(map(chr, range(0x21))) | {"\x7f"}
"""What no IRI of an RDF file may hold."""
LOCAL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="".join(FORBIDDEN)))
ESCAPES = st.integers(0, 255).map(lambda code: f"%{code:02X}") | st.sampled_from(["%c3%a4", "%2f"])
WELL_FORMED = st.lists(LOCAL.map(lambda text: text.replace("%", "")) | ESCAPES, max_size=8)


@given(WELL_FORMED.map("".join))
def test_an_iri_in_one_spelling_stays_as_it_is(iri: str) -> None:
    assert decode_iri(decode_iri(iri)) == decode_iri(iri)


@given(st.text(st.sampled_from("%0123456789abcdefABCDEF/ä")))
@example("%%34%31")
@example("%4%31")
def test_an_iri_with_stray_percent_signs_comes_to_one_spelling(iri: str) -> None:
    assert decode_iri(decode_iri(iri)) == decode_iri(iri)


@given(LOCAL)
def test_an_encoded_iri_meets_the_plain_one(local: str) -> None:
    assume(not set("%?#[]/") & set(local))  # encoded delimiters stay encoded
    assert decode_iri(quote(local)) == decode_iri(local) == local


@given(WELL_FORMED.map("".join) | st.text(st.characters(exclude_categories=["Cs"])))
def test_decoding_brings_nothing_into_an_iri_that_may_not_be_there(iri: str) -> None:
    assert not (set(decode_iri(iri)) - set(iri)) & FORBIDDEN


@pytest.mark.parametrize("rounds", [3000, 1_000_000])
def test_an_iri_with_a_code_in_a_code_in_a_code_ends_the_decoding(rounds: int) -> None:
    """`%3%31` is `%31` is `1`: as many rounds as the IRI has letters."""
    iri = "http://dbpedia.org/resource/" + "%3" * rounds + "%31"
    assert decode_iri(iri) == ("http://dbpedia.org/resource/1" if rounds == 3000 else iri)
