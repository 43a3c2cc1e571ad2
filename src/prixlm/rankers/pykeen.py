"""TransE, ComplEx and RotatE through PyKEEN: the paper's baselines that learn from the graph alone.

    train_baseline(kb, "transe-el", BaselineConfig.default("TransE"), lang="el")
    ranker = load_baseline(kb, "transe-el")

They need the extra `pip install 'prixlm[baselines]'`. Each is trained per language as in the paper
(Sec. 3.2), or on the merged graph of all languages (`lang=None`, with concepts as nodes). `default`
has the library's own settings, as in the paper (whose library was OpenKE; PyKEEN trains for only
five epochs by default); `tuned` has settings that were found on valid facts
(benchmarks/baselines.py). `GraphRanker` computes the ranks, so candidates, filter and tie rule are
those of every other ranker.
"""

import importlib.util
import json
import time
import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from prixlm.errors import PrixError
from prixlm.files import read_json, replacing, write_atomically
from prixlm.kb.store import KB
from prixlm.lm.lineage import Lineage
from prixlm.lm.weights import read_weights
from prixlm.rankers.base import read_merged_triples, read_triples
from prixlm.rankers.complex import GraphRanker
from prixlm.types import Array, Progress

MODELS = ("TransE", "ComplEx", "RotatE")
_WEIGHTS, _SETTINGS = "model.safetensors", "baseline.json"

_SHARED: dict[str, Any] = {
    "batch": 512, "loss": "self-adversarial", "negatives": 16, "margin": 3.0,
}  # fmt: skip
_TUNED: dict[str, dict[str, Any]] = {
    "TransE": {"dim": 100, "epochs": 90, "lr": 2e-3},
    "ComplEx": {"dim": 100, "epochs": 20, "lr": 1e-2, "start": 0.1, "penalty": 4e-3},
    "RotatE": {"dim": 50, "epochs": 90, "lr": 1e-2},
}
"""The best settings on Greek valid facts in the grid of `benchmarks/baselines.py tune`
(docs/log.md)."""


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """One of PyKEEN's models; the defaults are PyKEEN's."""

    model: str  # TransE, ComplEx or RotatE
    dim: int | None = None  # of a vector; None: PyKEEN's default
    epochs: int = 5  # passes over the train triples
    batch: int = 256  # triples per update
    lr: float = 1e-3  # learning rate of Adam
    loss: Literal["default", "self-adversarial", "softmax"] = "default"  # default: PyKEEN's own
    negatives: int = 1  # corrupted triples per triple; softmax uses all entities instead
    margin: float = 9.0  # of the self-adversarial loss
    inverse: bool = False  # train reciprocal relations
    start: float | None = None  # standard deviation of ComplEx's initial vectors; None: 1
    penalty: float | None = None  # weight of ComplEx's regulariser; None: 0.01
    seed: int = 0  # of PyKEEN's run

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise PrixError(f"baseline {self.model}: expected {', '.join(MODELS)}.")
        if min(self.epochs, self.batch, self.negatives, self.dim or 1) < 1 or not self.lr > 0:
            raise PrixError("dim, epochs, batch and negatives are 1 or more, and lr above 0.")

    @classmethod
    def default(cls, model: str) -> "BaselineConfig":
        """Return the library's own settings, as in the paper."""
        return cls(model=model)

    @classmethod
    def tuned(cls, model: str) -> "BaselineConfig":
        """Return the settings that a search on valid facts found."""
        config = cls.default(model)  # refuses an unknown model
        return replace(config, **_SHARED, **_TUNED[config.model])


def train_baseline(
    kb: KB,
    to: Path | str,
    config: BaselineConfig,
    lang: str | None = None,
    progress: Progress | None = None,
) -> GraphRanker:
    """Train on the train triples of one language, or of the merged graph, and save."""
    check_installed()
    from pykeen.triples import CoreTriplesFactory

    to = Path(to)
    triples, num_nodes = _read_nodes(kb, lang)
    if not len(triples):
        raise PrixError(f"{kb.folder} has no train triples in {lang or 'any language'}.")
    factory = CoreTriplesFactory(
        torch.from_numpy(triples),
        num_nodes,
        kb.num_relations,
        create_inverse_triples=config.inverse,
    )
    model = _make_model(config, factory)
    started = time.monotonic()
    _train(model, factory, config, progress)
    settings = {
        "kb": kb.fingerprint(),
        "lang": lang,
        "nodes": num_nodes,
        "relations": kb.num_relations,
        "seconds": time.monotonic() - started,
        "config": asdict(config),
    }
    to.mkdir(parents=True, exist_ok=True)
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    with replacing(to / _WEIGHTS) as temporary:
        save_file(weights, temporary)
    write_atomically(to / _SETTINGS, json.dumps(settings, indent=1) + "\n")
    return load_baseline(kb, to)


