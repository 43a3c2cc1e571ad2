"""The demo, with settings small enough for a test: every step, its output, resuming it."""

import re
from pathlib import Path

import pytest

from prixlm import PrixError
from prixlm.demo import INTO, DemoConfig, run_demo
from prixlm.entities.mirror import MirrorConfig
from prixlm.lm.compact import CompactConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig
from prixlm.training.sampler import SupplyConfig
from tests.helpers import Ran, run_prixlm

SMALL = DemoConfig(
    langs=("en", *INTO, "ja"),
    pretrain=PretrainConfig(
        base="compact",
        epochs=1,
        batch=512,
        supply=SupplyConfig(links="none"),
        compact=CompactConfig(vocab=600, width=16, layers=1, heads=2),
        training=TrainingConfig(lr=2e-2, log_every=1, checkpoints=(1.0,)),
    ),
    single_epochs=1,
    mirror=MirrorConfig(positives="links", number=64, batch=32, epochs=1),
    fusion=FusionConfig(facts=40, depth=3, iterations=5, smallest=10, parts=2),
    tried=10,
    asked=5,
    relations=("capital",),
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """Run `prixlm demo` once; return its folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prixlm.demo.DemoConfig", lambda: SMALL)
        patch.setenv("COLUMNS", "120")
        return folder, run_prixlm("demo", "--to", folder)


def test_the_demo_shows_languages_and_the_loss_falling(demo: tuple[Path, Ran]) -> None:
    _, ran = demo
    assert ran.returncode == 0, ran.stderr
    for word in ("te  Telugu", "lo  Lao", "5 languages", "ja", "triples too long"):
        assert word in ran.stdout
    first, last = re.findall(r"Training loss (\S+) → (\S+) nats", ran.stdout)[0]
    assert float(last) < 0.9 * float(first)


def test_the_demo_asks_for_held_out_facts_and_names(demo: tuple[Path, Ran]) -> None:
    _, ran = demo
    for title in ("Held-out facts, completed", "English names, translated"):
        assert title in ran.stdout
    assert "15 questions: " in ran.stdout and "20 questions: " in ran.stdout
    for title in ("Hits@1, held-out facts", "Prix-LM (All)", "Prix-LM (Single)", "Proposals"):
        assert title in ran.stdout


def test_the_demo_writes_a_report_and_exports(demo: tuple[Path, Ran]) -> None:
    folder, _ = demo
    page = (folder / "report" / "report.html").read_text("utf-8")
    assert "<script" not in page and 'src="http' not in page and "Lao" in page
    for name in ("facts.nq", "facts.tsv", "report/report.md", "report/report.json"):
        assert (folder / name).stat().st_size > 100


def test_an_interrupted_demo_resumes(
    demo: tuple[Path, Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported again, and the proposals are the same."""
    folder, _ = demo
    (folder / "report" / "report.html").unlink()
    proposals = (folder / "proposals" / "proposals.parquet").read_bytes()
    monkeypatch.setattr("prixlm.demo.import_kb", None)
    assert run_demo(folder, config=SMALL).report.is_file()
    assert (folder / "proposals" / "proposals.parquet").read_bytes() == proposals


def test_the_demo_leaves_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(PrixError, match="has a folder model that was not made by a demo"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
