"""The paper's tables on names (Sec. 3.3 to 3.5): entity linking, lexicons, probing.

    reproduce_xel(kb, "table")          # withholds the links of a fifth of the linked concepts
    reproduce_bli(kb, "table", dictionaries)
    reproduce_probe(kb, "table", prompts)

Base is the model before its first step. Single and All are those of the link-prediction table in
the same folder, and are trained here if they are missing. Linking needs an All that was trained
without the withheld links. If the KB withholds links already (`prixlm split --hide-links`), one All
serves all tables. Every model becomes an encoder by Mirror, with words as positives as in the paper
and, beyond it, with links. Each table has a curve over All's checkpoints, step 0 included.

The paper reports linking and lexicons at step 150,000 and probing at step 20,000: 15.8 % and 2.1 %
of its 947,000 updates, 75 % and 10 % of its curve, which ends at 200,000. `linking_at` and
`probing_at` take a step or a share of the run. A compact model from scratch has learnt little by
then, so the end of the run is the default; the curve has the other checkpoints. A Single that is
shorter than the step is taken at its end.

    NAME.json, NAME.md                             the table
    NAME-settings.json                             what it was made with
    NAME-parts.jsonl                               what is measured so far, while it is being made
    NAME-checkpoints.json, NAME-checkpoints.png    the curve
    xel/                                           the same for linking, with a split and models
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import MirrorConfig
from prixlm.errors import PrixError
from prixlm.evaluation.entity_linking import (
    EncoderScorer,
    Linker,
    LinkingTask,
    PerLanguage,
    Translation,
    evaluate_linking,
    spelling_scorers,
    withheld_tasks,
)
from prixlm.evaluation.lexicons import Dictionaries, count_overlap, evaluate_lexicons
from prixlm.evaluation.probing.prompts import Prompts, describe_prompts
from prixlm.evaluation.probing.tables import CANDIDATE_RANKING, evaluate_probing
from prixlm.evaluation.trained import Run, TrainedModels, check_stamp, single_settings
from prixlm.files import read_json, write_atomically
from prixlm.kb.split import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.reports.kept import Kept
from prixlm.reports.plots import plot_curves
from prixlm.reports.tables import ResultTable, read_tables, write_tables
from prixlm.training.checkpoints import is_point
from prixlm.training.pretrain import PretrainConfig
from prixlm.types import Progress

POSITIVES = ("words", "links")
UNTUNED = "base, without Mirror"
UNTUNED_ALL = "Prix-LM (All), without Mirror"


@dataclass(frozen=True, kw_only=True)
class NamesConfig:
    """Settings of the tables; the defaults are for DBP-5L on two cores."""

    pretrain: PretrainConfig = field(default_factory=lambda: PretrainConfig.preset("compact"))
    mirror: MirrorConfig = field(default_factory=lambda: MirrorConfig.preset("compact"))
    mirror_others: MirrorConfig = field(default_factory=MirrorConfig)  # of `others`: the paper's
    pairs: int = 80_000  # positives an epoch, words or links: as many updates of either kind
    hidden: float = 0.2  # share of the linked concepts whose links are withheld
    into: str = "en"  # the language of the entities
    single: str = "en"  # the language of Single, for lexicons and probing
    frequent: int = 50_000  # frequent words that are candidates of a lexicon
    curve: str = "links"  # positives of the encoders on the curve
    others: tuple[str, ...] = ()  # more models, such as bert-base-multilingual-cased
    linking_at: float = 1.0  # share of the run or step of linking and lexicons; the paper's: 150000
    probing_at: float = 1.0  # share of the run or step of probing; the paper's: 20000

    def __post_init__(self) -> None:
        if not all(map(is_point, (self.linking_at, self.probing_at))):
            raise PrixError(
                "linking_at and probing_at are shares of a run, from 0 to 1, or steps: whole "
                "numbers above 1."
            )
        if self.curve not in POSITIVES:
            raise PrixError(f"curve {self.curve}: expected {' or '.join(POSITIVES)}.")

    @classmethod
    def of_base(cls, base: str) -> "NamesConfig":
        """Return the settings for a base model: the paper's, unless it is `compact`."""
        if base == "compact":
            return cls()
        return cls(
            pretrain=replace(PretrainConfig(), base=base),
            mirror=MirrorConfig(),
            pairs=MirrorConfig().number,
            linking_at=0.75,
            probing_at=0.1,
        )


