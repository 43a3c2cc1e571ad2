"""TransE, ComplEx and RotatE through PyKEEN: the paper's baselines that learn from the graph alone.

    train_baseline(kb, "transe-el", BaselineConfig.default("TransE"), lang="el")
    ranker = load_baseline(kb, "transe-el")

They need the extra `pip install 'prixlm[baselines]'`. Each is trained per language as in the paper
(Sec. 3.2), or on the merged graph of all languages (`lang=None`, with concepts as nodes).
`GraphRanker` computes the ranks, so candidates, filter and tie rule are those of every other
ranker. There are four kinds of settings:

- `openke`: those of OpenKE's own scripts, as in the paper (*default hyper-parameters of the
  library*). 1,000 to 6,000 rounds: hours to weeks on one core;
- `default`: PyKEEN's, which trains for five epochs. No reader should take them for the paper's;
- `tuned`: found on Greek valid facts (benchmarks/baselines.py);
- `grid`: all that a search on the valid facts of each language tries.

A run saves its state every minute (`unfinished.safetensors`), and resumes from there: with the same
weights at the end as one that was never stopped.
"""

import importlib.util
import json
import time
import warnings
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from prixlm.config import checked, from_dict
from prixlm.errors import PrixError
from prixlm.files import read_json, replacing, write_atomically
from prixlm.kb.store import KB
from prixlm.lm.lineage import Lineage
from prixlm.lm.weights import read_weights
from prixlm.rankers.base import read_merged_triples, read_triples
from prixlm.rankers.complex import GraphRanker
from prixlm.types import Array, Progress

MODELS = ("TransE", "ComplEx", "RotatE")
Loss = Literal["default", "self-adversarial", "softmax", "margin", "softplus"]
_WEIGHTS, _SETTINGS = "model.safetensors", "baseline.json"
_UNFINISHED = "unfinished.safetensors"
_SAVE_SECONDS = 60.0
"""How much of a run a kill may cost, if an epoch takes no longer."""
_KINDS: dict[str, Any] = {
    "kb": str,
    "lang": str | None,
    "nodes": int,
    "relations": int,
    "seconds": float,
    "config": dict[str, Any],
}
"""Kinds of the settings that are read from a folder."""
_ABOUT: dict[str, Any] = {"stamp": dict[str, Any], "epoch": int, "seconds": float}
"""Kinds of what the file of a state says about itself."""

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
_OPENKE: dict[str, dict[str, Any]] = {
    # examples/train_transe_FB15K237.py
    "TransE": {
        "dim": 200, "epochs": 1000, "num_batches": 100, "optimizer": "sgd", "lr": 1.0,
        "loss": "margin", "margin": 5.0, "negatives": 25, "sampler": "bernoulli",
        "normalised": True,
    },
    # examples/train_complex_WN18RR.py. Xavier's initial vectors: √(2 / (entities + dim)).
    "ComplEx": {
        "dim": 200, "epochs": 2000, "num_batches": 100, "optimizer": "adagrad", "lr": 0.5,
        "loss": "softplus", "penalty": 1.0, "start": 0.02, "negatives": 25, "sampler": "bernoulli",
    },
    # examples/train_rotate_WN18RR_adv.py
    "RotatE": {
        "dim": 1024, "epochs": 6000, "batch": 2000, "optimizer": "adam", "lr": 2e-5,
        "loss": "self-adversarial", "margin": 6.0, "temperature": 2.0, "negatives": 64,
    },
}  # fmt: skip
"""OpenKE's scripts for its own benchmarks. Its C++ sampler and the way in which it normalises are
PyKEEN's here, so this is the same recipe and not the same code."""
_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
}


