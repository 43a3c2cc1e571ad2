"""Speed of link prediction with a trained model: beam search, exact search, exact ranks.

    python benchmarks/link_prediction.py --kb dbp5l --model model            # all test facts
    python benchmarks/link_prediction.py --kb dbp5l --model model --most 200

Prints queries a second, and the ratio to the beam (K = 50) of the same run.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from prixlm.arrays import pair_keys
from prixlm.decoding.completer import Completer
from prixlm.kb.store import KB
from prixlm.rankers.heldout import HeldOut, read_facts
from prixlm.rankers.lm import ModelRanker


def main() -> None:
    """Parse the arguments, rank all facts in three ways and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kb", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--most", type=int, help="test facts of each language; default all")
    options = parser.parse_args()
    kb = KB(options.kb)
    completer = Completer(options.model, kb)
    beam, exact = ModelRanker(completer, search="beam"), ModelRanker(completer)
    searches: dict[str, Callable[[HeldOut], object]] = {
        "beam, ten best": lambda facts: beam.best(facts.queries, 10),
        "exact, ten best": lambda facts: exact.best(facts.queries, 10),
        "exact ranks to 100": lambda facts: exact.ranks(facts.queries, facts.objects, 100),
    }
    langs = [lang for lang in kb.languages if kb.num_triples(lang, "test")]
    held_out = [read_facts(kb, lang, most=options.most) for lang in langs]
    num_facts = sum(map(len, held_out))
    questions = [pair_keys(facts.queries.subject, facts.queries.relation) for facts in held_out]
    num_distinct = sum(len(np.unique(keys)) for keys in questions)
    print(f"{num_facts:,} facts, {num_distinct:,} different questions")
    rates = {}
    for name, search in searches.items():
        started = time.monotonic()
        for facts in held_out:
            search(facts)
        seconds = time.monotonic() - started
        rates[name] = num_facts / seconds
        ratio = rates[name] / rates["beam, ten best"]
        print(
            f"{name}: {seconds / 60:.1f} min, {rates[name]:.0f} queries/s, "
            f"{ratio:.2f} of the beam's rate",
            flush=True,
        )


if __name__ == "__main__":
    main()