class NamesModels:
    """The models and encoders of these tables, by their roles: base, Single, All and others."""

    def __init__(
        self, models: TrainedModels, config: NamesConfig, singles: TrainedModels | None = None
    ) -> None:
        self.models, self.config = models, config
        self.singles = singles or models  # where Single comes from
        for lang in (config.into, config.single):
            if lang not in models.kb.languages:
                known = ", ".join(models.kb.languages)
                raise PrixError(f"{models.kb.folder} has no {lang}; it has {known}.")
        for point in (config.linking_at, config.probing_at):
            models.check_point("all", config.pretrain, point)

    def all(self) -> Run:
        """Return Prix-LM (All)."""
        return self.models.prix_lm("all", self.config.pretrain)

    def single(self, lang: str) -> Run:
        """Return Prix-LM (Single) of a language."""
        settings = single_settings(self.config.pretrain, lang)
        return self.singles.prix_lm("single", settings, lang)

    def by_title(self, point: float) -> dict[str, tuple[str, Path | str]]:
        """Return the name and folder of other models, base, Single and All, by title of the row.

        point: the share of their runs, or the step, at which Single and All are taken.
        """
        lang = self.config.single
        others: dict[str, tuple[str, Path | str]] = {
            Path(other).name: (Path(other).name, other) for other in self.config.others
        }
        runs = {
            "base": self.all().base(),
            f"Prix-LM (Single, {lang})": self.single(lang).at(point, or_end=True),
            "Prix-LM (All)": self.all().at(point),
        }
        return others | {title: (run.name, run.folder) for title, run in runs.items()}

    def untuned(self) -> dict[str, EntityEncoder]:
        """Return the controls by title: base and All, reading names as their Mirror variants do.

        The base has learnt nothing; All has learnt facts, and nothing about names.
        """
        runs = {UNTUNED: self.all().base(), UNTUNED_ALL: self.all().at(self.config.linking_at)}
        encoder = self.config.mirror.encoder
        return {title: EntityEncoder.load(run.folder, encoder) for title, run in runs.items()}

    def encoder(self, name: str, model: Path | str, positives: str) -> EntityEncoder:
        """Return the Mirror variant of a model with words or links as positives."""
        is_other = str(model) in self.config.others
        config = self.config.mirror_others if is_other else self.config.mirror
        # A file of words would contradict links as positives, and Mirror refuses it.
        words = config.words if positives == "words" else None
        config = replace(config, positives=positives, words=words)
        # As many updates for words as for links, so that the two can be compared.
        if not is_other:
            config = replace(config, number=self.config.pairs)
        return self.models.encoder(name, model, config)

    def scorer(self, run: Run, positives: str, title: str) -> EncoderScorer:
        """Return the Mirror variant of a model of ours as a linker."""
        return EncoderScorer(self.encoder(run.name, run.folder, positives), title)


@dataclass(frozen=True)
class NamesTable:
    """One of the tables: how its rows and its curve are made."""

    name: str  # of its files
    title: str  # of its curve
    metric: str  # on the curve
    inputs: Any  # what it was made from, as JSON values
    make: Callable[[Kept], list[ResultTable]]  # given what is measured so far
    measure: Callable[[Run], dict[str, float]]  # figures of a checkpoint of All, by column

    def reproduce(self, models: NamesModels) -> list[ResultTable]:
        """Make the table and its curve, or what is missing of them; return the table."""
        to = models.models.folder
        path = to / f"{self.name}.json"
        # One table is of one KB, one set of settings and the same files.
        digest = hashlib.sha256(json.dumps(self.inputs, ensure_ascii=False).encode()).hexdigest()
        settings = asdict(models.config)
        stamp = {"KB": models.models.kb.fingerprint(), "settings": settings, "files": digest}
        check_stamp(to / f"{self.name}-settings.json", stamp, path)
        # Each language and each checkpoint is written when it is measured.
        kept = Kept(to / f"{self.name}-parts.jsonl")
        if not path.exists():
            write_tables(to, self.name, self.make(kept))
        self._plot_curve(models, to / f"{self.name}-checkpoints.json", kept)
        kept.remove()
        return read_tables(path)

    def _plot_curve(self, models: NamesModels, path: Path, kept: Kept) -> None:
        """Draw the figures of every checkpoint of All, which are measured once."""
        if not path.exists():
            # Points by column: the step of a checkpoint and its figure in per cent.
            run = models.all()
            points: dict[str, list[tuple[int, float]]] = {}
            for step in run.steps:
                measure = partial(self.measure, run.at_step(step))
                for column, value in kept.get(("curve", str(step)), measure).items():
                    points.setdefault(column, []).append((step, 100 * value))
            write_atomically(path, json.dumps(points, indent=1) + "\n")
        curves = read_json(path)
        ylabel, title = f"{self.metric} (%)", f"{self.title} over checkpoints"
        plot_curves(curves, path.with_suffix(".png"), ylabel, title)


