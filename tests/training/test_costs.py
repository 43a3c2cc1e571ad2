"""The figures that every estimate of a training run has."""

from prixlm.training.costs import RunCosts, peak_memory, synchronise


def test_costs_are_sentences_and_a_dict() -> None:
    costs = RunCosts(
        parameters=10,
        triples=5,
        steps=1200,
        facts_per_second=2500.4,
        seconds=3 * 3600 + 125,
        memory=3 << 29,
        checkpoint=7 << 20,
        disk=2 << 30,
    )
    assert costs.as_dict()["steps"] == 1200
    assert costs.costs_text("facts", ", or more") == (
        "Steps: 1,200. Time: 3 h 02 min at 2,500 facts/s, measured now, in one process.\n"
        "Memory: 1.5 GiB, or more. Disk: 2.0 GiB (7 MiB a checkpoint). Nothing was written."
    )


def test_the_peak_memory_is_that_of_this_process() -> None:
    synchronise()
    assert 10 << 20 < peak_memory() < 1 << 40
