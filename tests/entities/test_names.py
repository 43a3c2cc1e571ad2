"""Names: what a person types finds its entity, in any script, however many names resemble it."""

import itertools
import os
import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz, process

from prixlm import KB
from prixlm.engine.workspace import partial_folder
from prixlm.entities import names as names_module
from prixlm.entities.names import NameHit, NameIndex, build_names, fold
from prixlm.errors import PrixError
from prixlm.kb.store import Manifest
from prixlm.kb.writer import write_table
from prixlm.romanise import has_dictionary, romanise
from tests.helpers import run_python

Named = tuple[str, str, str]  # language, name, concept


def write_kb(
    folder: Path,
    entities: Sequence[Named],
    aliases: Sequence[tuple[int, str]] = (),
    facts: Sequence[tuple[int, int]] = (),
) -> KB:
    """Write a KB of these names. aliases: entity and name; facts: subject and object.

    Entities are ordered by language, as in every KB.
    """
    assert [lang for lang, _, _ in entities] == sorted(lang for lang, _, _ in entities)
    concepts = {
        concept: number for number, concept in enumerate(dict.fromkeys(e[2] for e in entities))
    }
    folder.mkdir(parents=True)
    ids = list(range(len(entities)))
    with write_table(folder, "entities") as table:
        table.write(
            id=ids,
            key=[f"k{number}" for number in ids],
            lang=[lang for lang, _, _ in entities],
            name=[name for _, name, _ in entities],
            concept=[concepts[concept] for _, _, concept in entities],
        )
    with write_table(folder, "aliases") as table:
        if aliases:
            table.write(entity=[a for a, _ in aliases], name=[name for _, name in aliases])
    with write_table(folder, "triples") as table:
        if facts:
            table.write(
                lang=[entities[subject][0] for subject, _ in facts],
                subject=[subject for subject, _ in facts],
                relation=[0] * len(facts),
                object=[other for _, other in facts],
                split=["train"] * len(facts),
            )
    with write_table(folder, "relations") as table:
        table.write(id=[0], key=["r"], name=["relation"])
    for name in ("relation_names", "links"):
        with write_table(folder, name):
            pass
    langs = [lang for lang, _, _ in entities]
    counts = {"entities": {lang: langs.count(lang) for lang in sorted(set(langs))}}
    counts |= {"relations": 1, "aliases": 0, "links": 0, "concepts": 0}  # type: ignore[dict-item]
    of = [entities[subject][0] for subject, _ in facts]
    counts |= {
        "linked": dict.fromkeys(counts["entities"], 0),
        "triples": {lang: {"train": of.count(lang)} for lang in sorted(set(of))},  # type: ignore[dict-item]
    }
    Manifest(counts=counts, sources=[], licence="CC0", tool=f"test {folder.name}").write(folder)
    return KB(folder)


def index_of(tmp_path: Path, *names: str, facts: Sequence[tuple[int, int]] = ()) -> NameIndex:
    """Return an index of English names, each a concept of its own."""
    entities = [("en", name, f"{number}") for number, name in enumerate(names)]
    return build_names(write_kb(tmp_path / "kb", entities, facts=facts))


def found(hits: Sequence[NameHit]) -> list[str]:
    return [hit.name for hit in hits]


def misspell(text: str, num_typos: int, rng: random.Random) -> str:
    for _ in range(num_typos):
        at = rng.randrange(len(text))
        letter = rng.choice(text)
        text = rng.choice(
            (
                text[:at] + text[at + 1 :],
                text[:at] + letter + text[at:],
                text[:at] + letter + text[at + 1 :],
                text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :],
            )
        )
    return text


# --- the order of hits ----------------------------------------------------------------------------


def test_kinds_of_match_come_in_the_order_of_their_worth(tmp_path: Path) -> None:
    names = ["Romae", "New Rome", "Jerome", "Rōme", "Rohme", "Romeo", "Ромэ", "Oslo", "Rome"]
    kb = write_kb(
        tmp_path / "kb", [("en", name, name) for name in names], [(7, "ROME")], [(1, 2)] * 9
    )
    hits = build_names(kb).search("rome", 20)
    assert [(hit.name, hit.how) for hit in hits] == [
        ("Rome", "exact"),
        ("ROME", "exact"),
        ("Rōme", "romanised"),
        ("Ромэ", "romanised"),
        ("Romeo", "prefix"),
        ("New Rome", "prefix"),
        ("Jerome", "substring"),
        ("Romae", "spelling"),
        ("Rohme", "spelling"),
    ]
    assert [hit.is_alias for hit in hits] == [False, True] + 7 * [False]
    assert hits[1].entity == 7, "an alias leads to the entity that has it"


