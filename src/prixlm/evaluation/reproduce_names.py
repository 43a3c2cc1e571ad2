"""The paper's other three tables (Sec. 3.3 to 3.5), row by row: linking, lexicons, probing.

    reproduce_xel(kb, "table")          # links of a fifth of the linked things are hidden first
    reproduce_bli(kb, "table", dictionaries)
    reproduce_probe(kb, "table", prompts)

Base is the model before its first step; Single and All are those of the link-prediction table in
the same folder, trained here if they are not there. For linking, All is trained anew, without the
hidden links; of a KB that hides links already (`prixlm split --hide-links`) one All serves all
tables. Every model becomes an encoder by Mirror, with words as positives as in the paper and,
beyond it, with links. Each table comes with a curve over All's checkpoints, step 0 included.

The paper reports linking and lexicons at 75 % and probing at 10 % of a run of 200,000 steps from
XLM-R. A compact model from scratch has learnt little by then, so the end of the run is the default
(`linking_at`, `probing_at`), and the others are on the curve.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from prixlm.config import differing
from prixlm.entities.encoder import EntityEncoder, load_model
from prixlm.entities.mirror import MirrorConfig, mirror_tune
from prixlm.errors import PrixError
from prixlm.evaluation.entity_linking import (
    EncoderScorer,
    FuzzyScorer,
    Linker,
    LinkingTask,
    PerLanguage,
)
from prixlm.evaluation.lexicons import Dictionary
from prixlm.evaluation.probing import Prompts
from prixlm.evaluation.spaces import (
    Translation,
    evaluate_lexicons,
    evaluate_linking,
    evaluate_probing,
    hidden_tasks,
)
from prixlm.files import write_atomically
from prixlm.kb.split import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.reports.grids import Grid, read_grids, write_grids
from prixlm.reports.plots import plot_curves
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.types import Progress

POSITIVES = ("words", "links")


@dataclass(frozen=True, kw_only=True)
class SpacesConfig:
    """What the tables are made of; the defaults are for DBP-5L on two cores."""

    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("compact"))
    mirror: MirrorConfig = field(default_factory=lambda: MirrorConfig.preset("compact"))
    mirror_others: MirrorConfig = field(default_factory=MirrorConfig)  # of `others`: the paper's
    pairs: int = 80_000  # positives an epoch, words or links: as many updates of either kind
    hidden: float = 0.2  # share of the linked concepts whose links are hidden
    into: str = "en"  # the language of the entities
    single: str = "en"  # of Single, for lexicons and probing
    frequent: int = 50_000  # frequent words that are candidates of a lexicon
    curve: str = "links"  # positives of the encoders on the curve
    others: tuple[str, ...] = ()  # more models, such as bert-base-multilingual-cased
    linking_at: float = 1.0  # share of the run that linking and lexicons take; the paper's: 0.75
    probing_at: float = 1.0  # and that probing takes; the paper's: 0.1

    def __post_init__(self) -> None:
        if (
            not 0
            <= min(self.linking_at, self.probing_at)
            <= max(self.linking_at, self.probing_at)
            <= 1
        ):
            raise PrixError("linking_at and probing_at are shares of a run, from 0 to 1.")
        if self.curve not in POSITIVES:
            raise PrixError(f"curve {self.curve}: expected {' or '.join(POSITIVES)}.")

    @classmethod
    def of_base(cls, base: str) -> "SpacesConfig":
        """The settings for a model to start from: the paper's, unless it is `compact`."""
        if base == "compact":
            return cls()
        return cls(
            pretrain=replace(PretrainConfig(), base=base),
            mirror=MirrorConfig(),
            pairs=MirrorConfig().number,
            linking_at=0.75,
            probing_at=0.1,
        )