@dataclass(frozen=True, kw_only=True)
class BaselineConfig:
    """One of PyKEEN's models; the defaults are PyKEEN's."""

    model: str  # TransE, ComplEx or RotatE
    dim: int | None = None  # of a vector; None: PyKEEN's default
    epochs: int = 5  # passes over the train triples
    batch: int = 256  # triples per update
    num_batches: int | None = None  # updates an epoch, in place of `batch`
    optimizer: str = "adam"  # adam, sgd or adagrad
    lr: float = 1e-3  # learning rate
    loss: Loss = "default"  # default: PyKEEN's own
    negatives: int = 1  # corrupted triples per triple; softmax uses all entities instead
    sampler: str = "basic"  # of the corrupted triples: basic or bernoulli
    margin: float = 9.0  # of the self-adversarial and the margin loss
    temperature: float = 1.0  # of the self-adversarial loss
    normalised: bool = False  # TransE: relations have length 1, as entities have
    inverse: bool = False  # train reciprocal relations
    start: float | None = None  # standard deviation of ComplEx's initial vectors; None: 1
    penalty: float | None = None  # weight of ComplEx's regulariser; None: 0.01
    seed: int = 0  # of PyKEEN's run

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise PrixError(f"baseline {self.model}: expected {', '.join(MODELS)}.")
        if min(self.epochs, self.batch, self.negatives, self.dim or 1) < 1 or not self.lr > 0:
            raise PrixError("dim, epochs, batch and negatives are 1 or more, and lr above 0.")
        if self.num_batches is not None and self.num_batches < 1:
            raise PrixError(f"num_batches {self.num_batches}: expected 1 or more.")
        if self.optimizer not in _OPTIMIZERS:
            raise PrixError(f"optimizer {self.optimizer}: expected {', '.join(_OPTIMIZERS)}.")
        if self.sampler not in ("basic", "bernoulli"):
            raise PrixError(f"sampler {self.sampler}: expected basic or bernoulli.")

    @classmethod
    def default(cls, model: str) -> "BaselineConfig":
        """Return PyKEEN's own settings."""
        return cls(model=model)

    @classmethod
    def openke(cls, model: str) -> "BaselineConfig":
        """Return the settings of OpenKE's scripts, the library of the paper."""
        config = cls.default(model)  # refuses an unknown model
        return replace(config, **_OPENKE[config.model])

    @classmethod
    def grid(cls, model: str) -> list["BaselineConfig"]:
        """Return the settings that a search tries, `tuned` among them."""
        tuned = cls.tuned(model)
        if model == "ComplEx":
            # With PyKEEN's own initial vectors and regulariser it learns nothing. A softmax over
            # all entities would be best for it, but takes PyKEEN minutes an epoch on Greek alone.
            return [
                replace(tuned, epochs=epochs, lr=lr, penalty=penalty)
                for epochs, lr, penalty in product((8, 20), (3e-3, 1e-2), (1e-3, 4e-3))
            ]
        return [
            replace(tuned, epochs=epochs, margin=margin, lr=lr)
            for epochs, margin, lr in product((30, 90), (3.0, 9.0), (2e-3, 1e-2))
        ]

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
    device: str | None = None,
) -> GraphRanker:
    """Train on the train triples of one language, or of the merged graph, and save.

    A run that was stopped resumes.
    device: such as `cuda:1`; None: the GPU if there is one.
    """
    check_installed()
    where = _choose_device(device)
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
    model = _make_model(config, factory).to(where)
    stamp = {"kb": kb.fingerprint(), "lang": lang, "config": asdict(config), "device": where.type}
    to.mkdir(parents=True, exist_ok=True)
    seconds = _train(model, factory, config, _Unfinished(to / _UNFINISHED, stamp), progress)
    settings = {
        "kb": kb.fingerprint(),
        "lang": lang,
        "nodes": num_nodes,
        "relations": kb.num_relations,
        "seconds": seconds,
        "config": asdict(config),
    }
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    with replacing(to / _WEIGHTS) as temporary:
        save_file(weights, temporary)
    write_atomically(to / _SETTINGS, json.dumps(settings, indent=1) + "\n")
    (to / _UNFINISHED).unlink(missing_ok=True)
    return load_baseline(kb, to, device)


