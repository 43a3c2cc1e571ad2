"""Evidence from names, against a slow count of the same votes."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from prixlm import KB, import_kb
from prixlm.rankers import names
from prixlm.rankers.base import Queries
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.names import (
    NewObjects,
    RelationGuesser,
    SharedNames,
    SimilarNames,
    keep_best,
    most_similar,
    read_grams,
)
from prixlm.types import Array

TOWNS = ["Turku", "Oulu", "Tartu", "Narva", "Kuopio", "Pärnu"]
LAND = {"Turku": "Suomi", "Oulu": "Suomi", "Kuopio": "Suomi"}


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Stations and bridges of towns, some of them without facts, in two languages."""
    folder = tmp_path_factory.mktemp("kb")
    lines, links = [], []
    for number, town in enumerate(TOWNS):
        land = LAND.get(town, "Eesti")
        lines.append(f"fi\t{town}n rautatieasema\tcity\t{town}\ttrain")
        lines.append(f"fi\t{town}n rautatieasema\tcountry\t{land}\ttrain")
        lines.append(f"en\t{town} bridge\tcountry\t{land}\t{'test' if number % 2 else 'train'}")
        lines.append(
            f"en\t{town} bridge\tcrosses\t{town} river\t{'test' if number > 3 else 'train'}"
        )
        links.append(f"fi\t{town}\ten\t{town} river" if number == 0 else f"fi\t{land}\ten\t{land}")
    lines += ["en\tNarva bridge 2\tcountry\tEesti\ttest", "en\tNarva bridge 2\tcrosses\t東京\ttest"]
    head, link_head = "lang\tsubject\trelation\tobject\tsplit", "lang_a\tname_a\tlang_b\tname_b"
    (folder / "facts.tsv").write_text("\n".join([head, *lines]), "utf-8")
    (folder / "links.tsv").write_text("\n".join([link_head, *sorted(set(links))]), "utf-8")
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


def slow_grams(name: str) -> set[str]:
    """Return the n-grams of two to five characters within each word, with a space around it."""
    found = set()
    for word in name.casefold().split():
        padded = f" {word} "
        for size in range(2, 6):
            found |= {padded[at : at + size] for at in range(max(1, len(padded) - size + 1))}
    return found


def slow_vectors(kb: KB) -> dict[int, dict[str, float]]:
    """Return the weighted n-grams of each concept: no bucket is shared in a KB this small."""
    grams = defaultdict(set)
    for entity, concept in enumerate(kb.concepts().tolist()):
        grams[concept] |= slow_grams(kb.names([entity])[0])
    count = Counter(gram for found in grams.values() for gram in found)
    vectors = {}
    for concept, found in grams.items():
        kept = {gram for gram in found if count[gram] <= 30}
        weight = {gram: math.log((len(grams) + 1) / (count[gram] + 1)) + 1 for gram in kept}
        length = math.sqrt(sum(value**2 for value in weight.values()))
        vectors[concept] = {gram: value / length for gram, value in weight.items()}
    return vectors


def slow_cosine(a: dict[str, float], b: dict[str, float]) -> float:
    return sum(value * b[gram] for gram, value in a.items() if gram in b)


def slow_facts(kb: KB) -> set[tuple[int, int, int]]:
    """Return the merged train triples."""
    concept = kb.concepts().tolist()
    return {
        (concept[row["subject"]], row["relation"], concept[row["object"]])
        for batch in kb.batches("triples", split="train")
        for row in batch.to_pylist()
    }


def scores_of(ranker: names.NameRanker, queries: Queries) -> list[dict[int, float]]:
    """Return the score of each concept by query."""
    found: list[dict[int, float]] = [{} for _ in range(len(queries))]
    for owner, entity, score in zip(*ranker.scored(queries), strict=True):
        found[owner][int(ranker.concept[entity])] = float(score)
    return found


def named(kb: KB, lang: str) -> set[int]:
    """Return the concepts that a language names."""
    ids = kb.entity_range(lang)
    return set(kb.concepts()[ids.start : ids.stop].tolist())


def test_names_are_compared_by_the_n_grams_of_their_words(kb: KB) -> None:
    grams, vectors = read_grams(kb), slow_vectors(kb)
    cosine = (grams @ grams.T).toarray()
    for a, b in np.ndindex(*cosine.shape):
        assert cosine[a, b] == pytest.approx(slow_cosine(vectors[a], vectors[b]), abs=1e-5)
    assert read_grams(kb) is grams  # the rankers of a KB share them


