"""Link mentions, names without facts, to the concepts of a KB, many at a time.

    linker = MentionLinker(KB("kb"))
    linker.link(["Helsingin kaupunki"], lang="en")       # answers with a calibrated confidence

A mention is compared with the names in all languages, and the concept answers in the language that
was asked for.

It is the linker of `linker.py` without what a mention lacks: links and facts. Its confidence is
fitted on questions about the KB's own names, the same as those of the reconciliation service
(`entities/matching_fit.py`): a name is taken away, misspelt, or its whole concept is missing. It is
kept in the KB's folder, so the second linker of a KB fits nothing.
The service answers one row of a table in milliseconds, without scikit-learn; this one answers a
hundred thousand mentions in one go.

Dimension letters: N names, Q mentions, P candidate pairs.
"""

import dataclasses
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from prixlm.arrays import pair_keys, rank_in_group
from prixlm.engine.jobs import EngineConfig
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.evidence import Evidence as KBEvidence
from prixlm.entities.index import VectorStore, build_vectors
from prixlm.entities.matching import length_of
from prixlm.entities.matching_fit import Asked, make_questions, read_default
from prixlm.errors import PrixError
from prixlm.kb.lookup import Lookup, build_lookup
from prixlm.kb.store import KB, cache_folder
from prixlm.languages import normalise
from prixlm.linking.confidence import Confidence, best_of_each, compete
from prixlm.linking.evidence import FEATURES, CandidatePairs, Evidence, TextEvidence, gap_to_others
from prixlm.linking.grams import Pairs
from prixlm.linking.names import Names, NameSide
from prixlm.lm.trim import warn_of_another_kb, warn_of_reading
from prixlm.romanise import reading_version
from prixlm.types import Answer, Array, Progress

logger = logging.getLogger(__name__)
VERSION = 1
"""Version of how the confidence is fitted; a kept one names it."""
NUM_QUESTIONS = 3000
MIN_QUESTIONS = 100
"""With fewer questions to fit on, the default of the reconciliation service is used."""
_FOLDS = 3
_BLOCK = 1 << 14
"""Mentions that are linked together."""
_PER_MENTION = 10
"""Candidates that each kind of evidence brings for a mention."""


@dataclass(frozen=True)
class Candidates:
    """Candidates of mentions: (P,) each, sorted by mention, the best first."""

    mention: Array
    row: Array  # of the name that matched
    confidence: Array
    evidence: list[str]  # the kinds that put it first, joined by commas


