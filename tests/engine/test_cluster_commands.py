"""Every command that takes an engine has the bytes of one worker from Ray, too.

`complete` and `translate` are in test_cluster.py and tests/decoding/test_batch.py.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from prixlm import EngineConfig, EnrichConfig, SplitConfig, enrich, import_kb, split_kb
from prixlm.enrichment.gaps import GapConfig
from prixlm.entities.linker import link_file
from prixlm.evaluation.link_prediction import EvaluateConfig, evaluate_rankers
from prixlm.linking.mentions import MentionLinker
from tests.engine.clusters import on
from tests.enrichment.helpers import FUSION, write_countries
from tests.evaluation.conftest import make_numbered_kb
from tests.helpers import make_linked_kb
from tests.importers.helpers import contents, write_dump

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray itself
in_test_cluster = pytest.mark.skipif(
    not os.environ.get("PRIXLM_TEST_CLUSTER"), reason="make test-cluster runs it"
)


def engines(nodes: Any) -> dict[str, EngineConfig]:
    """One worker here, which is the reference, and two on Ray."""
    return {"one": EngineConfig(workers=1), "ray": on(nodes, workers=2)}


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The bytes of all files of a result, but for the one with the seconds."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "timings.json"
    }
    assert found
    return found


def test_import_on_ray(nodes: Any, tmp_path: Path) -> None:
    sources = [write_dump(tmp_path / f"{name}.nt", 300, seed) for seed, name in enumerate("ab")]
    for name, engine in engines(nodes).items():
        import_kb(sources, tmp_path / name, engine=engine)
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


@in_test_cluster
def test_enrich_on_ray(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fusion is fitted once, in the driver; its workers ask, in parts of 16 questions."""
    monkeypatch.setattr("prixlm.enrichment.run._PART_QUESTIONS", 16)
    kb = import_kb(write_countries(tmp_path / "countries"), tmp_path / "kb")
    split = split_kb(kb, tmp_path / "split", SplitConfig(test=0.2, valid=0.1))
    known = GapConfig(known=("train", "valid"))
    config = EnrichConfig(into=("fi",), min_confidence=0.2, fusion=FUSION, missing=known)
    for name, engine in engines(nodes).items():
        enrich(split, tmp_path / name, config, engine=engine)
    assert bytes_of(tmp_path / "ray") == bytes_of(tmp_path / "one")


@in_test_cluster
def test_link_on_ray(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prixlm.entities.linker._PART", 8)
    linker = MentionLinker(make_linked_kb(tmp_path))
    (tmp_path / "mentions.txt").write_text("\n".join(linker.texts[:40]) + "\n", "utf-8")
    for name, engine in engines(nodes).items():
        link_file(linker, tmp_path / "mentions.txt", tmp_path / f"{name}.parquet", engine=engine)
    assert (tmp_path / "ray.parquet").read_bytes() == (tmp_path / "one.parquet").read_bytes()


@in_test_cluster
def test_evaluate_lp_on_ray(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts of five facts; the fusion is fitted by the driver."""
    monkeypatch.setattr("prixlm.evaluation.link_prediction._PART_FACTS", 5)
    kb, config = make_numbered_kb(tmp_path), EvaluateConfig(fuse=True, search="exact")
    for name, engine in engines(nodes).items():
        evaluate_rankers(kb, config, tmp_path / name, engine=engine)
    assert bytes_of(tmp_path / "ray" / "answers") == bytes_of(tmp_path / "one" / "answers")