def test_the_better_known_of_equal_matches_comes_first(tmp_path: Path) -> None:
    names = ["Paris Hilton", "Paris, Texas", "Paris"] + 30 * ["Springfield"]
    index = index_of(tmp_path, *names, facts=[(1, 2), (20, 2), (20, 2), (5, 20), (5, 20), (5, 5)])
    assert found(index.search("pari")) == ["Paris", "Paris, Texas", "Paris Hilton"]
    hits = index.search("springfield", 4)
    assert [hit.entity for hit in hits] == [5, 20, 3, 4], "facts, then ids"


def test_facts_of_all_languages_make_a_concept_well_known(tmp_path: Path) -> None:
    entities = [("de", "Köln", "c"), ("en", "Cologne", "a"), ("en", "Cologne", "c")]
    kb = write_kb(tmp_path / "kb", entities, facts=[(0, 0)])
    assert [hit.entity for hit in build_names(kb).search("cologne")] == [2, 1]


def test_a_concept_is_found_once_by_the_name_that_matches_best(tmp_path: Path) -> None:
    entities = [
        ("de", "Wien", "v"),
        ("en", "Vienna", "v"),
        ("fr", "Vienne", "v"),
        ("fr", "Vie", "w"),
    ]
    index = build_names(write_kb(tmp_path / "kb", entities, [(1, "Vienna, Austria")]))
    assert found(index.search("vienna")) == ["Vienna", "Vie"]
    [hit, _] = index.search("vien")
    assert hit.concept == 0 and hit.name in ("Vienna", "Vienne")
    assert found(index.search("vienne", lang="fr"))[0] == "Vienne"
    [hit] = index.search("vienne", lang="de")
    assert (hit.name, hit.lang, hit.how, hit.entity) == ("Wien", "de", "spelling", 0)
    with pytest.raises(PrixError, match="no language xx"):
        index.search("Wien", lang="xx")


def test_one_concept_of_many_names_leaves_room_for_others(tmp_path: Path) -> None:
    kb = write_kb(
        tmp_path / "kb",
        [("en", "Lotte", "1"), ("en", "Lot", "2"), ("en", "Lotus", "3")],
        [(0, f"lot number {number}") for number in range(900)],
        [(0, 0)],
    )
    hits = build_names(kb).search("lo", 3)
    assert [(hit.entity, hit.how) for hit in hits] == [(entity, "prefix") for entity in range(3)]


def test_a_language_restricts_every_kind_of_match(world: KB) -> None:
    index = build_names(world)
    for query in ("a", "al", "par", "Germany", "ermany", "Germny", "Αθήνα", "Afina"):
        hits = index.search(query, 20, "fi")
        assert {hit.lang for hit in hits} <= {"fi"}
        ids = world.entity_range("fi")
        assert all(hit.entity in ids for hit in hits)
    assert index.search("Saksa", lang="fi")[0].how == "exact"


def test_words_of_a_name_may_be_misspelled(tmp_path: Path) -> None:
    index = index_of(
        tmp_path, "William Shakespeare", "Sharks", "Spears", "Will Rogers", "Ash Parker"
    )
    assert found(index.search("shakspeare"))[0] == "William Shakespeare"
    assert found(index.search("wiliam shakespear"))[0] == "William Shakespeare"


# --- scripts and odd names ------------------------------------------------------------------------


def test_a_name_is_found_by_its_latin_letters(tmp_path: Path) -> None:
    entities = [("el", "Αθήνα", "a"), ("el", "Θεσσαλονίκη", "t"), ("ja", "東京", "j")]
    index = build_names(write_kb(tmp_path / "kb", entities))
    for query in ("Athina", "Afina", "athi", "ATHÍNA", "Афина"):
        assert found(index.search(query))[:1] == ["Αθήνα"], query
    assert [hit.how for hit in index.search("athina")] == ["romanised"]
    reading = "tokyo" if has_dictionary() else "dongjing"
    assert found(index.search(reading)) == ["東京"]


def test_a_query_in_another_script_finds_a_latin_name(tmp_path: Path) -> None:
    index = index_of(tmp_path, "Athina", "Moskva")
    assert found(index.search("Αθήνα"))[:1] == ["Athina"]
    assert found(index.search("Москва"))[:1] == ["Moskva"]


