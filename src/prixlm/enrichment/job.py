"""The main job from start to end: from a dump, a KB or a split to proposals, in one work folder.

    summary = run_job([Path("dump.json.gz")], "work", JobConfig(into=("et", "te")))

    WORK/kb          the imported KB, if the source is a dump
    WORK/split       its facts with some held out, if the source is not a split
    WORK/everything  all known facts as train facts, if the source is a split
    WORK/graph, model, encoder    trained on the split, as the effort allows (see `budget`)
    WORK/graph-all   the graph embedding again, trained on everything that is known
    WORK/proposals   what was found
    WORK/report      a page about it
    WORK/work.json   the source, the settings, the plan, and the seconds of each step

Each step is made once. An interrupted job resumes when it is run again, and ends with the same
bytes: what is trained depends on the plan, which is made once. (A second work folder may differ:
the tokenizer of a compact model is not trained the same way twice.) The confidence is fitted on the
split; the proposals come from rankers that know everything (see `run.Whole`).
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from prixlm.engine.jobs import EngineConfig
from prixlm.enrichment.budget import (
    DEFAULT_MINUTES,
    Plan,
    check_effort,
    costs_lines,
    make_plan,
    minutes_text,
    shorten_model,
)
from prixlm.enrichment.report import Report, write_report
from prixlm.enrichment.run import EnrichConfig, Whole, count_questions, enrich
from prixlm.enrichment.source import check_folder, check_languages, identify, is_kb
from prixlm.enrichment.trial import read_trials, reliability_curves, trial_tables
from prixlm.entities.mirror import mirror
from prixlm.errors import PrixError
from prixlm.files import disk_errors, locked, write_atomically
from prixlm.importers.plan import plan_import
from prixlm.importers.run import import_kb
from prixlm.kb.split import SplitConfig, split_kb
from prixlm.kb.store import KB
from prixlm.kb.unsplit import unsplit_kb
from prixlm.languages import parse_languages
from prixlm.proposals.marks import has_marks
from prixlm.proposals.tables import read_manifest
from prixlm.proposals.work import FORMAT, STATE_FILE, read_state
from prixlm.rankers.complex import train_graph
from prixlm.remote import is_remote, local_folder, staged_folder
from prixlm.reports.console import proposal_sentences, trial_sentences
from prixlm.training.pretrain import pretrain
from prixlm.types import Progress

logger = logging.getLogger(__name__)
_FEW_VALID = 100
"""Valid facts below which a confidence is hardly worth its name."""
_TRAINED = ("graph", "graph-all", "model", "encoder")
"""Folders that depend on the plan."""
_MADE = {"kb", "split", "split-facts", "everything", "proposals", "report", *_TRAINED}
"""Folders of a work folder."""
_HIDDEN_LINKS = 0.1
"""Share of the linked concepts whose links are withheld to fit the confidence of new links."""

WRITTEN = {"quick": 1_000, "standard": 5_000, "thorough": 5_000}
"""Concepts of a language that names are written for, by effort: 40 to 70 ms each."""

Announce = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """What the main job makes.

    Example:
        >>> config = prixlm.JobConfig(into=("et", "te"), effort="quick")
    """

    into: tuple[str, ...]  # languages to enrich
    effort: str = "standard"  # quick, standard or thorough; see `budget`
    minutes: float | None = None  # time limit of `standard`; None: an hour
    base: str | None = None  # model that `thorough` starts from; None: xlm-roberta-base
    format: str | None = None  # of the source; None: recognised
    langs: tuple[str, ...] | Literal["all"] | None = None
    """Languages to import beside `into`, or all; None: the format's own."""
    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(test=0.05, valid=0.2, everywhere=0.75, new=0.02)
    )
    enrich: EnrichConfig | None = None  # further settings of the proposals
    plan: Plan | None = None  # what is trained; None: chosen by effort and minutes

    def __post_init__(self) -> None:
        object.__setattr__(self, "into", parse_languages(self.into))
        if self.langs is not None and self.langs != "all":
            object.__setattr__(self, "langs", parse_languages(self.langs))
        if self.enrich is not None and self.enrich.into != self.into:
            raise PrixError(
                f"into is {', '.join(self.into)}, but that of enrich is "
                f"{', '.join(self.enrich.into)}. Name the same languages."
            )
        check_effort(self.effort, self.minutes)
        if self.base is not None and self.effort != "thorough":
            raise PrixError("--base requires --effort thorough: other efforts train their own.")

    @property
    def proposals(self) -> EnrichConfig:
        """The settings of the proposals. Names are proposed unless the settings say otherwise."""
        return self.enrich or EnrichConfig(
            into=self.into, labels=True, written=WRITTEN[self.effort]
        )


