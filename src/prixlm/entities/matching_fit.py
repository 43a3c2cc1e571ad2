"""Fit the probabilities of `matching.py` on the names of a KB itself.

    matcher = open_matcher(build_lookup(kb), build_names(kb))

It asks with the names of linked entities and with aliases, without that name among the candidates.
Some questions are asked with the name as it stands, or with a slip of the keyboard, and for some
the whole concept is taken away: most tables have rows that a KB lacks. Half of the questions come
with a property, some with a type; a few of those are wrong, as in real tables.

Folds are by concept. A candidate is a `match` from the probability on where the precision on the
held-out folds is 95 %. So is an exact name without a namesake, if such names are right that often
or if there is no such probability. A KB of one language without aliases has nothing to fit on and
uses `matching.json`, fitted on the world KB:

    python -m prixlm.entities.matching_fit KB OUT.json

Dimension letters: Q questions, R candidates of all questions, D features.
"""

import dataclasses
import importlib.resources
import json
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rapidfuzz import fuzz
from scipy.optimize import minimize

from prixlm.entities.evidence import Evidence, Property, Type, Value
from prixlm.entities.matching import (
    DEPTH,
    FEATURES,
    PRECISION,
    Coefficients,
    Found,
    Matcher,
    Question,
    add_hits,
    find_sole,
    length_of,
    lift_exact,
)
from prixlm.entities.names import NameHit, NameIndex, build_names, fold
from prixlm.files import parse_json, write_atomically
from prixlm.kb.lookup import Lookup, build_lookup
from prixlm.kb.store import KB
from prixlm.metrics import reliability
from prixlm.romanise import romanise
from prixlm.types import Array, Progress

if TYPE_CHECKING:  # an encoder brings torch, which a server without one does not need
    from prixlm.entities.linker import EntityLinker

VERSION = 2
NUM_QUESTIONS = 2000
MIN_QUESTIONS = 300
"""With fewer questions to fit on, the default is more reliable."""
_MIN_MATCHES = 50
"""Held-out answers that a threshold must rest on."""
_FOLDS = 5
_PENALTY = 0.1
"""Weight of the squared coefficients beside the log-likelihood of all questions."""
_CHUNK = 250
"""Questions that are asked of the index together."""

REMOVED = 0.25
"""Share of the questions without a right answer: the threshold holds also for such a table."""
_REMOVED_WEIGHT = 0.5
"""Weight of those in the calibration: of most tables, the KB lacks less than a quarter."""
_KEPT, _SLIP = 0.1, 0.2
"""Shares of the questions that leave the name among the candidates, as it is or misspelt."""
_WITH_PROPERTY, _WITH_TYPE, _WRONG = 0.5, 0.3, 0.15
"""Shares of the questions with a property and with a type, and of those, with a wrong one."""

_AT_LEAST_ZERO = (
    *("spelling", "romanised", "close", "exact", "identical", "first", "gap", "words"),
    *("properties", "type", "encoder"),
)
"""Features whose weight is not negative, so that a near name never beats an exact one."""
_AT_MOST_ZERO = ("contradicted", "mistyped")


@dataclass(frozen=True)
class Asked:
    """A question whose answer is known."""

    entity: int  # whose name is asked with
    name: str  # as the KB has it
    concept: int
    query: str  # the name, or a misspelling of it
    is_hidden: bool  # the name is taken away from the candidates
    is_removed: bool  # the concept is taken away: none of the candidates is right
    within: str | None = None  # the KB has the names of this language only
    properties: tuple[Property, ...] = ()
    types: tuple[Type, ...] = ()


