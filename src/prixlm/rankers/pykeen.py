"""TransE, ComplEx and RotatE through PyKEEN (`pip install 'prixlm[baselines]'`): the rows of
Sec. 3.2 that learn from the graph alone.

    train_baseline(kb, "transe-el", BaselineConfig.default("TransE"), lang="el")
    ranker = load_baseline(kb, "transe-el")

Trained per language as in the paper, or on the merged graph of all languages (`lang=None`, with
concepts as nodes). `default` is the library's own settings, as in the paper (whose library was
OpenKE; PyKEEN's are five epochs, which is few); `tuned` has settings that were found on valid facts
(benchmarks/baselines.py).
Ranks are counted by `GraphRanker`: the candidates, filter and tie rule are those of every row.
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
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prixlm.errors import PrixError
from prixlm.files import write_atomically
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
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
"""The best on Greek valid facts of what `benchmarks/baselines.py tune` tried (docs/log.md)."""


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """One of PyKEEN's models; the defaults are PyKEEN's."""

    model: str
    dim: int | None = None  # of PyKEEN's choice if none
    epochs: int = 5
    batch: int = 256
    lr: float = 1e-3
    loss: Literal["default", "self-adversarial", "softmax"] = "default"
    negatives: int = 1  # for each triple; softmax takes all entities
    margin: float = 9.0  # of the self-adversarial loss
    inverse: bool = False  # reciprocal relations
    start: float | None = None  # standard deviation of ComplEx's first vectors; PyKEEN's is 1
    penalty: float | None = None  # weight of ComplEx's regulariser; PyKEEN's is 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise PrixError(f"baseline {self.model}: expected {', '.join(MODELS)}.")
        if min(self.epochs, self.batch, self.negatives, self.dim or 1) < 1 or not self.lr > 0:
            raise PrixError("dim, epochs, batch and negatives are 1 or more, and lr above 0.")

    @classmethod
    def default(cls, model: str) -> "BaselineConfig":
        """The library's defaults, as in the paper."""
        return cls(model=model)

    @classmethod
    def tuned(cls, model: str) -> "BaselineConfig":
        """Settings that were searched for on valid facts."""
        config = cls.default(model)  # an unknown model is refused there
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
    triples, num_nodes = _read_triples(kb, lang)
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
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, to / _WEIGHTS)
    write_atomically(to / _SETTINGS, json.dumps(settings, indent=1) + "\n")
    return load_baseline(kb, to)


def load_baseline(kb: KB, folder: Path | str) -> GraphRanker:
    """What `train_baseline` wrote, as a ranker."""
    check_installed()
    from pykeen.triples import CoreTriplesFactory

    path = Path(folder) / _SETTINGS
    try:
        settings = json.loads(path.read_text("utf-8"))
        weights = load_file(str(Path(folder) / _WEIGHTS))
    except (OSError, ValueError, SafetensorError) as error:
        raise PrixError(f"{folder} is no baseline of ours: {error}.") from None
    if settings["kb"] != kb.fingerprint():
        raise PrixError(f"{folder} was trained on another KB than {kb.folder}.")
    config = BaselineConfig(**settings["config"])
    nothing = CoreTriplesFactory(
        torch.zeros((0, 3), dtype=torch.long),
        settings["nodes"],
        settings["relations"],
        create_inverse_triples=config.inverse,
    )
    model = _make_model(config, nothing)
    model.load_state_dict(weights)
    where = "merged" if settings["lang"] is None else settings["lang"]
    scorer = _Scorer(model, settings["nodes"], config)
    return GraphRanker(kb, scorer, settings["lang"], f"{config.model}, {where}")


def check_installed() -> None:
    if importlib.util.find_spec("pykeen") is None:
        raise PrixError("PyKEEN is not installed: run `pip install 'prixlm[baselines]'`.")


def _read_triples(kb: KB, lang: str | None) -> tuple[Array, int]:
    """Train triples as (subject, relation, object) of nodes, and how many nodes there are."""
    if lang is None:
        merged = read_merged(kb)
        forward = merged.relation < kb.num_relations
        ends = (merged.source[forward], merged.relation[forward], merged.target[forward])
        return np.stack(ends, axis=1), int(kb.concepts().max(initial=-1)) + 1
    own = kb.entity_range(lang)
    parts = [np.zeros((0, 3), np.int64)]
    names = ["subject", "relation", "object"]
    for batch in kb.batches("triples", names, langs=[lang], split="train"):
        columns = [np.asarray(column).astype(np.int64) for column in batch.columns]
        columns[0] -= own.start
        columns[2] -= own.start
        parts.append(np.stack(columns, axis=1))
    return np.concatenate(parts), len(own)


def _make_model(config: BaselineConfig, factory: Any) -> Any:
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
    loop: Any
    if config.loss == "softmax":
        loop = LCWATrainingLoop(**common)
    else:
        negatives = {"num_negs_per_pos": config.negatives}
        loop = SLCWATrainingLoop(**common, negative_sampler_kwargs=negatives)
    with warnings.catch_warnings():  # PyKEEN warns of what it calls itself
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
    """A model of PyKEEN's, asked for the scores of candidates.

    TransE and RotatE score by a distance to each candidate, ComplEx by a product with it, which
    PyKEEN takes from all differences or products written out; `torch.cdist` and a matrix product
    do not write them out, and are many times faster.
    """

    def __init__(self, model: Any, num_nodes: int, config: BaselineConfig) -> None:
        self.model, self.num_nodes, self.config = model.eval(), num_nodes, config

    def scores(self, subject: Tensor, relation: Tensor, nodes: Tensor, entities: range) -> Tensor:
        if self.config.inverse:
            asked = torch.stack([subject, relation], dim=1).to(self.model.device)
            scored: Tensor = self.model.predict_t(asked, tails=nodes)
            return scored
        entity, named = self.model.entity_representations[0], self.model.relation_representations[0]
        start, by, ends = entity(subject), named(relation), entity(nodes)
        if self.config.model == "TransE":
            return -torch.cdist(start + by, ends, p=1)
        turned = torch.view_as_real(start * by).flatten(1)
        flat = torch.view_as_real(ends).flatten(1)
        if self.config.model == "ComplEx":
            return turned @ flat.T
        return -torch.cdist(turned, flat, p=2)