ODD_NAMES = [
    "火",
    "Å",
    "富士火山",
    "😀",
    "👩‍👩‍👧 family",
    "שָׁלוֹם",
    "\u202eevil\u202c",
    "فنلندا",
    "తెలుగు గంగ",
    "Q (film) 映画",
    "ǅungla",
    "ﬁnance",
    "Straße",
    "İstanbul",
    "-",
    '+ - ( ) " : ^ *',
    "name:foo AND bar~2 [a TO b]",
    "a OR b",
    "\\",
    "<script>alert(1)</script>",
    "'; DROP TABLE entities; --",
    "\u200b",
    "long " * 2000 + "end",
    "x" * 10_000,
    "N\u0303ame of combining\u0301 marks",
    "tab\tand\nline",
    "null\0inside",
]


def test_every_odd_name_finds_its_entity_first(tmp_path: Path) -> None:
    index = index_of(tmp_path, *ODD_NAMES)
    for entity, name in enumerate(ODD_NAMES):
        for query in (name, name.upper(), f"  {name} "):
            hits = index.search(query, 3)
            if fold(query) == fold(name):
                assert (hits[0].entity, hits[0].how, hits[0].name) == (entity, "exact", name)
        assert index.candidates([name], 3)[0][0].entity == entity


def test_parts_of_odd_names_find_them(tmp_path: Path) -> None:
    index = index_of(tmp_path, *ODD_NAMES)
    parts = {
        "火山": "富士火山",
        "士": "富士火山",
        "映": "Q (film) 映画",
        "נדא": "",
        "شلندا": "فنلندا",
    }
    parts |= {"గంగ": "తెలుగు గంగ", "strasse": "Straße", "finan": "ﬁnance", "istanbul": "İstanbul"}
    parts |= {"evil": "\u202eevil\u202c", "family": "👩‍👩‍👧 family", "drop table": ODD_NAMES[20]}
    parts |= {
        "\u00d1ame": "N\u0303ame of combining\u0301 marks",
        "שלום": "שָׁלוֹם",
        "foo": ODD_NAMES[16],
    }
    parts |= {"long end": ODD_NAMES[22], "x" * 9_999: "x" * 10_000, "xx": "x" * 10_000}
    for query, name in parts.items():
        assert not name or found(index.search(query))[:1] == [name], query[:20]
    assert index.search("evil")[0].how == "exact", "marks of direction do not count"


@pytest.mark.parametrize("query", ["", " ", "\t\n\u3000", "\ud800", "\u2003"])
def test_a_query_of_nothing_finds_nothing(tmp_path: Path, query: str) -> None:
    index = index_of(tmp_path, "Turku", " ", "Oulu")
    assert index.search(query) == [] and index.candidates([query, "Oulu"])[0] == []


def test_a_query_is_never_a_query_language(tmp_path: Path) -> None:
    index = index_of(tmp_path, "Turku", "Oulu", "Turku (city)")
    for query in ("*", "Tur*", "folded:turku", "Turku OR Oulu", "/.*/", "+Turku -Oulu", '"'):
        for hit in index.search(query) + index.candidates([query])[0]:
            assert hit.how != "exact" and max(hit.score, hit.romanised) < 100
    assert found(index.search("turku ("))[0] == "Turku (city)"
    assert index.search("*") == [] and index.search("/.*/") == []


@settings(max_examples=10)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=30), st.text(max_size=20))
def test_any_text_is_a_name_and_a_query(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], query: str
) -> None:
    names = [name.encode("utf-8", "ignore").decode() for name in names]
    index = index_of(tmp_path_factory.mktemp("any"), *names)
    for name in names:
        if fold(name):
            hits = index.search(name, len(names))
            namesakes = {n for n, other in enumerate(names) if fold(other) == fold(name)}
            assert {hit.entity for hit in hits if hit.how == "exact"} == namesakes
            assert all(hit.how == "exact" for hit in hits[: len(namesakes)])
    assert len({hit.concept for hit in index.search(query)}) == len(index.search(query)) <= 10


@given(st.text(st.characters(exclude_categories=[])))
def test_folding_twice_is_folding_once(text: str) -> None:
    once = fold(text)
    assert fold(once) == once == fold(f"  {text} ")


# --- what is guaranteed ---------------------------------------------------------------------------


