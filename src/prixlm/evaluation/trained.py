"""The trained models of the paper's tables: one folder, where each model is trained when needed.

    models = TrainedModels(KB("dbp5l"), Path("table"))
    run = models.prix_lm("all", PretrainConfig.preset("compact"))

    models/KIND, models/KIND/LANG    Prix-LM: all, all-propagate; single/LANG, single-early/LANG
    graph                            our ComplEx on the merged graph
    baselines/MODEL-SETTING[/LANG]   PyKEEN's models: default/LANG, tuned/LANG, openke/LANG, merged
    searched/ROW/LANG                searched settings; search.json has the figure of every run
    encoders/NAME-POSITIVES          Mirror variants of these Prix-LMs and of other models
    fusion                           what combines a model, links, rules and a graph

All tables of one folder share their models through this class, and only this class knows the paths.
A model that is finished is not trained again. Training checks that it belongs to the KB and has the
same settings, and resumes a run that was stopped.

A baseline is only worth as much as the search behind it, so a row of one language is searched as
thoroughly as the row of all languages that it is compared with (`search_settings`). Nothing is
chosen on test facts.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from prixlm.config import checked, differing, is_kind
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import MirrorConfig, mirror
from prixlm.errors import PrixError
from prixlm.files import read_json, write_atomically
from prixlm.kb.store import KB
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import ComplEx, GraphConfig, GraphRanker, train_graph
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.rankers.pykeen import BaselineConfig, load_baseline, train_baseline
from prixlm.training.checkpoints import (
    checkpoint_folder,
    checkpoint_steps,
    step_of,
    training_seconds,
)
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Progress

logger = logging.getLogger(__name__)
Settings = TypeVar("Settings")
_SEARCHED = "search.json"


@dataclass(frozen=True)
class Run:
    """A finished training run of a Prix-LM."""

    name: str  # such as `all` or `single-fi`
    folder: Path

    @property
    def seconds(self) -> float | None:
        """How long its updates took."""
        return training_seconds(self.folder)

    @property
    def steps(self) -> list[int]:
        """The steps of its checkpoints, in order."""
        return checkpoint_steps(self.folder)

    def at_step(self, step: int) -> "Run":
        """Return the model at one of its checkpoints, named after it."""
        return Run(f"{self.name}-step-{step}", checkpoint_folder(self.folder, step))

    def at(self, point: float, *, or_end: bool = False) -> "Run":
        """Return the checkpoint nearest to a share of the run or, above 1, the one of that step.

        or_end: a run that ends before the step is taken at its end.
        """
        steps = self.steps
        step = step_of(point, steps[-1])
        if point <= 1:
            return self.at_step(min(steps, key=lambda kept: abs(kept - step)))
        if or_end:
            step = min(step, steps[-1])
        if step not in steps:
            raise PrixError(
                f"{self.folder} has no checkpoint at step {step:,}; it has "
                f"{', '.join(f'{kept:,}' for kept in steps)}. Name one of these or a share of the "
                "run, or train it with --checkpoints in another folder."
            )
        return self.at_step(step)

    def base(self) -> "Run":
        """Return the model before its first step: the base model with its new tokens."""
        if self.steps[0] != 0:
            raise PrixError(f"{self.folder} kept no step 0: train it with a checkpoint at 0.")
        return self.at_step(0)


class TrainedModels:
    """The models of one KB in one folder; what is missing is trained when it is asked for."""

    def __init__(self, kb: KB, folder: Path, progress: Progress | None = None) -> None:
        self.kb, self.folder, self.progress = kb, folder, progress

    def check_point(self, kind: str, settings: PretrainConfig, point: float) -> None:
        """Refuse a step that a Prix-LM neither has nor will keep, before it is trained for days."""
        known = {*settings.training.checkpoints, *checkpoint_steps(self.folder / "models" / kind)}
        if point > 1 and point not in known:
            raise PrixError(
                f"step {point:,.0f} is not among the checkpoints that the run keeps "
                f"({', '.join(f'{kept:g}' for kept in settings.training.checkpoints)}): add it to "
                "--checkpoints."
            )

    def prix_lm(self, kind: str, settings: PretrainConfig, lang: str | None = None) -> Run:
        """Return a Prix-LM of all languages, or the one of a single language."""
        folder = self.folder / "models" / kind
        return self._pretrained(
            f"{kind}-{lang}" if lang else kind, folder / lang if lang else folder, settings
        )

    def unseen_prix_lm(self, settings: PretrainConfig) -> Run:
        """Return the one Prix-LM of a split with unseen entities."""
        return self._pretrained("model", self.folder / "model", settings)

    def _pretrained(self, name: str, folder: Path, settings: PretrainConfig) -> Run:
        # A finished run is only checked: that it is of this KB and has these settings.
        pretrain(self.kb, folder, settings, self.progress)
        return Run(name, folder)

    def graph(self, config: GraphConfig) -> tuple[ComplEx, float | None]:
        """Return the graph embedding of all languages, and the seconds of its training."""
        folder = self.folder / "graph"
        model = train_graph(self.kb, folder, config, self.progress)
        return model, training_seconds(folder)

    def baseline(
        self, config: BaselineConfig, setting: str, lang: str | None = None
    ) -> tuple[GraphRanker, float]:
        """Return a PyKEEN model as a ranker, and the seconds of its training.

        lang: trained on this language; None: on the merged graph.
        """
        folder = self.folder / "baselines" / f"{config.model.lower()}-{setting}"
        folder = folder / lang if lang else folder
        path = folder / "baseline.json"  # written last
        if not path.exists():
            train_baseline(self.kb, folder, config, lang, self.progress)
        ranker = load_baseline(self.kb, folder)  # refuses a file that is damaged
        return ranker, float(read_json(path)["seconds"])

    def searched(self, row: str, lang: str | None = None) -> Path:
        """Return the folder of a search: of a language, or of all languages together."""
        return self.folder / "searched" / row / (lang or "merged")

    def fusion(
        self,
        rankers: Sequence[Ranker],
        config: FusionConfig,
        langs: Sequence[str],
        name: str = "fusion",
    ) -> Fusion:
        """Return a fusion of rankers that is fitted on the valid facts of `langs`."""
        # The file is written last, so a fusion that has it is complete.
        folder = self.folder / name
        if not (folder / "fusion.json").exists():
            Fusion.fit(self.kb, rankers, config, langs, self.progress).save(folder)
        return Fusion.load(self.kb, rankers, folder)

    def encoder(self, name: str, model: Path | str, config: MirrorConfig) -> EntityEncoder:
        """Return the Mirror variant of a model; `name` tells it apart from those of others."""
        # Encoders of both kinds of positives lie side by side.
        folder = self.folder / "encoders" / f"{name}-{config.positives}"
        return mirror(model, folder, config, self.kb, self.progress)


def check_stamp(path: Path, stamp: Mapping[str, Any], made: Path) -> None:
    """Refuse results that were made with another KB or other settings; else write the stamp.

    made: the folder or file that the stamp belongs to. Settings of an older version that this one
    does not have any more are ignored.
    """
    values = json.loads(json.dumps(stamp))  # tuples become lists, as in the file
    if path.exists():
        saved = _known(_read_object(path), values)
        names = ", ".join(differing(saved, values))
        if names:
            raise PrixError(f"{made} was made with other {names}: name another folder.")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=1) + "\n")


def _read_object(path: Path) -> dict[str, Any]:
    """Return the values of a JSON file of this folder; refuse one that is damaged."""
    try:
        return checked(read_json(path), {})
    except (OSError, ValueError) as error:
        raise PrixError(
            f"{path} cannot be read ({error}). Name another folder, or delete the file."
        ) from None


def _known(saved: dict[str, Any], stamp: dict[str, Any]) -> dict[str, Any]:
    """Return the saved settings that the stamp has, too."""
    return {
        name: _known(value, stamp[name]) if isinstance(value, dict) else value
        for name, value in saved.items()
        if name in stamp and isinstance(value, dict) == isinstance(stamp[name], dict)
    }


def single_settings(settings: PretrainConfig, lang: str) -> PretrainConfig:
    """Return the settings of Prix-LM (Single): the facts of one language, without links."""
    return replace(settings, supply=replace(settings.supply, langs=(lang,)))


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """What is tried, each value with each; the figure is the MRR of valid facts."""

    facts: int = 1000  # valid facts of a language that runs are compared on
    batches: tuple[int, ...] = (64, 256)  # of Prix-LM (Single): facts per update
    rates: tuple[float, ...] = (1e-3, 2e-3)  # highest learning rates, with a full decay
    epochs: tuple[int, ...] = (30,)  # passes over the language's facts
    graph_batches: tuple[int, ...] = (250, 1000)  # of our graph embeddings: triples per update
    graph_epochs: tuple[int, ...] = (10, 30)  # passes over the triples
    graph_regularisers: tuple[float, ...] = (0.005, 0.05)  # weights of the 3-norm

    def __post_init__(self) -> None:
        lists = [values for name, values in vars(self).items() if name != "facts"]
        if self.facts < 1 or not all(lists):
            raise PrixError("search: facts are 1 or more, and every list has a value.")

    def singles(self, settings: PretrainConfig) -> dict[str, PretrainConfig]:
        """Return the settings of Prix-LM (Single) to try, by name."""
        tried = {}
        for batch, rate, epochs in product(self.batches, self.rates, self.epochs):
            # The rate decays to the end of the run: stopped earlier, it would still be high.
            training = replace(settings.training, lr=rate, patience=None, checkpoints=(1.0,))
            name = f"batch-{batch}-rate-{rate:g}-epochs-{epochs}"
            tried[name] = replace(settings, batch=batch, epochs=epochs, training=training)
        return tried

    def graphs(self, config: GraphConfig) -> dict[str, GraphConfig]:
        """Return the settings of a graph embedding of ours to try, by name."""
        values = product(self.graph_batches, self.graph_epochs, self.graph_regularisers)
        return {
            f"batch-{batch}-epochs-{epochs}-regulariser-{weight:g}": replace(
                config, batch=batch, epochs=epochs, regulariser=weight
            )
            for batch, epochs, weight in values
        }


def search_settings(
    folder: Path, candidates: Mapping[str, Settings], measure: Callable[[Settings, Path], float]
) -> str:
    """Run every candidate that has no figure yet; return the name of the best one.

    measure: trains a candidate in a folder and returns its MRR on valid facts. The folder of the
    best candidate so far is kept, those of the others are deleted.
    """
    path = folder / _SEARCHED
    tried = _read_tried(folder) if path.exists() else {}
    for name, settings in candidates.items():
        if name in tried:
            continue
        started = time.monotonic()
        mrr = measure(settings, folder / name)
        tried[name] = {"valid_mrr": mrr, "seconds": time.monotonic() - started}
        logger.info("%s, %s: MRR %.1f on valid facts", folder.name, name, 100 * mrr)
        write_atomically(path, json.dumps(tried, indent=1) + "\n")
        _drop_others(folder, tried)
    # A search with a smaller space may follow on a larger one.
    best = max(candidates, key=lambda name: tried[name]["valid_mrr"])
    if not (folder / best).exists():
        measure(candidates[best], folder / best)
    return best


def _read_tried(folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of the runs of a search, by name; refuse a file that is damaged."""
    tried = _read_object(folder / _SEARCHED)
    figures = {"valid_mrr", "seconds"}
    if not all(is_kind(one, dict[str, float]) and figures <= one.keys() for one in tried.values()):
        raise PrixError(
            f"{folder / _SEARCHED} is not what a search writes: delete it, to search again."
        )
    return tried


def _drop_others(folder: Path, tried: Mapping[str, Any]) -> None:
    """Delete the models of all but the best run."""
    best = max(tried, key=lambda name: tried[name]["valid_mrr"])
    for name in tried:
        if name != best:
            shutil.rmtree(folder / name, ignore_errors=True)


def search_seconds(folder: Path) -> float:
    """Return the seconds of all runs of a search: what the row has cost."""
    return float(sum(one["seconds"] for one in _read_tried(folder).values()))
