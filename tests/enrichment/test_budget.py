"""What is trained within some minutes, with speeds that the tests set."""

import json
from dataclasses import replace

import pytest

from prixlm import KB, GraphConfig, MirrorConfig, PretrainConfig, PrixError
from prixlm.enrichment import budget
from prixlm.enrichment.budget import (
    Costs,
    Plan,
    costs_lines,
    make_plan,
    minutes_text,
    shorten_model,
)
from prixlm.training.costs import RunCosts

GIB = 2**30


def run_costs(seconds: float, rate: float = 1000.0) -> RunCosts:
    return RunCosts(
        parameters=1,
        triples=1,
        steps=1,
        facts_per_second=rate,
        seconds=seconds,
        memory=GIB,
        checkpoint=1,
        disk=GIB // 2,
    )


def set_speed(
    patch: pytest.MonkeyPatch, *, graph: float, compact: float, demo: float, rate: float = 1000.0
) -> None:
    """Set the seconds of an epoch: of a graph embedding of rank 128, and of both models."""

    def estimate_graph(kb: KB, config: GraphConfig, progress: object = None) -> RunCosts:
        return run_costs(graph * config.epochs * config.rank / 128)

    def estimate_pretrain(kb: KB, config: PretrainConfig, progress: object = None) -> RunCosts:
        is_demo = config == replace(PretrainConfig.preset("demo"), epochs=config.epochs)
        return run_costs((demo if is_demo else compact) * config.epochs, rate)

    patch.setattr(budget, "estimate_graph", estimate_graph)
    patch.setattr(budget, "estimate_pretrain", estimate_pretrain)


def test_quick_trains_nothing_and_measures_nothing(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "estimate_graph", None)
    monkeypatch.setattr(budget, "estimate_pretrain", None)
    assert make_plan(shared_toy, shared_toy, "quick") == Plan(effort="quick")


def test_the_largest_settings_are_taken_when_there_is_time(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_speed(monkeypatch, graph=1, compact=1, demo=0.5)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=60, num_questions=1000)
    assert plan.graph == GraphConfig(rank=300, epochs=10)
    assert plan.model == replace(PretrainConfig.preset("compact"), epochs=9)
    assert plan.encoder is None and plan.notes == ()
    # It is trained on the split and on the whole KB, which is the same here.
    assert plan.costs["graph"].seconds == pytest.approx(2 * 10 * 300 / 128)
    assert plan.costs["model"] == Costs(seconds=9, memory=GIB, disk=GIB // 2)
    assert plan.costs["ask the model"].seconds == pytest.approx(40)
    assert plan.seconds == pytest.approx(2 * 10 * 300 / 128 + 9 + 40)


@pytest.mark.parametrize("minutes", [2, 5, 10, 30, 60, 240])
def test_a_plan_keeps_to_its_minutes(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch, minutes: float
) -> None:
    set_speed(monkeypatch, graph=8, compact=120, demo=15)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=minutes, num_questions=500)
    assert plan.graph is not None or plan.model is not None
    assert plan.seconds <= 0.9 * 60 * minutes


def test_less_time_takes_a_smaller_embedding_and_the_smaller_model(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_speed(monkeypatch, graph=8, compact=120, demo=15)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=10)
    assert plan.graph == GraphConfig(rank=128, epochs=10), "rank 200 would take 250 s of 216"
    assert plan.model is not None and plan.model.epochs == 3
    assert plan.model.compact == PretrainConfig.preset("compact").compact
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=4)
    assert plan.graph == GraphConfig(rank=64, epochs=6) and plan.model is not None
    assert plan.model == replace(PretrainConfig.preset("demo"), epochs=plan.model.epochs)


def suggested(note: str) -> float:
    return float(note.rpartition("--minutes ")[2].rstrip("."))


@pytest.mark.parametrize("spent", [0.0, 90.0])
@pytest.mark.parametrize("graph", [0.5, 8.0, 20.0])
def test_what_is_left_out_fits_the_minutes_that_the_note_says(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch, graph: float, spent: float
) -> None:
    set_speed(monkeypatch, graph=graph, compact=500, demo=130)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=5, num_questions=900, spent=spent)
    assert plan.graph is not None and plan.model is None
    (note,) = plan.notes
    assert note.startswith("The model is left out: it would need --minutes ")
    again = make_plan(
        shared_toy,
        shared_toy,
        "standard",
        minutes=suggested(note),
        num_questions=900,
        spent=spent,
    )
    assert again.model is not None and again.graph is not None and again.notes == ()


def test_minutes_that_train_nothing_are_refused_with_what_would_do(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_speed(monkeypatch, graph=100, compact=4000, demo=1000)
    message = (
        r"^--minutes 1 is too short to train anything\. The graph embedding is left out: it would "
        r"need --minutes 6\. The model is left out: it would need --minutes 62\. "
        r"Without training: --effort quick\.$"
    )
    with pytest.raises(PrixError, match=message):
        make_plan(shared_toy, shared_toy, "standard", minutes=1)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=6)
    assert plan.graph == GraphConfig(rank=64, epochs=3) and plan.model is None


def test_an_embedding_alone_may_take_all_of_the_time(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_speed(monkeypatch, graph=8, compact=4000, demo=1000)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=5)
    assert plan.graph == GraphConfig(rank=200, epochs=10) and plan.model is None, "250 s of 270"
    given = make_plan(shared_toy, shared_toy, "standard", minutes=5, has=["model"])
    assert given.graph == plan.graph and given.notes == ()