def reproduce_xel(
    kb: KB,
    to: Path | str,
    config: NamesConfig | None = None,
    files: Mapping[str, LinkingTask] | None = None,
    progress: Progress | None = None,
) -> list[ResultTable]:
    """Make the linking table, on withheld links and, if there are any, on files of mentions."""
    config, whole, files = config or NamesConfig(), Path(to), files or {}
    split, folder = _withholding(kb, whole, config.hidden)
    # Single reads no links unless facts are carried along them. So that some are withheld changes
    # nothing, and the Single models of `lp` can be used.
    singles = None if config.pretrain.supply.propagate else TrainedModels(kb, whole, progress)
    models = NamesModels(TrainedModels(split, folder, progress), config, singles)
    tasks = withheld_tasks(split, config.into)

    def with_translation() -> Iterator[Linker]:
        yield from _linkers(models)
        run = models.all().at(config.linking_at)
        yield Translation(run.folder, split, config.into, "Prix-LM (All), translate")

    def make(kept: Kept) -> list[ResultTable]:
        tables = evaluate_linking(tasks, with_translation(), progress, kept=kept)
        if files:  # their names are not the KB's, so the decoder cannot translate into them
            rows = _linkers(models)
            tables += evaluate_linking(files, rows, progress, source="files", kept=kept)
        return tables

    def measure(run: Run) -> dict[str, float]:
        linker = models.scorer(run, config.curve, run.name)
        accuracy, *_ = evaluate_linking(tasks, [linker], progress)
        return accuracy.values(run.name)

    inputs = {name: task.fingerprint() for name, task in files.items()}
    table = NamesTable("xel", "Entity linking", "accuracy@1", inputs, make, measure)
    return table.reproduce(models)


def _withholding(kb: KB, to: Path, share: float) -> tuple[KB, Path]:
    """Return a KB that withholds links, made in `to`/xel if needed, and the folder of its table."""
    if kb.withholds_links:
        return kb, to
    folder = to / "xel"
    if not (folder / "kb").is_dir():
        split_kb(kb, folder / "kb", SplitConfig(hide_links=share))
    split = KB(folder / "kb")
    # The folder may have a split that an earlier call made from another KB.
    if (split.manifest.split or {}).get("from") != kb.fingerprint():
        raise PrixError(f"{folder} was made with another KB: name another folder.")
    return split, folder


def _linkers(models: NamesModels) -> Iterator[Linker]:
    """Yield the rows of the linking table; each is trained when it is its turn."""
    config = models.config

    def single(lang: str, positives: str) -> EncoderScorer:
        # A language that the KB does not have is linked by Single of the entities' language.
        known = lang if lang in models.models.kb.languages else config.into
        run = models.single(known).at(config.linking_at, or_end=True)
        return models.scorer(run, positives, lang)

    yield from spelling_scorers()
    for title, encoder in models.untuned().items():
        yield EncoderScorer(encoder, title)
    for positives in POSITIVES:
        how = f"+ Mirror ({positives})"
        for other in config.others:
            name = Path(other).name
            yield EncoderScorer(models.encoder(name, other, positives), f"{name} {how}")
        yield models.scorer(models.all().base(), positives, f"base {how}")
        make = partial(single, positives=positives)
        yield PerLanguage(f"Prix-LM (Single) {how}", make)
        run = models.all().at(config.linking_at)
        yield models.scorer(run, positives, f"Prix-LM (All) {how}")


def reproduce_bli(
    kb: KB,
    to: Path | str,
    dictionaries: Dictionaries,
    config: NamesConfig | None = None,
    progress: Progress | None = None,
) -> list[ResultTable]:
    """Make the lexicon table: base, Single and All, each with both kinds of positives."""
    config = config or NamesConfig()
    models = NamesModels(TrainedModels(kb, Path(to), progress), config)

    def make(kept: Kept) -> list[ResultTable]:
        encoders = models.untuned() | {
            f"{title} + Mirror ({positives})": models.encoder(name, model, positives)
            for positives in POSITIVES
            for title, (name, model) in models.by_title(config.linking_at).items()
        }
        tables = evaluate_lexicons(encoders, dictionaries, config.frequent, progress, kept=kept)
        return [*tables, count_overlap(kb, dictionaries)]

    def measure(run: Run) -> dict[str, float]:
        encoder = models.encoder(run.name, run.folder, config.curve)
        tables = evaluate_lexicons({run.name: encoder}, dictionaries, 0, progress, spelling=False)
        return tables[0].values(run.name)

    inputs = {name: asdict(dictionary) for name, (dictionary, _) in dictionaries.items()}
    table = NamesTable("bli", "Lexicon induction", "accuracy", inputs, make, measure)
    return table.reproduce(models)


def reproduce_probe(
    kb: KB,
    to: Path | str,
    prompts: Mapping[str, Prompts],
    config: NamesConfig | None = None,
    progress: Progress | None = None,
) -> list[ResultTable]:
    """Make the probing table: base, Single and All, both protocols."""
    config = config or NamesConfig()
    models = NamesModels(TrainedModels(kb, Path(to), progress), config)

    def make(kept: Kept) -> list[ResultTable]:
        named = models.by_title(config.probing_at).items()
        folders = {title: model for title, (_, model) in named}
        return evaluate_probing(folders, prompts, progress, kept=kept)[0]

    def measure(run: Run) -> dict[str, float]:
        tables, _ = evaluate_probing({run.name: run.folder}, prompts, progress)
        ranked = next(table for table in tables if table.metric == CANDIDATE_RANKING)
        return ranked.values(run.name)

    inputs = {lang: describe_prompts(part) for lang, part in prompts.items()}
    metric = "accuracy among the candidates"
    return NamesTable("probe", "Probing", metric, inputs, make, measure).reproduce(models)
