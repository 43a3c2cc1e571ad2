"""Proposals a minute, and how that grows with the number of entities.

    python benchmarks/enrich.py --sizes 1000,3000,9000 --without-model 9000,54000,324000

Each KB is generated: two languages that are fully linked, four relations, of which the second
language lacks three in ten facts. The model is a compact one, trained for some 110 steps or, on the
largest, for an epoch; that is not counted. The time is that of `prixlm enrich`, fitting the
confidence included.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import peak_gib
from prixlm import KB, SplitConfig, import_kb, split_kb
from prixlm.enrichment.run import EnrichConfig, enrich
from prixlm.training.pretrain import PretrainConfig, pretrain

TRAINED = 3000
"""Entities times epochs that a model is trained for, at least."""
RELATIONS = {"country": 200, "occupation": 300, "genre": 100, "spouse": None}
SYLLABLES = (
    "ka",
    "ri",
    "mo",
    "ta",
    "ne",
    "lu",
    "so",
    "vi",
    "da",
    "po",
    "he",
    "ju",
    "an",
    "el",
    "or",
    "is",
)


def names(number: int, mark: str, generator: np.random.Generator) -> list[str]:
    """Two words of a few syllables each; the number tells the same ones apart."""
    parts = generator.integers(0, len(SYLLABLES), (number, 6))
    words = [[SYLLABLES[i] for i in row] for row in parts]
    return [
        f"{''.join(w[:3]).title()} {''.join(w[3:]).title()}{mark} {n}" for n, w in enumerate(words)
    ]


def make_kb(folder: Path, size: int) -> KB:
    """So many entities in each language."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    other = [names(size, mark, generator) for mark in ("", "nen")]
    facts, links = folder / "facts.tsv", folder / "links.tsv"
    with facts.open("w", encoding="utf-8") as file:
        file.write("lang\tsubject\trelation\tobject\n")
        for relation, objects in RELATIONS.items():
            # Objects are drawn as in a real KB: a few of them very often.
            drawn = generator.zipf(1.3, size) % (objects or size)
            lacking = generator.uniform(size=size) < 0.3
            for n in range(size):
                file.write(f"en\t{other[0][n]}\t{relation}\t{other[0][drawn[n]]}\n")
                if not lacking[n]:
                    file.write(f"fi\t{other[1][n]}\t{relation}\t{other[1][drawn[n]]}\n")
    with links.open("w", encoding="utf-8") as file:
        file.write("lang_a\tname_a\tlang_b\tname_b\n")
        for a, b in zip(*other, strict=True):
            file.write(f"en\t{a}\tfi\t{b}\n")
    kb = import_kb([facts, links], folder / "kb")
    # As many valid facts at every size: the share of what fitting takes is then the same.
    share = min(0.1, 2000 / (4 * size))
    return split_kb(kb, folder / "split", SplitConfig(test=share, valid=share, langs=("fi",)))


def train(kb: KB, to: Path, size: int) -> None:
    """About as many steps at every size. One that has learnt nothing would search far longer."""
    config = PretrainConfig.preset("compact")
    pretrain(kb, to, replace(config, epochs=max(1, TRAINED // size)))


def measure(folder: Path, size: int, *, with_model: bool) -> None:
    folder = folder / str(size)
    kb = KB(folder / "split") if (folder / "split").is_dir() else make_kb(folder, size)
    model = folder / "model" if with_model else None
    if model is not None:
        train(kb, model, size)
    proposals = folder / ("with" if with_model else "without")
    for old in (proposals, proposals.with_name(proposals.name + ".partial")):
        shutil.rmtree(old, ignore_errors=True)
    started = time.perf_counter()
    manifest = enrich(kb, proposals, EnrichConfig(into=("fi",), min_confidence=0.0), model)
    seconds = time.perf_counter() - started
    number = sum(manifest["proposals"]["fi"].values())
    print(
        f"| {size:,} | {'yes' if with_model else 'no'} | {number:,} | {seconds:.0f} | "
        f"{60 * number / seconds:,.0f} | {peak_gib():.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,3000,9000", help="entities, with a model")
    parser.add_argument("--without-model", default="9000,54000,324000")
    parser.add_argument("--folder", type=Path, help="keep KBs and models here, for another run")
    args = parser.parse_args()
    print("| entities a language | model | proposals | s | proposals a minute | peak GiB so far |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for with_model, sizes in ((False, args.without_model), (True, args.sizes)):
            for size in filter(None, sizes.split(",")):
                measure(args.folder or Path(temporary), int(size), with_model=with_model)


if __name__ == "__main__":
    main()
