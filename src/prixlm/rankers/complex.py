"""Our graph embedding: ComplEx on the merged graph of all languages, and the ranker for embeddings.

ComplEx (Trouillon et al., 2016) as Lacroix et al. (2018) train it: reciprocal relations, softmax
over all candidates, the nuclear 3-norm as regulariser, Adagrad; and, where `relations` has a
weight, the relation as a second target (Chen et al., 2021). Nodes are concepts, so the facts of one
language help all others. A fact is learnt as it is asked: in each language that states it, among
the entities of that language alone, each with its own bias. The embedding uses no names and knows
nothing about an entity without train triples.

To tell what makes it good, each part can be taken away: `langs` trains on some languages alone, and
`score` puts the distance of TransE or RotatE in the place of ComplEx's product, with the same loss.

    model = train_graph(kb, "graph", GraphConfig())       # an interrupted run resumes
    ranker = GraphRanker(kb, load_graph("graph", kb))

Dimension letters: B queries, N nodes (concepts), R relations, H twice the rank, C candidates
(entities of one language), M triples of all languages in both directions.
"""

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from prixlm.engine.overwriting import check_kind
from prixlm.errors import PrixError
from prixlm.files import disk_errors, locked, read_json, replacing, write_atomically
from prixlm.kb.store import KB
from prixlm.lm.kernels import linear_cross_entropy
from prixlm.lm.lineage import Lineage
from prixlm.lm.weights import read_weights
from prixlm.metrics import BEYOND
from prixlm.rankers.base import (
    NO_PAIRS,
    Answered,
    GivenPairs,
    Queries,
    Ranked,
    Ranker,
    make_ranked,
    read_triples,
)
from prixlm.remote import local_folder
from prixlm.training.checkpoints import saving, steps_to_keep
from prixlm.training.costs import RunCosts, peak_memory, synchronise
from prixlm.training.loop import (
    Step,
    TrainingConfig,
    autocast,
    choose_precision,
    make_optimizer,
    processes,
    train,
)
from prixlm.types import Array, Progress

