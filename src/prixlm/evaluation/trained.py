"""The trained models of the paper's tables: one folder, where each model is trained when needed.

    models = TrainedModels(KB("dbp5l"), Path("table"))
    run = models.prix_lm("all", PretrainConfig.preset("compact"))

    models/KIND, models/KIND/LANG    Prix-LM: all, all-propagate; single/LANG, single-early/LANG
    graph                            our ComplEx on the merged graph
    baselines/MODEL-SETTING[/LANG]   PyKEEN's models: default/LANG, tuned/LANG, merged
    encoders/NAME-POSITIVES          Mirror variants of these Prix-LMs and of other models
    fusion                           what combines a model, links, rules and a graph

All tables of one folder share their models through this class, and only this class knows the paths.
A model that is finished is not trained again. Training checks that it belongs to the KB and has the
same settings, and resumes a run that was stopped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prixlm.config import differing
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import MirrorConfig, mirror
from prixlm.errors import PrixError
from prixlm.files import read_json, write_atomically
from prixlm.kb.store import KB
from prixlm.rankers.base import Ranker
from prixlm.rankers.complex import ComplEx, GraphConfig, GraphRanker, train_graph
from prixlm.rankers.fusion import Fusion, FusionConfig
from prixlm.rankers.pykeen import BaselineConfig, load_baseline, train_baseline
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, training_seconds
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Progress


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

    def at(self, share: float) -> "Run":
        """Return the checkpoint nearest to a share of the run."""
        steps = self.steps
        return self.at_step(min(steps, key=lambda step: abs(step - share * steps[-1])))

    def base(self) -> "Run":
        """Return the model before its first step: the base model with its new tokens."""
        if self.steps[0] != 0:
            raise PrixError(f"{self.folder} kept no step 0: train it with a checkpoint at 0.")
        return self.at_step(0)


class TrainedModels:
    """The models of one KB in one folder; what is missing is trained when it is asked for."""

    def __init__(self, kb: KB, folder: Path, progress: Progress | None = None) -> None:
        self.kb, self.folder, self.progress = kb, folder, progress

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
        seconds = float(read_json(path)["seconds"])
        return load_baseline(self.kb, folder), seconds

    def fusion(
        self, rankers: Sequence[Ranker], config: FusionConfig, langs: Sequence[str]
    ) -> Fusion:
        """Return a fusion of rankers that is fitted on the valid facts of `langs`."""
        # The file is written last, so a fusion that has it is complete.
        folder = self.folder / "fusion"
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
        saved = _known(read_json(path), values)
        names = ", ".join(differing(saved, values))
        if names:
            raise PrixError(f"{made} was made with other {names}: name another folder.")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(values, indent=1) + "\n")


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
