"""Measure encoding against sentence-transformers, and search among a million vectors.

    python benchmarks/entities.py encode --encoder FOLDER --kb KB
    python benchmarks/entities.py encode --base-size --kb KB        # random, of XLM-R-base's shape
    python benchmarks/entities.py search

Both encoders read the same folder and the same names in turn, and their vectors are compared first.
The vectors of `search` are drawn around cluster centres, as names lie in a real space: there are no
neighbours to find in uniform noise.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import save_base
from prixlm import KB
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import NeighbourIndex
from prixlm.types import Array

_LANGUAGES = 4


def seconds(work: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def encode(encoder_folder: Path | None, kb: Path, count: int) -> None:
    """Compare names encoded per second. encoder_folder: None for a random model."""
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "encoder"
        if encoder_folder is None:
            encoder_folder = Path(temporary) / "base"
            save_base(encoder_folder)
        EntityEncoder.load(encoder_folder).save(folder)
        ours = EntityEncoder.load(folder)
        theirs = SentenceTransformer(str(folder), device="cpu", trust_remote_code=False)
        source = KB(kb)
        rows = np.random.default_rng(0).permutation(source.num_entities)[:count]
        names = source.names(rows.tolist())
        few = names[:200]
        difference = float(np.abs(ours.encode(few) - theirs.encode(few)).max())
        assert difference < 1e-5, difference
        times: dict[str, list[float]] = {"ours": [], "sentence-transformers": []}
        for _ in range(3):  # in turn, so that noise meets both
            times["ours"].append(seconds(lambda: ours.encode(names)))
            times["sentence-transformers"].append(
                seconds(lambda: theirs.encode(names, batch_size=128))
            )
    best = {who: min(turns) for who, turns in times.items()}
    report = {
        "names": len(names),
        "largest difference of a number": difference,
        "names a second": {who: round(len(names) / turn) for who, turn in best.items()},
        "ratio": round(best["sentence-transformers"] / best["ours"], 2),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(report, indent=1))


def draw(count: int, width: int, centres: Array, seed: int) -> Array:
    """Draw vectors around the centres, (count, width), in equal shares of four languages.

    Languages lie apart, as in a real space: each has an offset of its own.
    """
    generator = np.random.default_rng(seed)
    vectors = centres[generator.integers(0, len(centres), count)]
    vectors = vectors + 0.7 * generator.normal(size=(count, width)).astype(np.float32) / width**0.5
    offsets = np.random.default_rng(4).normal(size=(_LANGUAGES, width)).astype(np.float32)
    offsets *= 0.5 / np.linalg.norm(offsets, axis=1, keepdims=True)
    vectors = vectors + offsets[np.arange(count) * _LANGUAGES // count]
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def recall(entities: Array, truth: Array) -> float:
    """Return the share of the true neighbours that were found."""
    shared = [len(np.intersect1d(a, b)) for a, b in zip(entities, truth, strict=True)]
    return round(float(np.mean(shared)) / len(truth[0]), 4)


def search(count: int, mentions: int, width: int) -> None:
    """Compare the kinds of index: time to build, queries per second, recall."""
    centres = np.random.default_rng(1).normal(size=(2000, width)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    vectors, queries = draw(count, width, centres, 2), draw(mentions, width, centres, 3)
    truth: list[Array] = []
    within = range(count // _LANGUAGES)  # the names of one language, for queries of all
    for kind in ("exact", "ivf", "hnsw"):
        started = time.perf_counter()
        index = NeighbourIndex.build(vectors, kind=kind)
        built = time.perf_counter() - started
        started = time.perf_counter()
        entities = index.search(queries, 10).entity
        searched = time.perf_counter() - started
        started = time.perf_counter()
        index.search(queries[:1], 10, within)  # builds the index of that language
        built_one = time.perf_counter() - started
        started = time.perf_counter()
        entities_one = index.search(queries, 10, within).entity
        searched_one = time.perf_counter() - started
        truth = truth or [entities, entities_one]
        report = {
            "seconds to build": round(built, 1),
            "queries a second": round(mentions / searched),
            "recall@10": recall(entities, truth[0]),
            "in one language: seconds to build": round(built_one, 1),
            "in one language: queries a second": round(mentions / searched_one),
            "in one language: recall@10": recall(entities_one, truth[1]),
        }
        print(kind, json.dumps(report), flush=True)


def main() -> None:
    """Parse the arguments and run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("encode")
    first.add_argument("--encoder", type=Path)
    first.add_argument("--base-size", action="store_true")
    first.add_argument("--kb", type=Path, required=True)
    first.add_argument("--number", type=int, default=20_000)
    second = commands.add_parser("search")
    second.add_argument("--number", type=int, default=1_000_000)
    second.add_argument("--mentions", type=int, default=10_000)
    second.add_argument("--width", type=int, default=192)
    args = parser.parse_args()
    if args.command == "search":
        search(args.number, args.mentions, args.width)
    elif args.base_size == (args.encoder is not None):
        parser.error("pass --encoder or --base-size")
    else:
        encode(args.encoder, args.kb, args.number)


if __name__ == "__main__":
    main()