def test_n_grams_that_many_names_have_are_left_out(kb: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_MIN_NAMES", 1)
    rare = names._count_grams(kb, descriptions=False)
    assert np.bincount(rare.indices).max() == 1
    assert rare.nnz < read_grams(kb).nnz


def test_subjects_with_similar_names_vote_for_their_objects(kb: KB) -> None:
    vectors, facts, ranker = slow_vectors(kb), slow_facts(kb), SimilarNames(kb)
    for lang in ("en", "fi"):
        split = "test" if lang == "en" else "train"
        queries = read_facts(kb, lang, split, filtered=()).queries
        for row, found in enumerate(scores_of(ranker, queries)):
            subject = int(kb.concepts()[queries.subject[row]])
            of_relation = [(s, o) for s, r, o in facts if r == queries.relation[row]]
            votes: dict[int, float] = defaultdict(float)
            for s, o in of_relation:
                votes[o] += 0.1 / len(of_relation)
                if s != subject:
                    votes[o] += slow_cosine(vectors[subject], vectors[s]) ** 3
            total = sum(votes.values())
            expected = {o: math.log(v / total) for o, v in votes.items() if o in named(kb, lang)}
            assert found == pytest.approx(expected, abs=1e-5)


def slow_guess(kb: KB, concept: int) -> dict[int, float]:
    """Return which relations and inverses a name lets expect, voter by voter."""
    vectors, held = slow_vectors(kb), defaultdict(set)
    for s, r, o in slow_facts(kb):
        held[s].add(r)
        held[o].add(r + kb.num_relations)
    votes = {c: slow_cosine(vectors[concept], vectors[c]) ** 3 for c in held}
    total = sum(votes.values()) + 0.1
    share: dict[int, float] = defaultdict(float)
    for voter, vote in votes.items():
        for relation in held[voter]:
            share[relation] += vote / total
    return {relation: value for relation, value in share.items() if value}


def new_concepts(kb: KB, *splits: str) -> Array:
    return np.flatnonzero(~RelationGuesser(kb, splits or ("train",)).is_known)


def test_relations_are_guessed_from_similar_names(kb: KB) -> None:
    new = new_concepts(kb)
    guessed = RelationGuesser(kb).guess(new)
    seen = {end for s, _, o in slow_facts(kb) for end in (s, o)}
    assert set(new.tolist()) == set(kb.concepts().tolist()) - seen
    for row, concept in enumerate(new.tolist()):
        found = guessed[[row]].tocoo()
        assert dict(zip(found.col.tolist(), found.data.tolist(), strict=True)) == pytest.approx(
            slow_guess(kb, concept), abs=1e-5
        )


def test_new_objects_are_entities_without_facts_that_are_named_like_objects(kb: KB) -> None:
    queries = read_facts(kb, "en", filtered=()).queries
    new = set(new_concepts(kb).tolist()) & named(kb, "en")
    for row, found in enumerate(scores_of(NewObjects(kb), queries)):
        inverse = int(queries.relation[row]) + kb.num_relations
        guesses = {concept: slow_guess(kb, concept).get(inverse, 0) for concept in new}
        expected = {concept: math.log(share) for concept, share in guesses.items() if share}
        assert found == pytest.approx(expected, abs=1e-4)
    # A river without any fact is found: it is named as rivers are.
    river = kb.find("Pärnu river", "en")[0].id
    facts = read_facts(kb, "en")
    rows = np.flatnonzero(facts.objects == river)
    assert NewObjects(kb).ranks(facts.queries, facts.objects)[rows] <= 3


def test_of_very_many_new_objects_those_of_most_languages_are_kept(
    kb: KB, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queries = read_facts(kb, "en", filtered=()).queries
    most = NewObjects(kb).scored(queries)
    monkeypatch.setattr(names, "_MAX_NEW", 2)
    NewObjects(kb)
    assert "only the 2 that most languages name are answers" in caplog.text
    fewer = NewObjects(kb).scored(queries)
    assert 0 < len(set(fewer[1].tolist())) <= 2 < len(set(most[1].tolist()))


def test_shared_names_are_those_of_the_subject_and_of_what_is_around_it(
    kb: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "_SHARED", 100)
    vectors, around, ranker = slow_vectors(kb), defaultdict(set), SharedNames(kb)
    for s, _, o in slow_facts(kb):
        around[s].add(o)
        around[o].add(s)
    for lang, split in (("en", "test"), ("fi", "train")):
        queries = read_facts(kb, lang, split, filtered=()).queries
        for row, found in enumerate(scores_of(ranker, queries)):
            subject = int(kb.concepts()[queries.subject[row]])
            expected = {}
            for concept in named(kb, lang):
                sources = ({subject} | around[subject]) - {concept}
                best = max(
                    (slow_cosine(vectors[concept], vectors[c]) for c in sources), default=0.0
                )
                if best:
                    expected[concept] = best
            assert found == pytest.approx(expected, abs=1e-5)


def test_only_the_given_splits_are_read(kb: KB) -> None:
    assert len(new_concepts(kb, "train", "test")) < len(new_concepts(kb))
    facts = read_facts(kb, "en")
    known = SimilarNames(kb, ("train", "test")).scored(facts.queries)
    assert len(known[0]) > len(SimilarNames(kb).scored(facts.queries)[0])


def test_a_name_that_shares_nothing_falls_back_to_what_is_usual(kb: KB) -> None:
    tokyo = kb.find("東京", "en")[0].id
    country = kb.relation_keys().index("country")
    queries = Queries("en", np.array([tokyo]), np.array([country]), np.zeros(2, int), np.array([]))
    share = Counter(o for _, r, o in slow_facts(kb) if r == country)
    total = sum(share.values())
    (found,) = scores_of(SimilarNames(kb), queries)
    assert found == pytest.approx({o: math.log(n / total) for o, n in share.items()})
    assert scores_of(SharedNames(kb), queries) == [{}]


def test_a_kb_whose_names_have_no_letters_is_answered(tmp_path: Path) -> None:
    lines = ["lang\tsubject\trelation\tobject\tsplit", "en\t.\tr\t1\ttrain", "en\t🙂\tr\t.\ttest"]
    (tmp_path / "facts.tsv").write_text("\n".join(lines), "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    queries = read_facts(kb, "en").queries
    for make in (SimilarNames, NewObjects, SharedNames):
        ranked = make(kb).best(queries, 5)
        assert np.isfinite(ranked.score).all()


@pytest.mark.parametrize("name", ["x", "7", "🙂", "𐎠𐎡", "Ж日", "Αlpha 東京", "ー", "\u0301"])
def test_odd_names_vote_for_their_like(name: str, tmp_path: Path) -> None:
    # Of two entities of the name, one has a fact; the others have another object.
    lines = ["lang\tsubject\trelation\tobject\tsplit", f"en\t{name} {name}\tr\there\ttrain"]
    lines += [f"en\tAthens {i}\tr\tthere\ttrain" for i in "αβγδ"] + [f"en\t{name}\tr\tgone\ttest"]
    (tmp_path / "facts.tsv").write_text("\n".join(lines), "utf-8")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    queries = read_facts(kb, "en").queries
    ranked = SimilarNames(kb).best(queries, 1)
    assert kb.names(ranked.entity.tolist()) == ["here"]
    for make in (NewObjects, SharedNames):
        assert np.isfinite(make(kb).best(queries, 5).score).all()


def test_ten_thousand_things_of_one_name_are_not_compared_with_each_other(tmp_path: Path) -> None:
    label, num = "<http://www.w3.org/2000/01/rdf-schema#label>", 10_000
    lines = [f'<http://x/{i}> {label} "Saint Mary"@en .' for i in range(num)]
    lines += [f'<http://x/{t}> {label} "{t}"@en .' for t in ("Turku", "Tartu")]
    lines += [f"<http://x/{i}> <http://x/r> <http://x/Turku> ." for i in range(num // 2)]
    (tmp_path / "facts.nt").write_text("\n".join(lines) + "\n", "utf-8")
    kb = import_kb([tmp_path / "facts.nt"], tmp_path / "kb", format="rdf")
    grams = read_grams(kb)
    # Their n-grams are those of too many: comparing them would be 10,000 squared sums.
    assert grams.nnz < 50 and (np.diff(grams.indptr) > 0).sum() == 2
    named = kb.find("Saint Mary", "en")
    # Those without a fact of their own.
    subject = np.array([one.id for one in named if int(one.key.rsplit("/")[-1]) >= num // 2])
    assert len(subject) == num // 2
    queries = Queries(
        "en", subject, np.zeros(len(subject), int), np.zeros(num // 2 + 1, int), np.array([])
    )
    ranked = SimilarNames(kb).best(queries, 3)
    turku = kb.find("Turku", "en")[0].id
    assert (ranked.entity[ranked.offset[:-1]] == turku).all(), "the usual object"
    for make in (NewObjects, SharedNames):
        assert len(make(kb).best(queries, 3).entity) <= 3 * len(subject)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_most_similar_equals_sorting_all_cosines(seed: int, k: int) -> None:
    generator = np.random.default_rng(seed)
    left, right = (
        generator.integers(0, 3, (n, 8)) * (generator.random((n, 8)) < 0.4) for n in (7, 9)
    )
    owner, other, score = most_similar(csr_array(left * 1.0), csr_array(right.T * 1.0), k)
    for row in range(7):
        cosine = left[row] @ right.T
        best = [c for c in np.lexsort((np.arange(9), -cosine)).tolist() if cosine[c] > 0][:k]
        assert other[owner == row].tolist() == best
        assert score[owner == row].tolist() == cosine[best].tolist()


def test_blocks_of_names_give_the_same_as_all_at_once(
    kb: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    grams = read_grams(kb)
    whole = most_similar(grams, grams.T.tocsr(), 4)
    monkeypatch.setattr(names, "_BLOCK", 5)
    for a, b in zip(whole, most_similar(grams, grams.T.tocsr(), 4), strict=True):
        assert np.array_equal(a, b)


def test_the_best_of_equal_pairs_is_kept() -> None:
    owner, target = np.array([1, 0, 0, 0, 1]), np.array([5, 7, 7, 3, 6])
    score = np.array([1.0, 2.0, 4.0, 4.0, 3.0])
    kept = [part.tolist() for part in keep_best(owner, target, score, 1)]
    assert kept == [[0, 1], [3, 6], [4.0, 3.0]]
    kept = [part.tolist() for part in keep_best(owner, target, score, 2)]
    assert kept == [[0, 0, 1, 1], [3, 7, 6, 5], [4.0, 4.0, 3.0, 1.0]]


def import_rivers(folder: Path, *, described: bool) -> KB:
    """Import rivers of odd names, whose descriptions tell the country; two have no facts."""
    folder.mkdir()
    schema, lines = "http://www.w3.org/2000/01/rdf-schema#", []
    odd = ["bax", "cef", "dig", "hok", "jul", "mav", "nep", "qiz", "rof", "suy", "tew", "vob"]
    odd += ["xad", "zel"]
    for key in ("river", "Suomi", "Eesti"):
        lines.append(f'<http://x/{key}> <{schema}label> "{key}"@en .')
    for number, name in enumerate(odd):
        place, land = (("Lapland", "Suomi"), ("Livonia", "Eesti"), ("Lapland", "Suomi"))[number % 3]
        lines.append(f'<http://x/{name}> <{schema}label> "{name}"@en .')
        if described:
            lines.append(f'<http://x/{name}> <{schema}comment> "river of {place}"@en .')
        lines.append(f"<http://x/{name}> <http://x/kind> <http://x/river> .")
        if number < 12:
            lines.append(f"<http://x/{name}> <http://x/country> <http://x/{land}> .")
    (folder / "f.nt").write_text("\n".join(lines) + "\n", "utf-8")
    return import_kb([folder / "f.nt"], folder / "kb", format="rdf")


def test_a_telling_description_answers_for_an_entity_of_an_odd_name(tmp_path: Path) -> None:
    found = []
    for described in (False, True):
        kb = import_rivers(tmp_path / str(described), described=described)
        assert kb.has_descriptions == described
        [livonian] = kb.find("zel")
        wanted, usual = (kb.find(name)[0] for name in ("Eesti", "Suomi"))
        country = kb.relation_keys().index("http://x/country")
        asked = np.array([livonian.id]), np.array([country])
        queries = Queries("en", *asked, np.zeros(2, np.int64), np.zeros(0, np.int64))
        _, entity, score = SimilarNames(kb).scored(queries)
        scores = dict(zip(entity.tolist(), score.tolist(), strict=True))
        found.append(scores[wanted.id] > scores[usual.id])
    assert found == [False, True]
    assert read_grams(kb) is not read_grams(kb, descriptions=True)


def test_blocks_of_queries_get_the_same_votes(kb: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = read_facts(kb, "en", filtered=()).queries
    whole = SimilarNames(kb).scored(facts)
    monkeypatch.setattr(names, "_BLOCK", 1)
    parts = SimilarNames(kb).scored(facts)
    assert all(np.allclose(a, b) for a, b in zip(whole, parts, strict=True))
