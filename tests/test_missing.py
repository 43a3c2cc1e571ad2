"""What a language lacks: facts that others state, relations that things like it have."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, PrixError, import_kb
from prixlm.missing import KINDS, MissingConfig, MissingFacts, relations_of_one_object

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
    monkeypatch.setattr("prixlm.missing._PAIRS", 50)
    monkeypatch.setattr("prixlm.missing._SUBJECTS", 7)
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
