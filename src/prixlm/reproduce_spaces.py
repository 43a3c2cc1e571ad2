"""The paper's other three tables (Sec. 3.3 to 3.5), row by row: linking, lexicons, probing.

    reproduce_xel(kb, "table")          # links of a fifth of the linked things are hidden first
    reproduce_bli(kb, "table", dictionaries)
    reproduce_probe(kb, "table", prompts)

Base is the model before its first step; Single and All are those of the link-prediction table in
the same folder, trained here if they are not there. For linking both are trained on a split without
the hidden links. Every model becomes an encoder by Mirror, with words as positives as in the paper
and, beyond it, with links. Each table comes with a curve over All's checkpoints, step 0 included.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prixlm.checkpoints import checkpoint_folder, checkpoint_steps
from prixlm.embed import EntityEncoder, load_model
from prixlm.errors import PrixError
from prixlm.grids import Grid, read_grids, write_grids
from prixlm.kb.disk import write_atomically
from prixlm.kb.splits import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.mirror import MirrorConfig, mirror_tune
from prixlm.pretrain import PretrainConfig, pretrain
from prixlm.results import plot_curves
from prixlm.spaces import (
    Translation,
    evaluate_lexicons,
    evaluate_linking,
    evaluate_probing,
    hidden_tasks,
)
from prixlm.tasks.entity_linking import EncoderScorer, FuzzyScorer, Linker, PerLanguage
from prixlm.tasks.lexicon_induction import Dictionary
from prixlm.tasks.probing import Prompts
from prixlm.training import Progress

POSITIVES = ("words", "links")


@dataclass(frozen=True, kw_only=True)
class SpacesConfig:
    """What the tables are made of; the defaults are for DBP-5L on two cores."""

    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("compact"))
    mirror: MirrorConfig = field(default_factory=lambda: MirrorConfig.preset("compact"))
    hidden: float = 0.2  # share of the linked concepts whose links are hidden
    into: str = "en"  # the language of the entities
    single: str = "en"  # of Single, for lexicons and probing
    frequent: int = 50_000  # frequent words that are candidates of a lexicon
    curve: str = "links"  # positives of the encoders on the curve

    def __post_init__(self) -> None:
        if self.curve not in POSITIVES:
            raise PrixError(f"curve {self.curve}: expected {' or '.join(POSITIVES)}.")


class _Work:
    """One folder, one KB: models and encoders, made where they are missing."""

    def __init__(
        self, kb: KB, to: Path, config: SpacesConfig, progress: Progress | None = None
    ) -> None:
        self.kb, self.to, self.config, self.progress = kb, to, config, progress
        _check_language(kb, config.into)
        _check_language(kb, config.single)

    def model(self, lang: str | None = None) -> Path:
        """All, or Single of a language."""
        folder = self.to / "models" / ("all" if lang is None else f"single/{lang}")
        settings = self.config.pretrain
        if lang is not None:
            supply = dataclasses.replace(settings.supply, langs=(lang,))
            settings = dataclasses.replace(settings, supply=supply)
        pretrain(self.kb, folder, settings, self.progress)
        return folder

    def base(self) -> Path:
        """All before its first step: the base model, with its new tokens."""
        folder = self.model()
        return checkpoint_folder(folder, checkpoint_steps(folder)[0])

    def encoder(self, model: Path, name: str, positives: str) -> EntityEncoder:
        config = dataclasses.replace(self.config.mirror, positives=positives)
        folder = self.to / "encoders" / f"{name}-{positives}"
        return mirror_tune(model, folder, config, self.kb, self.progress)

    def curve(
        self, name: str, title: str, measure: Callable[[Path, str], dict[str, float]]
    ) -> None:
        """What `measure` finds at every checkpoint of All, as JSON and a plot."""
        path = self.to / f"{name}-checkpoints.json"
        if not path.exists():
            folder = self.model()
            found: dict[str, list[tuple[int, float]]] = {}
            for step in checkpoint_steps(folder):
                values = measure(checkpoint_folder(folder, step), f"all-step-{step}")
                for column, value in values.items():
                    found.setdefault(column, []).append((step, 100 * value))
            write_atomically(path, json.dumps(found, indent=1) + "\n")
        curves = json.loads(path.read_text("utf-8"))
        points = {column: [(float(x), y) for x, y in line] for column, line in curves.items()}
        plot_curves(points, path.with_suffix(".png"), f"{title} (%)", f"{title} over checkpoints")


def _check_language(kb: KB, lang: str) -> None:
    if lang not in kb.languages:
        raise PrixError(f"{kb.folder} has no {lang}; it has {', '.join(kb.languages)}.")


def reproduce_xel(
    kb: KB, to: Path | str, config: SpacesConfig | None = None, progress: Progress | None = None
) -> list[Grid]:
    """Hidden links into one language: every row on the same pairs."""
    to, config = Path(to) / "xel", config or SpacesConfig()
    if not (to / "kb").is_dir():
        split_kb(kb, to / "kb", SplitConfig(hide_links=config.hidden))
    split = KB(to / "kb")
    work = _Work(split, to, config, progress)
    tasks = hidden_tasks(split, config.into)

    def scorer(model: Path, name: str, positives: str, title: str) -> EncoderScorer:
        return EncoderScorer(work.encoder(model, name, positives), title)

    path = to / "xel.json"
    if not path.exists():
        ways: list[Linker] = [FuzzyScorer()]
        for positives in POSITIVES:
            how = f"+ Mirror ({positives})"
            ways.append(scorer(work.base(), "base", positives, f"base {how}"))
            single = {
                lang: scorer(work.model(lang), f"single-{lang}", positives, lang) for lang in tasks
            }
            ways.append(PerLanguage(f"Prix-LM (Single) {how}", single))
            ways.append(scorer(work.model(), "all", positives, f"Prix-LM (All) {how}"))
        ways.append(Translation(work.model(), split, config.into, "Prix-LM (All), translate"))
        write_grids(to, "xel", evaluate_linking(tasks, ways, progress))

    def measure(model: Path, name: str) -> dict[str, float]:
        way = scorer(model, name, config.curve, name)
        return evaluate_linking(tasks, [way], progress)[0].rows[name]

    work.curve("xel", "accuracy@1", measure)
    return read_grids(path)


def reproduce_bli(
    kb: KB,
    to: Path | str,
    dictionaries: Mapping[str, tuple[Dictionary, str | None]],
    config: SpacesConfig | None = None,
    progress: Progress | None = None,
) -> list[Grid]:
    """Bilingual lexicons: base, Single and All, each with both kinds of positives."""
    to, config = Path(to), config or SpacesConfig()
    work = _Work(kb, to, config, progress)
    path = to / "bli.json"
    if not path.exists():
        encoders = {
            f"{title} + Mirror ({positives})": work.encoder(model, name, positives)
            for positives in POSITIVES
            for name, title, model in _models(work)
        }
        found = evaluate_lexicons(encoders, dictionaries, config.frequent, progress)
        write_grids(to, "bli", found)

    def measure(model: Path, name: str) -> dict[str, float]:
        encoder = work.encoder(model, name, config.curve)
        return evaluate_lexicons({name: encoder}, dictionaries, 0, progress)[0].rows[name]

    work.curve("bli", "accuracy", measure)
    return read_grids(path)


def reproduce_probe(
    kb: KB,
    to: Path | str,
    prompts: Mapping[str, Prompts],
    config: SpacesConfig | None = None,
    progress: Progress | None = None,
) -> list[Grid]:
    """Probing: base, Single and All, both protocols."""
    to, config = Path(to), config or SpacesConfig()
    work = _Work(kb, to, config, progress)
    path = to / "probe.json"
    if not path.exists():
        models = {title: load_model(model) for _, title, model in _models(work)}
        grids, _ = evaluate_probing(models, prompts, progress)
        write_grids(to, "probe", grids)

    def measure(model: Path, name: str) -> dict[str, float]:
        grids, _ = evaluate_probing({name: load_model(model)}, prompts, progress)
        return grids[1].rows[name]

    work.curve("probe", "candidate ranking", measure)
    return read_grids(path)


def _models(work: _Work) -> list[tuple[str, str, Path]]:
    """Their names, titles and folders."""
    lang = work.config.single
    return [
        ("base", "base", work.base()),
        (f"single-{lang}", f"Prix-LM (Single, {lang})", work.model(lang)),
        ("all", "Prix-LM (All)", work.model()),
    ]
