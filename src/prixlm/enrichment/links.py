"""Link proposals: entities of two languages that mean the same and are not linked yet.

    table, summary = propose_links(kb, encoder, ["el"], "en")

For every entity without a link into the other language, the entities there with the nearest names
are candidates, as long as they have no link either. Gradient-boosted trees weigh how near a
candidate is, how much nearer than the next, whether the two are nearest to each other, and how
alike the names are spelled; isotonic regression turns the score into a probability.

Both are fitted on links that the split withholds (`prixlm split --hide-links`), because a model
that has seen a link would be too sure of it. Entities with a withheld link have a counterpart. For
other unlinked entities this is unknown: they count as entities without one, so the confidence is
rather too low than too high. Withheld links are known, so they are not proposed.

Dimension letters: Q entities asked for, k candidates of each.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from prixlm.arrays import random_positions
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import NeighbourIndex, build_vectors, choose_kind
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.proposals.tables import LINK_SCHEMA
from prixlm.rankers.calibrated import CalibratedTrees
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
_BATCH_ENTITIES = 1 << 14
_MIN_CASES = 50
_SPLITS = ("test", "valid")
_NO_ENTITY = -2
"""The counterpart of an entity without one. The index fills short lists with -1."""


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """Which links are proposed."""

    min_confidence: float = 0.5  # leave out links below it
    k: int = 10  # candidates of each entity
    seed: int = 0  # of the drawn entities

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.k < 2:
            raise PrixError(f"k {self.k}: expected 2 or more, because the runner-up is evidence.")


class LinkProposer:
    """Proposes links from one language into another."""

    def __init__(
        self,
        kb: KB,
        encoder: EntityEncoder,
        lang: str,
        into: str,
        config: LinkConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.kb, self.lang, self.into, self.config = kb, lang, into, config or LinkConfig()
        if lang == into:
            raise PrixError(f"links from {lang} into {into}: expected two different languages.")
        self._store = build_vectors(kb, encoder, progress=progress)
        entities, others = kb.entity_range(lang), kb.entity_range(into)
        concept = kb.concepts()
        self._unlinked = _without_link(entities, others, concept)
        targets = _without_link(others, entities, concept)
        if not len(self._unlinked) or not len(targets):
            raise PrixError(f"all entities of {lang} or of {into} are linked: no link is missing.")
        # Withheld links are known, so their entities are neither asked for nor proposed.
        withheld = [column for split in _SPLITS for column in self._withheld(split)]
        self._withheld_entities = np.unique(np.concatenate(withheld))  # of both languages
        self._num_targets = len(targets)
        self._index = self._build_index(targets)
        self._back_index = self._build_index(self._unlinked)
        self._model = self._fit()

    def _build_index(self, entities: Array) -> NeighbourIndex:
        rows = np.flatnonzero(np.isin(self._store.owner, entities))
        # Threads build a slightly different HNSW graph each time; inverted lists are the same.
        kind = "exact" if choose_kind(len(rows)) == "exact" else "ivf"
        vectors = np.asarray(self._store.vectors[rows])
        return NeighbourIndex.build(vectors, self._store.owner[rows], kind=kind)

    def _vectors(self, entities: Array) -> Array:
        """Return the vectors of the entities' names: (Q, width). Aliases come after the name."""
        return np.asarray(self._store.vectors[np.searchsorted(self._store.owner, entities)])

    def _fit(self) -> CalibratedTrees:
        """Fit the confidence on withheld valid links and on entities without a link."""
        asked, truth = self._cases("valid")
        entity, features = self._candidates(asked)
        is_right = entity == truth[:, None]  # (Q, k)
        grow = random_positions(len(asked), self.config.seed) < 0.6
        if len(asked) < _MIN_CASES or not is_right[grow].any() or not is_right[~grow].any():
            raise PrixError(
                f"{len(asked)} withheld links from {self.lang} into {self.into} are too few to fit "
                "a confidence on: withhold more with `prixlm split --hide-links 0.2 --valid 0.1`."
            )
        # One row per candidate; those of one entity stay together.
        k, width = features.shape[1:]
        return CalibratedTrees.fit(
            features.reshape(-1, width),
            is_right.reshape(-1),
            grow=np.repeat(grow, k),
            calibrate=np.repeat(~grow, k),
        )

    def _cases(self, split: str) -> tuple[Array, Array]:
        """Return entities with a withheld link and entities without one, and the counterparts.

        Entities without a link are drawn in the proportion in which they occur among all entities
        of the language.
        """
        asked, truth = self._withheld(split)
        without = np.setdiff1d(self._unlinked, self._withheld_entities)
        num_linked = len(self.kb.entity_range(self.lang)) - len(without)
        number = round(len(asked) * len(without) / max(1, num_linked))
        drawn = np.random.default_rng(self.config.seed).permutation(without)[:number]
        asked = np.concatenate([asked, np.sort(drawn)])
        return asked, np.concatenate([truth, np.full(len(drawn), _NO_ENTITY)])

    def _withheld(self, split: str) -> tuple[Array, Array]:
        """Return entities whose link the split withholds, and the first counterpart of each."""
        pairs = [np.asarray(column, np.int64) for column in self.kb.withheld_links(split).columns]
        a, b = np.concatenate(pairs), np.concatenate(pairs[::-1])  # in both directions
        entities, others = self.kb.entity_range(self.lang), self.kb.entity_range(self.into)
        kept = (a >= entities.start) & (a < entities.stop) & (b >= others.start) & (b < others.stop)
        asked, first = np.unique(a[kept], return_index=True)
        return asked, b[kept][first]

    def _candidates(self, asked: Array) -> tuple[Array, Array]:
        """Return the nearest entities of each, (Q, k), and their features, (Q, k, 6).

        If the index finds fewer, the entity is -1 and the features are NaN.
        """
        from rapidfuzz import fuzz, process, utils

        k = min(self.config.k, self._num_targets)
        nearest = self._index.search(self._vectors(asked), k)
        # The gap to the best of the other candidates: the second for the first, else the first.
        first = nearest.score[:, :1]
        second = nearest.score[:, 1:2] if k > 1 else np.zeros_like(first)
        gap = nearest.score - np.where(np.arange(k) == 0, second, first)

        # Search back: is the entity asked for the nearest one of its candidate?
        entity = np.maximum(nearest.entity, 0)
        back = self._back_index.search(self._vectors(entity.reshape(-1)), 1)
        is_mutual = back.entity[:, 0].reshape(entity.shape) == asked[:, None]
        back_gap = back.score[:, 0].reshape(entity.shape) - nearest.score

        names = [utils.default_process(name) for name in self.kb.names(asked.tolist())]
        others = [utils.default_process(n) for n in self.kb.names(entity.reshape(-1).tolist())]
        repeated = [name for name in names for _ in range(k)]
        spelling = process.cpdist(repeated, others, scorer=fuzz.ratio, workers=-1)

        rank = np.broadcast_to(np.log1p(np.arange(k)), entity.shape)
        columns = [nearest.score, gap, rank, is_mutual, back_gap, spelling.reshape(entity.shape)]
        features = np.stack([np.asarray(column, float) for column in columns], axis=-1)
        features[nearest.entity < 0] = np.nan
        return nearest.entity, features

    def _confidence(self, features: Array) -> Array:
        """Return the probability that each candidate is the counterpart: (Q, k)."""
        rows = features.reshape(-1, features.shape[-1])
        return self._model.probability(rows).reshape(features.shape[:-1])

    def propose(self) -> pa.Table:
        """Return the best counterpart of every entity without one, the most confident first.

        Of several entities with the same counterpart, the most confident one keeps it.
        """
        tables = [LINK_SCHEMA.empty_table()]
        unlinked = np.setdiff1d(self._unlinked, self._withheld_entities)
        for start in range(0, len(unlinked), _BATCH_ENTITIES):
            tables.append(self._propose_some(unlinked[start : start + _BATCH_ENTITIES]))
        # The first row of each counterpart is its most confident one.
        order = [("confidence", "descending"), ("entity", "ascending")]
        table = pa.concat_tables(tables).sort_by(order)
        _, first = np.unique(table["other"].to_numpy(), return_index=True)
        return table.take(np.sort(first))

    def _propose_some(self, asked: Array) -> pa.Table:
        entity, features = self._candidates(asked)
        is_withheld = np.isin(entity, self._withheld_entities)
        confidence = np.where(is_withheld, -1.0, self._confidence(features))
        # The most confident candidate of each entity: (Q,) each.
        row, column = np.arange(len(asked)), confidence.argmax(axis=1)
        other, sure, similarity = (
            values[row, column] for values in (entity, confidence, features[:, :, 0])
        )
        kept = np.flatnonzero((sure >= self.config.min_confidence) & (other >= 0))
        ours, theirs = (self.kb.entities(ids[kept].tolist()) for ids in (asked, other))
        columns: dict[str, Any] = {
            "lang": [one.lang for one in ours],
            "entity": [one.id for one in ours],
            "key": [one.key for one in ours],
            "name": [one.name for one in ours],
            "other_lang": [one.lang for one in theirs],
            "other": [one.id for one in theirs],
            "other_key": [one.key for one in theirs],
            "other_name": [one.name for one in theirs],
            "confidence": np.round(sure[kept], 6),
            "similarity": similarity[kept],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in LINK_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=LINK_SCHEMA)


def propose_links(
    kb: KB,
    encoder: EntityEncoder,
    langs: Sequence[str],
    into: str,
    config: LinkConfig | None = None,
    progress: Progress | None = None,
) -> tuple[pa.Table, dict[str, Any]]:
    """Return link proposals from several languages into one, and a summary by language.

    The summary has the number of links, or the reason why a language has none.
    """
    tables, summary = [LINK_SCHEMA.empty_table()], {}
    for lang in langs:
        if lang == into:
            continue
        try:
            tables.append(LinkProposer(kb, encoder, lang, into, config, progress).propose())
        except PrixError as error:
            logger.warning("no links for %s: %s", lang, error)
            summary[lang] = {"links": 0, "why": str(error)}
            continue
        summary[lang] = {"links": tables[-1].num_rows}
    return pa.concat_tables(tables), summary


def _without_link(entities: range, others: range, concept: Array) -> Array:
    """Return the entities whose concept the other language has no entity of."""
    linked = np.isin(concept[entities.start : entities.stop], concept[others.start : others.stop])
    return np.arange(entities.start, entities.stop)[~linked]
