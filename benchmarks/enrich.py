"""Proposals a minute, and how that grows with the number of entities.

    python benchmarks/enrich.py --sizes 2000,8000,32000 --without-model 128000,512000

Each KB is generated: two languages that are fully linked, four relations, of which the second
language lacks three in ten facts. The model is a compact one with random weights: what it answers
is worth nothing, and takes as long as an answer that is. The time is that of the whole command,
fitting the confidence included.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import peak_gib
from prixlm import KB, SplitConfig, import_kb, split_kb
from prixlm.compact import CompactConfig, make_compact
from prixlm.enrich import EnrichConfig, enrich

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


def measure(size: int, *, with_model: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        kb = make_kb(folder, size)
        model = folder / "model" if with_model else None
        if model is not None:
            random = make_compact(kb, CompactConfig())
            trained = {"kb_fingerprint": kb.fingerprint()}
            random.settings = replace(random.settings, trained=trained)
            random.save(model)
        started = time.perf_counter()
        manifest = enrich(kb, folder / "p", EnrichConfig(into=("fi",), min_confidence=0.0), model)
        seconds = time.perf_counter() - started
    number = sum(manifest["proposals"]["fi"].values())
    print(
        f"| {size:,} | {'yes' if with_model else 'no'} | {number:,} | {seconds:.0f} | "
        f"{60 * number / seconds:,.0f} | {peak_gib():.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="2000,8000,32000", help="entities, with a model")
    parser.add_argument("--without-model", default="32000,128000,512000")
    args = parser.parse_args()
    print("| entities a language | model | proposals | s | proposals a minute | peak GiB so far |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for with_model, sizes in ((True, args.sizes), (False, args.without_model)):
        for size in filter(None, sizes.split(",")):
            measure(int(size), with_model=with_model)


if __name__ == "__main__":
    main()
