"""How much is trained: from an effort and a number of minutes to the settings of each model.

    plan = make_plan(split, whole, "standard", minutes=45, num_questions=77_000)
    plan.graph, plan.model          # their settings, or None

Effort `quick` trains nothing. `standard` trains a graph embedding and a compact Prix-LM, as large
as the time allows: their speed is measured on this machine and this KB. `thorough` takes the
paper's settings with a base model, and no limit unless one is given.

The plan is made once, written down and kept: what is trained depends on it alone, so that an
interrupted run ends as it would have ended.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from prixlm.config import Config, from_dict
from prixlm.entities.mirror import MirrorConfig
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.rankers.complex import GraphConfig, GraphEstimate, estimate_graph
from prixlm.training.estimate import estimate_pretrain
from prixlm.training.pretrain import PretrainConfig
from prixlm.types import Progress

logger = logging.getLogger(__name__)

Effort = Literal["quick", "standard", "thorough"]
EFFORTS: tuple[str, ...] = get_args(Effort)
DEFAULT_MINUTES = 60.0
"""Time of `standard` if none is given."""

_RESERVE = 0.1
"""Share of the time that is kept for what is not estimated: fitting, names, the report."""
_GRAPH_SHARE = 0.4
"""Share of the time that the graph embedding may take."""
_FACTS_A_QUESTION = 40
"""To ask a model one question takes as long as training it on this number of facts, on two cores
(docs/log.md): asking uses little more than one core, and a model of few epochs searches long."""
_GRAPHS = ((300, 10), (200, 10), (128, 10), (128, 6), (64, 6), (64, 3))
"""Ranks and epochs of a graph embedding, the best first."""
_MAX_EPOCHS, _MIN_EPOCHS = 9, 2
"""Epochs of a compact model: no more than its preset has, and no fewer than are worth asking."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one step is expected to take."""

    seconds: float
    memory: int = 0  # bytes
    disk: int = 0  # bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and what it is expected to cost."""

    effort: str
    graph: GraphConfig | None = None
    model: PretrainConfig | None = None
    encoder: MirrorConfig | None = None
    costs: dict[str, Costs] = field(default_factory=dict)  # by step
    notes: tuple[str, ...] = ()  # what was left out, and what would bring it back

    @property
    def seconds(self) -> float:
        """The expected time of all steps."""
        return sum(costs.seconds for costs in self.costs.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the plan for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Plan":
        """Read what `as_dict` returned, from JSON."""

        def read(name: str, defaults: Config) -> Config | None:
            return None if values[name] is None else from_dict(defaults, values[name])

        return cls(
            effort=values["effort"],
            graph=read("graph", GraphConfig()),
            model=read("model", PretrainConfig()),
            encoder=read("encoder", MirrorConfig()),
            costs={step: Costs(**part) for step, part in values["costs"].items()},
            notes=tuple(values["notes"]),
        )


def costs_lines(costs: Mapping[str, Costs], plan: Plan | None = None) -> list[str]:
    """Return one line per step: what is made, and its time, memory and disk."""
    titles: dict[str, str] = {}
    if plan is not None and plan.graph is not None:
        titles["graph"] = f" of rank {plan.graph.rank}, {plan.graph.epochs} epochs, trained twice"
    if plan is not None and plan.model is not None:
        titles["model"] = f" from {plan.model.base}, {plan.model.epochs} epochs"
    lines = []
    for step, part in costs.items():
        size = f", {part.memory / 2**30:.1f} GiB of memory" if part.memory else ""
        size += f", {max(part.disk / 2**30, 0.1):.1f} GiB of disk" if part.disk else ""
        lines.append(f"  {step}{titles.get(step, '')}: {minutes_text(part.seconds)}{size}")
    return lines


def minutes_text(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < 90:
        return f"about {max(1, round(seconds))} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


def check_effort(effort: str, minutes: float | None) -> None:
    """Refuse an unknown effort, or minutes that make no sense."""
    if effort not in EFFORTS:
        raise PrixError(f"--effort {effort}: expected {', '.join(EFFORTS)}.")
    if minutes is not None and not minutes > 0:
        raise PrixError(f"--minutes {minutes:g}: expected more than 0.")
    if minutes is not None and effort == "quick":
        raise PrixError("--minutes limits training, and --effort quick trains nothing.")


def make_plan(
    split: KB,
    whole: KB,
    effort: str,
    *,
    minutes: float | None = None,
    base: str | None = None,
    num_questions: int = 0,
    has: Sequence[str] = (),
    spent: float = 0.0,
    progress: Progress | None = None,
) -> Plan:
    """Choose what to train on a split, and the graph again on the whole KB.

    num_questions: how many will be asked. has: steps (`graph`, `model`, `encoder`) whose folders
    the user has. spent: seconds of the minutes that earlier steps have taken.
    """
    check_effort(effort, minutes)
    if effort == "quick":
        return Plan(effort=effort)
    if effort == "standard":
        limit = minutes or DEFAULT_MINUTES
        planner = _Planner(split, whole, limit, spent, num_questions, progress)
        return planner.plan(has)
    plan = _thorough(split, whole, base or "xlm-roberta-base", num_questions, has, progress)
    if minutes is not None and plan.seconds > 60 * minutes:
        raise PrixError(
            f"--effort thorough takes {minutes_text(plan.seconds)} on this machine, and --minutes "
            f"is {minutes:g}. Pass --effort standard, or no --minutes."
        )
    return plan


class _Planner:
    """Fits the settings of `standard` to a number of minutes."""

    def __init__(
        self,
        split: KB,
        whole: KB,
        minutes: float,
        spent: float,
        num_questions: int,
        progress: Progress | None,
    ) -> None:
        self.split, self.whole, self.minutes, self.spent = split, whole, minutes, spent
        self.num_questions, self.progress = num_questions, progress
        self.seconds = 60 * minutes * (1 - _RESERVE) - spent

    def plan(self, has: Sequence[str]) -> Plan:
        """Return the largest graph embedding and model that fit, the embedding first."""
        plan, nothing = Plan(effort="standard"), Plan(effort="standard")
        share = 1.0 if "model" in has else _GRAPH_SHARE
        graph_needs = model_needs = 0.0  # seconds
        if "graph" not in has:
            plan, graph_needs = self._with_graph(plan, share)
        if "model" not in has:
            plan, model_needs = self._with_model(plan)
            if plan.model is None and "graph" not in has:  # it may then take all of the time
                share = 1.0
                plan, graph_needs = self._with_graph(nothing, share)
        notes = []
        if plan.graph is None and "graph" not in has:
            notes.append(self._left_out("graph embedding", graph_needs / share))
        if plan.model is None and "model" not in has:
            # With more time the embedding grows too, up to its share.
            others = 0.0 if "graph" in has else _GRAPH_SHARE
            notes.append(self._left_out("model", model_needs / (1 - others)))
        if plan.graph is None and plan.model is None and len(notes) == 2:
            raise PrixError(
                f"--minutes {self.minutes:g} is too short to train anything. {' '.join(notes)} "
                "Without training: --effort quick."
            )
        return replace(plan, notes=tuple(notes))

    @cached_property
    def _measured_graph(self) -> GraphEstimate:
        config = GraphConfig(rank=_GRAPHS[2][0], epochs=1)
        return estimate_graph(self.split, config, self.progress)

    def _with_graph(self, plan: Plan, share: float) -> tuple[Plan, float]:
        """Add the first of `_GRAPHS` that fits; also return the seconds that the last one needs.

        share: how much of the time it may take.
        """
        measured, rank = self._measured_graph, _GRAPHS[2][0]
        # It is trained twice, on the split and on the whole KB; the time of an epoch grows with
        # the rank.
        ratio = self.whole.num_triples(split="train") / self.split.num_triples(split="train")
        seconds = 0.0
        for chosen, epochs in _GRAPHS:
            seconds = epochs * measured.seconds * (1 + ratio) * chosen / rank
            if seconds <= share * self.seconds:
                size = chosen / rank
                costs = Costs(
                    seconds=seconds,
                    memory=round(measured.memory * max(1.0, size)),
                    disk=round(2 * measured.disk * size),
                )
                graph = GraphConfig(rank=chosen, epochs=epochs)
                return replace(plan, graph=graph, costs=plan.costs | {"graph": costs}), seconds
        return plan, seconds

    def _with_model(self, plan: Plan) -> tuple[Plan, float]:
        """Add the first compact model that fits; also return what the last one needs."""
        left = self.seconds - plan.seconds
        needed = 0.0
        for preset in ("compact", "demo"):
            config = replace(PretrainConfig.preset(preset), epochs=1)
            measured = estimate_pretrain(self.split, config, self.progress)
            asking = self.num_questions * _FACTS_A_QUESTION / measured.facts_per_second
            epochs = min(_MAX_EPOCHS, int((left - asking) / measured.seconds))
            needed = asking + _MIN_EPOCHS * measured.seconds
            if epochs >= _MIN_EPOCHS:
                model = replace(config, epochs=epochs)
                trained = Costs(
                    seconds=epochs * measured.seconds,
                    memory=measured.memory,
                    disk=measured.disk,
                )
                costs = plan.costs | {"model": trained, "ask the model": Costs(seconds=asking)}
                return replace(plan, model=model, costs=costs), needed
        return plan, needed

    def _left_out(self, what: str, seconds: float) -> str:
        """Return a note with the minutes that leave these seconds for training."""
        minutes = math.ceil((seconds + self.spent) / (1 - _RESERVE) / 60)
        return f"The {what} is left out: it would need --minutes {minutes}."


def shorten_model(plan: Plan, seconds: float) -> Plan:
    """Return the plan with as many epochs of the model as fit into some seconds, asking included.

    Without room for an epoch the model is left out. A note says what was changed.
    """
    if plan.model is None or "model" not in plan.costs:
        return plan
    training, asking = plan.costs["model"], plan.costs["ask the model"]
    epoch = training.seconds / plan.model.epochs
    epochs = min(plan.model.epochs, int((seconds - asking.seconds) / epoch))
    if epochs == plan.model.epochs:
        return plan
    if epochs < 1:
        note = "The steps so far took longer than planned: the model is left out to keep the time."
        costs = {step: part for step, part in plan.costs.items() if "model" not in step}
        return replace(plan, model=None, costs=costs, notes=(*plan.notes, note))
    note = f"The steps so far took longer than planned: {epochs} epochs of the model keep the time."
    shorter = replace(training, seconds=epochs * epoch)
    return replace(
        plan,
        model=replace(plan.model, epochs=epochs),
        costs=plan.costs | {"model": shorter},
        notes=(*plan.notes, note),
    )


def _thorough(
    split: KB,
    whole: KB,
    base: str,
    num_questions: int,
    has: Sequence[str],
    progress: Progress | None,
) -> Plan:
    """Return the paper's settings, with what they are expected to cost on this machine."""
    plan = Plan(effort="thorough")
    if "graph" not in has:
        graph = GraphConfig()
        measured = estimate_graph(split, graph, progress)
        ratio = whole.num_triples(split="train") / split.num_triples(split="train")
        costs = Costs(
            seconds=measured.seconds * (1 + ratio), memory=measured.memory, disk=2 * measured.disk
        )
        plan = replace(plan, graph=graph, costs={"graph": costs})
    if "model" not in has:
        preset = "compact" if base == "compact" else "paper"
        model = replace(PretrainConfig.preset(preset), base=base, trim=base != "compact")
        expected = estimate_pretrain(split, model, progress)
        asking = num_questions * _FACTS_A_QUESTION / expected.facts_per_second
        more = {
            "model": Costs(seconds=expected.seconds, memory=expected.memory, disk=expected.disk),
            "ask the model": Costs(seconds=asking),
        }
        plan = replace(plan, model=model, costs=plan.costs | more)
    if "encoder" not in has and any(split.manifest.counts["linked"].values()):
        preset = "compact" if base == "compact" else "paper"
        plan = replace(plan, encoder=replace(MirrorConfig.preset(preset), positives="links"))
    return plan
