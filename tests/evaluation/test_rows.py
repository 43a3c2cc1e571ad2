"""Rows: a ranker that is ready is ranked language by language; rankers of unseen entities."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from prixlm import KB
from prixlm.evaluation.rows import UNSEEN_ROWS, Made, UnseenRows, untrained
from prixlm.evaluation.trained import TrainedModels
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.heldout import read_facts
from tests.evaluation.conftest import TINY

FUSION = FusionConfig(depth=5, facts=50, iterations=5, leaves=4, smallest=2)


def test_ranks_end_where_the_row_or_its_ranker_ends(numbered: KB, tmp_path: Path) -> None:
    facts = [read_facts(numbered, lang) for lang in ("en", "fi")]
    ranker = untrained(numbered, "usual").ranker
    whole = Made(ranker).rank(numbered, facts, tmp_path / "whole.parquet")
    short = Made(ranker, seconds=3.0, search="beam", limit=2).rank(
        numbered, facts, tmp_path / "short.parquet"
    )
    assert (whole.max_rank, whole.training_seconds, whole.how) == (1000, None, "exact")
    assert (short.max_rank, short.training_seconds) == (2, 3.0)
    assert short.how == "beam, to rank 2" and list(short.figures) == ["en", "fi"]
    long, cut = (pq.read_table(tmp_path / f"{name}.parquet")["rank"] for name in ("whole", "short"))
    assert max(long.to_pylist()) > 2
    is_known = [rank <= 2 for rank in long.to_pylist()]
    assert [rank <= 2 for rank in cut.to_pylist()] == is_known
    assert not list(tmp_path.glob("*.partial"))


def test_fusions_of_unseen_entities_take_the_time_of_what_they_train(
    numbered: KB, tmp_path: Path
) -> None:
    rows = UnseenRows(
        models=TrainedModels(numbered, tmp_path),
        pretrain=TINY,
        graph=GraphConfig(rank=4, epochs=1, batch=50),
        fusion=FUSION,
        langs=["en", "fi"],
    )
    makers = rows.makers()
    assert set(UNSEEN_ROWS) <= set(makers)
    alone, with_graph = makers["fused"](), makers["fused-graph"]()
    assert alone.seconds is not None and not (tmp_path / "model").exists()
    graph = makers["graph"]()
    assert graph.seconds is not None and with_graph.seconds is not None
    assert with_graph.seconds == pytest.approx(
        graph.seconds + with_graph.ranker.seconds  # type: ignore[attr-defined]  # a fusion
    )
