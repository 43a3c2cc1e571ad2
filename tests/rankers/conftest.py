"""KBs with held-out facts, and rankers with known answers, for the tests of several rankers.

The KBs are shared by all tests: do not write to them.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, import_kb
from prixlm.decoding.completer import Completer
from prixlm.lm.model import PrixLM
from prixlm.rankers.base import PairRanker, Pairs, Queries

_HEADS = ("lang\tsubject\trelation\tobject\tsplit", "lang_a\tname_a\tlang_b\tname_b")
_FACTS = """\
lang\tsubject\trelation\tobject\tsplit
en\tFinland\tborders\tSweden\ttrain
en\tFinland\tborders\tNorway\ttest
en\tFinland\tborders\tRussia\tvalid
en\tNorway\tborders\tFinland\ttrain
en\tSweden\tcapital\tStockholm\ttest
en\tSweden\tcapital of\tOslo\ttrain
en\tNorway\tcapital\tOslo\ttest
fi\tRuotsi\tcapital\tTukholma\ttrain
fi\tNorja\tborders\tRuotsi\ttrain
"""
_LINKS = """\
lang_a\tname_a\tlang_b\tname_b
en\tSweden\tfi\tRuotsi
en\tStockholm\tfi\tTukholma
en\tNorway\tfi\tNorja
"""


@pytest.fixture(scope="session")
def nordic(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Nine facts in two languages: three are test facts, one is a valid fact."""
    return import_tables(tmp_path_factory.mktemp("nordic"), _FACTS, _LINKS)


def import_tables(folder: Path, facts: str, links: str) -> KB:
    """Write two tables with a header line each and import them."""
    files = [folder / "facts.tsv", folder / "links.tsv"]
    for file, text in zip(files, (facts, links), strict=True):
        file.write_text(text, "utf-8")
    return import_kb(files, folder / "kb")


@pytest.fixture(scope="session")
def nordic_completer(nordic: KB, bases: dict[str, Path]) -> Completer:
    """A random model over the entities of `nordic`."""
    return random_completer(nordic, bases["xlmr"])


def random_completer(kb: KB, base: Path) -> Completer:
    """Return a tiny random model whose scores are far enough apart to have one order."""
    model = PrixLM.from_base(base, kb.languages)
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.mul_(4.0)
    return Completer(model, kb)


@pytest.fixture(scope="session")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """40 linked entities in two languages, whose facts are partly random."""
    folder = tmp_path_factory.mktemp("noisy")
    generator = np.random.default_rng(1)
    rows = {
        (lang, f"{lang} {s}", f"r{r}", f"{lang} {(s * (r + 2) + shift) % 40}")
        for lang in ("en", "fi")
        for s, r, shift in generator.integers(0, (40, 3, 3), (300, 3)).tolist()
    }
    splits = generator.choice(["train", "valid", "test"], len(rows), p=[0.7, 0.15, 0.15])
    lines = ["\t".join([*row, s]) for row, s in zip(sorted(rows), splits, strict=True)]
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(40)]
    return import_tables(folder, "\n".join([_HEADS[0], *lines]), "\n".join([_HEADS[1], *links]))


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """240 facts in two languages, of which a `Guess` knows the objects."""
    return write_chain_kb(tmp_path_factory.mktemp("chain"))


def write_chain_kb(folder: Path, shift_test: int = 0) -> KB:
    """Make a KB of 60 entities in two languages: n has object n + 1 (r0) and n + 2 (r1).

    shift_test: added to the objects of test facts.
    """
    generator = np.random.default_rng(0)
    lines = [_HEADS[0]]
    for lang in ("en", "fi"):
        for n in range(60):
            for r in (0, 1):
                split = generator.choice(["train", "valid", "test"], p=[0.4, 0.4, 0.2])
                object_ = (n + r + 1 + (shift_test if split == "test" else 0)) % 60
                lines.append(f"{lang}\t{lang} {n}\tr{r}\t{lang} {object_}\t{split}")
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(0, 60, 2)]
    return import_tables(folder, "\n".join(lines), "\n".join([_HEADS[1], *links]))


class Guess(PairRanker):
    """Lists three objects per query: the truth first for one relation, and third for the other."""

    def __init__(self, kb: KB, right: int) -> None:
        self.name, self.kb, self.right = f"guess {right}", kb, right
        self.number = np.array([int(name.split()[1]) for name in kb.names(range(kb.num_entities))])

    def scored(self, queries: Queries) -> Pairs:
        by_number = {int(self.number[e]): e for e in self.kb.entity_range(queries.lang)}
        keys = self.kb.relation_keys()
        owner, entity, score = [], [], []
        asked = zip(queries.subject.tolist(), queries.relation.tolist(), strict=True)
        for row, (subject, relation) in enumerate(asked):
            truth = int(self.number[subject]) + int(keys[relation][1]) + 1
            offsets = (0, 5, 6) if relation == self.right else (5, 6, 0)
            for rank, offset in enumerate(offsets):
                owner.append(row)
                entity.append(by_number[(truth + offset) % 60])
                score.append(-float(rank))
        return np.array(owner), np.array(entity), np.array(score)