@dataclass(frozen=True)
class Sample:
    """Questions and their candidates, as the fit reads them."""

    features: Array  # (R, D), the candidates of one question after those of another
    owner: Array  # (R,) question of each candidate, ascending
    right: Array  # (R,) bool
    length: Array  # (Q,) of the query, see `length_of`
    concept: Array  # (Q,) that was asked for, also where it was removed
    removed: Array  # (Q,) bool, whether it was

    def __len__(self) -> int:
        return len(self.length)

    def take(self, wanted: Array) -> "Sample":
        """Return some of the questions; wanted: (Q,) bool."""
        kept = wanted[self.owner]
        number = np.cumsum(wanted) - 1  # of each question among the wanted
        return Sample(
            self.features[kept],
            number[self.owner[kept]],
            self.right[kept],
            self.length[wanted],
            self.concept[wanted],
            self.removed[wanted],
        )


def open_matcher(
    lookup: Lookup,
    names: NameIndex,
    linker: "EntityLinker | None" = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Matcher:
    """Return a matcher for a KB, fitted now if that was not done before.

    folder: where the coefficients are kept; that of the index of names by default.
    """
    folder = names.folder if folder is None else folder
    encoder = linker.encoder.fingerprint() if linker is not None else None
    path = folder / ("matching.json" if encoder is None else f"matching-{encoder[:16]}.json")
    coefficients = _read_fitted(path, lookup.kb.fingerprint(), encoder)
    if coefficients is None:
        coefficients = fit_matcher(lookup, names, linker, progress=progress)
        with suppress(OSError):  # a KB on a read-only disk is fitted each time
            write_atomically(path, dump_coefficients(coefficients))
    return Matcher(lookup, names, coefficients, linker=linker)


def fit_matcher(
    lookup: Lookup,
    names: NameIndex,
    linker: "EntityLinker | None" = None,
    *,
    num_questions: int = NUM_QUESTIONS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Coefficients:
    """Fit on a KB's own names; with too few of them, return the default for this KB."""
    kb = lookup.kb.fingerprint()
    encoder = linker.encoder.fingerprint() if linker is not None else None
    evidence = Evidence(lookup)
    asked = make_questions(evidence, num_questions, seed)
    if len(asked) < MIN_QUESTIONS:
        return dataclasses.replace(read_default(), kb=kb, encoder=encoder)
    sample = make_sample(Matcher(lookup, names, _BLANK, evidence, linker), asked, progress)
    return fit_sample(sample, kb, encoder)


def fit_default(
    lookup: Lookup, names: NameIndex, num_questions: int = 3 * NUM_QUESTIONS, seed: int = 0
) -> Coefficients:
    """Fit for a KB of one language, on a KB of many.

    Every question is asked of the names of one random language only; its own name is in another
    language, or is kept.
    """
    evidence = Evidence(lookup)
    asked = make_questions(evidence, num_questions, seed, within_one_language=True)
    sample = make_sample(Matcher(lookup, names, _BLANK, evidence), asked)
    return fit_sample(sample, lookup.kb.fingerprint(), None)


# --- questions ------------------------------------------------------------------------------------


def make_questions(
    evidence: Evidence, num_questions: int, seed: int, *, within_one_language: bool = False
) -> list[Asked]:
    """Return questions with the names of entities that have another name, at most some."""
    generator = np.random.default_rng(seed)
    lookup = evidence.lookup
    asked = []
    for entity, name in _choose_names(lookup, num_questions, generator):
        concept = int(lookup.concept[entity])
        kind, removed, index = generator.random(3)
        is_hidden, query = kind >= _KEPT + _SLIP, name
        within = None
        if within_one_language:
            # A kept name is asked of its own language, a hidden one of another.
            langs = [lookup.lang(other) for other in lookup.entities_of(concept)]
            others = [lang for lang in langs if lang != lookup.lang(entity)]
            within = lookup.lang(entity)
            if is_hidden and others:
                within = others[int(index * len(others))]
        if _KEPT <= kind < _KEPT + _SLIP:
            query = misspell(name, generator)
        properties, types = _draw_evidence(evidence, concept, entity, generator)
        asked.append(
            Asked(
                entity,
                name,
                concept,
                query,
                bool(is_hidden),
                bool(removed < REMOVED),
                within,
                properties,
                types,
            )
        )
    return asked


def _choose_names(
    lookup: Lookup, most: int, generator: np.random.Generator
) -> list[tuple[int, str]]:
    """Return random entities of concepts with several names, and one name of each: (id, name)."""
    is_linked = (np.bincount(lookup.concept, minlength=1) > 1)[lookup.concept]
    linked = np.flatnonzero(is_linked).astype(np.int32)
    aliases = lookup.kb.query(
        "SELECT entity, name FROM aliases ORDER BY hash(entity, name), name LIMIT $most",
        {"most": most},
    ).fetchall()
    # Half of each, if there are enough.
    num_own = min(len(linked), max(most - len(aliases), most // 2))
    own = [(int(entity), lookup.name(entity)) for entity in generator.permutation(linked)[:num_own]]
    chosen = own + aliases[: most - num_own]
    return [chosen[row] for row in generator.permutation(len(chosen)).tolist()]


def misspell(name: str, generator: np.random.Generator) -> str:
    """Return a name with a slip: a letter dropped, doubled or swapped with the next."""
    if len(name) < 4:
        return name
    place = int(generator.integers(1, len(name) - 1))
    before, letter, after = name[:place], name[place], name[place + 1 :]
    slips = (before + after, before + 2 * letter + after, before + after[0] + letter + after[1:])
    return slips[int(generator.integers(len(slips)))]


def _draw_evidence(
    evidence: Evidence, concept: int, entity: int, generator: np.random.Generator
) -> tuple[tuple[Property, ...], tuple[Type, ...]]:
    """Return a property and a type of a concept, in some of the cases; now and then wrong ones."""
    lookup = evidence.lookup
    with_property, wrong_property, with_type, wrong_type = generator.random(4)
    properties: tuple[Property, ...] = ()
    types: tuple[Type, ...] = ()
    facts = lookup.facts_of(lookup.entities_of(concept))
    if with_property < _WITH_PROPERTY and len(facts):
        row = int(generator.integers(len(facts)))
        value = int(facts.object[row])
        if wrong_property < _WRONG:
            value = int(generator.integers(lookup.kb.num_entities))
        relation = int(facts.relation[row])
        text = _name_like(lookup, value, lookup.lang(entity))
        properties = (Property(relation=relation, values=(Value(text),)),)
    if with_type < _WITH_TYPE:
        other = concept
        if wrong_type < _WRONG:
            other = int(generator.integers(lookup.num_concepts))
        of_it = sorted(evidence.types_of(other))
        if of_it:
            types = (of_it[int(generator.integers(len(of_it)))],)
    return properties, types


def _name_like(lookup: Lookup, entity: int, lang: str) -> str:
    """Return the name of what an entity means in a language, else its own."""
    same = lookup.entities_of(int(lookup.concept[entity]))
    return next((lookup.name(e) for e in same if lookup.lang(e) == lang), lookup.name(entity))


def make_sample(
    matcher: Matcher, asked: Sequence[Asked], progress: Progress | None = None
) -> Sample:
    """Find the candidates of all questions, and their features."""
    features, owner, right = [np.zeros((0, len(FEATURES)))], [], []
    for start in range(0, len(asked), _CHUNK):
        part = asked[start : start + _CHUNK]
        for number, (one, found) in enumerate(zip(part, _find(matcher, part), strict=True)):
            question = Question(names=(one.query,), properties=one.properties, types=one.types)
            features.append(matcher.features(question, found))
            owner += [start + number] * len(found)
            right += [concept == one.concept for concept in found]
        if progress is not None:
            progress("fit matching", start + len(part), len(asked))
    return Sample(
        np.concatenate(features),
        np.array(owner, np.int64),
        np.array(right, bool),
        np.array([length_of(one.query) for one in asked]),
        np.array([one.concept for one in asked], np.int64),
        np.array([one.is_removed for one in asked], bool),
    )


def _find(matcher: Matcher, asked: Sequence[Asked]) -> list[dict[int, Found]]:
    """Return the candidates of questions, without what each of them hides."""
    found: list[dict[int, Found]] = [{} for _ in asked]
    for lang in sorted({one.within for one in asked}, key=str):
        rows = [row for row, one in enumerate(asked) if one.within == lang]
        queries = [asked[row].query for row in rows]
        # One more than a server asks for, since the name itself is dropped.
        hits_by_row = matcher.names.candidates(queries, DEPTH + 1, lang)
        for row, hits in zip(rows, hits_by_row, strict=True):
            add_hits(found[row], asked[row].query, _hide(matcher.lookup, asked[row], hits))
    if matcher.vectors is not None:
        concepts = matcher.lookup.concept

        def is_kept(number: int, entity: int) -> bool:
            one = asked[number]
            is_removed = one.is_removed and concepts[entity] == one.concept
            return not is_removed and not (one.is_hidden and entity == one.entity)

        matcher.vectors.add(matcher.lookup, [one.query for one in asked], found, is_kept)
    return found


def _hide(lookup: Lookup, asked: Asked, hits: Sequence[NameHit]) -> list[NameHit]:
    """Return the hits without the concept, or as if the KB lacked the name that is asked with."""
    others = [hit for hit in hits if hit.concept != asked.concept]
    if asked.is_removed:
        return others
    own = [hit for hit in hits if hit.concept == asked.concept]
    if not asked.is_hidden or not own or own[0].name != asked.name:
        return list(hits)
    # The index tells the best name of a concept only: find the best of those that are left.
    left = [
        (entity, name, is_alias)
        for entity in lookup.entities_of(asked.concept)
        if asked.within is None or lookup.lang(entity) == asked.within
        for is_alias, names in ((False, [lookup.name(entity)]), (True, lookup.aliases(entity)))
        for name in names
        if (entity, name) != (asked.entity, asked.name)
    ]
    compared = [_compare(asked.query, *item, asked.concept) for item in left]
    best = max(compared, key=lambda hit: max(hit.score, hit.romanised), default=None)
    # It is among the candidates if it is more alike than the last of them.
    last = min((max(hit.score, hit.romanised) for hit in others), default=0.0)
    if best is None or (len(others) >= DEPTH and max(best.score, best.romanised) < last):
        return others
    return [*others, best]


def _compare(query: str, entity: int, name: str, is_alias: bool, concept: int) -> NameHit:
    """Return a name as the index would have found it."""
    texts, readings = [fold(query), fold(name)], romanise([fold(query), fold(name)])
    spelling = fuzz.ratio(*texts)
    reading = fuzz.ratio(*(new or old for new, old in zip(readings, texts, strict=True)))
    return NameHit(entity, concept, "", name, is_alias, "spelling", spelling, reading)


# --- the regression -------------------------------------------------------------------------------


def fit_sample(sample: Sample, kb: str, encoder: str | None) -> Coefficients:
    """Fit on all questions; the threshold and the figures are those of held-out concepts."""
    scores, none = np.zeros(len(sample.right)), np.zeros(len(sample))
    fold_of = _scatter(sample.concept) % _FOLDS
    for number in range(_FOLDS):
        test = fold_of == number
        part = sample.take(test)
        scores[test[sample.owner]], none[test] = score(part, _minimise(sample.take(~test)))
    held_out = np.zeros(len(sample.right))
    for number in range(_FOLDS):
        # A fold is calibrated by the others, too: its probabilities, and with them the threshold
        # and the figures, are as those of a question that nothing was fitted on.
        test = fold_of == number
        of_test = test[sample.owner]  # (R,) of each candidate
        factor, shift = _calibrate(sample.take(~test), scores[~of_test], none[~test])
        held_out[of_test] = softmax_by_question(
            sample.take(test), factor * scores[of_test], factor * none[test] + shift
        )
    is_sole = find_sole(sample.features, sample.owner)
    exact = find_precision(sample.right[is_sole])
    if exact is not None:
        held_out = lift_exact(held_out, is_sole, sample.owner, exact)
    threshold = find_threshold(*best_of_each(sample, held_out))
    figures = _figures(sample, held_out, threshold)
    factor, shift = _calibrate(sample, scores, none)
    parameters = factor * _minimise(sample)
    parameters[-2] += shift
    weights = dict(zip(FEATURES, np.round(parameters[:-2], 4).tolist(), strict=True))
    constant, by_length = np.round(parameters[-2:], 4).tolist()
    return Coefficients(weights, (constant, by_length), threshold, kb, encoder, figures, exact)


def _scatter(concept: Array) -> Array:
    """Return a hash of each concept: neighbours in the KB, often namesakes, get other folds."""
    return np.asarray((concept * 2654435761) >> 7)


def score(sample: Sample, parameters: Array) -> tuple[Array, Array]:
    """Return the scores of candidates, (R,), and of "none of them", (Q,). parameters: (D + 2,)."""
    weights, none = parameters[:-2], parameters[-2:]
    return sample.features @ weights, none[0] + none[1] * sample.length


def probabilities(sample: Sample, parameters: Array) -> Array:
    """Return the probability of each candidate, (R,). parameters: (D + 2,)."""
    return softmax_by_question(sample, *score(sample, parameters))


def softmax_by_question(sample: Sample, scores: Array, none: Array) -> Array:
    """Return the probability of each candidate, (R,), from the scores, (R,) and (Q,)."""
    top = none.copy()
    np.maximum.at(top, sample.owner, scores)
    shares = np.exp(scores - top[sample.owner])
    total = np.exp(none - top) + np.bincount(sample.owner, shares, len(sample))
    return np.asarray(shares / total[sample.owner])


def _calibrate(sample: Sample, scores: Array, none: Array) -> tuple[float, float]:
    """Return a factor of all scores and a shift of "none of them" that suit held-out questions.

    The fit weighs all candidates alike; a reader looks at the best one. The factor and the shift
    make its probability fit the share that is right, and keep the order of the candidates.
    """
    # (Q',) weights of the questions with candidates, as `best_of_each` returns them
    weight = np.where(sample.removed, _REMOVED_WEIGHT, 1.0)[np.unique(sample.owner)]

    def loss(values: Array) -> float:
        factor, shift = math.exp(values[0]), values[1]
        held_out = softmax_by_question(sample, factor * scores, factor * none + shift)
        chance, right = best_of_each(sample, held_out)
        likely = np.where(right, chance, 1 - chance)
        return float(-(weight * np.log(np.maximum(likely, 1e-9))).sum() + (values**2).sum())

    result = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"maxiter": 100})
    return math.exp(result.x[0]), float(result.x[1])


def _minimise(sample: Sample) -> Array:
    """Return the parameters with the least penalised log-loss, (D + 2,)."""
    has_right = np.bincount(sample.owner, sample.right, len(sample)) > 0

    def loss(parameters: Array) -> tuple[float, Array]:
        chance = probabilities(sample, parameters)
        none = 1 - np.bincount(sample.owner, chance, len(sample))
        likely = np.log(np.maximum(chance[sample.right], 1e-12)).sum()
        likely += np.log(np.maximum(none[~has_right], 1e-12)).sum()
        # Gradient of a softmax: chance minus truth, for the candidates and for "none of them".
        of_none = none - ~has_right
        gradient = np.concatenate(
            [
                (chance - sample.right) @ sample.features,
                [of_none.sum(), (of_none * sample.length).sum()],
            ]
        )
        value = -likely + _PENALTY * (parameters**2).sum()
        return float(value), gradient + 2 * _PENALTY * parameters

    bounds = [
        (0.0 if name in _AT_LEAST_ZERO else None, 0.0 if name in _AT_MOST_ZERO else None)
        for name in FEATURES
    ]
    start = np.zeros(len(FEATURES) + 2)
    result = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=[*bounds, (None, None), (None, None)]
    )
    return np.asarray(result.x)


def best_of_each(sample: Sample, probability: Array) -> tuple[Array, Array]:
    """Return the highest probability of each question with candidates, and if that one is right."""
    order = np.lexsort((-probability, sample.owner))
    _, first = np.unique(sample.owner[order], return_index=True)
    return probability[order][first], sample.right[order][first]


def find_threshold(probability: Array, right: Array, precision: float = PRECISION) -> float | None:
    """Return the lowest probability from which on the answers reach a precision, if any.

    They must be above it by a standard error: the lowest of many thresholds is chosen, so one that
    just reaches it is too low for other questions.
    """
    order = np.argsort(-probability, kind="stable")
    # (N,) share right among the answers that are at least as probable as this one.
    number = np.arange(1, len(order) + 1)
    share = np.cumsum(right[order]) / number
    error = np.sqrt(precision * (1 - precision) / number)
    enough = np.flatnonzero((share - error)[_MIN_MATCHES - 1 :] >= precision)
    if not len(enough):
        return None
    lowest = float(probability[order][enough[-1] + _MIN_MATCHES - 1])
    return math.floor(lowest * 1e4) / 1e4  # rounded up, it would leave out the last answer


def find_precision(right: Array, precision: float = PRECISION) -> float | None:
    """Return the share that is right, if there are enough and it is high enough for a match."""
    if len(right) < _MIN_MATCHES:
        return None
    share, error = float(right.mean()), math.sqrt(precision * (1 - precision) / len(right))
    return math.floor(share * 1e4) / 1e4 if share - error >= precision else None


def _figures(sample: Sample, held_out: Array, threshold: float | None) -> dict[str, float]:
    """Return how held-out questions fared."""
    probability, right = best_of_each(sample, held_out)
    answerable = int(np.bincount(sample.owner, sample.right, len(sample)).sum())
    matched = probability >= (threshold if threshold is not None else math.inf)
    values = {
        "questions": len(sample),
        "with_right_candidate": answerable,
        "best_is_right": int(right.sum()),
        "calibration_error": reliability(probability, right).ece,
        "matches": int(matched.sum()),
        "precision": float(right[matched].mean()) if matched.any() else math.nan,
        "recall": float(right[matched].sum() / max(1, answerable)),
    }
    return {name: round(float(value), 4) for name, value in values.items()}


# --- files ----------------------------------------------------------------------------------------

_BLANK = Coefficients(dict.fromkeys(FEATURES, 0.0), (0.0, 0.0), None, "")


def dump_coefficients(coefficients: Coefficients) -> str:
    """Return coefficients as JSON text."""
    values = {"version": VERSION} | dataclasses.asdict(coefficients)
    return json.dumps(values, indent=1) + "\n"


def load_coefficients(text: str) -> Coefficients:
    """Return the coefficients of a JSON text; ValueError if it is of another version or kind."""
    values = parse_json(text, "the file")
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise ValueError("another version")
    try:
        found = Coefficients(**values)
        return dataclasses.replace(found, none=(found.none[0], found.none[1]))
    except (TypeError, IndexError) as error:
        raise ValueError(str(error)) from None


def read_default() -> Coefficients:
    """Return the coefficients that come with the package."""
    file = importlib.resources.files("prixlm.entities") / "matching.json"
    return load_coefficients(file.read_text("utf-8"))


def _read_fitted(path: Path, kb: str, encoder: str | None) -> Coefficients | None:
    """Return the coefficients of a file if they were fitted on this KB and encoder."""
    try:
        found = load_coefficients(path.read_text("utf-8"))
    except (OSError, ValueError):  # absent or unreadable: they are fitted again
        return None
    return found if (found.kb, found.encoder) == (kb, encoder) else None


def main(arguments: Sequence[str]) -> None:
    """Write the default: fitted on a KB of many languages, as for a KB of one."""
    kb, out = KB(arguments[0]), Path(arguments[1])
    write_atomically(out, dump_coefficients(fit_default(build_lookup(kb), build_names(kb))))


if __name__ == "__main__":
    main(sys.argv[1:])
