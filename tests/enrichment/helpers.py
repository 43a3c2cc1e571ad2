"""A small KB that lacks facts, settings that are fitted in a second, and a trial."""

from pathlib import Path

import numpy as np

from prixlm import EnrichConfig, JobConfig
from prixlm.enrichment.trial import Trial
from prixlm.metrics import at_levels, reliability
from prixlm.rankers.fusion import FusionConfig

FUSION = FusionConfig(facts=60, iterations=20, smallest=5, depth=5, parts=3)
INTO = ("fi", "sv")
PROPOSALS = EnrichConfig(into=INTO, labels=True, fusion=FUSION)
QUICK = JobConfig(into=INTO, effort="quick", enrich=PROPOSALS)
"""Settings of a job from these countries, fitted in a second."""


def write_countries(folder: Path) -> list[Path]:
    """Write a table of facts and one of links, and return their paths.

    English and Finnish state capitals, currencies and some languages; Swedish has names only.
    """
    facts = ["lang\tsubject\trelation\tobject"]
    links = ["lang_a\tname_a\tlang_b\tname_b"]
    for n in range(80):
        for lang in ("en", "fi"):
            facts.append(f"{lang}\t{lang} land {n}\tcapital\t{lang} town {n}")
            facts.append(f"{lang}\t{lang} land {n}\tcurrency\t{lang} coin {n % 5}")
            if n % 4:
                facts.append(f"{lang}\t{lang} land {n}\tlanguage\t{lang} tongue {n % 3}")
        links += [f"en\ten {noun} {n}\tfi\tfi {noun} {n}" for noun in ("land", "town")]
        links += [f"en\ten {noun} {n}\tsv\tsv {noun} {n}" for noun in ("land", "town")]
    links += [f"en\ten coin {n}\tfi\tfi coin {n}" for n in range(5)]
    links += [f"en\ten tongue {n}\tfi\tfi tongue {n}" for n in range(3)]
    folder.mkdir(exist_ok=True)
    files = [folder / "facts.tsv", folder / "links.tsv"]
    for path, lines in zip(files, (facts, links), strict=True):
        path.write_text("\n".join(lines) + "\n", "utf-8")
    return files


def make_trial(method: str, lang: str, subset: str, held_out: int = 150) -> Trial:
    """A trial with confidences that are about right."""
    sure, right = np.repeat([0.9, 0.2], 60), np.arange(120) < 55
    levels = at_levels(sure, right, held_out)
    return Trial(method, lang, subset, held_out, 0.4, reliability(sure, right), levels, 0.3)
