"""Entities that mean the same and are not linked yet: a name's nearest names in another language.

    table = propose_links(kb, encoder, "el", "en")

For every entity of a language without a counterpart in the other, the nearest entities there that
have none either. How near, how much nearer than the next, whether it is mutual, and how alike the
names are written is weighed by gradient-boosted trees, and isotonic regression makes a probability
of it. Both are fitted on links that the split hides (`prixlm split --hide-links`): a model that has
seen a link would be too sure of it. The entities of hidden links have a counterpart, and of the
other unlinked ones nobody knows: they count as entities without one, so that the confidence is
rather too low than too high. What the split hides is known, and is not proposed.

Dimension letters: Q entities asked for, k candidates of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import NeighbourIndex, build_vectors, choose_kind
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.metrics import Reliability, reliability
from prixlm.rankers.calibrated import fit_probability
from prixlm.types import Array, Progress

SCHEMA = pa.schema(
    [
        ("lang", pa.string()),
        ("entity", pa.int32()),
        ("key", pa.string()),
        ("name", pa.string()),
        ("other_lang", pa.string()),
        ("other", pa.int32()),
        ("other_key", pa.string()),
        ("other_name", pa.string()),
        ("confidence", pa.float64()),
        ("similarity", pa.float64()),  # the cosine of the two names
    ]
)
_PART = 1 << 14
_SPLITS = ("test", "valid")


@dataclass(frozen=True, kw_only=True)
class LinkConfig:
    """Which links are proposed."""

    min_confidence: float = 0.5
    k: int = 10  # candidates of each entity
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.k < 2:
            raise PrixError("k has to be 2 or more: the next best is evidence.")


class LinkRule:
    """Counterparts of one language in another."""

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
            raise PrixError(f"from {lang} into {into}: name two languages.")
        self.store = build_vectors(kb, encoder, progress=progress)
        own, other = kb.entity_range(lang), kb.entity_range(into)
        concept = kb.concepts()
        self.asked, self.targets = _without(own, other, concept), _without(other, own, concept)
        if not len(self.asked) or not len(self.targets):
            raise PrixError(f"all entities of {lang} or of {into} are linked: nothing is missing.")
        self.hidden = np.unique(
            np.concatenate([np.stack(self._hidden(s)) for s in _SPLITS], axis=1)
        )
        self.index = self._index(self.targets)
        self.back = self._index(self.asked)
        self.reliability: Reliability | None = None
        self._fit()

    def _index(self, entities: Array) -> NeighbourIndex:
        rows = np.flatnonzero(np.isin(self.store.owner, entities))
        # Threads build an HNSW graph a little differently each time, and inverted lists the same.
        kind = "exact" if choose_kind(len(rows)) == "exact" else "ivf"
        vectors = np.asarray(self.store.vectors[rows])
        return NeighbourIndex.build(vectors, self.store.owner[rows], kind=kind)

    def _vectors(self, entities: Array) -> Array:
        """Of the first name of each: its own, not an alias."""
        return np.asarray(self.store.vectors[np.searchsorted(self.store.owner, entities)])

    def _fit(self) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        asked, truth = self._hidden("valid")
        others = self._others(len(asked))
        asked = np.concatenate([asked, others])
        truth = np.concatenate([truth, np.full(len(others), -2)])
        found, features = self.candidates(asked)
        right = found == truth[:, None]
        generator = np.random.default_rng(self.config.seed)
        place = np.argsort(generator.permutation(len(asked))) / max(1, len(asked))
        first, second = place < 0.6, place >= 0.6
        if len(asked) < 50 or not right[first].any() or not right[second].any():
            raise PrixError(
                f"{len(asked)} hidden links from {self.lang} into {self.into} are too few to fit a "
                "confidence on: hide more with `prixlm split --hide-links 0.2 --valid 0.1`."
            )
        width = features.shape[-1]
        self.trees = HistGradientBoostingClassifier(
            max_iter=100, min_samples_leaf=20, max_leaf_nodes=8, early_stopping=False
        ).fit(features[first].reshape(-1, width), right[first].reshape(-1))
        self.isotonic = fit_probability(
            self.trees.decision_function(features[second].reshape(-1, width)),
            right[second].reshape(-1),
        )

    def _others(self, number: int) -> Array:
        """Entities that nobody linked, as many as they are beside so many of the hidden ones."""
        alone = np.setdiff1d(self.asked, self.hidden)
        linked = len(self.kb.entity_range(self.lang)) - len(alone)
        most = round(number * len(alone) / max(1, linked))
        return np.sort(np.random.default_rng(self.config.seed).permutation(alone)[:most])

    def _hidden(self, split: str) -> tuple[Array, Array]:
        """Entities whose link is hidden, and their counterparts; of several, the first."""
        a, b = (
            column.to_numpy().astype(np.int64) for column in self.kb.hidden_links(split).columns
        )
        a, b = np.concatenate([a, b]), np.concatenate([b, a])
        own, other = self.kb.entity_range(self.lang), self.kb.entity_range(self.into)
        kept = (a >= own.start) & (a < own.stop) & (b >= other.start) & (b < other.stop)
        asked, first = np.unique(a[kept], return_index=True)
        return asked, b[kept][first]

    def candidates(self, asked: Array) -> tuple[Array, Array]:
        """The nearest entities of each, (Q, k), and what speaks for them, (Q, k, 6)."""
        from rapidfuzz import fuzz, process, utils

        k = min(self.config.k, len(np.unique(self.targets)))
        vectors = self._vectors(asked)
        found = self.index.search(vectors, k)
        best = found.score[:, :1]
        second = found.score[:, 1:2] if k > 1 else np.zeros_like(best)
        others = np.where(np.arange(k) == 0, second, best)
        known = np.maximum(found.entity, 0)
        back = self.back.search(self._vectors(known.reshape(-1)), 1)
        mutual = back.entity[:, 0].reshape(known.shape) == asked[:, None]
        names = [utils.default_process(name) for name in self.kb.names(asked.tolist())]
        theirs = [utils.default_process(n) for n in self.kb.names(known.reshape(-1).tolist())]
        alike = process.cpdist(
            [name for name in names for _ in range(k)], theirs, scorer=fuzz.ratio, workers=-1
        ).reshape(known.shape)
        columns = [
            found.score,
            found.score - others,
            np.broadcast_to(np.log1p(np.arange(k)), known.shape),
            mutual,
            back.score[:, 0].reshape(known.shape) - found.score,
            alike,
        ]
        features = np.stack([np.asarray(column, float) for column in columns], axis=-1)
        features[found.entity < 0] = np.nan
        return found.entity, features

    def confidence(self, features: Array) -> Array:
        """(Q, k) probabilities."""
        width = features.shape[-1]
        score = self.trees.decision_function(features.reshape(-1, width))
        return np.asarray(self.isotonic.predict(score)).reshape(features.shape[:-1])

    def try_on_hidden(self, split: str = "test") -> Reliability:
        """How far the best candidates can be believed, on hidden links that were not fitted on,
        and as many entities without a link as there are beside them."""
        asked, truth = self._hidden(split)
        others = self._others(len(asked))
        asked = np.concatenate([asked, others])
        truth = np.concatenate([truth, np.full(len(others), -2)])
        found, features = self.candidates(asked)
        confidence = self.confidence(features)
        best = confidence.argmax(axis=1)
        rows = np.arange(len(asked))
        return reliability(confidence[rows, best], found[rows, best] == truth)

    def proposals(self) -> pa.Table:
        """The best counterpart of every entity that has none, where it is likely enough.

        Of several that want the same counterpart, the most confident has it.
        """
        parts = [SCHEMA.empty_table()]
        new = np.setdiff1d(self.asked, self.hidden)
        for start in range(0, len(new), _PART):
            asked = new[start : start + _PART]
            found, features = self.candidates(asked)
            confidence = np.where(np.isin(found, self.hidden), -1.0, self.confidence(features))
            best = confidence.argmax(axis=1)
            rows = np.arange(len(asked))
            sure = confidence[rows, best]
            kept = np.flatnonzero((sure >= self.config.min_confidence) & (found[rows, best] >= 0))
            parts.append(
                self._table(
                    asked[kept],
                    found[kept, best[kept]],
                    np.round(sure[kept], 6),
                    features[kept, best[kept], 0],
                )
            )
        order = [("confidence", "descending"), ("entity", "ascending")]
        table = pa.concat_tables(parts).sort_by(order)
        _, first = np.unique(table["other"].to_numpy(), return_index=True)
        return table.take(np.sort(first))

    def _table(self, ours: Array, theirs: Array, confidence: Array, similarity: Array) -> pa.Table:
        a, b = self.kb.entities(ours.tolist()), self.kb.entities(theirs.tolist())
        columns: Sequence[Any] = [
            [one.lang for one in a],
            [one.id for one in a],
            [one.key for one in a],
            [one.name for one in a],
            [one.lang for one in b],
            [one.id for one in b],
            [one.key for one in b],
            [one.name for one in b],
            confidence,
            similarity,
        ]
        arrays = [pa.array(x, field.type) for x, field in zip(columns, SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _without(entities: range, others: range, concept: Array) -> Array:
    """Those whose concept the other language does not have."""
    linked = np.isin(concept[entities.start : entities.stop], concept[others.start : others.stop])
    return np.arange(entities.start, entities.stop)[~linked]


def propose_links(
    kb: KB,
    encoder: EntityEncoder,
    lang: str,
    into: str,
    config: LinkConfig | None = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Counterparts in `into` of the entities of `lang` that have none, the most confident first."""
    return LinkRule(kb, encoder, lang, into, config, progress).proposals()