class MentionLinker:
    """The names of a KB, and the fitted confidence of a match.

    Example:
        >>> linker = prixlm.MentionLinker("kb")
        >>> [[answer]] = linker.link(["Finland"], k=1, lang="en")
        >>> answer.name
        'Finland'
    """

    def __init__(
        self,
        kb: KB | Path | str,
        *,
        encoder: EntityEncoder | Path | str | None = None,
        source: str | None = None,
        seed: int = 0,
        engine: EngineConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Read the names of all languages, and fit the confidence on them.

        source: the language of the mentions, if they share one: it decides how kanji are read.
        engine: where the names are encoded, if they were not before.
        """
        self.seed, self.source = seed, _known_language(source)
        self._open(kb, encoder, engine, progress)
        self.confidence = self._kept_confidence(seed)

    @classmethod
    def with_confidence(
        cls,
        kb: KB,
        encoder: Path | None,
        confidence: Confidence | None,
        seed: int,
        source: str | None = None,
    ) -> "MentionLinker":
        """Return the same linker in another process: the confidence is not fitted again."""
        linker = cls.__new__(cls)
        linker._open(kb, encoder, None, None)
        linker.confidence, linker.seed, linker._has_warned = confidence, seed, True
        linker.source = source
        return linker

    def _open(
        self,
        kb: KB | Path | str,
        encoder: EntityEncoder | Path | str | None,
        engine: EngineConfig | None,
        progress: Progress | None,
    ) -> None:
        """Read the names of all languages."""
        self.kb = kb if isinstance(kb, KB) else KB(kb)
        if not self.kb.num_entities:
            raise PrixError(f"{self.kb.folder} has no entities to link to.")
        self.lookup = build_lookup(self.kb, progress)
        entity, texts, owner = _read_names(self.kb, self.lookup)
        self.encoder = EntityEncoder.load(encoder) if isinstance(encoder, Path | str) else encoder
        self._store: VectorStore | None = None
        self._has_warned = False
        langs = [self.kb.languages[i] for i in self.kb.language_of(entity).tolist()]
        whole = NameSide(Names(texts, owner, None, langs))
        # A concept with one name in many languages has one row: it takes one place, not ten.
        rows, number = whole.distinct()
        # (N,) each; every concept has a name, so concepts are the entities of this side.
        self.side, self.entity = whole.select(rows), entity[rows]
        self.texts = [texts[row] for row in rows.tolist()]
        self._num_equal = np.bincount(number)  # (N,) names that each row stands for
        # (entities,) the row of each entity's own name, which is its first.
        self._row_of = number[np.unique(entity, return_index=True)[1]]
        if self.encoder is not None:
            warn_of_another_kb(self.encoder.model, self.kb)
            self._store = build_vectors(self.kb, self.encoder, progress, engine)
            self._store.index()  # built by the driver, before its workers need it
            # The store is ordered by entity, its own name first: the place of each row there.
            place = np.empty(len(entity), np.int64)
            place[np.argsort(entity, kind="stable")] = np.arange(len(entity))
            self.side.vectors = np.asarray(self._store.vectors[place[rows]])

    def _evidence(
        self,
        mentions: Sequence[str],
        langs: Sequence[str] | None = None,
        to: str | None = None,
        k: int = _PER_MENTION,
    ) -> Evidence:
        """Return the evidence of some mentions.

        langs: of each mention, if known. to: the language that has to answer.
        k: candidates of each kind of evidence.
        """
        vectors, near = None, None
        if self.encoder is not None:
            vectors = self.encoder.encode(list(mentions), langs=langs)
            near = self._nearest(vectors, to, k)
        read_as = None if langs is None else list(langs)
        asked = Names(list(mentions), np.arange(len(mentions)), vectors, read_as)
        texts = TextEvidence(NameSide(asked), self.side, per_source=k, near=near)
        return Evidence(texts, mutual=False)

    def _nearest(self, vectors: Array, lang: str | None, k: int) -> Pairs:
        """Return the names of the nearest vectors by the index, which stays on disk.

        Among all names, and among those of the language that has to answer: else namesakes in
        other languages might fill all places.
        """
        assert self._store is not None
        index = self._store.index()
        parts = []
        for owners in (None,) if lang is None else (None, self.kb.entity_range(lang)):
            near = index.search(vectors, k, owners)
            left, place = np.nonzero(near.entity >= 0)
            rows = self._row_of[near.entity[left, place]]
            parts.append((left, rows, near.score[left, place]))
        return Pairs(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _kept_confidence(self, seed: int) -> Confidence | None:
        """Return the confidence that an earlier linker of this KB fitted, or fit it and keep it."""
        encoder = "" if self.encoder is None else self.encoder.fingerprint()
        parts = [VERSION, self.kb.fingerprint(), encoder, seed, NUM_QUESTIONS, reading_version()]
        # Trees of another scikit-learn may be stored in another way.
        key = "; ".join([*map(str, parts), importlib.metadata.version("scikit-learn"), *FEATURES])
        folder = cache_folder(self.kb, "linking", {})
        path = folder / f"mentions{encoder[:16] and '-' + encoder[:16]}.skops"
        confidence = Confidence.load(path, key)
        if confidence is not None:
            return confidence
        confidence = self._fit(seed)
        if confidence is not None:
            with suppress(OSError, PrixError):  # a KB on a read-only disk is fitted each time
                folder.mkdir(parents=True, exist_ok=True)
                confidence.save(path, key)
        return confidence

    def _fit(self, seed: int) -> Confidence | None:
        """Fit the confidence on questions whose answers are known; None if they are too few."""
        asked = make_questions(KBEvidence(self.lookup), NUM_QUESTIONS, seed)
        if len(asked) < MIN_QUESTIONS:
            logger.info("%d names to fit on are too few: the default is used", len(asked))
            return None
        spoken = self.kb.language_of(np.array([one.entity for one in asked]))
        langs = [self.kb.languages[i] for i in spoken.tolist()]
        evidence = self._evidence([one.query for one in asked], langs)
        left, name = evidence.candidates(np.arange(len(asked)), np.ones(len(self.side), bool))
        kept = self._is_kept(asked, left, name)
        pairs = evidence.describe(left[kept], name[kept])
        truth = np.array([one.concept for one in asked])
        right = self.side.owner[pairs.name] == truth[pairs.left]
        # Folds are by concept, so that no name of a question is in two of them.
        fold = (truth * 2654435761 >> 7) % _FOLDS
        return _fit_confidence(pairs, right, fold[pairs.left])

    def _is_kept(self, asked: Sequence[Asked], left: Array, name: Array) -> Array:
        """Return whether a name is left in the KB that a question is asked of: (P,)."""
        removed = np.array([one.concept if one.is_removed else -1 for one in asked])
        entity = np.array([one.entity if one.is_hidden else -1 for one in asked])
        kept = self.side.owner[name] != removed[left]
        # A row that other languages or entities share stays when one of them loses its name.
        hidden = (self.entity[name] == entity[left]) & (self._num_equal[name] == 1)
        for pair in np.flatnonzero(hidden).tolist():
            kept[pair] &= self.texts[name[pair]] != asked[left[pair]].name
        return np.asarray(kept)

    def candidates(
        self, mentions: Sequence[str], k: int = 5, lang: str | None = None
    ) -> Candidates:
        """Return the k best concepts of each mention that have a name in `lang`."""
        allowed = np.ones(len(self.side), bool)
        if lang is not None:
            allowed = self._entities(lang) >= 0
        none = np.zeros(0, np.int64)
        parts = [Candidates(none, none, np.zeros(0), [])]
        for start in range(0, len(mentions), _BLOCK):
            part = self._block(mentions[start : start + _BLOCK], k, lang, allowed)
            parts.append(dataclasses.replace(part, mention=part.mention + start))
        mention, row, confidence = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("mention", "row", "confidence")
        )
        evidence = [kinds for part in parts for kinds in part.evidence]
        return Candidates(mention, row, confidence, evidence)

    def _block(
        self, mentions: Sequence[str], k: int, lang: str | None, allowed: Array
    ) -> Candidates:
        langs = None if self.source is None else [self.source] * len(mentions)
        evidence = self._evidence(mentions, langs, lang, max(_PER_MENTION, k))
        pairs = evidence.pairs(np.arange(len(mentions)), allowed)
        if self.confidence is None:
            share = confidence = default_probability(pairs, mentions)
        else:
            share = compete(self.confidence.score(pairs.features), pairs.left, None)
            confidence = self.confidence.probability(share, pairs.left)
        order = np.lexsort((pairs.name, -share, pairs.left))
        kept = order[rank_in_group(pairs.left[order]) < k]
        origins = pairs.origins(kept)
        return Candidates(pairs.left[kept], pairs.name[kept], confidence[kept], origins)

    def _entities(self, lang: str) -> Array:
        """Return the first entity of each concept in a language, -1 without one: (concepts,)."""
        ids = self.kb.entity_range(lang)
        entities = np.full(len(self.side), -1)
        backwards = np.arange(ids.stop - 1, ids.start - 1, -1)  # the first is written last
        entities[self.lookup.concept[backwards]] = backwards
        return entities

    def link(
        self, mentions: Sequence[str], k: int = 5, lang: str | None = None
    ) -> list[list[Answer]]:
        """Return the best entities of each mention, one for each concept, best first.

        lang: the language of the answers; without it, that of the name that matched.
        """
        mentions = [mention.strip() for mention in mentions]
        if "" in mentions:
            raise PrixError(f"mention {mentions.index('') + 1} is empty: expected some text.")
        self.warn_of_reading(mentions)
        found = self.candidates(mentions, k, lang)
        entity = self.entity[found.row]
        if lang is not None:
            entity = self._entities(lang)[self.side.owner[found.row]]
        answers: list[list[Answer]] = [[] for _ in mentions]
        columns = found.mention.tolist(), entity.tolist(), found.confidence.tolist()
        for mention, one, confidence, kinds in zip(*columns, found.evidence, strict=True):
            rank = len(answers[mention]) + 1
            answers[mention].append(Answer(one, self.lookup.name(one), confidence, rank, kinds))
        return answers

    def identity(self) -> dict[str, str]:
        """Return what the answers depend on beside the KB."""
        encoder = "" if self.encoder is None else self.encoder.fingerprint()
        return {"encoder": encoder, "seed": str(self.seed), "source": self.source or ""}

    def recipe(self) -> "Callable[[], MentionLinker] | None":
        """Return a picklable function that loads the same elsewhere; None if nothing can."""
        folder = None if self.encoder is None else self.encoder.folder
        if folder is None and self.encoder is not None:
            return None
        load = MentionLinker.with_confidence
        return partial(load, self.kb, folder, self.confidence, self.seed, self.source)

    def warn_of_reading(self, mentions: Sequence[str]) -> None:
        """Warn once of mentions that a trimmed model reads in other pieces than its base."""
        if self.encoder is not None and not self._has_warned:
            self._has_warned = warn_of_reading(self.encoder.model, mentions, "mentions")


def _known_language(code: str | None) -> str | None:
    """Return a language's own code; refuse an unknown one."""
    if code is None:
        return None
    found = normalise(code)
    if found is None:
        raise PrixError(f"unknown language {code}: expected a code such as en, ja or zh.")
    return found


def _read_names(kb: KB, lookup: Lookup) -> tuple[Array, list[str], Array]:
    """Return entity, text and concept of each name, by concept; an entity's own name is first."""
    texts: list[str] = []
    parts = [np.zeros(0, np.int64)]
    for entities, some in kb.all_names():
        parts.append(entities.astype(np.int64))
        texts += some
    entity = np.concatenate(parts)
    concept = np.asarray(lookup.concept[entity], np.int64)
    order = np.argsort(pair_keys(concept, entity), kind="stable")
    return entity[order], [texts[row] for row in order.tolist()], concept[order]


def default_probability(pairs: CandidatePairs, mentions: Sequence[str]) -> Array:
    """Return the probability by the regression that the service uses for small KBs: (P,).

    It was fitted on the world KB. Features that pairs do not have count as 0 there too.
    """
    fitted = read_default()
    spelling, romanised = pairs.column("spelling"), pairs.column("romanised")
    better = np.maximum(spelling, romanised)
    length = np.array([length_of(mention) for mention in mentions])
    gap = gap_to_others(better, pairs.left)
    columns = {
        "spelling": spelling,
        "romanised": romanised,
        "close": np.maximum(0.0, 5 * better - 4),
        "exact": pairs.column("exact"),
        "identical": pairs.column("exact"),
        "alias": pairs.column("alias"),
        "length": better * length[pairs.left],
        "first": ~(gap < 0),
        "gap": np.where(np.isnan(gap), better, gap),  # alone, it is above nothing
        "encoder": np.nan_to_num(np.maximum(0.0, pairs.column("encoder"))),
    }
    score = np.zeros(len(pairs))
    for key, column in columns.items():
        score += fitted.weights.get(key, 0.0) * column
    none = fitted.none[0] + fitted.none[1] * length
    return compete(score - none[pairs.left], pairs.left, None)


def _fit_confidence(pairs: CandidatePairs, right: Array, fold: Array) -> Confidence:
    """Fit trees on all folds, and the calibration on what they say of the fold left out."""
    if not all(right[fold == f].any() for f in range(_FOLDS)):
        raise PrixError("no name of the KB finds its concept: no confidence can be fitted.")
    confidence = Confidence.grow(pairs.features, right, fold)
    score = np.zeros(len(pairs))
    for f in range(_FOLDS):
        score[fold == f] = confidence.score(pairs.features[fold == f], f)
    share = compete(score, pairs.left, None)
    confidence.calibrate(share, right, best_of_each(share, pairs.left))
    return confidence
