"""Match names of a table to the concepts of a KB, with a calibrated probability.

    matcher = open_matcher(build_lookup(kb), build_names(kb))
    [candidates] = matcher.match([Question(names=("Afina",))])
    candidates[0].concept, candidates[0].probability, candidates[0].match

Candidates come from the index of names (spelling, raw and romanised) and from an encoder, if there
is one. Each has features; a logistic regression over the candidates of a question, with "none of
them" as one more choice, turns them into probabilities that add up to at most 1. Namesakes thus
share their probability, and a property that fits one of them decides between them.

`matching_fit.py` fits the regression on the KB's own names.

Dimension letters: R candidates of a question, D features.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from rapidfuzz import fuzz, process

from prixlm.entities.evidence import Evidence, Property, Type
from prixlm.entities.names import MAX_TEXT, NameHit, NameIndex, fold
from prixlm.kb.lookup import Lookup
from prixlm.languages import script_of_text
from prixlm.romanise import romanise
from prixlm.types import Array

if TYPE_CHECKING:  # an encoder brings torch, which a server without one does not need
    from prixlm.entities.linker import EntityLinker

FEATURES = (
    "spelling",  # similarity of the best name, 0 to 1
    "romanised",  # the same in Latin letters
    "close",  # how far the better of the two is above 0.8, 0 to 1
    "exact",  # whether a name equals the query, up to case and width
    "identical",  # the same, in every letter
    "alias",  # whether the best name is an alias
    "script",  # spelling, if query and best name are in one script
    "length",  # the better similarity, times the logarithm of the query's length
    "first",  # whether no other candidate is more similar
    "gap",  # similarity above that of the next, or below that of the first
    "words",  # how much more similar the words are in alphabetical order, in Latin letters
    "properties",  # share of the properties that agree
    "contradicted",  # share of the properties that have other values
    "type",  # whether it has an asked type
    "mistyped",  # whether it has types, but none that was asked for
    "encoder",  # cosine of the best name, above 0
)
_READ_AS_THEY_ARE = {
    "spelling": "spelling",
    "romanised": "romanised",
    "exact": "is_exact",
    "identical": "is_identical",
    "alias": "is_alias",
    "words": "words",
    "encoder": "cosine",
}
"""Features that are fields of `Found`."""
DEPTH = 30
"""Names that are asked of the index for each name of a question."""
PRECISION = 0.95
"""Precision on held-out concepts from which a candidate is a match."""
_NEIGHBOURS = 10
"""Entities that an encoder adds to the candidates of each name."""
_LENGTH = math.log(30)
"""Queries of 29 letters and more count as equally long."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One row of a table: what is asked for, and what is known of it."""

    names: tuple[str, ...] = ()  # any of them; none at all asks by properties alone
    lang: str | None = None  # candidates must have a name in this language
    concept: int | None = None  # its identifier was given: it comes first
    types: tuple[Type, ...] = ()
    strict: str = "should"  # drop candidates without `any` or `all` of the types, or none
    properties: tuple[Property, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A concept that a question may mean."""

    concept: int
    entity: int  # whose name or alias matched
    name: str  # that matched
    probability: float
    match: bool
    features: dict[str, float]


@dataclass(frozen=True)
class Coefficients:
    """The fitted regression, and how it did on held-out concepts."""

    weights: dict[str, float]  # by feature
    none: tuple[float, float]  # of "none of them": constant, and by the logarithm of the length
    threshold: float | None  # probability from which a candidate is a match
    kb: str  # fingerprint
    encoder: str | None = None  # fingerprint, if there was one
    held_out: dict[str, float] = field(default_factory=dict)
    exact: float | None = None  # how often an exact name without a namesake is right, if enough

    def read_weights(self) -> Array:
        """Return the weights in the order of FEATURES, (D,)."""
        return np.array([self.weights.get(name, 0.0) for name in FEATURES])


@dataclass
class Found:
    """What is known of one candidate while the names of a question are gathered."""

    entity: int
    name: str
    is_alias: bool
    spelling: float = 0.0
    romanised: float = 0.0
    is_exact: bool = False
    is_identical: bool = False
    cosine: float = 0.0
    words: float = 0.0
    query: str = ""  # of the question's names, the one that matched best


class Matcher:
    """The names of a KB, what it states of them, and a fitted regression. Safe under threads."""

    def __init__(
        self,
        lookup: Lookup,
        names: NameIndex,
        coefficients: Coefficients,
        evidence: Evidence | None = None,
        linker: "EntityLinker | None" = None,
    ) -> None:
        self.lookup, self.names, self.coefficients = lookup, names, coefficients
        self.evidence = evidence or Evidence(lookup)
        self.vectors = NameVectors(linker) if linker is not None else None

    def match(self, questions: Sequence[Question], k: int = 10) -> list[list[Candidate]]:
        """Return the candidates of each question, best first; at most one of them is a match."""
        found = self.gather(questions)
        return [
            self._rank(question, candidates, k)
            for question, candidates in zip(questions, found, strict=True)
        ]

    def gather(self, questions: Sequence[Question]) -> list[dict[int, Found]]:
        """Return the candidates of each question by concept, before types and properties."""
        owners = [index for index, question in enumerate(questions) for _ in question.names]
        texts = [name for question in questions for name in question.names]
        found: list[dict[int, Found]] = [{} for _ in questions]
        for owner, text, hits in zip(owners, texts, self._hits(questions, texts), strict=True):
            add_hits(found[owner], text, hits)
        if self.vectors is not None and texts:
            self.vectors.add(self.lookup, texts, [found[owner] for owner in owners])
        for question, candidates in zip(questions, found, strict=True):
            if not question.names:
                self._add_by_properties(question, candidates)
            if question.concept is not None:
                entity = self.lookup.entities_of(question.concept)[0]
                blank = Found(entity, self.lookup.name(entity), False)
                candidates.setdefault(question.concept, blank)
            if question.lang is not None:
                self._keep_language(question.lang, candidates)
        return found

    def _hits(self, questions: Sequence[Question], texts: list[str]) -> Iterator[list[NameHit]]:
        """Yield the names found for each text, in any language and in the question's."""
        if not texts:
            return
        langs = [question.lang for question in questions for _ in question.names]
        everywhere = self.names.candidates(texts, DEPTH)
        # A question for one language may find its name in another, but those of its own language
        # must not be crowded out.
        within: dict[int, Sequence[NameHit]] = {}
        for lang in sorted({lang for lang in langs if lang is not None}):
            rows = [row for row, asked in enumerate(langs) if asked == lang]
            hits = self.names.candidates([texts[row] for row in rows], DEPTH, lang)
            within.update(zip(rows, hits, strict=True))
        for row, found in enumerate(everywhere):
            yield [*found, *within.get(row, ())]

    def _keep_language(self, lang: str, candidates: dict[int, Found]) -> None:
        """Drop candidates without a name in a language."""
        ids = self.lookup.kb.entity_range(lang)
        for concept in list(candidates):
            if not any(entity in ids for entity in self.lookup.entities_of(concept)):
                del candidates[concept]

    def _add_by_properties(self, question: Question, candidates: dict[int, Found]) -> None:
        """Find candidates by what is stated of them, for a question without a name."""
        for asked in question.properties:
            if asked.relation is None or asked.quantifier == "none":
                continue
            texts = [value.text for value in asked.values if value.concept is None and value.text]
            values = [value.concept for value in asked.values if value.concept is not None]
            for text, hits in zip(texts, self.names.candidates(texts, DEPTH), strict=True):
                values += [hit.concept for hit in hits if fold(hit.name) == fold(text)]
            for concept in self.evidence.subjects_of(asked, list(dict.fromkeys(values))).tolist():
                entity = self.lookup.entities_of(concept)[0]
                candidates.setdefault(concept, Found(entity, self.lookup.name(entity), False))

    def _rank(self, question: Question, found: dict[int, Found], k: int) -> list[Candidate]:
        found = self._keep_required(question, found)
        if not found:
            return []
        features = self.features(question, found)
        probability = self._probabilities(question, found, features)
        has_evidence = bool(question.properties or question.types)
        # An exact name comes first, unless types or properties speak for another one.
        order = [
            (concept != question.concept, has_evidence or not one.is_exact, -value, concept, row)
            for row, ((concept, one), value) in enumerate(
                zip(found.items(), probability.tolist(), strict=True)
            )
        ]
        candidates = []
        for _, _, value, concept, row in sorted(order)[:k]:
            best, shown = found[concept], dict(zip(FEATURES, features[row].tolist(), strict=True))
            candidates.append(Candidate(concept, best.entity, best.name, -value, False, shown))
        first = min(order)[-1]
        is_sole = find_sole(features, np.zeros(len(features), np.int64))[first]
        return self._mark(question, candidates, bool(is_sole))

    def _mark(
        self, question: Question, candidates: list[Candidate], is_sole: bool
    ) -> list[Candidate]:
        """Mark the first candidate as a match if it is one. is_sole: see `find_sole`."""
        best = candidates[0]
        threshold = self.coefficients.threshold
        if best.concept == question.concept:
            best = dataclasses.replace(best, probability=1.0)
            is_match = True
        elif not question.names:
            is_match = False  # the regression knows no question without a name
        else:
            is_match = threshold is not None and best.probability >= threshold
            # Without a threshold there is nothing better than the letters.
            if threshold is None or self.coefficients.exact is not None:
                is_match |= is_sole
        return [dataclasses.replace(best, match=is_match), *candidates[1:]]

    def _keep_required(self, question: Question, found: dict[int, Found]) -> dict[int, Found]:
        """Drop candidates that a strict type or a required property rules out."""
        required = [asked for asked in question.properties if asked.required]
        if question.types and question.strict in ("any", "all"):
            enough = any if question.strict == "any" else all
            kept = {}
            for concept, candidate in found.items():
                if enough(self.evidence.is_a(concept, asked) for asked in question.types):
                    kept[concept] = candidate
            found = kept
        for asked in required:
            agreed = {concept: self.evidence.agreement(concept, asked) for concept in found}
            # Of what the KB does not know, it cannot say that it has one of the values.
            unknown = 1.0 if asked.quantifier == "none" else 0.0
            found = {
                concept: candidate
                for concept, candidate in found.items()
                if (unknown if (score := agreed[concept]) is None else score) > 0
            }
        return found

    def _probabilities(self, question: Question, found: dict[int, Found], features: Array) -> Array:
        """Return the probability of each candidate, (R,)."""
        if not question.names:
            # Without a name there is nothing to calibrate on: candidates that agree equally
            # share the score.
            agreed = features[:, FEATURES.index("properties")]
            same = (agreed[:, None] == agreed[None, :]).sum(1)
            return np.asarray(agreed / same)
        scores = features @ self.coefficients.read_weights()
        constant, by_length = self.coefficients.none
        none = constant + by_length * length_of(max(question.names, key=len))
        chances = softmax_with_none(scores, none)
        if self.coefficients.exact is None:
            return chances
        owner = np.zeros(len(chances), np.int64)
        return lift_exact(chances, find_sole(features, owner), owner, self.coefficients.exact)

    def features(self, question: Question, found: dict[int, Found]) -> Array:
        """Return the features of the candidates of a question, (R, D)."""
        rows = np.zeros((len(found), len(FEATURES)))
        column = {name: rows[:, index] for index, name in enumerate(FEATURES)}
        candidates = list(found.values())
        for name, attribute in _READ_AS_THEY_ARE.items():
            column[name][:] = [getattr(candidate, attribute) for candidate in candidates]
        similarity = np.maximum(column["spelling"], column["romanised"])
        column["close"][:] = np.maximum(0.0, 5 * similarity - 4)
        column["encoder"][:] = np.maximum(0.0, column["encoder"])
        column["script"][:] = [
            candidate.spelling if same_script(candidate.query, candidate.name) else 0.0
            for candidate in candidates
        ]
        column["length"][:] = similarity * [length_of(candidate.query) for candidate in candidates]
        for row, concept in enumerate(found if question.types else ()):
            types = self.evidence.types_of(concept)
            has_type = any(self.evidence.is_a(concept, asked) for asked in question.types)
            column["type"][row] = has_type
            column["mistyped"][row] = bool(types) and not has_type
        for row, concept in enumerate(found if question.properties else ()):
            agreed, denied = self._agreement(question, concept)
            column["properties"][row], column["contradicted"][row] = agreed, denied
        column["first"][:], column["gap"][:] = compare_with_others(similarity)
        return rows

    def _agreement(self, question: Question, concept: int) -> tuple[float, float]:
        """Return the shares of the properties that agree and that do not; the rest is unknown."""
        scores = [self.evidence.agreement(concept, asked) for asked in question.properties]
        agreed = sum(score for score in scores if score is not None)
        denied = sum(1 - score for score in scores if score is not None)
        return agreed / len(scores), denied / len(scores)


def add_hits(found: dict[int, Found], text: str, hits: Iterable[NameHit]) -> None:
    """Add the names that were found for a text to the candidates, by concept."""
    # A name may be found in all languages and in its own: it counts once.
    distinct = list({(hit.entity, hit.name): hit for hit in reversed(list(hits))}.values())[::-1]
    if not distinct:
        return
    folded, readings = fold(text), [hit.reading or _reading(hit.name, hit.lang) for hit in distinct]
    [by_words] = process.cdist(
        [_reading(text)], readings, scorer=fuzz.token_sort_ratio, dtype=np.float64
    )
    for hit, same_words in zip(distinct, by_words.tolist(), strict=True):
        spelling, romanised = hit.score / 100, hit.romanised / 100
        words = same_words / 100 - romanised
        # Text is folded only where the names are as similar as names can be.
        is_exact = hit.score == 100 and fold(hit.name) == folded
        candidate = found.get(hit.concept)
        if candidate is None:
            candidate = found[hit.concept] = Found(hit.entity, hit.name, hit.is_alias, query=text)
        rank = (is_exact, max(spelling, romanised), not hit.is_alias)
        best = max(candidate.spelling, candidate.romanised)
        if rank > (candidate.is_exact, best, not candidate.is_alias):
            candidate.entity, candidate.name = hit.entity, hit.name
            candidate.is_alias, candidate.query = hit.is_alias, text
        candidate.spelling = max(candidate.spelling, spelling)
        candidate.romanised = max(candidate.romanised, romanised)
        candidate.is_exact |= is_exact
        candidate.is_identical |= hit.name == text
        candidate.words = max(candidate.words, words)


@functools.lru_cache(1 << 12)
def _reading(text: str, lang: str | None = None) -> str:
    """Return text in Latin letters, as it is compared word by word."""
    return romanise([fold(text[:MAX_TEXT])], lang)[0]


def same_script(text: str, other: str) -> bool:
    """Tell whether two texts begin in the same known script."""
    script = _script(text)
    return bool(script) and script == _script(other)


_script = functools.lru_cache(1 << 12)(script_of_text)


def compare_with_others(values: Array) -> tuple[Array, Array]:
    """Return which values are the largest, (R,) bool, and how far each is above the others."""
    if len(values) < 2:
        return np.ones(len(values), bool), values.copy()
    second, first = np.partition(values, -2)[-2:]
    is_first = values == first
    return is_first, values - np.where(is_first, second, first)


def find_sole(features: Array, owner: Array) -> Array:
    """Return which candidates are the only exact one of their question, (R,) bool.

    Those that a type or a property speaks against are left out. owner: (R,) their questions.
    """
    exact, *against = (FEATURES.index(name) for name in ("exact", "contradicted", "mistyped"))
    is_exact = features[:, exact] > 0
    is_sole = is_exact & (np.bincount(owner, is_exact, 1)[owner] == 1)
    return np.asarray(is_sole & ~(features[:, against] > 0).any(1))


def lift_exact(chances: Array, is_sole: Array, owner: Array, exact: float) -> Array:
    """Return probabilities where sole exact names have `exact` at least, and others the rest.

    The regression adds up similarities, so that it is too cautious with short names that are
    exact. chances: (R,), is_sole: (R,) bool, owner: (R,) ascending.
    """
    lifted = np.where(is_sole, np.maximum(chances, exact), chances)
    # (Q,) what the sole ones had and have; the others share what is left, as before.
    had = np.bincount(owner, np.where(is_sole, chances, 0.0), 1)
    has = np.bincount(owner, np.where(is_sole, lifted, 0.0), 1)
    left = ((1 - has) / np.maximum(1 - had, 1e-12))[owner]
    return np.asarray(np.where(is_sole, lifted, chances * np.minimum(1.0, left)))


def length_of(query: str) -> float:
    """Return the logarithm of a query's length, scaled to 0 to 1."""
    return min(1.0, math.log1p(len(query)) / _LENGTH)


def softmax_with_none(scores: Array, none: float) -> Array:
    """Return the probabilities of candidates, (R,), where `none` scores that none is right."""
    top = max(none, float(scores.max(initial=none)))
    weights = np.exp(scores - top)
    return np.asarray(weights / (weights.sum() + math.exp(none - top)))


class NameVectors:
    """An encoder's vectors of the KB's names: more candidates, and the cosine of all of them."""

    def __init__(self, linker: "EntityLinker") -> None:
        from prixlm.entities.index import build_vectors

        self.linker = linker
        self.store = build_vectors(linker.kb, linker.encoder)

    def add(
        self,
        lookup: Lookup,
        texts: list[str],
        found: Sequence[dict[int, Found]],
        is_kept: Callable[[int, int], bool] = lambda text, entity: True,
    ) -> None:
        """Add the nearest entities of each text to its candidates, and the cosines of all.

        is_kept: tells by the number of a text and an entity if that may be a candidate.
        """
        vectors = self.linker.encoder.encode(texts)
        nearest = self.linker.index.search(vectors, _NEIGHBOURS).entity.tolist()
        for number, (text, candidates) in enumerate(zip(texts, found, strict=True)):
            for entity in nearest[number]:
                if entity >= 0 and is_kept(number, entity):  # -1 where there are fewer
                    blank = Found(entity, lookup.name(entity), False, query=text)
                    candidates.setdefault(int(lookup.concept[entity]), blank)
            for candidate in candidates.values():
                cosine = self.cosines(vectors[number], candidate.entity).max(initial=0.0)
                candidate.cosine = max(candidate.cosine, float(cosine))

    def cosines(self, vector: Array, entity: int) -> Array:
        """Return the cosines of a vector and all names of an entity."""
        low, high = np.searchsorted(self.store.owner, [entity, entity + 1])
        return np.asarray(self.store.vectors[low:high] @ vector)
