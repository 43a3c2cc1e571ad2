"""Names encoded per second against sentence-transformers, and neighbours among a million vectors.

    python benchmarks/entities.py encode --encoder FOLDER --kb KB
    python benchmarks/entities.py encode --base-size --tokenizer tokenizer.json --kb KB
    python benchmarks/entities.py search

Both encoders read the same folder and the same names in turn, and their vectors are compared first.
The vectors of `search` are drawn around cluster centres, as those of names lie in a real space: in
uniform noise there are no neighbours to find.
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
from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaForMaskedLM

from prixlm import KB
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.index import NeighbourIndex

Array = np.ndarray[Any, Any]
_LANGUAGES = 4


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def make_base(tokenizer: Path, folder: Path) -> None:
    """A random model of XLM-R base's size, with its own tokenizer."""
    whole = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(tokenizer),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
    )
    config = XLMRobertaConfig(vocab_size=len(whole), max_position_embeddings=514, type_vocab_size=1)
    XLMRobertaForMaskedLM(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    whole.save_pretrained(folder)


def encode(encoder_folder: Path | None, tokenizer: Path | None, kb: Path, number: int) -> None:
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "encoder"
        if tokenizer is not None:
            make_base(tokenizer, Path(temporary) / "base")
            encoder_folder = Path(temporary) / "base"
        assert encoder_folder is not None
        EntityEncoder.load(encoder_folder).save(folder)
        ours = EntityEncoder.load(folder)
        theirs = SentenceTransformer(str(folder), device="cpu")
        source = KB(kb)
        rows = np.random.default_rng(0).permutation(source.num_entities)[:number]
        names = source.names(rows.tolist())
        few = names[:200]
        apart = float(np.abs(ours.encode(few) - theirs.encode(few)).max())
        assert apart < 1e-5, apart
        times: dict[str, list[float]] = {"ours": [], "sentence-transformers": []}
        for _ in range(3):  # in turn, so that noise meets both
            times["ours"].append(seconds(lambda: ours.encode(names)))
            times["sentence-transformers"].append(
                seconds(lambda: theirs.encode(names, batch_size=128))
            )
    best = {who: min(part) for who, part in times.items()}
    report = {
        "names": len(names),
        "largest difference of a number": apart,
        "names a second": {who: round(len(names) / part) for who, part in best.items()},
        "ratio": round(best["sentence-transformers"] / best["ours"], 2),
        "threads": torch.get_num_threads(),
    }
    print(json.dumps(report, indent=1))


def draw(number: int, width: int, centres: Array, seed: int) -> Array:
    """Names around the centres, a quarter of them of each of four languages, which lie apart."""
    generator = np.random.default_rng(seed)
    found = centres[generator.integers(0, len(centres), number)]
    found = found + 0.7 * generator.normal(size=(number, width)).astype(np.float32) / width**0.5
    apart = np.random.default_rng(4).normal(size=(_LANGUAGES, width)).astype(np.float32)
    apart *= 0.5 / np.linalg.norm(apart, axis=1, keepdims=True)
    found = found + apart[np.arange(number) * _LANGUAGES // number]
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True), np.float32)


def recall(found: Array, truth: Array) -> float:
    shared = [len(np.intersect1d(a, b)) for a, b in zip(found, truth, strict=True)]
    return round(float(np.mean(shared)) / len(truth[0]), 4)


def search(number: int, mentions: int, width: int) -> None:
    centres = np.random.default_rng(1).normal(size=(2000, width)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    vectors, queries = draw(number, width, centres, 2), draw(mentions, width, centres, 3)
    truth: list[Array] = []
    report = {}
    within = range(number // _LANGUAGES)  # the names of one language, asked by all
    for kind in ("exact", "ivf", "hnsw"):
        started = time.perf_counter()
        index = NeighbourIndex.build(vectors, kind=kind)
        built = time.perf_counter() - started
        started = time.perf_counter()
        found = index.search(queries, 10).entity
        took = time.perf_counter() - started
        started = time.perf_counter()
        index.search(queries[:1], 10, within)  # builds what it needs for that language
        built_one = time.perf_counter() - started
        started = time.perf_counter()
        found_one = index.search(queries, 10, within).entity
        took_one = time.perf_counter() - started
        truth = truth or [found, found_one]
        report[kind] = {
            "seconds to build": round(built, 1),
            "queries a second": round(mentions / took),
            "recall@10": recall(found, truth[0]),
            "in one language: seconds to build": round(built_one, 1),
            "in one language: queries a second": round(mentions / took_one),
            "in one language: recall@10": recall(found_one, truth[1]),
        }
        print(kind, json.dumps(report[kind]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("encode")
    first.add_argument("--encoder", type=Path)
    first.add_argument("--base-size", action="store_true")
    first.add_argument("--tokenizer", type=Path)
    first.add_argument("--kb", type=Path, required=True)
    first.add_argument("--number", type=int, default=20_000)
    second = commands.add_parser("search")
    second.add_argument("--number", type=int, default=1_000_000)
    second.add_argument("--mentions", type=int, default=10_000)
    second.add_argument("--width", type=int, default=192)
    args = parser.parse_args()
    if args.command == "search":
        search(args.number, args.mentions, args.width)
    elif args.base_size == (args.encoder is not None) or args.base_size != bool(args.tokenizer):
        parser.error("pass --encoder, or --base-size with --tokenizer")
    else:
        encode(args.encoder, args.tokenizer, args.kb, args.number)


if __name__ == "__main__":
    main()