def test_an_exact_name_is_found_among_thousands_that_share_its_n_grams(tmp_path: Path) -> None:
    # All of them are made of the same few n-grams, and most are shorter, so that BM25 prefers them.
    rounds = ["ab" * size + tail for size in range(1, 900) for tail in ("", "a", " ab", " ba")]
    orders = [
        "".join(order) for order in itertools.islice(itertools.permutations("abcabcab"), 2000)
    ]
    names = list(dict.fromkeys([*rounds, *orders]))
    index = index_of(tmp_path, *names, facts=[(0, 1), (2, 3)] * 50)
    for entity in range(0, len(names), 37):
        assert index.search(names[entity], 1)[0].entity == entity
        assert index.candidates([names[entity]], 1)[0][0].entity == entity


def test_long_names_that_differ_at_the_end_are_told_apart(tmp_path: Path) -> None:
    start = "Proceedings of the conference " * 40
    names = [f"{start}{number:04}" for number in range(1200)]
    index = index_of(tmp_path, *names)
    for entity in range(0, 1200, 101):
        assert index.search(names[entity], 1)[0].entity == entity
    # Words are sorted by fewer letters than this query has.
    assert found(index.search(names[777].split(maxsplit=7)[-1], 1)) == [names[777]]


def test_all_names_that_begin_with_a_query_can_be_had(tmp_path: Path) -> None:
    names = [f"Lake {number}" for number in range(700)] + [f"Blue Lake {n}" for n in range(700)]
    index = index_of(tmp_path, *names)
    assert [hit.entity for hit in index.search("lake", 2000)] == list(range(1400))


@pytest.mark.parametrize("num_typos", [1, 2])
def test_misspelled_names_are_found_as_by_comparing_with_all_names(
    world: KB, num_typos: int
) -> None:
    rng = random.Random(num_typos)
    index = build_names(world)
    rows = [row for batch in world.all_names() for row in zip(*batch, strict=True)]
    texts = [fold(name) for _, name in rows]
    concepts = world.concepts()[[entity for entity, _ in rows]]
    recall, reference = [], []
    for place in rng.sample([i for i, text in enumerate(texts) if len(text) > 3], 120):
        query = misspell(texts[place], num_typos, rng)
        scores = process.cdist([query], texts, scorer=fuzz.ratio)[0]
        nearest = dict.fromkeys(concepts[np.argsort(-scores, kind="stable")].tolist())
        reference.append(concepts[place] in list(nearest)[:10])
        recall.append(concepts[place] in {hit.concept for hit in index.search(query, 10)})
    assert len(texts) > 3000
    assert np.mean(recall) >= np.mean(reference) - 0.02
    assert np.mean(recall) > 0.95


def test_a_long_name_is_compared_as_far_as_its_query(tmp_path: Path) -> None:
    name = "".join(chr(0x4E00 + 7 * number) for number in range(300))
    index = index_of(tmp_path, name, "x" * 300)
    for query, how in ((name, "exact"), (name[:256], "prefix"), ("x" * 256, "prefix")):
        [hit] = index.search(query, 1)
        assert (hit.how, hit.score) == (how, 100)
        [hit, *_] = index.candidates([query])[0]
        assert (hit.how == "exact") is (how == "exact")


def test_a_misspelled_name_is_found_in_a_long_query_of_unknown_letters(tmp_path: Path) -> None:
    index = index_of(tmp_path, "Kristiinankaupunki", *(f"Name {number}" for number in range(99)))
    unknown = "".join(chr(0x4E00 + number) for number in range(60))
    assert found(index.candidates([f"{unknown} Kristinankaupunki"])[0])[:1] == [
        "Kristiinankaupunki"
    ]


# --- candidates for matching ----------------------------------------------------------------------


def test_candidates_are_names_of_at_most_k_concepts(tmp_path: Path) -> None:
    entities = [
        ("en", "Turin", "t"),
        ("en", "Turku", "u"),
        ("fi", "Turku", "u"),
        ("it", "Torino", "t"),
    ]
    kb = write_kb(tmp_path / "kb", entities, [(0, "Turino"), (1, "Turrku")])
    index = build_names(kb)
    [hits, other] = index.candidates(["turku", "TORINO"], 2)
    assert [(hit.name, hit.lang) for hit in hits[:3]] == [
        ("Turku", "en"),
        ("Turku", "fi"),
        ("Turrku", "en"),
    ]
    assert [hit.how for hit in hits[:3]] == ["exact", "exact", "spelling"]
    assert (other[0].name, other[0].score, other[0].romanised) == ("Torino", 100, 100)
    [hits] = index.candidates(["turku"], 1)
    assert {hit.concept for hit in hits} == {1}
    assert {hit.lang for hit in index.candidates(["turku"], lang="it")[0]} == {"it"}