def load_baseline(kb: KB, folder: Path | str) -> GraphRanker:
    """Read what `train_baseline` wrote, as a ranker; refuse one that was trained on another KB."""
    check_installed()
    from pykeen.triples import CoreTriplesFactory

    path = Path(folder) / _SETTINGS
    try:
        settings = read_json(path)
        weights = read_weights(Path(folder) / _WEIGHTS)
    except (OSError, ValueError) as error:
        raise PrixError(f"{folder} is not a baseline of `train_baseline`: {error}.") from None
    Lineage(kb_fingerprint=settings["kb"]).check_unseen_facts(kb, f"the baseline {folder}")
    config = BaselineConfig(**settings["config"])
    # PyKEEN reads the numbers of nodes and relations from a factory; it needs no triples to load.
    no_triples = CoreTriplesFactory(
        torch.zeros((0, 3), dtype=torch.long),
        settings["nodes"],
        settings["relations"],
        create_inverse_triples=config.inverse,
    )
    model = _make_model(config, no_triples)
    model.load_state_dict(weights)
    graph = "merged" if settings["lang"] is None else settings["lang"]
    scorer = _Scorer(model, settings["nodes"], config)
    return GraphRanker(kb, scorer, settings["lang"], f"{config.model}, {graph}")


def check_installed() -> None:
    """Refuse to continue without PyKEEN."""
    if importlib.util.find_spec("pykeen") is None:
        raise PrixError("PyKEEN is not installed: run `pip install 'prixlm[baselines]'`.")


def _read_nodes(kb: KB, lang: str | None) -> tuple[Array, int]:
    """Return train triples as (subject, relation, object) of nodes, (T, 3), and the node count."""
    if lang is None:
        triples, num_nodes = read_merged_triples(kb), int(kb.concepts().max(initial=-1)) + 1
    else:
        triples, entities = read_triples(kb, lang=lang), kb.entity_range(lang)
        triples[[0, 2]] -= entities.start  # PyKEEN numbers the entities of one graph from 0
        num_nodes = len(entities)
    return np.ascontiguousarray(triples.T), num_nodes


def _make_model(config: BaselineConfig, factory: Any) -> Any:
    """Return a PyKEEN model with the settings of a config, with random weights."""
    from pykeen.losses import CrossEntropyLoss, NSSALoss
    from pykeen.models import ComplEx, RotatE, TransE

    options: dict[str, Any] = {} if config.dim is None else {"embedding_dim": config.dim}
    if config.loss == "self-adversarial":
        options["loss"] = NSSALoss(margin=config.margin, adversarial_temperature=1.0)
    elif config.loss == "softmax":
        options["loss"] = CrossEntropyLoss()
    if config.penalty is not None:
        options["regularizer_kwargs"] = {"weight": config.penalty, "p": 2.0, "normalize": True}
    if config.start is not None:
        first = partial(torch.nn.init.normal_, std=config.start)
        options |= {"entity_initializer": first, "relation_initializer": first}
    kind = {"TransE": TransE, "ComplEx": ComplEx, "RotatE": RotatE}[config.model]
    return kind(triples_factory=factory, random_seed=config.seed, **options)


def _train(model: Any, factory: Any, config: BaselineConfig, progress: Progress | None) -> None:
    """Train a PyKEEN model in place."""
    from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop, TrainingCallback

    class Report(TrainingCallback):
        def post_epoch(self, epoch: int, epoch_loss: float, **_: Any) -> None:
            if progress is not None:
                progress(f"{config.model} loss {epoch_loss:.3f}", epoch, config.epochs)

    optimizer = torch.optim.Adam(model.get_grad_params(), lr=config.lr)
    common = {
        "model": model,
        "triples_factory": factory,
        "optimizer": optimizer,
        "automatic_memory_optimization": False,
    }
    # Softmax scores all objects of a query (LCWA), the other losses some sampled ones (sLCWA).
    loop: Any
    if config.loss == "softmax":
        loop = LCWATrainingLoop(**common)
    else:
        negatives = {"num_negs_per_pos": config.negatives}
        loop = SLCWATrainingLoop(**common, negative_sampler_kwargs=negatives)
    with warnings.catch_warnings():  # PyKEEN calls deprecated functions of its own
        warnings.simplefilter("ignore")
        loop.train(
            triples_factory=factory,
            num_epochs=config.epochs,
            batch_size=config.batch,
            use_tqdm=False,
            pin_memory=False,
            callbacks=[Report()],  # type: ignore[no-untyped-call]
        )


class _Scorer:
    """A PyKEEN model that scores candidates (the `Scorer` protocol of `GraphRanker`).

    TransE and RotatE score by a distance to each candidate, ComplEx by a product with it. PyKEEN
    materialises all differences or products; `torch.cdist` and a matrix product do not, and are
    many times faster.
    """

    def __init__(self, model: Any, num_nodes: int, config: BaselineConfig) -> None:
        self.model, self.num_nodes, self.config = model.eval(), num_nodes, config

    def scores(self, subject: Tensor, relation: Tensor, nodes: Tensor, entities: range) -> Tensor:
        """Return the score of every candidate node for every query: (B, C)."""
        if self.config.inverse:  # PyKEEN maps relations to their reciprocals itself
            queries = torch.stack([subject, relation], dim=1).to(self.model.device)
            scores: Tensor = self.model.predict_t(queries, tails=nodes)
            return scores
        entity_vectors = self.model.entity_representations[0]
        start, end = entity_vectors(subject), entity_vectors(nodes)
        move = self.model.relation_representations[0](relation)
        if self.config.model == "TransE":
            return -torch.cdist(start + move, end, p=1)
        # Complex vectors as twice as many real ones, for which product and distance are the same.
        turned = torch.view_as_real(start * move).flatten(1)
        flat = torch.view_as_real(end).flatten(1)
        if self.config.model == "ComplEx":
            return turned @ flat.T
        return -torch.cdist(turned, flat, p=2)
