"""Graph embeddings: tune PyKEEN's models on valid facts, and compare the speed of ComplEx.

    python benchmarks/baselines.py tune --kb dbp5l --langs el,es --facts 1000
    python benchmarks/baselines.py speed --kb dbp5l --steps 20

`tune` prints the MRR of every setting of a grid; the best ones are `BaselineConfig.tuned`. `speed`
trains ComplEx with a softmax over all entities here and in PyKEEN, and prints the ratio of rates.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.metrics import figures
from prixlm.rankers.complex import ComplEx, GraphBatch, GraphConfig
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.pykeen import MODELS, BaselineConfig, train_baseline
from prixlm.training.loop import make_optimizer

SHOWN = ("epochs", "dim", "loss", "margin", "penalty", "lr")
"""Settings that the results of `tune` name."""
WARM_UP = 2
"""Steps of `speed` that are not timed."""


def tune(kb: KB, langs: list[str], num_facts: int, models: list[str], out: Path | None) -> None:
    """Print the MRR of every setting on valid facts, and append it to a file."""
    facts = {lang: read_facts(kb, lang, "valid", most=num_facts) for lang in langs}
    for name in models:
        for config in [BaselineConfig.default(name), *BaselineConfig.grid(name)]:
            mrr, started = {}, time.monotonic()
            for lang, held_out in facts.items():
                with tempfile.TemporaryDirectory() as folder:
                    ranker = train_baseline(kb, folder, config, lang)
                    ranks = ranker.ranks(held_out.queries, held_out.objects)
                mrr[lang] = round(100 * figures(ranks).mrr, 1)
            settings = {"model": name} | {key: getattr(config, key) for key in SHOWN}
            seconds = round(time.monotonic() - started, 1)
            line = json.dumps(settings | {"mrr": mrr, "seconds": seconds})
            print(line, flush=True)
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


def speed(kb: KB, num_steps: int) -> None:
    """Print merged triples a second: batches of 1,000, rank 100, softmax over all entities."""
    from pykeen.losses import CrossEntropyLoss
    from pykeen.models import ComplEx as PykeenComplEx
    from pykeen.triples import CoreTriplesFactory

    config = GraphConfig(rank=100)
    size = int(kb.concepts().max()) + 1
    ours = ComplEx(size, kb.num_relations, config.rank, size)  # all concepts are candidates
    merged = read_merged(kb)
    triples = np.stack([merged.source, merged.relation, merged.target], axis=1)
    forward = triples[merged.relation < kb.num_relations]
    factory = CoreTriplesFactory(
        torch.from_numpy(forward), size, kb.num_relations, create_inverse_triples=True
    )
    theirs = PykeenComplEx(
        triples_factory=factory,
        embedding_dim=config.rank,
        loss=CrossEntropyLoss(reduction="sum"),
        regularizer=None,
    )
    nodes = torch.arange(size)

    def our_loss(subject: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        batch = GraphBatch(range(size), subject.numpy(), relation.numpy(), target.numpy())
        return ours.loss(batch, nodes, config.regulariser, config.relations)

    def their_loss(subject: Tensor, relation: Tensor, target: Tensor) -> Tensor:
        scores = theirs.score_t(torch.stack([subject, relation % kb.num_relations], dim=1))
        return torch.nn.functional.cross_entropy(scores, target, reduction="sum")

    runs = {
        "ours": (our_loss, make_optimizer(ours, config.training)),
        "PyKEEN": (their_loss, torch.optim.Adagrad(theirs.parameters())),
    }
    seconds = dict.fromkeys(runs, 0.0)
    order = np.random.default_rng(0).permutation(len(triples))
    for step in range(num_steps + WARM_UP):
        rows = triples[order[step * config.batch : (step + 1) * config.batch]]
        subject, relation, target = (torch.from_numpy(column.copy()) for column in rows.T)
        for name, (loss, optimizer) in runs.items():  # in turn, so that noise affects both
            started = time.monotonic()
            torch.autograd.backward(loss(subject, relation, target) / config.batch)
            optimizer.step()
            optimizer.zero_grad()
            if step >= WARM_UP:
                seconds[name] += time.monotonic() - started
    rate = {name: num_steps * config.batch / each for name, each in seconds.items()}
    ratio = rate["ours"] / rate["PyKEEN"]
    print(f"ours {rate['ours']:,.0f} triples/s, PyKEEN {rate['PyKEEN']:,.0f}: {ratio:.2f} times")


def main() -> None:
    """Parse the arguments and run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["tune", "speed"])
    parser.add_argument("--kb", type=Path, required=True)
    parser.add_argument("--langs", default="el,es")
    parser.add_argument("--facts", type=int, default=1000)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kb = KB(options.kb)
    if options.what == "speed":
        speed(kb, options.steps)
    else:
        tune(kb, options.langs.split(","), options.facts, options.models.split(","), options.out)


if __name__ == "__main__":
    main()
