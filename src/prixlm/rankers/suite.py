"""Which rankers take part: the one place that lists them.

    suite = load_suite(kb, model="model", graph="graph")
    Fusion.fit(kb, suite.rankers)
    suite.links["lookup"].origins(queries, ranked)
    suite.selections()["transfer alone"]

To add a kind of evidence, write a `Ranker` in this room (see `base`) and add its line to `LINKS` or
`RULES`, which gives it a row in the link-prediction table. Its key in `FUSED` makes it part of the
fusion, and so of `prixlm enrich`. What is trained has a field of its own in `Suite`.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prixlm.decoding.completer import Completer
from prixlm.decoding.reader import Reader
from prixlm.kb.store import KB
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import GraphRanker, load_graph
from prixlm.rankers.links import (
    DirectLookup,
    LinkRanker,
    MergedLookup,
    RelatedPairs,
    UsualObjects,
    where_unstated,
)
from prixlm.rankers.lm import ModelRanker, ReadingRanker
from prixlm.rankers.names import NewObjects, OpenWorldRanker, SharedNames, SimilarNames
from prixlm.rankers.rules import PathRules, SimilarRules
from prixlm.types import Progress

LINKS: Mapping[str, Callable[[KB, Sequence[str]], LinkRanker]] = {
    "usual": UsualObjects,
    "direct": DirectLookup,
    "lookup": MergedLookup,
    "pairs": RelatedPairs,
}
"""Rankers that carry facts along links and name their origins, each made from a KB and the splits
that it reads. They are *transfer alone* in comparisons."""
RULES: Mapping[str, Callable[[KB, Sequence[str]], Ranker]] = {
    "paths": PathRules,
    "similar": SimilarRules,
    "similar-names": SimilarNames,
    "shared-names": SharedNames,
    "new-objects": NewObjects,
}
"""All other rankers that need no training, made in the same way."""
UNTRAINED: Mapping[str, Callable[[KB, Sequence[str]], Ranker]] = {**LINKS, **RULES}
"""All rankers that need no training, in the order of the rows of the link-prediction table."""
FUSED = ("pairs", "lookup", "paths", "similar", "similar-names", "shared-names", "new-objects")
"""Those that take part in a fusion, in the order of its features. The others are references."""
NAMES = ("similar-names", "shared-names", "new-objects")
"""Those that compare names, and can answer for entities without facts."""
WHERE_UNSTATED = ("similar-names", "shared-names")
"""Those that a fusion asks only where no language states an answer: they answer with entities that
have facts, as the other evidence does. An object without facts is missed by all but `new-objects`,
also where a language states another object."""
MODEL_NAME, GRAPH_NAME, READER_NAME = "Prix-LM", "graph", "reader"
"""Names of the trained rankers that `load_suite` makes, and of the one that reads."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Rankers of one KB in named groups. A group without a ranker is None or empty."""

    model: Ranker | None = None  # a Prix-LM
    links: Mapping[str, LinkRanker]  # by key
    rules: Mapping[str, Ranker]  # by key
    graph: Ranker | None = None  # a graph embedding
    open_world: Ranker | None = None  # the same, for objects without facts
    reader: Ranker | None = None  # a decoder that is asked in words
    identity: str = ""  # hashes of the trained ones: cached results belong to these

    @property
    def rankers(self) -> list[Ranker]:
        """All rankers, in the order in which a fusion takes them."""
        model = [] if self.model is None else [self.model]
        last = [self.graph, self.open_world, self.reader]
        trained = [ranker for ranker in last if ranker is not None]
        return [*model, *self.links.values(), *self.rules.values(), *trained]

    def selections(self) -> dict[str, list[Ranker]]:
        """Return the rankers to compare: links alone, the model alone, and all of them."""
        selections: dict[str, list[Ranker]] = {"transfer alone": list(self.links.values())}
        if self.model is not None:
            selections["model alone"] = [self.model]
        return selections | {"fused": self.rankers}

    def reading(self, kb: KB, splits: Sequence[str]) -> "Suite":
        """Return the same suite with links and rules that read the facts of other splits."""
        fresh = make_suite(kb, splits=splits)
        return replace(self, links=fresh.links, rules=fresh.rules)


def make_suite(
    kb: KB,
    model: Ranker | None = None,
    graph: Ranker | None = None,
    reader: Ranker | None = None,
    *,
    open_world: Ranker | None = None,
    splits: Sequence[str] = ("train",),
    identity: str = "",
) -> Suite:
    """Make the links and rules of a KB, beside rankers that were trained before.

    splits: whose facts links and rules read. Where anything is fitted or tested: train alone.
    """
    links = {key: LINKS[key](kb, splits) for key in FUSED if key in LINKS}
    rules = {key: RULES[key](kb, splits) for key in FUSED if key in RULES}
    for key in WHERE_UNSTATED:
        rules[key] = where_unstated(rules[key], links["lookup"])
    return Suite(
        model=model,
        links=links,
        rules=rules,
        graph=graph,
        open_world=open_world,
        reader=reader,
        identity=identity,
    )


def load_suite(
    kb: KB,
    model: Path | str | None = None,
    graph: Path | str | None = None,
    progress: Progress | None = None,
    splits: Sequence[str] = ("train",),
    *,
    reader: Path | str | None = None,
    open_world: bool = False,
    split: KB | None = None,
) -> Suite:
    """Open a Prix-LM, a graph embedding and a reader, if given, and make the links and rules.

    A model or an embedding that was trained on another KB is refused: it may know the facts that a
    confidence is fitted on. So is such a reader; a base that no KB was used for is welcome.
    open_world: the graph also ranks objects without facts, by their names.
    split: a split of `kb`, whose models are welcome too.
    """
    model_ranker: Ranker | None = None
    graph_ranker: Ranker | None = None
    new_objects: Ranker | None = None
    reading: ReadingRanker | None = None
    identity = []
    if model is not None:
        completer = Completer(model, kb, progress)
        # A model that has learnt the valid facts would have a confidence that is far too high.
        completer.model.settings.lineage.check_unseen_facts(kb, "the model", split)
        model_ranker = ModelRanker(completer, search="beam", name=MODEL_NAME)
        identity.append(completer.identity())
    if graph is not None:
        embedding = load_graph(graph, kb, split)
        graph_ranker = GraphRanker(kb, embedding, name=GRAPH_NAME)
        if open_world:
            new_objects = OpenWorldRanker(kb, embedding, splits)
        # Training changes all weights, so nodes and biases identify an embedding.
        weights = (embedding.node, embedding.bias)
        content = b"".join(part.detach().numpy().tobytes() for part in weights)
        identity.append(hashlib.sha256(content).hexdigest())
    if reader is not None:
        # Train facts alone are its examples, so that its scores mean the same wherever it is asked.
        reading = ReadingRanker(kb, Reader(kb, reader), name=READER_NAME, progress=progress)
        if reading.reader.lineage.kbs:  # it is a Prix-LM
            reading.reader.lineage.check_unseen_facts(kb, "the reader", split)
        identity.append(reading.identity)
    rankers = model_ranker, graph_ranker, reading
    return make_suite(
        kb, *rankers, open_world=new_objects, splits=splits, identity=" ".join(identity)
    )
