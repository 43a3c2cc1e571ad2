"""What the tests of this room share: a KB with a split, settings, and a trained model."""

from pathlib import Path

import numpy as np
import pytest

from prixlm import KB, SplitConfig, import_kb, split_kb
from prixlm.lm.compact import CompactConfig
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.training.sampler import SupplyConfig
from tests.rankers.conftest import nordic  # noqa: F401  # a fixture, for this room too

TINY = PretrainConfig(
    base="compact",
    epochs=1,
    batch=64,
    token_budget=2048,
    num_valid=20,
    supply=SupplyConfig(max_links=1),
    compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
    training=TrainingConfig(lr=1e-3, validate_every=3, checkpoints=(0.0, 1.0)),
)
"""A Prix-LM that is trained in about a second and knows nothing."""


def make_numbered_kb(folder: Path) -> KB:
    """A KB of 30 concepts in English and Finnish, every second one linked, with all splits."""
    generator = np.random.default_rng(0)
    lines = ["lang\tsubject\trelation\tobject\tsplit"]
    for lang in ("en", "fi"):
        for n in range(30) if lang == "en" else range(3, 30):  # English has facts to carry over
            for r in range(3):
                split = generator.choice(["train", "valid", "test"], p=[0.6, 0.25, 0.15])
                lines.append(f"{lang}\t{lang} {n}\trule {r}\t{lang} {(n + r + 1) % 30}\t{split}")
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(0, 30, 2)]
    (folder / "facts.tsv").write_text("\n".join(lines))
    (folder / "links.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]))
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


@pytest.fixture(scope="session")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """The KB of numbered concepts; tests do not write to it."""
    return make_numbered_kb(tmp_path_factory.mktemp("numbered"))


@pytest.fixture(scope="session")
def model(numbered: KB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Prix-LM (All) of the numbered KB."""
    folder = tmp_path_factory.mktemp("model") / "all"
    pretrain(numbered, folder, TINY)
    return folder


@pytest.fixture(scope="session")
def numbered_split(numbered: KB, tmp_path_factory: pytest.TempPathFactory) -> KB:
    """The numbered KB with the links of a fifth of its linked concepts withheld."""
    to = tmp_path_factory.mktemp("numbered-split") / "kb"
    return split_kb(numbered, to, SplitConfig(hide_links=0.2))


@pytest.fixture(scope="session")
def toy_split(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> KB:
    """The toy KB with most of its links withheld."""
    to = tmp_path_factory.mktemp("toy-split") / "kb"
    return split_kb(shared_toy, to, SplitConfig(hide_links=0.9, valid=0.0))
