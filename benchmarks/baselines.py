"""Graph embeddings: which settings of PyKEEN's models are best on valid facts, and how fast ComplEx
with a softmax over all entities is in PyKEEN and here.

    python benchmarks/baselines.py tune --kb dbp5l --langs el,es --facts 1000
    python benchmarks/baselines.py speed --kb dbp5l --steps 20
"""

import argparse
import json
import tempfile
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch

from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.metrics import figures
from prixlm.rankers.complex import Asked, ComplEx, GraphConfig
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.pykeen import MODELS, BaselineConfig, train_baseline
from prixlm.training.loop import make_optimizer

BASE = BaselineConfig(model="TransE", batch=512, loss="self-adversarial", negatives=16)


def by_distance(model: str, dim: int) -> list[BaselineConfig]:
    """TransE and RotatE."""
    return [
        replace(BASE, model=model, dim=dim, epochs=epochs, margin=margin, lr=lr)
        for epochs, margin, lr in product((30, 90), (3.0, 9.0), (2e-3, 1e-2))
    ]


def by_product() -> list[BaselineConfig]:
    """ComplEx. PyKEEN's own start and regulariser keep it from learning at all; a softmax over all
    entities, which is best for it, takes PyKEEN minutes an epoch even on Greek alone (`speed`)."""
    base = replace(BASE, model="ComplEx", dim=100, start=0.1, margin=3.0)
    return [
        replace(base, epochs=epochs, lr=lr, penalty=penalty)
        for epochs, lr, penalty in product((8, 20), (3e-3, 1e-2), (1e-3, 4e-3))
    ]


GRID = {
    "TransE": by_distance("TransE", 100),
    "ComplEx": by_product(),
    "RotatE": by_distance("RotatE", 50),
}


def tune(kb: KB, langs: list[str], number: int, models: list[str], out: Path | None) -> None:
    facts = {lang: read_facts(kb, lang, "valid", most=number) for lang in langs}
    for name in models:
        for config in [BaselineConfig.default(name), *GRID[name]]:
            found, started = {}, time.monotonic()
            for lang, part in facts.items():
                with tempfile.TemporaryDirectory() as folder:
                    ranker = train_baseline(kb, folder, config, lang)
                    ranks = ranker.ranks(part.queries, part.objects)
                found[lang] = round(100 * figures(ranks).mrr, 1)
            line = json.dumps(
                {
                    "model": name,
                    "epochs": config.epochs,
                    "dim": config.dim,
                    "loss": config.loss,
                    "margin": config.margin,
                    "penalty": config.penalty,
                    "lr": config.lr,
                    "mrr": found,
                    "seconds": round(time.monotonic() - started, 1),
                }
            )
            print(line, flush=True)
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


def speed(kb: KB, steps: int) -> None:
    """Merged triples a second: batches of 1,000, rank 100, softmax over all entities."""
    from pykeen.losses import CrossEntropyLoss
    from pykeen.models import ComplEx as PykeenComplEx
    from pykeen.triples import CoreTriplesFactory

    config = GraphConfig(rank=100)
    size = int(kb.concepts().max()) + 1
    ours = ComplEx(size, kb.num_relations, config.rank, size)  # candidates: all, as PyKEEN's
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
    optimizers = [make_optimizer(ours, config.training), torch.optim.Adagrad(theirs.parameters())]
    seconds = [0.0, 0.0]
    nodes = torch.arange(size)
    order = np.random.default_rng(0).permutation(len(triples))
    for number in range(steps + 2):
        batch = triples[order[number * config.batch : (number + 1) * config.batch]]
        subject, relation, target = (torch.from_numpy(row.copy()) for row in batch.T)
        for place in (0, 1):  # in turn, so that noise meets both
            started = time.monotonic()
            if place == 0:
                asked = Asked(range(size), *(row.copy() for row in batch.T))
                loss = ours.loss(asked, nodes, config.regulariser, config.relations)
            else:
                scores = theirs.score_t(torch.stack([subject, relation % kb.num_relations], dim=1))
                loss = torch.nn.functional.cross_entropy(scores, target, reduction="sum")
            torch.autograd.backward(loss / config.batch)
            optimizers[place].step()
            optimizers[place].zero_grad()
            if number >= 2:
                seconds[place] += time.monotonic() - started
    rate = [steps * config.batch / each for each in seconds]
    print(f"ours {rate[0]:,.0f} triples/s, PyKEEN {rate[1]:,.0f}: {rate[0] / rate[1]:.2f} times")


def main() -> None:
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