class _Work:
    """One folder, one KB: models and encoders, made where they are missing."""

    def __init__(
        self,
        kb: KB,
        to: Path,
        config: SpacesConfig,
        progress: Progress | None = None,
        singles: tuple[KB, Path] | None = None,
    ) -> None:
        self.kb, self.to, self.config, self.progress = kb, to, config, progress
        self.singles = singles or (kb, to)  # the KB and the folder that Single comes from
        _check_language(kb, config.into)
        _check_language(kb, config.single)

    def check(self, name: str, inputs: Any) -> None:
        """One table is of one KB, one configuration and the same files."""
        path = self.to / f"{name}-settings.json"
        digest = hashlib.sha256(json.dumps(inputs, ensure_ascii=False).encode()).hexdigest()
        mine = {"KB": self.kb.fingerprint(), "settings": asdict(self.config), "files": digest}
        mine = json.loads(json.dumps(mine))
        if path.exists():
            other = json.loads(path.read_text("utf-8"))
            differ = ", ".join(differing(other, mine))
            if differ:
                raise PrixError(
                    f"{path.with_name(name + '.json')} was made with other {differ}: "
                    "name another folder."
                )
            return
        self.to.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(mine, indent=1) + "\n")

    def at(self, share: float, lang: str | None = None) -> tuple[str, Path]:
        """All or Single at the checkpoint nearest to a share of its run: a name and its folder."""
        folder = self.model(lang)
        steps = checkpoint_steps(folder)
        step = min(steps, key=lambda s: abs(s - share * steps[-1]))
        return f"{f'single-{lang}' if lang else 'all'}-step-{step}", checkpoint_folder(folder, step)

    def model(self, lang: str | None = None) -> Path:
        """All, or Single of a language."""
        settings = self.config.pretrain
        kb, folder = self.kb, self.to / "models" / "all"
        if lang is not None:
            kb, folder = self.singles[0], self.singles[1] / "models" / "single" / lang
            supply = replace(settings.supply, langs=(lang,))
            settings = replace(settings, supply=supply)
        pretrain(kb, folder, settings, self.progress)
        return folder

    def base(self) -> tuple[str, Path]:
        """All before its first step: the base model, with its new tokens."""
        folder = self.model()
        if checkpoint_steps(folder)[0] != 0:
            raise PrixError(f"{folder} kept no step 0: train it with a checkpoint at 0.")
        return self.at(0.0)

    def encoder(self, name: str, model: Path | str, positives: str) -> EntityEncoder:
        is_other = str(model) in self.config.others
        config = self.config.mirror_others if is_other else self.config.mirror
        words = config.words if positives == "words" else None
        config = replace(config, positives=positives, words=words)
        if not is_other:
            config = replace(config, number=self.config.pairs)
        folder = self.to / "encoders" / f"{name}-{positives}"
        return mirror_tune(model, folder, config, self.kb, self.progress)

    def scorer(self, name: str, model: Path | str, positives: str, title: str) -> EncoderScorer:
        return EncoderScorer(self.encoder(name, model, positives), title)

    def curve(
        self, name: str, task: str, metric: str, measure: Callable[[str, Path], dict[str, float]]
    ) -> None:
        """What `measure` finds at every checkpoint of All, as JSON and a plot."""
        path = self.to / f"{name}-checkpoints.json"
        if not path.exists():
            steps = checkpoint_steps(self.model())
            found: dict[str, list[tuple[int, float]]] = {}
            for step in steps:
                values = measure(*self.at(step / steps[-1]))
                for column, value in values.items():
                    found.setdefault(column, []).append((step, 100 * value))
            write_atomically(path, json.dumps(found, indent=1) + "\n")
        curves = json.loads(path.read_text("utf-8"))
        points = {column: [(float(x), y) for x, y in line] for column, line in curves.items()}
        plot_curves(points, path.with_suffix(".png"), f"{metric} (%)", f"{task} over checkpoints")


def _check_language(kb: KB, lang: str) -> None:
    if lang not in kb.languages:
        raise PrixError(f"{kb.folder} has no {lang}; it has {', '.join(kb.languages)}.")


