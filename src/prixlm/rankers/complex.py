"""A graph embedding of our own: ComplEx on the merged graph of all languages.

ComplEx (Trouillon et al., 2016) as Lacroix et al. (2018) train it: reciprocal relations, softmax
over all candidates, the nuclear 3-norm as regulariser, Adagrad; and, where `relations` has a
weight, the relation as a second target (Chen et al., 2021). Nodes are concepts, so the facts of a
language help every other. A fact is learnt as it is asked: in each language that states it, among
the entities of that language alone, each with a bias of its own. It uses no names at all, and
knows nothing of an entity without train triples.

    model = train_graph(kb, "graph", GraphConfig())
    ranker = GraphRanker(kb, model)

Dimension letters: B queries, N nodes (concepts), R relations, H twice the rank, C candidates
(entities of one language), M triples of all languages in both directions.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.kb.store import KB
from prixlm.lm.kernels import linear_cross_entropy
from prixlm.metrics import BEYOND
from prixlm.rankers.base import Queries, Ranked, make_ranked
from prixlm.training.loop import Step, TrainingConfig, train
from prixlm.types import Array, Progress

_WEIGHTS = "model.safetensors"
_SETTINGS = "graph.json"
_QUERIES = 256
"""Queries whose scores of all candidates are held at once."""
_VALID = 4000
"""Valid questions, of either direction, whose loss is told."""
METHOD = "softmax by language"
"""How facts are asked: a run that was begun in another way cannot be gone on with."""


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """A graph embedding; most of the defaults are those of a probe on DBP-5L (docs/log.md)."""

    rank: int = 300  # complex numbers of a node
    epochs: int = 10
    batch: int = 1000  # triples of an update, either direction
    regulariser: float = 0.05
    relations: float = 0.0  # weight of predicting the relation from both ends
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            optimizer="adagrad",
            schedule="constant",
            lr=0.1,
            warmup=0.0,
            clip=1e9,
            checkpoints=(1.0,),
            save_every=200,
            validate_every=200,
        )
    )

    def __post_init__(self) -> None:
        if min(self.rank, self.epochs, self.batch) < 1 or min(self.regulariser, self.relations) < 0:
            raise PrixError("rank, epochs and batch are 1 or more, the weights 0 or more.")

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(dataclasses.asdict(self)).encode()).hexdigest()


@dataclass(frozen=True)
class Asked:
    """Facts asked in one language."""

    candidates: range  # its entities
    subject: Array  # (B,) nodes
    relation: Array  # (B,)
    place: Array  # (B,) of the object among the candidates


class ComplEx(nn.Module):
    """Nodes and relations as complex vectors; relations R to 2R - 1 are the backward ones."""

    def __init__(
        self, num_nodes: int, num_relations: int, rank: int, num_entities: int, seed: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shape = (num_nodes, 2 * rank), (2 * num_relations, 2 * rank)
        self.node, self.relation = (
            nn.Parameter(1e-3 * torch.randn(size, generator=generator)) for size in shape
        )
        self.bias = nn.Parameter(torch.zeros(num_entities))

    def queries(self, subject: Tensor, relation: Tensor) -> Tensor:
        """What is multiplied with all candidates: (B, H)."""
        a, b = torch.chunk(self.node[subject], 2, dim=1)
        c, d = torch.chunk(self.relation[relation], 2, dim=1)
        return torch.cat([a * c - b * d, a * d + b * c], dim=1)

    @property
    def num_nodes(self) -> int:
        return len(self.node)

    def scores(self, subject: Tensor, relation: Tensor, nodes: Tensor, entities: range) -> Tensor:
        device = self.node.device
        subject, relation, nodes = (x.to(device) for x in (subject, relation, nodes))
        bias = self.bias[entities.start : entities.stop]
        return self.queries(subject, relation) @ self.node[nodes].T + bias

    def between(self, subject: Tensor, target: Tensor) -> Tensor:
        """What is multiplied with all relations: (B, H)."""
        a, b = torch.chunk(self.node[subject], 2, dim=1)
        c, d = torch.chunk(self.node[target], 2, dim=1)
        return torch.cat([a * c + b * d, a * d - b * c], dim=1)

    def loss(
        self, asked: Asked, nodes: Tensor, weight: float = 0.0, relations: float = 0.0
    ) -> Tensor:
        """The sum of cross entropies over the candidates, and of the 3-norms of what is used.

        nodes: (C,) those of the candidates.
        """
        device = self.node.device
        subject, relation, place = (
            torch.from_numpy(part).to(device)
            for part in (asked.subject, asked.relation, asked.place)
        )
        nodes = nodes.to(device)
        target = nodes[place]
        bias = self.bias[asked.candidates.start : asked.candidates.stop]
        total = linear_cross_entropy(self.queries(subject, relation), self.node[nodes], bias, place)
        if relations:
            none = self.relation.new_zeros(len(self.relation))
            between = self.between(subject, target)
            total = total + relations * linear_cross_entropy(between, self.relation, none, relation)
        if weight:
            used = (self.node[subject], self.relation[relation], self.node[target])
            total = total + weight * sum((_modulus(part) ** 3).sum() for part in used)
        return total


def _modulus(vectors: Tensor) -> Tensor:
    real, imaginary = torch.chunk(vectors, 2, dim=1)
    return torch.sqrt(real**2 + imaginary**2 + 1e-20)


class GraphTask:
    """Steps over the train triples of all languages, in both directions."""

    def __init__(self, kb: KB, config: GraphConfig) -> None:
        self.kb, self.config = kb, config
        self.node = kb.concepts().astype(np.int64)
        self.triples = _read_triples(kb, "train")
        if not self.triples.shape[1]:
            raise PrixError(f"{kb.folder} has no train triples: there is nothing to learn from.")
        valid = _read_triples(kb, "valid")
        rows = np.random.default_rng(0).permutation(valid.shape[1])[:_VALID]
        self.valid = self.ask(valid[:, rows])
        self.steps_an_epoch = -(-self.triples.shape[1] // config.batch)
        self.num_steps = config.epochs * self.steps_an_epoch
        self.fingerprint = {
            "KB": kb.fingerprint(),
            "config": config.fingerprint(),
            "method": METHOD,
        }

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        size = self.config.batch
        lang = self.kb.language_of(self.triples[0])
        for epoch in range(first // self.steps_an_epoch, self.config.epochs):
            generator = np.random.default_rng([self.config.training.seed, epoch])
            order = generator.permutation(len(lang))
            # By language, so that a step asks in one as a rule, and scores its entities alone.
            order = order[np.argsort(lang[order], kind="stable")]
            parts = generator.permutation(self.steps_an_epoch)
            for part in parts[max(0, first - epoch * self.steps_an_epoch) :]:
                rows = order[part * size : (part + 1) * size]
                asked = self.ask(self.triples[:, rows[rank::world]])
                yield Step(asked, float(len(rows)), len(rows))

    def ask(self, triples: Array) -> list[Asked]:
        """Triples of entities, each asked in its language."""
        found = []
        lang = self.kb.language_of(triples[0])
        for number in np.unique(lang):
            own = self.kb.entity_range(self.kb.languages[number])
            source, relation, target = triples[:, lang == number]
            found.append(Asked(own, self.node[source], relation, target - own.start))
        return found

    def loss(self, model: ComplEx, batch: Asked) -> Tensor:
        return model.loss(batch, self._nodes(batch), self.config.regulariser, self.config.relations)

    def validate(self, model: ComplEx) -> dict[str, float]:
        """Nats per valid triple. What is valid in one language may be trained on in another."""
        if not self.valid:
            return {}
        total = sum(model.loss(part, self._nodes(part)).item() for part in self.valid)
        return {"loss": total / sum(len(part.place) for part in self.valid)}

    def _nodes(self, asked: Asked) -> Tensor:
        return torch.from_numpy(self.node[asked.candidates.start : asked.candidates.stop])

    def save(self, model: ComplEx, folder: Path) -> None:
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / _WEIGHTS)
        settings = {"kb": self.fingerprint["KB"], **dataclasses.asdict(self.config)}
        write_atomically(folder / _SETTINGS, json.dumps(settings, indent=1) + "\n")


def _read_triples(kb: KB, split: str) -> Array:
    """Source, relation and target of all languages' triples, forwards and backwards: (3, M)."""
    parts = [np.zeros((3, 0), np.int64)]
    for batch in kb.batches("triples", ["subject", "relation", "object"], split=split):
        parts.append(np.stack([np.asarray(column).astype(np.int64) for column in batch.columns]))
    subject, relation, target = np.concatenate(parts, axis=1)
    backwards = np.stack([target, relation + kb.num_relations, subject])
    return np.concatenate([np.stack([subject, relation, target]), backwards], axis=1)


