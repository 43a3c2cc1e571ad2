"""Proposals per minute, and how the rate grows with the number of entities.

    python benchmarks/enrich.py --sizes 1000,3000,9000 --without-model 9000,54000,324000

Each KB is generated: two fully linked languages and four relations, of which the second language
lacks 30 % of the facts. The model is a compact one, trained for about 110 steps (one epoch on the
largest KB); its training is not counted. The time is that of `prixlm enrich`, with the fitting of
the confidence.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import peak_gib
from prixlm import (
    KB,
    EnrichConfig,
    PretrainConfig,
    SplitConfig,
    enrich,
    import_kb,
    pretrain,
    split_kb,
)
from prixlm.engine.workspace import partial_folder

MIN_TRAINED = 3000
"""Smallest number of entities times epochs that a model is trained for."""
RELATIONS = {"country": 200, "occupation": 300, "genre": 100, "spouse": None}
"""Relations, and how many entities are objects of each; None: all."""
SYLLABLES = [
    *("ka", "ri", "mo", "ta", "ne", "lu", "so", "vi"),
    *("da", "po", "he", "ju", "an", "el", "or", "is"),
]


def make_names(number: int, ending: str, generator: np.random.Generator) -> list[str]:
    """Return names of two words of three syllables; a number keeps equal ones apart."""
    names = []
    for n, row in enumerate(generator.integers(0, len(SYLLABLES), (number, 6))):
        syllables = [SYLLABLES[i] for i in row]
        first, second = ("".join(part).title() for part in (syllables[:3], syllables[3:]))
        names.append(f"{first} {second}{ending} {n}")
    return names


def make_kb(folder: Path, size: int) -> KB:
    """Generate a KB with `size` entities per language, and split it."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    english, finnish = (make_names(size, ending, generator) for ending in ("", "nen"))
    facts, links = folder / "facts.tsv", folder / "links.tsv"
    with facts.open("w", encoding="utf-8") as file:
        file.write("lang\tsubject\trelation\tobject\n")
        for relation, num_objects in RELATIONS.items():
            # As in a real KB, a few objects are drawn very often.
            drawn = generator.zipf(1.3, size) % (num_objects or size)
            is_missing = generator.uniform(size=size) < 0.3
            for n in range(size):
                file.write(f"en\t{english[n]}\t{relation}\t{english[drawn[n]]}\n")
                if not is_missing[n]:
                    file.write(f"fi\t{finnish[n]}\t{relation}\t{finnish[drawn[n]]}\n")
    with links.open("w", encoding="utf-8") as file:
        file.write("lang_a\tname_a\tlang_b\tname_b\n")
        for a, b in zip(english, finnish, strict=True):
            file.write(f"en\t{a}\tfi\t{b}\n")
    kb = import_kb([facts, links], folder / "kb")
    # The same number of valid facts at every size, so that fitting takes the same share of time.
    share = min(0.1, 2000 / (4 * size))
    return split_kb(kb, folder / "split", SplitConfig(test=share, valid=share, langs=("fi",)))


def train_model(kb: KB, to: Path, size: int) -> None:
    """Train about as many steps at every size: an untrained model would search far longer."""
    config = PretrainConfig.preset("compact")
    pretrain(kb, to, replace(config, epochs=max(1, MIN_TRAINED // size)))


def measure(folder: Path, size: int, *, with_model: bool) -> None:
    """Enrich a KB of one size and print a row of the table."""
    folder = folder / str(size)
    kb = KB(folder / "split") if (folder / "split").is_dir() else make_kb(folder, size)
    model = folder / "model" if with_model else None
    if model is not None:
        train_model(kb, model, size)
    proposals = folder / ("with" if with_model else "without")
    for old in (proposals, partial_folder(proposals)):
        shutil.rmtree(old, ignore_errors=True)
    started = time.perf_counter()
    config = EnrichConfig(into=("fi",), min_confidence=0.0, tried=0)
    manifest = enrich(kb, proposals, config, model=model)
    seconds = time.perf_counter() - started
    number = sum(manifest["proposals"]["fi"].values())
    print(
        f"| {size:,} | {'yes' if with_model else 'no'} | {number:,} | {seconds:.0f} | "
        f"{60 * number / seconds:,.0f} | {peak_gib():.1f} |",
        flush=True,
    )


def main() -> None:
    """Measure all sizes, without a model first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,3000,9000", help="entities, with a model")
    parser.add_argument("--without-model", default="9000,54000,324000")
    parser.add_argument("--folder", type=Path, help="keep KBs and models here for another run")
    args = parser.parse_args()
    print("| entities per language | model | proposals | s | proposals/min | peak GiB so far |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for with_model, sizes in ((False, args.without_model), (True, args.sizes)):
            for size in filter(None, sizes.split(",")):
                measure(args.folder or Path(temporary), int(size), with_model=with_model)


if __name__ == "__main__":
    main()