def reproduce_xel(
    kb: KB,
    to: Path | str,
    config: SpacesConfig | None = None,
    files: Mapping[str, LinkingTask] | None = None,
    progress: Progress | None = None,
) -> list[Grid]:
    """Hidden links into one language, and files of mentions: every row on the same ones."""
    whole, to, config = Path(to), Path(to) / "xel", config or SpacesConfig()
    if kb.hides_links:
        split, to = kb, whole
    else:
        if not (to / "kb").is_dir():
            split_kb(kb, to / "kb", SplitConfig(hide_links=config.hidden))
        split = KB(to / "kb")
        if (split.manifest.split or {}).get("from") != kb.fingerprint():
            raise PrixError(f"{to} was made with another KB: name another folder.")
    # Single reads no links unless facts are carried along them: that some are hidden changes
    # nothing, and those of `lp` will do.
    singles = None if config.pretrain.supply.propagate else (kb, whole)
    work = _Work(split, to, config, progress, singles)
    files = files or {}
    work.check("xel", {name: task.fingerprint() for name, task in files.items()})
    tasks = hidden_tasks(split, config.into)

    path = to / "xel.json"
    if not path.exists():
        grids = evaluate_linking(tasks, _ways(work, is_file=False), progress)
        if files:
            more = evaluate_linking(files, _ways(work, is_file=True), progress)
            grids += [replace(grid, title=f"{grid.title}, files") for grid in more]
        write_grids(to, "xel", grids)

    def measure(name: str, model: Path) -> dict[str, float]:
        way = work.scorer(name, model, config.curve, name)
        return evaluate_linking(tasks, [way], progress)[0].rows[name]

    work.curve("xel", "Entity linking", "accuracy@1", measure)
    return read_grids(path)


def _ways(work: _Work, *, is_file: bool) -> Iterator[Linker]:
    """The rows of the linking table; `translate` knows the languages of the KB alone."""
    config = work.config

    def single_of(lang: str) -> str:
        """The language itself where the KB has it, else the one that is linked into."""
        return lang if lang in work.kb.languages else config.into

    yield FuzzyScorer()
    share = config.linking_at
    for positives in POSITIVES:
        how = f"+ Mirror ({positives})"
        for other in config.others:
            yield work.scorer(Path(other).name, other, positives, f"{Path(other).name} {how}")
        yield work.scorer(*work.base(), positives, f"base {how}")
        yield PerLanguage(
            f"Prix-LM (Single) {how}",
            lambda lang, positives=positives: work.scorer(  # type: ignore[misc]
                *work.at(share, single_of(lang)), positives, lang
            ),
        )
        yield work.scorer(*work.at(share), positives, f"Prix-LM (All) {how}")
    if not is_file:
        _, model = work.at(share)
        yield Translation(model, work.kb, config.into, "Prix-LM (All), translate")


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
    work.check("bli", {name: asdict(one) for name, (one, _) in dictionaries.items()})
    path = to / "bli.json"
    if not path.exists():
        encoders = {
            f"{title} + Mirror ({positives})": work.encoder(name, model, positives)
            for positives in POSITIVES
            for name, model, title in _models(work, config.linking_at)
        }
        found = evaluate_lexicons(encoders, dictionaries, config.frequent, progress)
        write_grids(to, "bli", found)

    def measure(name: str, model: Path) -> dict[str, float]:
        encoder = work.encoder(name, model, config.curve)
        grids = evaluate_lexicons({name: encoder}, dictionaries, 0, progress, spelling=False)
        return grids[0].rows[name]

    work.curve("bli", "Lexicon induction", "accuracy", measure)
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
    work.check("probe", {lang: [asdict(p) for p in part.prompts] for lang, part in prompts.items()})
    path = to / "probe.json"
    if not path.exists():
        found = _models(work, config.probing_at)
        models = {title: load_model(model) for _, model, title in found}
        grids, _ = evaluate_probing(models, prompts, progress)
        write_grids(to, "probe", grids)

    def measure(name: str, model: Path) -> dict[str, float]:
        grids, _ = evaluate_probing({name: load_model(model)}, prompts, progress)
        return grids[2].rows[name]

    work.curve("probe", "Probing", "accuracy among the candidates", measure)
    return read_grids(path)


def _models(work: _Work, share: float) -> list[tuple[str, Path | str, str]]:
    """Their names, folders and titles."""
    lang = work.config.single
    return [
        *((Path(other).name, other, Path(other).name) for other in work.config.others),
        (*work.base(), "base"),
        (*work.at(share, lang), f"Prix-LM (Single, {lang})"),
        (*work.at(share), "Prix-LM (All)"),
    ]