def train_graph(
    kb: KB, to: Path | str, config: GraphConfig, progress: Progress | None = None
) -> ComplEx:
    """Train on the train triples of all languages; a run that was stopped goes on."""
    to = Path(to)
    task = GraphTask(kb, config)
    concepts = int(kb.concepts().max(initial=-1)) + 1
    seed = config.training.seed
    model = ComplEx(concepts, kb.num_relations, config.rank, kb.num_entities, seed)
    train(model, task, config.training, to, progress)
    task.save(model, to)
    return model


def load_graph(folder: Path | str, kb: KB) -> ComplEx:
    """What `train_graph` wrote, for the KB that it was trained on."""
    try:
        weights = load_file(str(Path(folder) / _WEIGHTS))
        node, relation, bias = (weights[name] for name in ("node", "relation", "bias"))
        settings = json.loads((Path(folder) / _SETTINGS).read_text("utf-8"))
    except KeyError:
        raise PrixError(f"{folder} was made by an older prixlm: train it again.") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise PrixError(f"{folder} is no graph embedding: {error}.") from None
    if settings["kb"] != kb.fingerprint():
        raise PrixError(f"{folder} was trained on another KB than {kb.folder}.")
    model = ComplEx(len(node), len(relation) // 2, node.shape[1] // 2, len(bias))
    model.load_state_dict(weights)
    return model


class Scorer(Protocol):
    """A graph embedding: ours, or one of PyKEEN's."""

    @property
    def num_nodes(self) -> int: ...

    def scores(self, subject: Tensor, relation: Tensor, nodes: Tensor, entities: range) -> Tensor:
        """Of every candidate, a node and an entity, for every query: (B, C)."""


class GraphRanker:
    """Objects by a graph embedding: every candidate has a score, so all ranks are exact.

    Its nodes are concepts, or the entities of one language.
    """

    def __init__(
        self, kb: KB, model: Scorer, lang: str | None = None, name: str = "ComplEx, merged"
    ) -> None:
        self.kb, self.model, self.lang, self.name = kb, model, lang, name
        if lang is None:
            self.node = kb.concepts().astype(np.int64)
            num_nodes = int(self.node.max(initial=-1)) + 1
        else:
            own = kb.entity_range(lang)
            self.node, num_nodes = np.arange(kb.num_entities) - own.start, len(own)
        if num_nodes != model.num_nodes:
            raise PrixError(f"the graph embedding was not made from {kb.folder}: other entities.")

    def best(self, queries: Queries, k: int) -> Ranked:
        own = self.kb.entity_range(queries.lang)
        most = min(k, len(own))
        owners, entities, scores = [], [], []
        for start, table in self._tables(queries):
            found = torch.topk(table, most, dim=1)
            owner = np.repeat(np.arange(start, start + len(table)), most)
            value = found.values.reshape(-1).numpy()
            kept = np.isfinite(value)
            owners.append(owner[kept])
            entities.append(found.indices.reshape(-1).numpy()[kept] + own.start)
            scores.append(value[kept].astype(float))
        nothing = [np.zeros(0, np.int64)]
        owner, entity, score = (
            np.concatenate(part or nothing) for part in (owners, entities, scores)
        )
        return make_ranked(len(queries), owner, entity, score, k)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        own = self.kb.entity_range(queries.lang)
        ranks = np.full(len(queries), np.inf)
        for start, table in self._tables(queries):
            place = torch.from_numpy(objects[start : start + len(table)] - own.start)[:, None]
            score = table.gather(1, place)
            if score.isnan().any():
                raise PrixError(f"{self.name} has scores that are no numbers: train it again.")
            higher = (table > score).sum(1).numpy()
            equal = (table == score).sum(1).numpy()
            ranks[start : start + len(table)] = higher + (equal + 1) / 2
        return np.where(ranks > beyond, np.inf, ranks)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        own = self.kb.entity_range(queries.lang)
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(queries) + 1))
        found = np.full(len(owner), -np.inf)
        for start, table in self._tables(queries):
            rows = order[bounds[start] : bounds[start + len(table)]]
            found[rows] = table.numpy()[owner[rows] - start, entity[rows] - own.start]
        return found

    @torch.no_grad()
    def _tables(self, queries: Queries) -> Iterator[tuple[int, Tensor]]:
        """Scores of all candidates for some queries at a time; hidden ones are -inf."""
        if self.lang not in (None, queries.lang):
            raise PrixError(f"{self.name} knows {self.lang} only, and was asked in {queries.lang}.")
        own = self.kb.entity_range(queries.lang)
        nodes = torch.from_numpy(self.node[own.start : own.stop])
        for start in range(0, len(queries), _QUERIES):
            some = queries.select(np.arange(start, min(start + _QUERIES, len(queries))))
            subject = torch.from_numpy(self.node[some.subject])
            relation = torch.from_numpy(some.relation.astype(np.int64))
            table = self.model.scores(subject, relation, nodes, own).cpu()
            hidden = torch.from_numpy(some.hidden.astype(np.int64) - own.start)
            table[torch.from_numpy(some.owners()), hidden] = float("-inf")
            yield start, table
