"""Mirror: its loss, what it learns, resuming, and words or links as positives."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError, import_kb
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import MirrorConfig, MirrorTask, info_nce, mirror, read_words
from prixlm.errors import Stopped
from prixlm.training.loop import TrainingConfig

WORDS = [f"{a}{b}{c}" for a in "bdfgkl" for b in "aeiou" for c in ("n", "rt", "s")]


@pytest.fixture
def config(tmp_path: Path) -> MirrorConfig:
    path = tmp_path / "words.txt"
    path.write_text("\n".join([*WORDS[:60], WORDS[0], "", " "]), "utf-8")
    training = TrainingConfig(lr=2e-3, warmup=0.1, checkpoints=(1.0,), save_every=1)
    return MirrorConfig(words=str(path), batch=20, epochs=2, training=training)


def test_the_loss_equals_a_double_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (
        torch.nn.functional.normalize(torch.randn(5, 4, generator=generator), dim=1)
        for _ in range(2)
    )
    group = torch.tensor([0, 1, 2, 1, 4])  # rows 1 and 3 are the same entity
    views, owner = torch.cat([first, second]), [0, 1, 2, 1, 4] * 2
    total = 0.0
    for i in range(10):
        partner = (i + 5) % 10
        below = 0.0
        for j in range(10):
            if j == partner or owner[j] != owner[i]:
                below += math.exp(float(views[i] @ views[j]) / 0.2)
        total -= math.log(math.exp(float(views[i] @ views[partner]) / 0.2) / below)
    assert float(info_nce(first, second, 0.2, group)) == pytest.approx(total, rel=1e-5)


def measure(encoder: EntityEncoder, words: list[str]) -> tuple[float, float]:
    """How much nearer a word is to itself, under dropout, than to others; and its InfoNCE."""
    encoder.model.train()
    torch.manual_seed(0)
    names = encoder.tokenise(words)
    with torch.no_grad():
        first, second = (encoder.pool(names, np.arange(len(words))) for _ in range(2))
        loss = info_nce(first, second, 0.2, torch.arange(len(words)))
    encoder.model.eval()
    similarity = first @ second.T
    others = ~torch.eye(len(words), dtype=torch.bool)
    nearness = float(similarity.diagonal().mean()) - float(similarity[others].mean())
    return nearness, float(loss) / (2 * len(words))


def test_mirror_tells_words_apart_that_it_has_not_seen(
    letters: Path, config: MirrorConfig, tmp_path: Path
) -> None:
    held_out = WORDS[60:]
    training = dataclasses.replace(config.training, lr=5e-3, save_every=1000)
    config = dataclasses.replace(config, epochs=50, training=training)
    nearness, loss = measure(EntityEncoder.load(letters), held_out)
    encoder = mirror(letters, tmp_path / "encoder", config)
    nearness_after, loss_after = measure(encoder, held_out)
    assert nearness_after > nearness + 0.05 and loss_after < loss - 0.1
    lines = (tmp_path / "encoder" / "metrics.jsonl").read_text("utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    losses = [values["valid_loss"] for values in metrics if "valid_loss" in values]
    assert losses[-1] < losses[0] - 0.1
    again = EntityEncoder.load(tmp_path / "encoder")
    np.testing.assert_array_equal(again.encode(held_out), encoder.encode(held_out))


def test_a_stopped_run_resumes_as_if_it_had_not_been_stopped(
    bases: dict[str, Path], config: MirrorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mirror(bases["xlmr"], tmp_path / "whole", config)
    loss = MirrorTask.loss
    calls = []

    def dying(self: MirrorTask, model: object, batch: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:  # the first is a validation
            raise Stopped("killed", 15)
        return loss(self, model, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(MirrorTask, "loss", dying)
    with pytest.raises(Stopped):
        mirror(bases["xlmr"], tmp_path / "parts", config)
    monkeypatch.undo()
    parts = mirror(bases["xlmr"], tmp_path / "parts", config)
    np.testing.assert_array_equal(parts.encode(WORDS), whole.encode(WORDS))
    with pytest.raises(PrixError, match="checkpoint of another run"):
        mirror(bases["xlmr"], tmp_path / "parts", dataclasses.replace(config, batch=10))
    assert config.words is not None
    Path(config.words).write_text("\n".join(WORDS[:50]), "utf-8")
    with pytest.raises(PrixError, match="checkpoint of another run"):
        mirror(bases["xlmr"], tmp_path / "parts", config)  # other words in the file


def test_links_bring_a_name_and_its_counterpart_together(
    bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    # Long enough for any tokenizer: training one gives different pieces each time.
    training = TrainingConfig(lr=5e-3, warmup=0.1, checkpoints=(1.0,))
    config = MirrorConfig(positives="links", number=64, batch=8, epochs=30, training=training)
    pairs = [("Finland", "Suomi"), ("France", "Ranska"), ("France", "フランス")]

    def linked(encoder: EntityEncoder) -> float:
        a, b = (encoder.encode(list(side)) for side in zip(*pairs, strict=True))
        return float((a * b).sum(1).mean() - (a @ b.T).mean())

    before = linked(EntityEncoder.load(bases["mbert"]))
    encoder = mirror(bases["mbert"], tmp_path / "encoder", config, shared_toy)
    assert linked(encoder) > before + 0.1
    assert encoder.model.settings.lineage.links_of_kb == shared_toy.fingerprint()


def test_pairs_of_one_concept_are_not_negatives_of_each_other(
    shared_toy: KB, bases: dict[str, Path]
) -> None:
    config = MirrorConfig(positives="links", number=40, batch=8)
    task = MirrorTask(EntityEncoder.load(bases["xlmr"]), config, shared_toy, {})
    concept, language = (
        shared_toy.concepts(),
        shared_toy.language_of(np.arange(shared_toy.num_entities)),
    )
    for step in task.steps(0, 0, 1):
        (pairs,) = step.batches
        np.testing.assert_array_equal(concept[pairs.first], concept[pairs.second])
        np.testing.assert_array_equal(pairs.group, concept[pairs.first])
        assert (language[pairs.first] != language[pairs.second]).all()


def test_wrong_settings_are_refused(
    bases: dict[str, Path], tmp_path: Path, toy_files: list[Path]
) -> None:
    for options, words in (
        ({"positives": "names"}, "expected words or links"),
        ({"batch": 1}, "batch 1: expected 2 or more"),
        ({"epochs": 0}, "epochs 0: expected 1 or more"),
        ({"temperature": 0.0}, "temperature 0.0: expected a value above 0"),
        ({"positives": "links", "words": "w"}, "leave out one of them"),
    ):
        with pytest.raises(PrixError, match=words):
            MirrorConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(PrixError, match="requires a KB"):
        mirror(bases["xlmr"], tmp_path / "e", MirrorConfig(positives="links"))
    with pytest.raises(PrixError, match="wordfreq has no words of xx"):
        mirror(bases["xlmr"], tmp_path / "e", MirrorConfig(lang="xx"))
    with pytest.raises(PrixError, match="is the model itself"):
        mirror(bases["xlmr"], bases["xlmr"])
    with pytest.raises(PrixError, match="not a run of `prixlm mirror`"):
        mirror(bases["xlmr"], bases["mbert"])
    (tmp_path / "few.txt").write_text("one\n")
    with pytest.raises(PrixError, match="has 1 words"):
        mirror(bases["xlmr"], tmp_path / "e", MirrorConfig(words=str(tmp_path / "few.txt")))


def test_a_file_may_have_more_words_than_are_asked_for(
    config: MirrorConfig, caplog: pytest.LogCaptureFixture
) -> None:
    assert read_words(config) == WORDS[:60], "each word once, without empty lines"
    few = dataclasses.replace(config, number=5)
    assert read_words(few) == WORDS[:5]
    assert "using the first 5 of its 60 words" in caplog.text


def test_a_kb_without_links_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("lang\tsubject\trelation\tobject\nen\ta\tr\tb\n")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    with pytest.raises(PrixError, match="has no links: use words as positives"):
        mirror(bases["xlmr"], tmp_path / "e", MirrorConfig(positives="links"), kb)


def test_presets_are_the_papers_and_one_for_small_models() -> None:
    paper, compact = MirrorConfig.preset("paper"), MirrorConfig.preset("compact")
    assert (paper.number, paper.epochs, paper.batch, paper.temperature) == (10_000, 2, 128, 0.2)
    assert (paper.training.lr, compact.training.lr) == (2e-5, 2e-3)
    with pytest.raises(PrixError, match="unknown preset large"):
        MirrorConfig.preset("large")


def test_frequent_words_come_from_wordfreq() -> None:
    words = read_words(MirrorConfig(lang="fi", number=50))
    assert len(words) == 50 and "ja" in words
    assert read_words(MirrorConfig(lang="no", number=50)) == read_words(
        MirrorConfig(lang="nb", number=50)
    )
    for lang in ("te", "lo", "mr"):  # for which wordfreq would give English or Hindi
        with pytest.raises(PrixError, match=f"has no words of {lang}"):
            read_words(MirrorConfig(lang=lang, number=50))