_WEIGHTS = "model.safetensors"
_SETTINGS = "graph.json"
_QUERIES = 256
"""Queries whose scores of all candidates are held in memory at once."""
_KEPT_SCORES = 1 << 26
"""Scores of queries and candidates, 256 MiB, up to which `ask` keeps them instead of computing them
again."""
_VALID = 4000
"""Valid questions, of both directions, whose loss is reported."""
_TIMED_STEPS, _TIMED_SECONDS = 20, 10.0
"""Updates that an estimate times, and the time limit for them."""
METHOD = "softmax by language"
"""How facts are asked. A run that was started with another method cannot be resumed."""


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """A graph embedding; most defaults come from a search on DBP-5L (docs/log.md).

    Example:
        >>> config = prixlm.GraphConfig(rank=100, epochs=5)
    """

    rank: int = 300  # complex numbers per node and relation
    epochs: int = 10  # passes over the train triples
    batch: int = 1000  # triples per update, each direction counted
    regulariser: float = 0.05  # weight of the nuclear 3-norm
    relations: float = 0.0  # weight of predicting the relation from both ends
    score: str = "complex"  # complex, or the squared distance of transe or rotate
    langs: tuple[str, ...] | None = None  # train on the facts of these languages; None: all
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
        if self.score not in SCORES:
            raise PrixError(f"--score {self.score}: expected {', '.join(SCORES)}.")
        if self.relations and self.score != "complex":
            raise PrixError(f"relations {self.relations}: expected 0 with score {self.score}.")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings, without those that older versions did not have and that are unset.

        So runs and tables of older versions can be resumed.
        """
        values = dataclasses.asdict(self)
        new = {"score": "complex", "langs": None}
        return {name: value for name, value in values.items() if new.get(name, ...) != value}

    def fingerprint(self) -> str:
        """Return a hash of all settings: a run resumes only with the same ones."""
        return hashlib.sha256(json.dumps(self.as_dict()).encode()).hexdigest()


@dataclass(frozen=True)
class GraphBatch:
    """Facts to be learnt in one language, among its entities."""

    candidates: range  # the entities of the language
    subject: Array  # (B,) nodes
    relation: Array  # (B,)
    position: Array  # (B,) of the object among the candidates


class ComplEx(nn.Module):
    """Nodes and relations as complex vectors; relations R to 2R - 1 are the backward ones.

    A vector of H floats holds the real parts first, then the imaginary parts.
    """

    relation_start = 1e-3  # standard deviation of the relations' initial numbers

    def __init__(
        self, num_nodes: int, num_relations: int, rank: int, num_entities: int, seed: int = 0
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        node = torch.randn((num_nodes, 2 * rank), generator=generator)
        relation = torch.randn((2 * num_relations, 2 * rank), generator=generator)
        self.node = nn.Parameter(1e-3 * node)
        self.relation = nn.Parameter(self.relation_start * relation)
        self.bias = nn.Parameter(torch.zeros(num_entities))

    @property
    def num_nodes(self) -> int:
        """The number of concepts."""
        return len(self.node)

    def object_queries(self, subject: Tensor, relation: Tensor) -> Tensor:
        """Return the vectors whose dot product with a node is the score of the triple: (B, H)."""
        a, b = torch.chunk(self.node[subject], 2, dim=1)
        c, d = torch.chunk(self.relation[relation], 2, dim=1)
        # (a + bi)(c + di). The score is the real part of its product with the conjugated object,
        # which is the dot product of both halves.
        return torch.cat([a * c - b * d, a * d + b * c], dim=1)

    def offsets(self, vectors: Tensor) -> Tensor | float:
        """Return what is added to the product with each candidate's vector, (C, H): (C,) or 0."""
        return 0.0

    def regularised(self, subject: Tensor, relation: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors of some triples whose norm is kept small: (B, H) each."""
        return self.node[subject], self.relation[relation], self.node[target]

    def relation_queries(self, subject: Tensor, target: Tensor) -> Tensor:
        """Return the vectors whose dot product with a relation is the same score: (B, H)."""
        a, b = torch.chunk(self.node[subject], 2, dim=1)
        c, d = torch.chunk(self.node[target], 2, dim=1)
        # The same real part, solved for the relation: the conjugate of (a + bi) times (c + di).
        return torch.cat([a * c + b * d, a * d - b * c], dim=1)

    def scores(self, subject: Tensor, relation: Tensor, nodes: Tensor, entities: range) -> Tensor:
        """Return the score of every candidate, a node and an entity, for every query: (B, C)."""
        device = self.node.device
        subject, relation, nodes = (x.to(device) for x in (subject, relation, nodes))
        vectors = self.node[nodes]
        bias = self.bias[entities.start : entities.stop] + self.offsets(vectors)
        return self.object_queries(subject, relation) @ vectors.T + bias

    def loss(
        self, batch: GraphBatch, nodes: Tensor, regulariser: float = 0.0, relations: float = 0.0
    ) -> Tensor:
        """Return the cross entropies over the candidates plus the 3-norms of the used vectors.

        nodes: (C,) those of the candidates. regulariser, relations: weights, as in `GraphConfig`.
        """
        device = self.node.device
        subject, relation, position = (
            torch.from_numpy(part).to(device)
            for part in (batch.subject, batch.relation, batch.position)
        )
        nodes = nodes.to(device)
        target = nodes[position]
        vectors = self.node[nodes]
        # Entities of one concept share a node; their biases tell them apart.
        bias = self.bias[batch.candidates.start : batch.candidates.stop] + self.offsets(vectors)
        queries = self.object_queries(subject, relation)
        total = linear_cross_entropy(queries, vectors, bias, position)
        if relations:
            no_bias = self.relation.new_zeros(len(self.relation))
            queries = self.relation_queries(subject, target)
            extra = linear_cross_entropy(queries, self.relation, no_bias, relation)
            total = total + relations * extra
        if regulariser:
            used = self.regularised(subject, relation, target)
            total = total + regulariser * sum((_modulus(part) ** 3).sum() for part in used)
        return total


class TransE(ComplEx):
    """Relations as translations: the score is the negative squared distance to the object.

    -|q - v|² is 2q·v - |v|² - |q|². The last part is the same for all candidates of a query, so a
    softmax over them is that of a product with an offset for each candidate, as ComplEx has it.
    """

    def object_queries(self, subject: Tensor, relation: Tensor) -> Tensor:
        """Return twice the translated subjects: (B, H)."""
        return 2 * (self.node[subject] + self.relation[relation])

    def offsets(self, vectors: Tensor) -> Tensor:
        """Return the negative squared length of each vector: (C,)."""
        return -(vectors**2).sum(1)


class RotatE(TransE):
    """Relations as rotations of complex numbers, with the same squared distance."""

    relation_start = 1.0  # moduli near 0 would have gradients without bound

    def object_queries(self, subject: Tensor, relation: Tensor) -> Tensor:
        """Return twice the rotated subjects: (B, H)."""
        turn = self.relation[relation]
        turn = turn / _modulus(turn).repeat(1, 2)  # of modulus 1
        a, b = torch.chunk(self.node[subject], 2, dim=1)
        c, d = torch.chunk(turn, 2, dim=1)
        return 2 * torch.cat([a * c - b * d, a * d + b * c], dim=1)

    def regularised(self, subject: Tensor, relation: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Return the vectors of subjects and objects: the length of a rotation means nothing."""
        return self.node[subject], self.node[target]


SCORES: dict[str, type[ComplEx]] = {"complex": ComplEx, "transe": TransE, "rotate": RotatE}
"""The kinds of score, by the names that a config has for them."""


def _modulus(vectors: Tensor) -> Tensor:
    """Return the modulus of each complex number: (B, H) to (B, H / 2)."""
    real, imaginary = torch.chunk(vectors, 2, dim=1)
    return torch.sqrt(real**2 + imaginary**2 + 1e-20)  # the gradient at 0 is 0, not NaN


class GraphTask:
    """The steps of a training over the train triples of all languages, in both directions."""

    def __init__(self, kb: KB, config: GraphConfig) -> None:
        self.kb, self.config = kb, config
        self.node = kb.concepts().astype(np.int64)
        self.langs = config.langs or tuple(kb.languages)
        unknown = sorted(set(self.langs) - set(kb.languages))
        if unknown:
            raise PrixError(
                f"{kb.folder} has no {', '.join(unknown)}; it has {', '.join(kb.languages)}."
            )
        self.triples = _read_both_ways(kb, "train", self.langs)
        if not self.triples.shape[1]:
            raise PrixError(
                f"{kb.folder} has no train triples to learn from; `prixlm stats` lists its splits."
            )
        valid = _read_both_ways(kb, "valid", self.langs)
        # The same sample whatever the seed, so that runs can be compared.
        rows = np.random.default_rng(0).permutation(valid.shape[1])[:_VALID]
        self.valid = self.batches(valid[:, rows])
        self.steps_an_epoch = -(-self.triples.shape[1] // config.batch)
        self.num_steps = config.epochs * self.steps_an_epoch
        self.fingerprint = {
            "KB": kb.fingerprint(),
            "config": config.fingerprint(),
            "method": METHOD,
        }

    def make_model(self) -> ComplEx:
        """Return the embedding that a run starts from."""
        num_nodes = int(self.node.max(initial=-1)) + 1
        seed, rank = self.config.training.seed, self.config.rank
        make = SCORES[self.config.score]
        return make(num_nodes, self.kb.num_relations, rank, self.kb.num_entities, seed)

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        """Yield the steps from number `first` on, for process `rank` of `world`."""
        size = self.config.batch
        lang = self.kb.language_of(self.triples[0])
        for epoch in range(first // self.steps_an_epoch, self.config.epochs):
            # Seeded by epoch, so that a resumed run draws the same steps.
            generator = np.random.default_rng([self.config.training.seed, epoch])
            order = generator.permutation(len(lang))
            # Sorted by language, so that most steps are in one language and score its entities
            # alone; the steps themselves come in random order.
            order = order[np.argsort(lang[order], kind="stable")]
            steps = generator.permutation(self.steps_an_epoch)
            for step in steps[max(0, first - epoch * self.steps_an_epoch) :]:
                rows = order[step * size : (step + 1) * size]
                batches = self.batches(self.triples[:, rows[rank::world]])
                yield Step(batches, float(len(rows)), len(rows))

    def batches(self, triples: Array) -> list[GraphBatch]:
        """Return a batch for each language of some triples, (3, B) of entities and relations."""
        batches = []
        lang = self.kb.language_of(triples[0])
        # Each language has other candidates, and so a softmax of its own.
        for number in np.unique(lang):
            entities = self.kb.entity_range(self.kb.languages[number])
            source, relation, target = triples[:, lang == number]
            position = target - entities.start
            batches.append(GraphBatch(entities, self.node[source], relation, position))
        return batches

    def loss(self, model: ComplEx, batch: GraphBatch) -> Tensor:
        """Return the loss of a batch, summed over its facts."""
        config = self.config
        return model.loss(batch, self._nodes(batch), config.regulariser, config.relations)

    def validate(self, model: ComplEx) -> dict[str, float]:
        """Return nats per valid triple. Another language may have that triple in train."""
        if not self.valid:
            return {}
        total = sum(model.loss(batch, self._nodes(batch)).item() for batch in self.valid)
        return {"loss": total / sum(len(batch.position) for batch in self.valid)}

    def save(self, model: ComplEx, folder: Path) -> None:
        """Write the weights and the settings, with what the embedding was trained on."""
        weights = {name: value.contiguous() for name, value in model.state_dict().items()}
        with replacing(folder / _WEIGHTS) as temporary:
            save_file(weights, temporary)
        settings = {
            "kb": self.fingerprint["KB"],
            **self.config.as_dict(),
            "trained": self._describe().as_dict(),
        }
        write_atomically(folder / _SETTINGS, json.dumps(settings, indent=1) + "\n")

    def _describe(self) -> Lineage:
        """Return what the embedding is trained on."""
        kb, config = self.kb, self.config
        triples = {lang: kb.num_triples(lang, "train") for lang in self.langs}
        return Lineage(
            sources=[str(source["name"]) for source in kb.manifest.sources][:20],
            licence_of_the_data=kb.manifest.licence,
            kb_fingerprint=kb.fingerprint(),
            triples={lang: count for lang, count in triples.items() if count},
            epochs=config.epochs,
            steps=self.num_steps,
            facts_a_step=config.batch,
            learning_rate=config.training.lr,
            seed=config.training.seed,
        )

    def _nodes(self, batch: GraphBatch) -> Tensor:
        """Return the nodes of a batch's candidates: (C,)."""
        return torch.from_numpy(self.node[batch.candidates.start : batch.candidates.stop])


def _read_both_ways(kb: KB, split: str, langs: Sequence[str]) -> Array:
    """Return source, relation and target of the triples, forwards and then backwards: (3, M)."""
    forwards = read_triples(kb, (split,))
    if set(langs) != set(kb.languages):
        numbers = [kb.languages.index(lang) for lang in langs]
        forwards = forwards[:, np.isin(kb.language_of(forwards[0]), numbers)]
    subject, relation, target = forwards
    backwards = np.stack([target, relation + kb.num_relations, subject])
    return np.concatenate([forwards, backwards], axis=1)


def train_graph(
    kb: KB, to: Path | str, config: GraphConfig, progress: Progress | None = None
) -> ComplEx:
    """Train a graph embedding on the train triples of all languages and write it to a folder.

    A run that was stopped resumes from its newest checkpoint.

    Example:
        >>> config = prixlm.GraphConfig(rank=16, epochs=2)
        >>> model = prixlm.train_graph(prixlm.KB("split"), "graph", config)
        >>> model.num_nodes == prixlm.KB("split").manifest.counts["concepts"]
        True
    """
    to = Path(to)
    _check_folder(to)
    task = GraphTask(kb, config)
    model = task.make_model()
    state = processes()
    with disk_errors(to / _SETTINGS):
        (to / "checkpoints").mkdir(parents=True, exist_ok=True)
    # Two commands in one folder would overwrite each other's checkpoints.
    with locked(to / "checkpoints") if state.is_main_process else nullcontext():
        train(model, task, config.training, to, progress)
        if state.is_main_process:
            with saving(to / _WEIGHTS):
                task.save(model, to)
        state.wait_for_everyone()
    return model


def _check_folder(to: Path) -> None:
    """Refuse to write into anything but an empty folder or a run of ours."""
    if to.exists() and not to.is_dir():
        raise PrixError(f"{to} is a file: name a folder for the graph embedding.")
    check_kind(to, _SETTINGS)
    if to.is_dir() and any(to.iterdir()) and not (to / "checkpoints").is_dir():
        raise PrixError(f"{to} exists and is not a run of `prixlm graph`: name another folder.")


@dataclass(frozen=True, kw_only=True)
class GraphEstimate(RunCosts):
    """What training a graph embedding would take on this machine."""

    concepts: int

    def as_text(self) -> str:
        """Return the figures as sentences."""
        return (
            f"Would train {self.parameters / 1e6:,.1f} M parameters ({self.concepts:,} concepts) "
            f"on {self.triples:,} triples an epoch, both directions counted.\n"
            + self.costs_text("triples")
        )


def estimate_graph(kb: KB, config: GraphConfig, progress: Progress | None = None) -> GraphEstimate:
    """Time some updates of a run, without writing anything."""
    task = GraphTask(kb, config)
    model = task.make_model()
    if torch.cuda.is_available():
        model = model.cuda()
    rate = _time_updates(model, task, progress)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    moments = 1 if config.training.optimizer == "adagrad" else 2
    checkpoint = 4 * parameters * (1 + moments)
    kept = len(steps_to_keep(config.training.checkpoints, task.num_steps))
    num_triples = task.triples.shape[1]
    return GraphEstimate(
        parameters=parameters,
        concepts=model.num_nodes,
        triples=num_triples,
        steps=task.num_steps,
        facts_per_second=rate,
        seconds=config.epochs * num_triples / rate,
        memory=peak_memory(),
        checkpoint=checkpoint,
        disk=(kept + 1) * checkpoint + 4 * parameters,  # one more while a checkpoint is written
    )


def _time_updates(model: ComplEx, task: GraphTask, progress: Progress | None) -> float:
    """Return the triples per second of some updates, after one that is not timed."""
    optimizer = make_optimizer(model, task.config.training)
    precision = choose_precision(task.config.training.precision)
    num_steps = min(_TIMED_STEPS, task.num_steps)
    num_facts, seconds = 0, 0.0
    for number, step in enumerate(task.steps(0, 0, 1)):
        started = time.monotonic()
        for batch in step.batches:
            with autocast(model.node.device, precision):  # as the run will compute it
                loss = task.loss(model, batch) / step.normaliser
            torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        synchronise()
        if number or num_steps == 1:  # the first one also allocates the optimizer's memory
            num_facts, seconds = num_facts + step.num_facts, seconds + time.monotonic() - started
        if progress is not None:
            progress("time updates", number + 1, num_steps)
        if number + 1 == num_steps or seconds > _TIMED_SECONDS:
            break
    return num_facts / seconds


_DAMAGE = (OSError, ValueError, TypeError, AttributeError, IndexError, RuntimeError)
"""What settings and weights that are not ours raise while a model is made from them."""


def load_graph(folder: Path | str, kb: KB, split: KB | None = None) -> ComplEx:
    """Read what `train_graph` wrote; refuse an embedding that was trained on another KB.

    split: a split of `kb`, whose embedding is welcome too.
    """
    folder = local_folder(folder)
    try:
        if not (Path(folder) / _WEIGHTS).is_file():
            raise FileNotFoundError(f"it has no {_WEIGHTS}")
        weights = read_weights(Path(folder) / _WEIGHTS)
        node, relation, bias = (weights[name] for name in ("node", "relation", "bias"))
        settings = read_json(Path(folder) / _SETTINGS)
        # Version 0.1 recorded the KB alone.
        lineage = Lineage.from_dict(settings.get("trained") or {"kb_fingerprint": settings["kb"]})
        make = SCORES.get(settings.get("score", "complex"))
        if make is None:
            raise ValueError(f"it has an unknown score {settings['score']!r}"[:200])
        model = make(len(node), len(relation) // 2, node.shape[1] // 2, len(bias))
        model.load_state_dict(weights)
    except KeyError:
        raise PrixError(f"{folder} was made by an older prixlm: train it again.") from None
    except _DAMAGE as error:
        reason = str(error).split("\n")[0]
        raise PrixError(f"{folder} is not a graph embedding: {reason}.") from None
    lineage.check_unseen_facts(kb, f"the graph embedding {folder}", split)
    return model


class Scorer(Protocol):
    """A graph embedding: ours, or one of PyKEEN's."""

    @property
    def num_nodes(self) -> int:
        """The number of nodes that have a vector."""

    def scores(self, subject: Tensor, relation: Tensor, nodes: Tensor, entities: range) -> Tensor:
        """Return the score of every candidate, a node and an entity, for every query: (B, C)."""


class GraphRanker(Ranker):
    """Ranks objects by a graph embedding. Every candidate has a score, so all ranks are exact.

    The nodes of the embedding are concepts, or the entities of one language.
    """

    max_rank: int = BEYOND

    def __init__(
        self, kb: KB, model: Scorer, lang: str | None = None, name: str = "ComplEx, merged"
    ) -> None:
        self.kb, self.model, self.lang, self.name = kb, model, lang, name
        # (entities,) the node of each entity; of another language than `lang` it is never used.
        if lang is None:
            self.node = kb.concepts().astype(np.int64)
            num_nodes = int(self.node.max(initial=-1)) + 1
        else:
            entities = kb.entity_range(lang)
            self.node, num_nodes = np.arange(kb.num_entities) - entities.start, len(entities)
        if num_nodes != model.num_nodes:
            raise PrixError(
                f"{name} was not made from {kb.folder}: it has {model.num_nodes:,} nodes, expected "
                f"{num_nodes:,}. Train it on this KB."
            )

    def best(self, queries: Queries, k: int) -> Ranked:
        """Return the k best objects of each query."""
        return self._best(queries, k, self._tables(queries))

    def _best(self, queries: Queries, k: int, tables: Iterable[tuple[int, Tensor]]) -> Ranked:
        entities = self.kb.entity_range(queries.lang)
        k = min(k, len(entities))
        owners, candidates = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        scores = [np.zeros(0)]
        for start, table in tables:
            top = torch.topk(table, k, dim=1)
            score = top.values.reshape(-1).numpy()
            kept = np.isfinite(score)  # filtered candidates are -infinity
            owners.append(np.repeat(np.arange(start, start + len(table)), k)[kept])
            candidates.append(top.indices.reshape(-1).numpy()[kept] + entities.start)
            scores.append(score[kept].astype(float))
        owner, entity = np.concatenate(owners), np.concatenate(candidates)
        return make_ranked(len(queries), owner, entity, np.concatenate(scores), k)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        """Return the rank of one object per query among all candidates; infinity above `beyond`."""
        entities = self.kb.entity_range(queries.lang)
        ranks = np.full(len(queries), np.inf)
        for start, table in self._tables(queries):
            rows = slice(start, start + len(table))
            score = table.gather(1, torch.from_numpy(objects[rows] - entities.start)[:, None])
            if score.isnan().any():
                raise PrixError(f"{self.name} has scores that are not numbers: train it again.")
            higher = (table > score).sum(1).numpy()
            equal = (table == score).sum(1).numpy()  # the object itself among them
            ranks[rows] = higher + (equal + 1) / 2
        return np.where(ranks > beyond, np.inf, ranks)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return the score of entity[i] for query owner[i]; -infinity if it is filtered."""
        return self._scores(queries, self._tables(queries), owner, entity)

    def _scores(
        self, queries: Queries, tables: Iterable[tuple[int, Tensor]], owner: Array, entity: Array
    ) -> Array:
        entities = self.kb.entity_range(queries.lang)
        # The given pairs sorted by query: those of query i are order[bounds[i]:bounds[i + 1]].
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(queries) + 1))
        scores = np.full(len(owner), -np.inf)
        for start, table in tables:
            rows = order[bounds[start] : bounds[start + len(table)]]
            scores[rows] = table.numpy()[owner[rows] - start, entity[rows] - entities.start]
        return scores

    def ask(self, queries: Queries, k: int, given: GivenPairs = NO_PAIRS) -> Answered:
        """Return the k best objects of each query, and the scores of all others."""
        if len(queries) * len(self.kb.entity_range(queries.lang)) > _KEPT_SCORES:
            return super().ask(queries, k, given)
        tables = list(self._tables(queries))
        return Answered(self._best(queries, k, tables), partial(self._scores, queries, tables))

    @torch.no_grad()
    def _tables(self, queries: Queries) -> Iterator[tuple[int, Tensor]]:
        """Yield the scores of all candidates, (B, C), for some queries at a time, and their start.

        Filtered candidates are -infinity.
        """
        if self.lang not in (None, queries.lang):
            raise PrixError(f"{self.name} was asked in {queries.lang}; it knows {self.lang} only.")
        entities = self.kb.entity_range(queries.lang)
        nodes = torch.from_numpy(self.node[entities.start : entities.stop])
        for start in range(0, len(queries), _QUERIES):
            chunk = queries.select(np.arange(start, min(start + _QUERIES, len(queries))))
            subject = torch.from_numpy(self.node[chunk.subject])
            relation = torch.from_numpy(chunk.relation.astype(np.int64))
            table = self.model.scores(subject, relation, nodes, entities).cpu()
            filtered = torch.from_numpy(chunk.filtered.astype(np.int64) - entities.start)
            table[torch.from_numpy(chunk.owners()), filtered] = float("-inf")
            yield start, table
