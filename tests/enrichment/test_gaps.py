"""Which questions are asked: facts that other languages state, relations of similar entities."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.enrichment.gaps import KINDS, USUAL, GapConfig, GapFinder, relations_of_one_object
from prixlm.rankers.names import RelationGuesser

FACTS = [
    ("en", "Finland", "capital", "Helsinki"),
    ("en", "Finland", "language", "Finnish"),
    ("en", "Finland", "language", "Swedish"),
    ("en", "Sweden", "capital", "Stockholm"),
    ("en", "Sweden", "language", "Swedish"),
    ("fi", "Suomi", "language", "suomi"),
    ("fi", "Ruotsi", "capital", "Tukholma"),
]
LINKS = [("Finland", "Suomi"), ("Sweden", "Ruotsi"), ("Finnish", "suomi"), ("Swedish", "ruotsi")]
LINKS += [("Stockholm", "Tukholma")]


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    # Twelve more countries: enough to tell that a relation has one object.
    more = [("en", f"C{i}", "capital", f"T{i}") for i in range(12)]
    more += [("en", f"C{i}", "language", f"L{i}") for i in range(8)]
    more += [("fi", "ruotsi", "family", "germaaninen")]
    facts = ["\t".join((*row, "train")) for row in (*FACTS, *more)]
    links = [f"en\t{a}\tfi\t{b}" for a, b in LINKS]
    return make_kb(tmp_path_factory.mktemp("gaps"), facts, links)


def make_kb(folder: Path, facts: list[str], links: list[str]) -> KB:
    header = "lang\tsubject\trelation\tobject\tsplit"
    (folder / "facts.tsv").write_text("\n".join([header, *facts]), "utf-8")
    header = "lang_a\tname_a\tlang_b\tname_b"
    (folder / "links.tsv").write_text("\n".join([header, *links]), "utf-8")
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


def ask(
    kb: KB, lang: str, config: GapConfig | None = None
) -> dict[tuple[str, str], tuple[str, float]]:
    """Return kind and expected share of all questions by subject and relation."""
    names = kb.relation_names("en")
    questions = {}
    for gaps in GapFinder(kb, config).find(lang):
        subjects = kb.names(gaps.queries.subject.tolist())
        for row in range(len(gaps.queries)):
            key = (subjects[row], names[gaps.queries.relation[row]])
            questions[key] = (KINDS[gaps.kind[row]], float(gaps.expected[row]))
    return questions


def filtered_names(kb: KB, lang: str) -> dict[tuple[str, str], set[str]]:
    """Return the filtered objects of all questions by subject and relation."""
    names = kb.relation_names("en")
    filtered = {}
    for gaps in GapFinder(kb).find(lang):
        queries = gaps.queries
        for row, subject in enumerate(kb.names(queries.subject.tolist())):
            objects = queries.filtered[queries.offset[row] : queries.offset[row + 1]]
            filtered[subject, names[queries.relation[row]]] = set(kb.names(objects.tolist()))
    return filtered


def test_a_fact_of_another_language_is_asked_if_its_object_has_a_name(kb: KB) -> None:
    questions = ask(kb, "fi")
    # Finland has Swedish too; Sweden has Swedish. Helsinki has no Finnish name here.
    assert questions["Suomi", "language"] == ("elsewhere", 1.0)
    assert questions["Ruotsi", "language"] == ("elsewhere", 1.0)
    assert ("Ruotsi", "capital") not in questions, "it is known"
    assert ("Suomi", "capital") not in questions, "its object has no name in the language"


def test_a_fact_known_under_one_name_is_known_under_the_others(tmp_path: Path) -> None:
    """Two Finnish names of Finland, and two of Helsinki."""
    facts = [
        "en\tFinland\tcapital\tHelsinki\ttrain",
        "en\tFinland\tneighbour\tSweden\ttrain",
        "en\tFinland\tneighbour\tNorway\ttrain",
        "fi\tSuomi\tcapital\tHelsinki\tvalid",
        "fi\tSuomi\tneighbour\tRuotsi\tvalid",
        "fi\tNorja\tneighbour\tRuotsi\ttrain",
        "fi\tStadi\tnimi\tStadi\ttrain",
        "fi\tSuomen tasavalta\tnimi\tNorja\ttrain",
    ]
    links = ["en\tFinland\tfi\tSuomi", "en\tFinland\tfi\tSuomen tasavalta"]
    links += ["en\tHelsinki\tfi\tHelsinki", "en\tHelsinki\tfi\tStadi"]
    links += ["en\tSweden\tfi\tRuotsi", "en\tNorway\tfi\tNorja"]
    kb = make_kb(tmp_path, facts, links)
    questions = ask(kb, "fi")
    assert ("Suomen tasavalta", "capital") not in questions, "Suomi has one"
    assert questions["Suomen tasavalta", "neighbour"] == ("elsewhere", 1.0), "Norway is missing"
    assert filtered_names(kb, "fi")["Suomen tasavalta", "neighbour"] == {"Ruotsi"}
    known = GapFinder(kb)._known_facts("fi", np.array(kb.entity_range("fi")))
    capital = kb.relation_names("en").index("capital")
    objects = known.object[known.relation == capital]
    assert set(kb.names(objects.tolist())) == {"Helsinki", "Stadi"}


def test_a_held_out_fact_of_another_language_is_asked_if_its_split_is_known(
    tmp_path: Path,
) -> None:
    facts = ["en\tFinland\tcapital\tHelsinki\ttest", "en\tSweden\tcapital\tStockholm\ttrain"]
    facts += ["fi\tSuomi\tnimi\tHelsinki\ttrain"]
    links = ["en\tFinland\tfi\tSuomi", "en\tHelsinki\tfi\tHelsinki"]
    kb = make_kb(tmp_path, facts, links)
    assert ask(kb, "fi")["Suomi", "capital"] == ("elsewhere", 1.0)
    assert ("Suomi", "capital") not in ask(kb, "fi", GapConfig(known=("train", "valid")))


def test_a_relation_of_similar_entities_is_asked_with_their_share(kb: KB) -> None:
    questions = ask(kb, "en")
    kind, share = questions["C9", "language"]
    # Of 14 entities with a capital, 10 have a language; the pseudo-count adds 5 to the former.
    assert kind == "usual" and share == pytest.approx(10 / 19)
    assert ("C1", "language") not in questions
    assert ("C9", "language") not in ask(kb, "en", GapConfig(usual=0.6))


def test_a_relation_of_one_object_is_never_asked_for_a_second(kb: KB) -> None:
    names = np.array(kb.relation_names("en"))
    assert sorted(names[relations_of_one_object(kb)]) == ["capital", "family"]
    # Were Tukholma not linked, English would state another capital of Sweden.
    assert all(relation != "capital" for _, relation in ask(kb, "fi"))


def test_known_objects_are_filtered(kb: KB) -> None:
    assert filtered_names(kb, "fi")["Suomi", "language"] == {"suomi"}
    (gaps,) = GapFinder(kb).find("fi")
    assert len(gaps.queries.offset) == len(gaps.queries) + 1


def test_the_size_of_the_blocks_does_not_change_the_questions(
    world: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = GapFinder(world, GapConfig(usual=0.3))

    def all_questions() -> Iterable[object]:
        for gaps in finder.find("et"):
            rows = zip(gaps.queries.subject, gaps.queries.relation, gaps.kind, strict=True)
            yield from map(tuple, rows)

    whole = list(all_questions())
    monkeypatch.setattr("prixlm.enrichment.gaps._BLOCK_ROWS", 200)
    monkeypatch.setattr("prixlm.enrichment.gaps._BLOCK_SUBJECTS", 29)
    assert list(all_questions()) == whole


def test_only_the_wanted_relations_are_asked(kb: KB) -> None:
    language = kb.relation_names("en").index("language")
    questions = ask(kb, "fi", GapConfig(relations=(language,)))
    assert {relation for _, relation in questions} == {"language"}


def test_a_share_outside_of_0_to_1_is_refused() -> None:
    with pytest.raises(PrixError, match=r"usual 0, .* expected shares above 0"):
        GapConfig(usual=0)


def test_usual_relations_agree_with_a_direct_count(world: KB) -> None:
    """Relations that point to an entity tell what it is, too."""
    concept = world.concepts()
    held: dict[int, set[int]] = {}
    num_relations = world.num_relations
    query = "SELECT subject, relation, object FROM triples WHERE split = 'train'"
    for subject, relation, object_ in world.query(query).fetchall():
        held.setdefault(int(concept[subject]), set()).add(relation)
        held.setdefault(int(concept[object_]), set()).add(num_relations + relation)
    holders = [
        {one for one, relations in held.items() if q in relations} for q in range(2 * num_relations)
    ]
    guesser = RelationGuesser(world)
    expected = {}
    for entity in world.entity_range("et"):
        own = held.get(int(concept[entity]), set())
        if not own:  # told by its names
            guess = guesser.guess(concept[[entity]]).toarray()[0, :num_relations]
            expected |= {(entity, r): guess[r] for r in np.flatnonzero(guess >= 0.3)}
        for wanted in set(range(num_relations)) - own:
            shares = [len(holders[q] & holders[wanted]) / (len(holders[q]) + 5) for q in own]
            if max(shares, default=0.0) >= 0.3:
                expected[entity, wanted] = max(shares)
    guesses = {}
    for gaps in GapFinder(world, GapConfig(usual=0.3)).find("et"):
        rows = zip(gaps.queries.subject, gaps.queries.relation, gaps.expected, strict=True)
        is_guess = gaps.kind == USUAL
        guesses |= {(s, r): x for (s, r, x), guess in zip(rows, is_guess, strict=True) if guess}
    assert guesses == pytest.approx(expected) and len(guesses) > 20


def test_an_entity_without_facts_is_asked_what_its_names_let_expect(tmp_path: Path) -> None:
    facts = [f"en\tLake {name}\tcountry\tFinland\ttrain" for name in ("Ina", "Oulu", "Sai")]
    facts += [f"en\t{name} Smith\tborn in\tBoston\ttrain" for name in ("Ann", "Bob", "Cid")]
    # Known in a split that is not read: without facts for the finder.
    facts += ["en\tLake Päi\tcountry\tFinland\ttest", "en\tDan Smith\tborn in\tYork\ttest"]
    facts += ["en\t東京\tcountry\tJapan\ttest"]
    kb = make_kb(tmp_path, facts, [])
    finder = GapFinder(kb, GapConfig(known=("train",)))
    relations = kb.relation_names("en")
    asked = {}
    for gaps in finder.find("en"):
        names = kb.names(gaps.queries.subject.tolist())
        rows = zip(names, gaps.queries.relation, gaps.expected, strict=True)
        asked |= {(name, relations[relation]): share for name, relation, share in rows}
    assert set(asked) == {("Lake Päi", "country"), ("Dan Smith", "born in")}
    assert all(0.5 <= share < 1 for share in asked.values())
    # A single question has the same share, and one that no name lets expect has none.
    for name, relation in (*asked, ("東京", "country")):
        subject = np.array([kb.find(name, "en")[0].id])
        described = finder.describe("en", subject, np.array([relations.index(relation)]))
        assert described.expected[0] == pytest.approx(asked.get((name, relation), 0.0))


def test_any_question_is_described_as_a_search_for_gaps_does(kb: KB) -> None:
    finder = GapFinder(kb)
    num_gaps = 0
    for lang in kb.languages:
        for gaps in finder.find(lang):
            num_gaps += len(gaps.queries)
            order = np.random.default_rng(0).permutation(len(gaps.queries))
            queries = gaps.queries.select(order)
            described = finder.describe(lang, queries.subject, queries.relation)
            assert np.array_equal(described.kind, gaps.kind[order])
            assert np.array_equal(described.expected, gaps.expected[order])
            assert np.array_equal(described.queries.subject, queries.subject)
            assert np.array_equal(described.queries.relation, queries.relation)
            assert np.array_equal(described.queries.offset, queries.offset)
            assert np.array_equal(described.queries.filtered, queries.filtered)
    assert num_gaps > 5


def test_a_question_that_is_not_a_gap_has_the_share_of_similar_entities(kb: KB) -> None:
    finder = GapFinder(kb)
    [sweden], [swedish] = kb.find("Ruotsi", "fi"), kb.find("ruotsi", "fi")
    relations = kb.relation_names("en")
    capital, family = relations.index("capital"), relations.index("family")
    subject, relation = np.array([sweden.id, swedish.id, sweden.id]), np.array([capital] * 3)
    relation[2] = family
    described = finder.describe("fi", subject, relation)
    # 10 of the 14 countries with a capital have a language, and all with a language a capital.
    # Swedish is a language of two countries and has a family: no language has a capital.
    assert described.expected.tolist() == [10 / (10 + 5), 0.0, 0.0]
    assert set(described.kind.tolist()) == {USUAL}
    known = described.queries.filtered_of(0)
    assert kb.names(known.tolist()) == ["Tukholma"] and len(described.queries.filtered_of(1)) == 0
    assert finder.is_stated(subject, relation).tolist() == [True, False, False]


def test_the_share_of_subjects_with_several_objects_is_counted_and_shrunk(kb: KB) -> None:
    relations = kb.relation_names("en")
    several = GapFinder(kb).share_with_several
    # Of ten subjects with a language, Finland alone has two.
    assert several[relations.index("language")] == 1 / (10 + 5)
    assert several[relations.index("capital")] == 0
