"""Graph embeddings through PyKEEN: trained on train alone, ranked as PyKEEN ranks them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError, import_kb
from prixlm.metrics import figures
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.pykeen import (
    MODELS,
    BaselineConfig,
    _read_triples,
    load_baseline,
    train_baseline,
)

pytest.importorskip("pykeen", reason="PyKEEN is an extra: pip install 'prixlm[baselines]'")


@pytest.fixture(scope="module")
def kb(tmp_path_factory: pytest.TempPathFactory) -> KB:
    """Two languages that share their things: 40 entities and 3 relations each."""
    folder = tmp_path_factory.mktemp("graph")
    generator = np.random.default_rng(1)
    rows = {
        (lang, f"{lang} {s}", f"r{r}", f"{lang} {(s * (r + 2) + shift) % 40}")
        for lang in ("en", "fi")
        for s, r, shift in generator.integers(0, (40, 3, 3), (300, 3)).tolist()
    }
    splits = generator.choice(["train", "valid", "test"], len(rows), p=[0.7, 0.15, 0.15])
    lines = ["\t".join([*row, s]) for row, s in zip(sorted(rows), splits, strict=True)]
    links = [f"en\ten {n}\tfi\tfi {n}" for n in range(40)]
    (folder / "facts.tsv").write_text("\n".join(["lang\tsubject\trelation\tobject\tsplit", *lines]))
    (folder / "links.tsv").write_text("\n".join(["lang_a\tname_a\tlang_b\tname_b", *links]))
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("inverse", [False, True])
def test_ranks_are_those_of_pykeens_evaluator(
    kb: KB, model: str, inverse: bool, tmp_path: Path
) -> None:
    from pykeen.evaluation import RankBasedEvaluator

    config = BaselineConfig(
        model=model, dim=8, epochs=20, batch=32, lr=0.05, inverse=inverse, seed=3
    )
    ranker = train_baseline(kb, tmp_path / "run", config, "en")
    facts = read_facts(kb, "en")
    own = figures(ranker.ranks(facts.queries, facts.objects))
    others = [_split(kb, "train"), _split(kb, "valid")]
    evaluator = RankBasedEvaluator(filtered=True)
    found = evaluator.evaluate(
        ranker.model.model,  # type: ignore[attr-defined]
        torch.from_numpy(_split(kb, "test")),
        additional_filter_triples=torch.from_numpy(np.concatenate(others)),
        targets=("tail",),
        batch_size=16,
        use_tqdm=False,
    )
    assert own.mrr == pytest.approx(found.get_metric("tail.realistic.inverse_harmonic_mean_rank"))
    assert own.hits_1 == pytest.approx(found.get_metric("tail.realistic.hits_at_1"))
    assert own.hits_3 == pytest.approx(found.get_metric("tail.realistic.hits_at_3"))
    assert own.hits_10 == pytest.approx(found.get_metric("tail.realistic.hits_at_10"))


def _split(kb: KB, split: str) -> np.ndarray[Any, Any]:
    own = kb.entity_range("en")
    rows = [
        (row["subject"] - own.start, row["relation"], row["object"] - own.start)
        for batch in kb.batches("triples", langs=["en"], split=split)
        for row in batch.to_pylist()
    ]
    return np.array(rows, np.int64)


@pytest.mark.parametrize("model", MODELS)
def test_distances_are_pykeens_scores(kb: KB, model: str, tmp_path: Path) -> None:
    losses = {"TransE": "default", "ComplEx": "softmax", "RotatE": "self-adversarial"}
    config = BaselineConfig(
        model=model,
        dim=8,
        epochs=2,
        loss=losses[model],  # type: ignore[arg-type]
        negatives=4,
        inverse=model == "ComplEx",
    )
    seen: list[tuple[int, int]] = []
    ranker = train_baseline(
        kb, tmp_path / "run", config, None, lambda _, now, of: seen.append((now, of))
    )
    assert seen[-1] == (2, 2)
    scorer: Any = ranker.model
    subject, relation = torch.tensor([0, 5, 9]), torch.tensor([0, 1, 2])
    nodes = torch.arange(3, 40)
    expected = scorer.model.predict_t(torch.stack([subject, relation], 1))[:, nodes]
    asked = (subject, relation, nodes, range(3, 40))
    torch.testing.assert_close(scorer.scores(*asked), expected, rtol=1e-4, atol=1e-4)
    again: Any = load_baseline(kb, tmp_path / "run").model
    assert torch.equal(again.scores(*asked), scorer.scores(*asked))


def test_only_train_is_learnt_from(kb: KB) -> None:
    triples, nodes = _read_triples(kb, "en")
    assert nodes == 40
    assert set(map(tuple, triples.tolist())) == set(map(tuple, _split(kb, "train").tolist()))
    merged, nodes = _read_triples(kb, None)
    assert nodes == 40 and len(merged) > len(triples)


def test_what_cannot_be_asked_is_said(kb: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="baseline DistMult: expected TransE, ComplEx, RotatE"):
        BaselineConfig(model="DistMult")
    with pytest.raises(PrixError, match="are 1 or more"):
        BaselineConfig(model="TransE", epochs=0)
    with pytest.raises(PrixError, match="is no baseline of ours"):
        load_baseline(kb, tmp_path)
    ranker = train_baseline(kb, tmp_path / "r", BaselineConfig(model="TransE", epochs=1), "en")
    with pytest.raises(PrixError, match="TransE, en knows en only, and was asked in fi"):
        ranker.best(read_facts(kb, "fi").queries, 1)