@pytest.mark.parametrize("has", [[], ["model"]])
def test_an_embedding_that_is_left_out_fits_the_minutes_that_the_note_says(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch, has: list[str]
) -> None:
    set_speed(monkeypatch, graph=100, compact=10, demo=5)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=5, has=has)
    assert plan.graph is None and (plan.model is None) == bool(has)
    (note,) = plan.notes
    assert note.startswith("The graph embedding is left out: it would need --minutes ")
    again = make_plan(shared_toy, shared_toy, "standard", minutes=suggested(note), has=has)
    assert again.graph is not None and again.notes == ()


def test_what_the_user_has_is_not_planned(shared_toy: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    set_speed(monkeypatch, graph=1, compact=1, demo=1)
    plan = make_plan(shared_toy, shared_toy, "standard", has=["graph"])
    assert plan.graph is None and plan.model is not None and "graph" not in plan.costs
    plan = make_plan(shared_toy, shared_toy, "standard", has=["model"])
    assert plan.graph is not None and plan.model is None and list(plan.costs) == ["graph"]
    # A model that is there makes a run useful, even if the embedding does not fit.
    set_speed(monkeypatch, graph=1000, compact=1, demo=1)
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=1, has=["model"])
    assert plan.graph is None and len(plan.notes) == 1


def test_thorough_takes_the_papers_settings_with_its_base(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_speed(monkeypatch, graph=1, compact=60, demo=60)
    plan = make_plan(shared_toy, shared_toy, "thorough", base="xlm-roberta-large")
    assert plan.graph == GraphConfig() and plan.model is not None and plan.encoder is not None
    assert plan.model == replace(
        PretrainConfig.preset("paper"), base="xlm-roberta-large", trim=True
    )
    assert plan.encoder == replace(MirrorConfig.preset("paper"), positives="links")
    with pytest.raises(PrixError, match=r"thorough takes about \d+ min .*--minutes is 1\."):
        make_plan(shared_toy, shared_toy, "thorough", base="compact", minutes=1)


@pytest.mark.parametrize(
    ("effort", "minutes", "message"),
    [
        ("slow", None, "--effort slow: expected quick, standard, thorough"),
        ("standard", 0, "--minutes 0: expected more than 0"),
        ("standard", float("nan"), "--minutes nan: expected more than 0"),
        ("quick", 5, "--effort quick trains nothing"),
    ],
)
def test_an_impossible_effort_is_refused(
    shared_toy: KB, effort: str, minutes: float | None, message: str
) -> None:
    with pytest.raises(PrixError, match=message):
        make_plan(shared_toy, shared_toy, effort, minutes=minutes)


@pytest.mark.parametrize("preset", ["paper", "compact", "demo"])
def test_a_plan_is_read_as_it_was_written(preset: str) -> None:
    plan = Plan(
        effort="standard",
        graph=GraphConfig(rank=64, epochs=3),
        model=replace(PretrainConfig.preset(preset), epochs=4),
        encoder=replace(
            MirrorConfig.preset("paper" if preset == "paper" else "compact"), positives="links"
        ),
        costs={"graph": Costs(seconds=1.5, memory=2, disk=3)},
        notes=("a note",),
    )
    assert Plan.from_dict(json.loads(json.dumps(plan.as_dict()))) == plan
    assert Plan.from_dict(Plan(effort="quick").as_dict()) == Plan(effort="quick")


def test_costs_are_told_by_step() -> None:
    costs = {
        "graph": Costs(seconds=600, memory=3 * GIB, disk=GIB // 100),
        "model": Costs(seconds=7200, disk=2 * GIB),
        "ask the model": Costs(seconds=0.2),
    }
    plan = Plan(
        effort="standard",
        graph=GraphConfig(rank=64, epochs=3),
        model=replace(PretrainConfig.preset("compact"), epochs=4),
    )
    assert costs_lines(costs, plan) == [
        "  graph of rank 64, 3 epochs, trained twice: about 10 min, 3.0 GiB of memory, "
        "0.1 GiB of disk",
        "  model from compact, 4 epochs: about 2.0 h, 2.0 GiB of disk",
        "  ask the model: about 1 s",
    ]
    assert costs_lines(costs)[0].startswith("  graph: about 10 min")


def test_durations_are_told_as_people_say_them() -> None:
    texts = [minutes_text(seconds) for seconds in (0, 89, 90, 5399, 5400)]
    assert texts == ["about 1 s", "about 89 s", "about 2 min", "about 90 min", "about 1.5 h"]


def test_estimates_are_measured_on_the_kb_itself(shared_toy: KB) -> None:
    """Without any patch, on thirteen facts."""
    plan = make_plan(shared_toy, shared_toy, "standard", minutes=600, has=["model"])
    assert plan.graph == GraphConfig(rank=300, epochs=10)
    assert plan.costs["graph"].memory > 0 and plan.costs["graph"].disk > 0


def test_a_model_is_shortened_or_left_out_when_the_time_runs_short() -> None:
    costs = {
        "graph": Costs(seconds=500),
        "model": Costs(seconds=400),
        "ask the model": Costs(seconds=100),
    }
    model = replace(PretrainConfig.preset("demo"), epochs=4)
    plan = Plan(effort="standard", graph=GraphConfig(), model=model, costs=costs)
    assert shorten_model(plan, 500) == plan == shorten_model(plan, 1e6)
    shorter = shorten_model(plan, 499)
    assert shorter.model == replace(model, epochs=3)
    assert shorter.seconds == 900 and "3 epochs of the model keep the time" in shorter.notes[-1]
    assert shorten_model(plan, 200).model == replace(model, epochs=1)
    without = shorten_model(plan, 199)
    assert without.model is None and without.graph == plan.graph
    assert list(without.costs) == ["graph"] and "left out to keep the time" in without.notes[-1]
    assert shorten_model(without, 0) == without
