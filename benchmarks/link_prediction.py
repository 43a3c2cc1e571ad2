"""How long link prediction takes with a trained model: `beam` (K = 50), the exact ten best, exact
ranks; queries a second, each against the beam in the same run.

    python benchmarks/link_prediction.py --kb dbp5l --model model            # all test facts
    python benchmarks/link_prediction.py --kb dbp5l --model model --most 200
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.decoding.completer import Completer
from prixlm.kb.store import KB
from prixlm.rankers.heldout import HeldOut, read_facts
from prixlm.rankers.lm import ModelRanker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kb", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--most", type=int)
    options = parser.parse_args()
    kb = KB(options.kb)
    completer = Completer(options.model, kb)
    beam, exact = ModelRanker(completer, search="beam"), ModelRanker(completer)
    ways: dict[str, Callable[[HeldOut], Any]] = {
        "beam, ten best": lambda facts: beam.best(facts.queries, 10),
        "exact, ten best": lambda facts: exact.best(facts.queries, 10),
        "exact ranks to 100": lambda facts: exact.ranks(facts.queries, facts.objects, 100),
    }
    langs = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
    parts = [read_facts(kb, lang, most=options.most) for lang in langs]
    number = sum(map(len, parts))
    asked = [np.stack([part.queries.subject, part.queries.relation]) for part in parts]
    distinct = sum(np.unique(pairs, axis=1).shape[1] for pairs in asked)
    print(f"{number:,} facts, {distinct:,} different questions")
    rates = {}
    for name, way in ways.items():
        started = time.monotonic()
        for part in parts:
            way(part)
        seconds = time.monotonic() - started
        rates[name] = number / seconds
        against = rates[name] / rates["beam, ten best"]
        print(
            f"{name}: {seconds / 60:.1f} min, {rates[name]:.0f} queries/s, "
            f"{against:.2f} of the beam's rate",
            flush=True,
        )


if __name__ == "__main__":
    main()