def load_baseline(kb: KB, folder: Path | str, device: str | None = None) -> GraphRanker:
    """Read what `train_baseline` wrote, as a ranker; refuse one that was trained on another KB."""
    check_installed()
    from pykeen.triples import CoreTriplesFactory

    try:
        settings = checked(read_json(Path(folder) / _SETTINGS), _KINDS)
        weights = read_weights(Path(folder) / _WEIGHTS)
    except (OSError, ValueError) as error:
        raise PrixError(f"{folder} is not a baseline of `train_baseline`: {error}.") from None
    Lineage(kb_fingerprint=settings["kb"]).check_unseen_facts(kb, f"the baseline {folder}")
    config = _read_baseline(settings["config"], folder)
    num_nodes = _count_nodes(kb, settings["lang"])
    # Before anything of that size is allocated: the folder may come from anyone.
    stated = settings["nodes"], settings["relations"]
    stored = sum(tensor.numel() for tensor in weights.values())
    if stated != (num_nodes, kb.num_relations) or num_nodes * (config.dim or 1) > stored:
        raise PrixError(
            f"{folder} has weights for other sizes than {kb.folder} and its own settings have: "
            "train the baseline again."
        )
    # PyKEEN reads the numbers of nodes and relations from a factory; it needs no triples to load.
    no_triples = CoreTriplesFactory(
        torch.zeros((0, 3), dtype=torch.long),
        num_nodes,
        kb.num_relations,
        create_inverse_triples=config.inverse,
    )
    try:
        model = _make_model(config, no_triples)
        model.load_state_dict(weights)
    except (RuntimeError, ValueError, TypeError, OverflowError) as error:  # PyKEEN's and torch's
        reason = (str(error).splitlines() or [""])[0]
        raise PrixError(
            f"the settings of {folder} do not fit its weights ({reason}): train the baseline again."
        ) from None
    model = model.to(_choose_device(device))
    graph = "merged" if settings["lang"] is None else settings["lang"]
    scorer = _Scorer(model, num_nodes, config)
    return GraphRanker(kb, scorer, settings["lang"], f"{config.model}, {graph}")


def _read_baseline(values: dict[str, Any], folder: Path | str) -> BaselineConfig:
    """Return the settings that a folder states; a name of null is the default's."""
    if values.get("model") not in MODELS:
        raise PrixError(f"{folder} is not a baseline of `train_baseline`: it names no model.")
    return from_dict(BaselineConfig.default(values["model"]), values)


def check_installed() -> None:
    """Refuse to continue without PyKEEN."""
    if importlib.util.find_spec("pykeen") is None:
        raise PrixError("PyKEEN is not installed: run `pip install 'prixlm[baselines]'`.")


def _choose_device(device: str | None) -> torch.device:
    """Return the device of a name; without one, the GPU if there is one."""
    if device is None:
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        why = (str(error).splitlines() or [""])[0]
        raise PrixError(f"device {device} cannot be used here: {why}") from None
    return where


def _read_nodes(kb: KB, lang: str | None) -> tuple[Array, int]:
    """Return train triples as (subject, relation, object) of nodes, (T, 3), and the node count."""
    if lang is None:
        triples = read_merged_triples(kb)
    else:
        triples = read_triples(kb, lang=lang)
        # PyKEEN numbers the entities of one graph from 0.
        triples[[0, 2]] -= kb.entity_range(lang).start
    return np.ascontiguousarray(triples.T), _count_nodes(kb, lang)


def _count_nodes(kb: KB, lang: str | None) -> int:
    """Return the number of nodes of a language's graph, or of the merged one."""
    return int(kb.concepts().max(initial=-1)) + 1 if lang is None else len(kb.entity_range(lang))


def _make_model(config: BaselineConfig, factory: Any) -> Any:
    """Return a PyKEEN model with the settings of a config, with random weights."""
    from pykeen.losses import CrossEntropyLoss, MarginRankingLoss, NSSALoss, SoftplusLoss
    from pykeen.models import ComplEx, RotatE, TransE

    options: dict[str, Any] = {} if config.dim is None else {"embedding_dim": config.dim}
    if config.loss == "self-adversarial":
        temperature = config.temperature
        options["loss"] = NSSALoss(margin=config.margin, adversarial_temperature=temperature)
    elif config.loss == "softmax":
        options["loss"] = CrossEntropyLoss()
    elif config.loss == "margin":
        options["loss"] = MarginRankingLoss(margin=config.margin)
    elif config.loss == "softplus":
        options["loss"] = SoftplusLoss()
    if config.normalised:
        options["relation_constrainer"] = torch.nn.functional.normalize
    if config.penalty is not None:
        options["regularizer_kwargs"] = {"weight": config.penalty, "p": 2.0, "normalize": True}
    if config.start is not None:
        first = partial(torch.nn.init.normal_, std=config.start)
        options |= {"entity_initializer": first, "relation_initializer": first}
    kind = {"TransE": TransE, "ComplEx": ComplEx, "RotatE": RotatE}[config.model]
    return kind(triples_factory=factory, random_seed=config.seed, **options)


