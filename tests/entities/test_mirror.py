"""Mirror: the loss, what it learns, resuming, words and links as positives."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError
from prixlm.entities.encoder import EntityEncoder
from prixlm.entities.mirror import MirrorConfig, MirrorTask, info_nce, mirror_tune
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
    group = torch.tensor([0, 1, 2, 1, 4])  # rows 1 and 3 are the same thing
    views, owner = torch.cat([first, second]), [0, 1, 2, 1, 4] * 2
    total = 0.0
    for i in range(10):
        partner = (i + 5) % 10
        below = 0.0
        for j in range(10):
            if j == partner or owner[j] != owner[i]:
                below += math.exp(float(views[i] @ views[j]) / 0.2)
        total -= math.log(math.exp(float(views[i] @ views[partner]) / 0.2) / below)
    found = info_nce(first, second, 0.2, group)
    assert float(found) == pytest.approx(total, rel=1e-5)


def nearness(encoder: EntityEncoder, words: list[str]) -> tuple[float, float]:
    """How near a word is to itself, under dropout, and how much nearer than to other words."""
    encoder.model.train()
    torch.manual_seed(0)
    names = encoder.tokenise(words)
    with torch.no_grad():
        first, second = (encoder.pool(names, np.arange(len(words))) for _ in range(2))
    table = first @ second.T
    encoder.model.eval()
    apart = ~torch.eye(len(words), dtype=torch.bool)
    same = float(table.diagonal().mean())
    return same, same - float(table[apart].mean())


def loss_of(encoder: EntityEncoder, words: list[str]) -> float:
    """InfoNCE on words that were not trained on."""
    encoder.model.train()
    torch.manual_seed(0)
    names = encoder.tokenise(words)
    with torch.no_grad():
        first, second = (encoder.pool(names, np.arange(len(words))) for _ in range(2))
        loss = info_nce(first, second, 0.2, torch.arange(len(words)))
    encoder.model.eval()
    return float(loss) / (2 * len(words))


def test_mirror_tells_words_apart_that_it_has_not_seen(
    bases: dict[str, Path], config: MirrorConfig, tmp_path: Path
) -> None:
    held_out = WORDS[60:]
    training = dataclasses.replace(config.training, save_every=1000)
    config = dataclasses.replace(config, epochs=150, training=training)
    start = EntityEncoder.load(bases["xlmr"])
    before = nearness(start, held_out)
    encoder = mirror_tune(bases["xlmr"], tmp_path / "encoder", config)
    after = nearness(encoder, held_out)
    assert after[1] > before[1] + 0.05
    assert loss_of(encoder, held_out) < loss_of(start, held_out) - 0.1
    lines = (tmp_path / "encoder" / "metrics.jsonl").read_text("utf-8").splitlines()
    losses = [
        float(line.split('"valid_loss": ')[1].rstrip("}")) for line in lines if "valid" in line
    ]
    assert losses[-1] < losses[0] - 0.1
    again = EntityEncoder.load(tmp_path / "encoder")
    np.testing.assert_array_equal(again.encode(held_out), encoder.encode(held_out))


def test_a_stopped_run_goes_on_as_if_it_had_not_been(
    bases: dict[str, Path], config: MirrorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mirror_tune(bases["xlmr"], tmp_path / "whole", config)
    real = MirrorTask.loss
    calls = []

    def dying(self: MirrorTask, model: object, batch: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:  # the first is a validation
            raise Stopped("killed", 15)
        return real(self, model, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(MirrorTask, "loss", dying)
    with pytest.raises(Stopped):
        mirror_tune(bases["xlmr"], tmp_path / "parts", config)
    monkeypatch.undo()
    parts = mirror_tune(bases["xlmr"], tmp_path / "parts", config)
    np.testing.assert_array_equal(parts.encode(WORDS), whole.encode(WORDS))
    with pytest.raises(PrixError, match="checkpoint of another run"):
        mirror_tune(bases["xlmr"], tmp_path / "parts", dataclasses.replace(config, batch=10))
    assert config.words is not None
    Path(config.words).write_text("\n".join(WORDS[:50]), "utf-8")
    with pytest.raises(PrixError, match="checkpoint of another run"):
        mirror_tune(bases["xlmr"], tmp_path / "parts", config)  # other words in the file


def test_links_bring_a_name_and_its_counterpart_together(
    bases: dict[str, Path], toy: KB, tmp_path: Path
) -> None:
    # Long enough for any tokenizer: the one of this test is another each time.
    training = TrainingConfig(lr=2e-3, warmup=0.1, checkpoints=(1.0,))
    config = MirrorConfig(positives="links", number=64, batch=8, epochs=50, training=training)
    pairs = [("Finland", "Suomi"), ("France", "Ranska"), ("France", "フランス")]

    def linked(encoder: EntityEncoder) -> float:
        a, b = (encoder.encode(list(side)) for side in zip(*pairs, strict=True))
        return float((a * b).sum(1).mean() - (a @ b.T).mean())

    before = linked(EntityEncoder.load(bases["mbert"]))
    encoder = mirror_tune(bases["mbert"], tmp_path / "encoder", config, toy)
    assert linked(encoder) > before + 0.1


def test_things_of_one_concept_are_no_negatives(toy: KB, bases: dict[str, Path]) -> None:
    config = MirrorConfig(positives="links", number=40, batch=8)
    task = MirrorTask(EntityEncoder.load(bases["xlmr"]), config, toy, {})
    concept, language = toy.concepts(), toy.language_of(np.arange(toy.num_entities))
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
        ({"batch": 1}, "batch and number 2 or more"),
        ({"positives": "links", "words": "w"}, "leave one out"),
    ):
        with pytest.raises(PrixError, match=words):
            MirrorConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(PrixError, match="needs a KB"):
        mirror_tune(bases["xlmr"], tmp_path / "e", MirrorConfig(positives="links"))
    with pytest.raises(PrixError, match="wordfreq has no words of xx"):
        mirror_tune(bases["xlmr"], tmp_path / "e", MirrorConfig(lang="xx"))
    with pytest.raises(PrixError, match="is the model itself"):
        mirror_tune(bases["xlmr"], bases["xlmr"])
    with pytest.raises(PrixError, match="no run of prixlm mirror"):
        mirror_tune(bases["xlmr"], bases["mbert"])
    (tmp_path / "few.txt").write_text("one\n")
    with pytest.raises(PrixError, match="has 1 words"):
        mirror_tune(bases["xlmr"], tmp_path / "e", MirrorConfig(words=str(tmp_path / "few.txt")))


def test_frequent_words_come_from_wordfreq() -> None:
    from prixlm.entities.mirror import read_words

    words = read_words(MirrorConfig(lang="fi", number=50))
    assert len(words) == 50 and "ja" in words
    assert read_words(MirrorConfig(lang="no", number=50)) == read_words(
        MirrorConfig(lang="nb", number=50)
    )
    for lang in ("te", "lo", "mr"):  # for which wordfreq would give English or Hindi
        with pytest.raises(PrixError, match=f"has no words of {lang}"):
            read_words(MirrorConfig(lang=lang, number=50))
