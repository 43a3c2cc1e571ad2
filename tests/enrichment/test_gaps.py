"""What a language lacks: facts that others state, relations that things like it have."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.enrichment.gaps import KINDS, MissingConfig, MissingFacts, relations_of_one_object

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


@pytest.fixture
def kb(tmp_path: Path) -> KB:
    facts, links = tmp_path / "facts.tsv", tmp_path / "links.tsv"
    # Ten more countries, so that relations can be told to have one object.
    more = [("en", f"C{i}", r, o) for i in range(12) for r, o in (("capital", f"T{i}"),)]
    more += [("en", f"C{i}", "language", f"L{i}") for i in range(8)]
    more += [("fi", "ruotsi", "family", "germaaninen")]
    rows = [("lang", "subject", "relation", "object"), *FACTS, *more]
    facts.write_text("\n".join("\t".join(row) for row in rows) + "\n", "utf-8")
    pairs = [("lang_a", "name_a", "lang_b", "name_b")]
    pairs += [("en", a, "fi", b) for a, b in LINKS]
    links.write_text("\n".join("\t".join(row) for row in pairs) + "\n", "utf-8")
    return import_kb([facts, links], tmp_path / "kb")


def asked(
    kb: KB, lang: str, config: MissingConfig | None = None
) -> dict[tuple[str, str], tuple[str, float]]:
    names = kb.relation_names("en")
    found = {}
    for part in MissingFacts(kb, config).questions(lang):
        subjects = kb.names(part.queries.subject.tolist())
        for row in range(len(part.queries)):
            key = (subjects[row], names[part.queries.relation[row]])
            found[key] = (KINDS[part.kind[row]], float(part.expected[row]))
    return found


def test_what_another_language_states_is_asked_where_it_has_a_name(kb: KB) -> None:
    found = asked(kb, "fi")
    # Finland has Swedish too; Sweden has Swedish. Helsinki has no Finnish name here.
    assert found["Suomi", "language"] == ("elsewhere", 1.0)
    assert found["Ruotsi", "language"] == ("elsewhere", 1.0)
    assert ("Ruotsi", "capital") not in found, "it is known"
    assert ("Suomi", "capital") not in found, "its object has no name in the language"


def small(tmp_path: Path, facts: list[str], links: list[str]) -> KB:
    head = "lang\tsubject\trelation\tobject\tsplit"
    (tmp_path / "facts.tsv").write_text("\n".join([head, *facts]), "utf-8")
    head = "lang_a\tname_a\tlang_b\tname_b"
    (tmp_path / "links.tsv").write_text("\n".join([head, *links]), "utf-8")
    return import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")


def test_what_is_known_under_one_name_is_known_under_the_others(tmp_path: Path) -> None:
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
    kb = small(tmp_path, facts, links)
    found = asked(kb, "fi")
    assert ("Suomen tasavalta", "capital") not in found, "Suomi has one"
    assert found["Suomen tasavalta", "neighbour"] == ("elsewhere", 1.0), "Norway is not known yet"
    hidden = {}
    for part in MissingFacts(kb).questions("fi"):
        queries = part.queries
        for row, subject in enumerate(kb.names(queries.subject.tolist())):
            known = queries.hidden[queries.offset[row] : queries.offset[row + 1]]
            hidden[subject, queries.relation[row]] = set(kb.names(known.tolist()))
    neighbour = kb.relation_names("en").index("neighbour")
    assert hidden["Suomen tasavalta", neighbour] == {"Ruotsi"}
    many = MissingFacts(kb)._known(
        "fi", np.arange(len(kb.entity_range("fi"))) + kb.entity_range("fi").start
    )
    names = kb.names(many[2].tolist())
    capital = kb.relation_names("en").index("capital")
    assert {name for name, r in zip(names, many[1], strict=True) if r == capital} == {
        "Helsinki",
        "Stadi",
    }


def test_what_another_language_holds_out_is_asked_where_it_is_known(tmp_path: Path) -> None:
    facts = ["en\tFinland\tcapital\tHelsinki\ttest", "en\tSweden\tcapital\tStockholm\ttrain"]
    facts += ["fi\tSuomi\tnimi\tHelsinki\ttrain"]
    links = ["en\tFinland\tfi\tSuomi", "en\tHelsinki\tfi\tHelsinki"]
    kb = small(tmp_path, facts, links)
    assert asked(kb, "fi")["Suomi", "capital"] == ("elsewhere", 1.0)
    assert ("Suomi", "capital") not in asked(kb, "fi", MissingConfig(known=("train", "valid")))


def test_what_things_like_it_have_is_asked_with_their_share(kb: KB) -> None:
    found = asked(kb, "en")
    kind, share = found["C9", "language"]
    # Of 14 things with a capital, 10 have a language; 5 are added to the former.
    assert kind == "usual" and share == pytest.approx(10 / 19)
    assert ("C1", "language") not in found
    assert ("C9", "language") not in asked(kb, "en", MissingConfig(usual=0.6))


def test_a_relation_of_one_object_is_never_asked_for_a_second(kb: KB) -> None:
    one = relations_of_one_object(kb)
    names = np.array(kb.relation_names("en"))
    assert sorted(names[one]) == ["capital", "family"]
    # Were Tukholma not linked, English would state another capital of Sweden.
    assert all(relation != "capital" for _, relation in asked(kb, "fi"))


def test_what_is_known_is_hidden(kb: KB) -> None:
    (part,) = MissingFacts(kb).questions("fi")
    names = kb.names(part.queries.subject.tolist())
    row = names.index("Suomi")
    hidden = part.queries.hidden[part.queries.offset[row] : part.queries.offset[row + 1]]
    assert kb.names(hidden.tolist()) == ["suomi"]
    assert len(part.queries.offset) == len(part.queries) + 1


def test_blocks_of_subjects_change_nothing(world: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything() -> Iterable[object]:
        work = MissingFacts(world, MissingConfig(usual=0.3))
        for part in work.questions("et"):
            rows = zip(part.queries.subject, part.queries.relation, part.kind, strict=True)
            yield from map(tuple, rows)

    whole = list(everything())
    monkeypatch.setattr("prixlm.enrichment.gaps._PAIRS", 50)
    monkeypatch.setattr("prixlm.enrichment.gaps._SUBJECTS", 7)
    assert list(everything()) == whole


def test_only_the_wanted_relations(kb: KB) -> None:
    number = kb.relation_names("en").index("language")
    found = asked(kb, "fi", MissingConfig(relations=(number,)))
    assert {relation for _, relation in found} == {"language"}
    with pytest.raises(PrixError, match="shares above 0"):
        MissingConfig(usual=0)


def test_usual_relations_are_those_of_a_direct_count(world: KB) -> None:
    """Relations that point to a thing tell what it is, too."""
    concept = world.concepts()
    has: dict[int, set[int]] = {}
    size = world.num_relations
    query = "SELECT subject, relation, object FROM triples WHERE split = 'train'"
    for subject, relation, object_ in world.query(query).fetchall():
        has.setdefault(int(concept[subject]), set()).add(relation)
        has.setdefault(int(concept[object_]), set()).add(size + relation)
    number = [sum(one in part for part in has.values()) for one in range(2 * size)]
    expected = {}
    for entity in world.entity_range("et"):
        own = has.get(int(concept[entity]), set())
        for wanted in set(range(size)) - own:
            together = [sum({q, wanted} <= part for part in has.values()) for q in own]
            shares = [n / (number[q] + 5) for n, q in zip(together, own, strict=True)]
            if max(shares, default=0.0) >= 0.3:
                expected[entity, wanted] = max(shares)
    found = {}
    for part in MissingFacts(world, MissingConfig(usual=0.3)).questions("et"):
        rows = zip(part.queries.subject, part.queries.relation, part.expected, strict=True)
        guessed = part.kind == KINDS.index("usual")
        found |= {(s, r): x for (s, r, x), usual in zip(rows, guessed, strict=True) if usual}
    assert found == pytest.approx(expected) and len(found) > 20