@dataclass(frozen=True)
class _Unfinished:
    """The file of a run's state. PyKEEN's own checkpoints are pickles, which can run code."""

    path: Path
    stamp: dict[str, Any]  # what the run is of; a file with another one is not resumed

    def save(self, loop: Any, epoch: int, seconds: float) -> None:
        """Write weights, the optimizer's state and that of the generator, after an epoch."""
        tensors = {f"model.{name}": part for name, part in loop.model.state_dict().items()}
        for number, state in loop.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, Tensor):  # SGD without momentum keeps None
                    tensors[f"optimizer.{number}.{name}"] = value
        tensors["random"] = torch.get_rng_state()
        if self.stamp["device"] == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state()
        about = json.dumps({"stamp": self.stamp, "epoch": epoch, "seconds": seconds})
        with replacing(self.path) as temporary:
            copies = {name: part.detach().cpu().clone() for name, part in tensors.items()}
            save_file(copies, temporary, {"about": about})

    def load(self, loop: Any) -> tuple[int, float]:
        """Put what was saved into a new loop; return its epoch and seconds, 0 without a file."""
        try:
            with safe_open(str(self.path), "pt") as file:
                about = checked(json.loads(file.metadata()["about"]), _ABOUT)
                if about["stamp"] != json.loads(json.dumps(self.stamp)):
                    return 0, 0.0
                tensors = load_file(str(self.path))
            states: dict[int, dict[str, Tensor]] = {}
            for name, tensor in tensors.items():
                kind, _, rest = name.partition(".")
                if kind == "optimizer":
                    number, _, key = rest.partition(".")
                    states.setdefault(int(number), {})[key] = tensor
            weights = {
                name.removeprefix("model."): tensor
                for name, tensor in tensors.items()
                if name.startswith("model.")
            }
            loop.model.load_state_dict(weights)
            loop.optimizer.load_state_dict(loop.optimizer.state_dict() | {"state": states})
            torch.set_rng_state(tensors["random"])
            if "random.cuda" in tensors:
                torch.cuda.set_rng_state(tensors["random.cuda"])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError):
            return 0, 0.0  # none, or one that is damaged: from the beginning
        return about["epoch"], about["seconds"]


def _train(
    model: Any,
    factory: Any,
    config: BaselineConfig,
    unfinished: _Unfinished,
    progress: Progress | None,
) -> float:
    """Train a PyKEEN model in place; return the seconds, with those of runs that were stopped."""
    from pykeen.training import TrainingCallback

    loop = _make_loop(model, factory, config)
    done, spent = unfinished.load(loop)
    started = saved = time.monotonic()

    class Report(TrainingCallback):
        def post_epoch(self, epoch: int, epoch_loss: float, **_: Any) -> None:
            nonlocal saved
            if progress is not None:
                progress(f"{config.model} loss {epoch_loss:.3f}", done + epoch, config.epochs)
            now = time.monotonic()
            if now - saved >= _SAVE_SECONDS and done + epoch < config.epochs:
                unfinished.save(loop, done + epoch, spent + now - started)
                saved = time.monotonic()

    batch = config.batch
    if config.num_batches is not None:
        batch = max(1, factory.num_triples // config.num_batches)
    if done and not loop.optimizer.state:
        # PyKEEN takes an optimizer without any state, as SGD's, for one that was never trained.
        loop.optimizer.state[next(iter(model.parameters()))] = {}
    with warnings.catch_warnings():  # PyKEEN calls deprecated functions of its own
        warnings.simplefilter("ignore")
        loop.train(
            triples_factory=factory,
            num_epochs=config.epochs - done,
            batch_size=batch,
            continue_training=done > 0,
            use_tqdm=False,
            pin_memory=False,
            callbacks=[Report()],  # type: ignore[no-untyped-call]
        )
    return spent + time.monotonic() - started


def _make_loop(model: Any, factory: Any, config: BaselineConfig) -> Any:
    """Return PyKEEN's training loop of a config."""
    from pykeen.training import LCWATrainingLoop, SLCWATrainingLoop

    common = {
        "model": model,
        "triples_factory": factory,
        "optimizer": _OPTIMIZERS[config.optimizer](model.get_grad_params(), lr=config.lr),
        "automatic_memory_optimization": False,
    }
    # Softmax scores all objects of a query (LCWA), the other losses some sampled ones (sLCWA).
    if config.loss == "softmax":
        return LCWATrainingLoop(**common)
    negatives = {"num_negs_per_pos": config.negatives}
    return SLCWATrainingLoop(
        **common, negative_sampler=config.sampler, negative_sampler_kwargs=negatives
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
        device = self.model.device
        subject, relation, nodes = (x.to(device) for x in (subject, relation, nodes))
        if self.config.inverse:  # PyKEEN maps relations to their reciprocals itself
            queries = torch.stack([subject, relation], dim=1)
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