@dataclass(frozen=True)
class Given:
    """Folders that the user has already, each instead of a step."""

    model: Path | None = None
    graph: Path | None = None
    encoder: Path | None = None
    reader: Path | None = None  # no step makes one

    def names(self) -> list[str]:
        """The steps that need not be made."""
        return [name for name, folder in vars(self).items() if folder is not None]


def run_job(
    sources: Sequence[Path | str],
    to: Path | str,
    config: JobConfig,
    *,
    given: Given | None = None,
    overwrite: bool = False,
    announce: Announce | None = None,
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make all of a work folder; return the manifest of its proposals.

    sources: dumps, a KB folder or a split. overwrite: replace proposals of other settings.
    announce: called with a line about each step before it begins.
    engine: where the questions are asked; it does not change the result.

    Example:
        >>> config = prixlm.JobConfig(into=("et",), effort="quick", langs=("en", "et", "fi"),
        ...     format="world")
        >>> manifest = prixlm.run_job([], "work", config)
        >>> sorted(path.name for path in prixlm.KB("work/split").folder.parent.iterdir())
        ['kb', 'lock', 'proposals', 'report', 'split', 'work.json']
    """
    with (
        staged_folder(to) as folder,
        open_job(sources, folder, config, given, announce, progress, engine) as job,
    ):
        return job.run(overwrite)


@contextmanager
def open_job(
    sources: Sequence[Path | str],
    to: Path | str,
    config: JobConfig,
    given: Given | None = None,
    announce: Announce | None = None,
    progress: Progress | None = None,
    engine: EngineConfig | None = None,
) -> Iterator["Job"]:
    """Lock a work folder and yield its job; refuse the folder of another source."""
    paths, folder = [Path(source) for source in sources], Path(to)
    identity = identify(paths, config.format, config.langs)
    given = given or Given()
    check_folder(folder, paths, identity, _MADE)
    _check_given(folder, given)
    with disk_errors(folder / STATE_FILE), locked(folder):
        state = read_state(folder)
        if state is None or state["source"] != identity:
            state = {"format": FORMAT, "version": 1, "source": identity}
        job = Job(folder, paths, config, given, state, announce, progress, engine)
        job.write_state()
        yield job


@dataclass
class Job:
    """The steps of a job. Each returns what it made, or what an earlier run has made."""

    folder: Path
    sources: list[Path]
    config: JobConfig
    given: Given
    state: dict[str, Any]  # of work.json
    announce: Announce | None
    progress: Progress | None
    engine: EngineConfig | None = None  # where the questions are asked

    def run(self, overwrite: bool = False) -> dict[str, Any]:
        """Make everything that is missing; return the manifest of the proposals."""
        self._check_proposals(overwrite)
        split = self.split()
        whole = self.everything(split)
        self.state |= {"kb": self._name(whole.folder), "split": self._name(split.folder)}
        plan = self.plan(split, whole)
        return self._propose(split, whole, plan, overwrite)

    def kb(self) -> KB:
        """Import the source, or open it if it is a KB."""
        if is_kb(self.sources):
            return KB(self.sources[0])
        folder = self.folder / "kb"
        if not folder.is_dir():
            with self._step("import", "Importing the source."):
                import_kb(
                    self.sources,
                    folder,
                    format=self.config.format,
                    langs=self._langs(),
                    engine=None if self.engine is None else replace(self.engine, gpus_per_worker=0),
                    progress=self.progress,
                )
        return KB(folder)

    def split(self) -> KB:
        """Hold out some facts, unless the KB holds some out already."""
        kb = self.kb()
        check_languages(kb, self.config.into)
        if kb.num_triples(split="valid"):
            return kb
        if kb.num_triples(split="train") < kb.num_triples():
            raise PrixError(
                f"{kb.folder} holds out facts, but no valid facts to fit a confidence on. Make a "
                f"split with `prixlm split {kb.folder} --resplit --to SPLIT`, and enrich that."
            )
        folder = self.folder / "split"
        if is_kb([folder]) and KB(folder).withholds_links == self._withholds_links(kb):
            return KB(folder)
        # That of another effort. The manifest goes first: a kill leaves a folder that is not a KB.
        (folder / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        with self._step("split", "Holding out facts to fit and to try the confidence."):
            if not self._withholds_links(kb):
                split = split_kb(kb, folder, self.config.split)
            else:
                facts = self.folder / "split-facts"
                if not facts.is_dir():
                    split_kb(kb, facts, self.config.split)
                split = split_kb(KB(facts), folder, SplitConfig(hide_links=_HIDDEN_LINKS))
        num_valid = split.num_triples(split="valid")
        if not num_valid:
            raise PrixError(
                f"the source has {kb.num_triples():,} facts: too few to hold some out and fit a "
                "confidence on them. Expected a thousand or more."
            )
        if num_valid < _FEW_VALID:
            logger.warning(
                "the confidence is fitted on %d facts, because the source has only %d: do not "
                "rely on it",
                num_valid,
                kb.num_triples(),
            )
        return split

    def everything(self, split: KB) -> KB:
        """Return the KB with all known facts as train facts."""
        kb = self.kb()
        if kb.folder != split.folder:
            return kb
        folder = self.folder / "everything"
        if not folder.is_dir():
            with self._step("everything", "Joining the facts of all splits."):
                unsplit_kb(split, folder, self.config.proposals.missing.known)
        return KB(folder)

    def plan(self, split: KB, whole: KB) -> Plan:
        """Make the plan and write it down, or read it."""
        if self.state.get("plan") is None and self.config.plan is not None:
            self.state["plan"] = self.config.plan.as_dict()
        if self.state.get("plan") is None and self.config.effort == "quick":
            self.state["plan"] = Plan(effort="quick").as_dict()
        if self.state.get("plan") is None:
            with self._step("plan", "Measuring how fast this machine trains."):
                plan = make_plan(
                    split,
                    whole,
                    self.config.effort,
                    minutes=self.config.minutes,
                    spent=self._seconds_spent(),
                    base=self.config.base,
                    num_questions=count_questions(whole, self.config.proposals),
                    has=self.given.names(),
                    progress=self.progress,
                )
            self.state["plan"] = plan.as_dict()
            self.write_state()
        try:
            plan = Plan.from_dict(self.state["plan"])
        except (KeyError, TypeError, AttributeError, PrixError):
            raise PrixError(
                f"the plan in {self.folder / STATE_FILE} is damaged. Name another folder."
            ) from None
        if self.announce is not None and (plan.costs or plan.notes):
            title = f"What is trained, {minutes_text(plan.seconds)}:"
            self.announce("\n".join([title, *costs_lines(plan.costs, plan), *plan.notes]))
        return plan

    def _propose(self, split: KB, whole: KB, plan: Plan, overwrite: bool) -> dict[str, Any]:
        """Train what is planned, propose, and write the report."""
        graph, graph_of_all = self._graphs(split, whole, plan)
        plan = self._in_time(plan)
        model = self._model(split, plan)
        encoder = self._encoder(split, plan, model)
        folder = self.folder / "proposals"
        if not self._is_done():
            with self._step("propose", "Fitting the confidence and asking for what is missing."):
                # After a kill the folder may hold old proposals or new ones: neither is `proposed`.
                self.state |= {"proposing": self._settings(), "proposed": None}
                self.write_state()
                enrich(
                    split,
                    folder,
                    self.config.proposals,
                    model=model,
                    graph=graph,
                    encoder=encoder,
                    reader=self.given.reader,
                    whole=Whole(kb=whole, graph=graph_of_all),
                    overwrite=overwrite or folder.exists(),
                    engine=self.engine,
                    progress=self.progress,
                )
                self.state |= {"proposing": None, "proposed": self._settings()}
                self.write_state()
        manifest = read_manifest(folder)
        self._write_report(whole, manifest, model)
        return manifest

    def _graphs(self, split: KB, whole: KB, plan: Plan) -> tuple[Path | None, Path | None]:
        """Train the graph embedding on the split and on everything; None: not planned."""
        settings = plan.graph
        if self.given.graph is not None or settings is None:
            return self.given.graph, None
        graph, of_all = self.folder / "graph", self.folder / "graph-all"
        for to, kb, facts in ((graph, split, "the train facts"), (of_all, whole, "all facts")):
            with self._training(to, f"Training the graph embedding on {facts}.") as is_due:
                if is_due:
                    train_graph(kb, to, settings, self.progress)
        return graph, of_all

    def _in_time(self, plan: Plan) -> Plan:
        """Shorten the model's training if the steps before it took longer than planned."""
        is_due = plan.model is not None and not (self.folder / "model").exists()
        if self.config.effort != "standard" or self.config.plan is not None or not is_due:
            return plan
        left = 60 * (self.config.minutes or DEFAULT_MINUTES) - self._seconds_spent()
        shorter = shorten_model(plan, left)
        if shorter != plan:
            self.state["plan"] = shorter.as_dict()
            self.write_state()
            if self.announce is not None:
                self.announce(shorter.notes[-1])
        return shorter

    def _model(self, split: KB, plan: Plan) -> Path | None:
        if self.given.model is not None or plan.model is None:
            return self.given.model
        folder = self.folder / "model"
        with self._training(folder, "Pretraining the model.") as is_due:
            if is_due:
                pretrain(split, folder, plan.model, self.progress)
        return folder

    def _encoder(self, split: KB, plan: Plan, model: Path | None) -> Path | None:
        if self.given.encoder is not None or plan.encoder is None or model is None:
            return self.given.encoder
        folder = self.folder / "encoder"
        with self._training(folder, "Training the entity encoder.") as is_due:
            if is_due:
                mirror(model, folder, plan.encoder, split, self.progress)
        return folder

    def _write_report(self, whole: KB, manifest: dict[str, Any], model: Path | None) -> Path:
        trials = read_trials(manifest)
        loss = None if model is None else model / "loss.png"
        report = Report(
            whole,
            self.folder / "proposals",
            findings=[*proposal_sentences(manifest), *trial_sentences(manifest["trials"])],
            tables=trial_tables(trials),
            reliability=reliability_curves(trials),
            loss=loss if loss is not None and loss.is_file() else None,
            timings=self.state.get("seconds", {}),
        )
        return write_report(self.folder / "report", report)

    # --- settings and state -----------------------------------------------------------------------

    def write_state(self) -> None:
        """Write work.json."""
        text = json.dumps(self.state, ensure_ascii=False, indent=1)
        write_atomically(self.folder / STATE_FILE, text + "\n")

    @contextmanager
    def _step(self, name: str, line: str) -> Iterator[None]:
        """Announce a step and add its seconds up, also those of interrupted runs."""
        if self.announce is not None:
            self.announce(line)
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = self.state.setdefault("seconds", {})
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - started, 1)
            self.write_state()

    @contextmanager
    def _training(self, folder: Path, line: str) -> Iterator[bool]:
        """Yield whether a training is due, as a step that is noted down when it is done."""
        made = self.state.setdefault("made", [])
        if folder.name in made:
            yield False
            return
        with self._step(folder.name, line):
            yield True
            made.append(folder.name)

    def _name(self, folder: Path) -> str:
        """Return a folder relative to the work folder, if it lies in there."""
        return folder.name if folder.parent == self.folder else str(folder.resolve())

    def _settings(self) -> dict[str, Any]:
        """Return what the proposals depend on, beside the source."""
        given = {name: str(folder) for name, folder in vars(self.given).items() if folder}
        values: dict[str, Any] = json.loads(json.dumps(asdict(self.config) | {"given": given}))
        return values

    def _is_done(self) -> bool:
        return self.state.get("proposed") == self._settings() and self._has_proposals()

    def _has_proposals(self) -> bool:
        return (self.folder / "proposals" / "manifest.json").is_file()

    def _check_proposals(self, overwrite: bool) -> None:
        """Refuse to replace proposals of other settings unasked; forget the plan of those."""
        settings = self._settings()
        self._drop_damaged()
        if self._has_proposals() and not self._is_done():
            if has_marks(self.folder / "proposals"):
                raise PrixError(
                    f"{self.folder} has proposals of other settings that a person has reviewed. "
                    "Name another folder."
                )
            if not overwrite and self.state.get("proposing") != settings:
                raise PrixError(
                    f"{self.folder} has proposals of other settings. Pass --overwrite to make "
                    "them again, or name another folder."
                )
        # Another effort needs another plan, and other models.
        planned = {name: settings[name] for name in ("effort", "minutes", "base", "plan", "given")}
        if self.state.get("planned") != planned:
            # Forgotten before they are deleted: a kill leaves no folder that counts as made.
            self.state |= {"planned": None, "plan": None, "made": []}
            self.write_state()
            for name in _TRAINED:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.state["planned"] = planned
            self.write_state()

    def _drop_damaged(self) -> None:
        """Delete proposals that cannot be read, so that they are made again; never with marks."""
        folder = self.folder / "proposals"
        if not folder.is_dir():
            return
        try:
            read_manifest(folder)
        except PrixError as error:
            if has_marks(folder):
                raise PrixError(
                    f"{folder} is damaged and holds the marks of a review. Move all its files "
                    f"marks.* to a safe place, delete {folder}, run the command again, and "
                    "move them back."
                ) from None
            logger.warning("making the proposals again: %s", error)
            shutil.rmtree(folder)

    def _langs(self) -> Any:
        """Return the languages to import: the format's own, and those to enrich."""
        if self.config.langs == "all":
            return "all"
        if self.config.langs is not None:
            return tuple(dict.fromkeys((*self.config.langs, *self.config.into)))
        chosen = plan_import(self.sources, format=self.config.format).langs
        return "all" if chosen is None else tuple(dict.fromkeys((*chosen, *self.config.into)))

    def _withholds_links(self, kb: KB) -> bool:
        """Whether links are withheld: only an encoder needs that, and only if there are any."""
        wanted = self.config.effort == "thorough" and self.given.encoder is None
        return wanted and any(kb.manifest.counts["linked"].values())

    def _seconds_spent(self) -> float:
        """Return what the steps so far have taken, without plans that were refused."""
        seconds: dict[str, float] = self.state.get("seconds", {})
        return sum(value for name, value in seconds.items() if name != "plan")


def _check_given(folder: Path, given: Given) -> None:
    """Refuse models that are not there, or of the work folder itself: another plan deletes them."""
    for name, model in vars(given).items():
        if model is not None and is_remote(model):
            local_folder(model)  # refuses one that is not there
            continue
        if model is not None and not model.is_dir():
            raise PrixError(f"--{name} {model}: no such folder.")
        if model is not None and model.resolve().is_relative_to(folder.resolve()):
            raise PrixError(
                f"--{name} {model} is in the work folder, which uses its own models unasked. Leave "
                "the option out, or move the model."
            )