def test_scores_are_those_of_rapidfuzz(tmp_path: Path) -> None:
    index = index_of(tmp_path, "Αθήνα", "Athens")
    for query in ("athina", "αθηνα", "athens"):
        for hit in index.candidates([query])[0]:
            assert hit.score == fuzz.ratio(fold(query), fold(hit.name))
    [hit, _] = index.candidates(["athina"])[0]
    assert (hit.name, hit.score, hit.romanised) == ("Αθήνα", 0, 100)


# --- the index on disk ----------------------------------------------------------------------------


def test_the_index_is_built_once_for_each_kb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb = write_kb(tmp_path / "kb", [("en", "Turku", "1")])
    steps: list[tuple[str, int, int]] = []
    build_names(kb, lambda *step: steps.append(step))
    assert steps[0] == ("names", 0, 1)
    monkeypatch.setattr(names_module, "_write_rows", None)  # cannot be called
    assert found(build_names(KB(kb.folder)).search("turku")) == ["Turku"]


def test_a_kb_that_changed_gets_a_new_index_and_an_open_one_still_answers(tmp_path: Path) -> None:
    folder = tmp_path / "kb"
    before = build_names(write_kb(folder, [("en", "Turku", "1"), ("en", "Tammisaari", "2")]))
    for number, name in enumerate(("Oulu", "Rauma", "Lahti")):
        other = write_kb(tmp_path / f"other{number}", [("en", name, "1")]).folder
        for path in other.iterdir():
            shutil.copy(path, folder)
        assert found(build_names(KB(folder)).search(name.lower())) == [name]
    caches = [path.name for path in (folder / "names").iterdir()]
    assert len(caches) == 2 and not any(name.endswith(".partial") for name in caches)
    assert before.folder.name not in caches
    assert found(before.search("tamisaari")) == ["Tammisaari"], "its files are still mapped"


def test_what_a_killed_build_left_is_not_taken_for_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb = write_kb(tmp_path / "kb", [("en", "Turku", "1")])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(names_module, "_write_sorted", die)
        with pytest.raises(KeyboardInterrupt):
            build_names(kb)
    [left] = (kb.folder / "names").iterdir()
    assert left.name.endswith(".partial")
    index = build_names(kb)
    assert found(index.search("turku")) == ["Turku"]
    assert not partial_folder(index.folder).exists()
    assert not (index.folder / "scratch").exists()


@pytest.mark.parametrize("damage", ["cut", "lacking", "empty"])
def test_a_damaged_index_is_built_again(tmp_path: Path, damage: str) -> None:
    kb = write_kb(tmp_path / "kb", [("el", "Αθήνα", "2"), ("en", "Turku", "1")])
    folder = build_names(kb).folder
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    assert len(files) > 8
    for path in files[::4]:  # an index takes a second to build
        if path.suffix == ".lock" or not path.exists():  # tantivy numbers its files anew
            continue
        if damage == "lacking":
            path.unlink()
        else:
            os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 1)
        index = build_names(kb)
        assert found(index.search("turku")) == ["Turku"], path.name
        assert index.candidates(["athina"])[0][0].name == "Αθήνα", path.name


def test_a_kb_on_a_read_only_disk_has_its_index_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kb = write_kb(tmp_path / "kb", [("en", "Turku", "1")])
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index = build_names(kb)
    assert index.folder.is_relative_to(tmp_path / "cache")
    assert not (kb.folder / "names").exists()
    assert found(index.search("turku")) == ["Turku"]


def test_others_can_read_an_index_that_they_cannot_write(tmp_path: Path) -> None:
    index = index_of(tmp_path, "Turku")
    modes = {path.stat().st_mode & 0o444 for path in index.folder.rglob("*") if path.is_file()}
    assert modes == {(index.folder / "names.text").stat().st_mode & 0o444}
    # tantivy needs to lock a folder that it opens: not this one, which may be on a read-only disk.
    for path in index.folder.rglob("*.lock"):
        path.unlink()
    before = sorted(path.name for path in index.folder.rglob("*"))
    assert found(build_names(index.kb).search("turk")) == ["Turku"]
    assert sorted(path.name for path in index.folder.rglob("*")) == before


def test_threads_get_the_answers_of_one(world: KB) -> None:
    index = build_names(world)
    queries = [
        *"abcdefgh",
        "germny",
        "Αθήνα",
        "Afina",
        "日本",
        "par",
        "new y",
        "republic of",
        "ko",
    ] * 6
    alone = [index.search(query) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(index.search, queries)) == alone
        assert list(pool.map(lambda q: index.candidates([q])[0], queries)) == index.candidates(
            queries
        )


def test_a_plain_machine_searches_without_torch(tmp_path: Path) -> None:
    kb = write_kb(tmp_path / "kb", [("en", "Turku", "1")])
    ran = run_python(
        "import sys\n"
        "for name in ('torch', 'transformers', 'tokenizers', 'sklearn', 'faiss'):\n"
        "    sys.modules[name] = None\n"
        "from prixlm import KB\n"
        "from prixlm.entities.names import build_names\n"
        "print(build_names(KB(sys.argv[1])).search('turkku')[0].name)",
        kb.folder,
    )
    assert ran.stdout == "Turku\n", ran.stderr


def test_all_names_of_the_toy_kb_are_found_in_all_its_scripts(shared_toy: KB) -> None:
    index = build_names(shared_toy)
    entities = shared_toy.entities(range(shared_toy.num_entities))
    assert len(index) == len(entities)
    for entity in entities:
        [hit, *_] = index.search(entity.name, lang=entity.lang)
        assert (hit.entity, hit.concept, hit.lang) == (entity.id, entity.concept, entity.lang)
        assert (hit.name, hit.how, hit.score) == (entity.name, "exact", 100)


def slow_candidates(index: NameIndex, query: str, k: int) -> list[tuple[int, str, float, float]]:
    """Compare each row that shares n-grams with the query, one by one: slow, and obvious."""
    asked = names_module._Query(index.kb, query, None)
    exact = [int(row) for rows in index._exact(asked, k) for row in rows]
    ranked = []
    for row in {*exact, *index._sharing_any(asked).tolist()}:
        text = index._folded[row][: names_module.MAX_TEXT]
        reading = index._readings[row][: names_module.MAX_TEXT] or text
        words, size = reading.split(" "), asked.short_reading.count(" ") + 1
        runs = [" ".join(words[at : at + size]) for at in range(len(words) - size + 1)]
        part = max(
            (fuzz.ratio(asked.short_reading, run) for run in runs[: len(runs) * (len(runs) > 1)]),
            default=0.0,
        )
        spelled, read = fuzz.ratio(asked.short, text), fuzz.ratio(asked.short_reading, reading)
        best = max(
            np.float32(spelled),
            np.float32(0.95) * np.float32(read),
            np.float32(0.85) * np.float32(part),
        )
        ranked.append((exact.index(row) if row in exact else len(exact), -best, row, spelled, read))
    num_names: dict[int, int] = {}
    kept = []
    for _, _, row, spelled, read in sorted(ranked):
        concept = int(index._concepts[row])
        if concept in num_names or len(num_names) < k:
            num_names[concept] = num_names.get(concept, 0) + 1
            if num_names[concept] <= names_module._MAX_NAMES:
                kept.append((int(index._entities[row]), index._names[row], spelled, read))
    return kept


@pytest.mark.parametrize("k", [1, 3, 30])
def test_candidates_agree_with_comparing_row_by_row(world: KB, k: int) -> None:
    index, rng = build_names(world), random.Random(k)
    names = [entity.name for entity in world.entities(rng.sample(range(world.num_entities), 60))]
    halves = [f"{name[: len(name) // 2]}{name[len(name) // 2 + 1 :]}" for name in names]
    for query in [*names[:20], *halves, "of the", "republic", "saint", "東京 sea"]:
        [hits] = index.candidates([query], k)
        got = [(hit.entity, hit.name, hit.score, hit.romanised) for hit in hits]
        assert got == slow_candidates(index, query, k)
        for hit in hits:
            assert (hit.how == "exact") == (fold(hit.name) == fold(query))
            assert hit.reading in ("", romanise([fold(hit.name)], hit.lang)[0])


def test_common_n_grams_are_left_out_where_they_are_in_too_many_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_of(tmp_path, *(f"Kristinankaupunki {n}" for n in range(300)), "Kristinestad")
    asked = names_module._Query(index.kb, "Kristinestat", None)
    everything = set(index._sharing_any(asked).tolist())
    monkeypatch.setattr(names_module, "_MAX_POSTINGS", 100)
    monkeypatch.setattr(names_module, "_MIN_GRAMS", 3)
    rarest = set(index._sharing_any(asked).tolist())
    assert len(rarest) < len(everything) == 301
    assert found(index.candidates(["Kristinestat"], 1)[0]) == ["Kristinestad"]
