"""Mirror: its loss, what it learns, resuming, and words or links as positives."""

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError, import_kb
from prixlm.entities.encoder import EncoderSettings, EntityEncoder
from prixlm.entities.mirror import MirrorConfig, MirrorTask, info_nce, mirror, read_words
from prixlm.errors import Stopped
from prixlm.training.loop import TrainingConfig
from tests.conftest import FAMILIES
from tests.training.helpers import run_processes, two_processes
from tests.trimmed import save_trimmed

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


def test_names_of_a_decoder_have_a_space_unless_it_is_left_out(
    families: dict[str, Path], config: MirrorConfig, tmp_path: Path
) -> None:
    made = {}
    for space in (True, False):
        few = dataclasses.replace(config, space=space, epochs=1)
        made[space] = mirror(families["gemma"], tmp_path / str(space), few)
        settings = EntityEncoder.load(tmp_path / str(space)).model.settings
        assert settings.space == space
    assert made[False].is_read_by_others_alike and not made[True].is_read_by_others_alike
    with pytest.raises(PrixError, match="checkpoint of another run"):
        mirror(families["gemma"], tmp_path / "True", dataclasses.replace(config, space=False))


@pytest.mark.parametrize("kind", FAMILIES)
def test_two_views_of_a_word_differ_in_training_only(kind: str, families: dict[str, Path]) -> None:
    """Newer families have no dropout of their own, so that both views would be the same."""
    encoder = EntityEncoder.load(families[kind])
    assert encoder.model.kind.drops == (kind in ("xlmr", "mbert"))
    encoder.model.kind.set_dropout(0.1)
    assert encoder.model.kind.drops
    names, rows = encoder.tokenise(WORDS[:8]), np.arange(8)
    with torch.no_grad():
        encoder.model.train()
        first, second = (encoder.pool(names, rows) for _ in range(2))
        assert ((first - second).abs().amax(1) > 1e-3).all()
        encoder.model.eval()
        assert torch.equal(encoder.pool(names, rows), encoder.pool(names, rows))


def test_mirror_gives_dropout_to_a_base_without_any(
    families: dict[str, Path], config: MirrorConfig, tmp_path: Path
) -> None:
    whole = mirror(families["gemma"], tmp_path / "whole", config)
    assert whole.model.kind.drops
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["attention_dropout"] == 0
    # The same from a checkpoint in the middle: it gets its dropout again.
    shutil.copytree(tmp_path / "whole", tmp_path / "parts")
    for checkpoint in (tmp_path / "parts" / "checkpoints").glob("step-*"):
        if int(checkpoint.name.removeprefix("step-")) > 3:
            shutil.rmtree(checkpoint)
    parts = mirror(families["gemma"], tmp_path / "parts", config)
    np.testing.assert_array_equal(parts.encode(WORDS), whole.encode(WORDS))
    with pytest.raises(PrixError, match="checkpoint of another run"):
        mirror(families["gemma"], tmp_path / "parts", dataclasses.replace(config, dropout=0.2))
    # A base with dropout of its own has the same run with any value.
    values = (config, dataclasses.replace(config, dropout=0.2))
    assert len({one.fingerprint() for one in values}) == 1
    with pytest.raises(PrixError, match="dropout 1: expected 0 or more, and less than 1"):
        dataclasses.replace(config, dropout=1)


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


def mirror_as_one_of_several(base: str, to: str, config: MirrorConfig, kb: str) -> None:
    mirror(base, to, config, KB(kb))
    os._exit(0)  # without gloo's threads, which would wait for each other


def launch(base: Path, to: Path, config: MirrorConfig, kb: KB) -> list[int | None]:
    """Run Mirror in two processes; return their exit codes."""
    args = (str(base), str(to), config, str(kb.folder))
    return run_processes(mirror_as_one_of_several, *args, environments=two_processes())


def test_two_processes_give_the_losses_and_gradients_of_one(
    bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """Negatives come from the pairs of all processes, and gradients flow into all of them."""
    shutil.copytree(bases["xlmr"], tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | no_dropout))
    training = TrainingConfig(lr=2e-3, checkpoints=(1.0,), log_every=1)
    # Of 11 pairs one process has 6 and the other 5.
    # The mean, because the states at <s> of a random model hardly differ: gradients would be noise.
    settings = EncoderSettings(pooling="mean")
    config = MirrorConfig(
        positives="links", number=66, batch=11, encoder=settings, training=training, dropout=0.0
    )
    mirror(tmp_path / "base", tmp_path / "one", config, shared_toy)
    (tmp_path / "two" / "checkpoints").mkdir(parents=True)  # as the faster of the two leaves it
    assert launch(tmp_path / "base", tmp_path / "two", config, shared_toy) == [0, 0]
    one, two = (training_lines(tmp_path / run) for run in ("one", "two"))
    assert [line["step"] for line in one] == list(range(1, 13))
    for expected, found in zip(one, two, strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert found["gradient"] == pytest.approx(expected["gradient"], rel=1e-4)


def training_lines(run: Path) -> list[dict[str, float]]:
    """The loss and the norm of the gradient of each step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [line for line in lines if "loss" in line]


def test_a_batch_smaller_than_the_number_of_processes_is_refused(
    bases: dict[str, Path], shared_toy: KB
) -> None:
    config = MirrorConfig(positives="links", number=40, batch=2)
    task = MirrorTask(EntityEncoder.load(bases["xlmr"]), config, shared_toy, {})
    with pytest.raises(PrixError, match=r"2 pairs in a batch and 3 processes: .* batch of 3"):
        next(task.steps(0, 0, 3))


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
        [(pairs, _, _)] = step.batches
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
    (tmp_path / "graph" / "checkpoints").mkdir(parents=True)
    for name in ("graph.json", "checkpoints/lock"):
        (tmp_path / "graph" / name).write_text("{}")
    with pytest.raises(PrixError, match="found a graph embedding, expected an encoder folder"):
        mirror(bases["xlmr"], tmp_path / "graph")
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


def test_a_trimmed_model_that_reads_other_pieces_than_its_base_is_refused(
    config: MirrorConfig, tmp_path: Path
) -> None:
    words = read_words(config)
    most_kept = save_trimmed(tmp_path / "few", words[3:], words[:3])  # 3 of 60 are 5 %
    assert mirror(most_kept, tmp_path / "encoder", dataclasses.replace(config, epochs=1))
    half_kept = save_trimmed(tmp_path / "many", words[30:], words[:30])
    with pytest.raises(PrixError, match=r"30 of 60 words \(50 %\), .*--trim --keep FILE"):
        mirror(half_kept, tmp_path / "e", config)
    assert not (tmp_path / "e").exists()
    (tmp_path / "facts.tsv").write_text("lang\tsubject\trelation\tobject\nen\tban\tr\tbas\n")
    (tmp_path / "links.tsv").write_text("lang_a\tname_a\tlang_b\tname_b\nen\tban\tfi\tbart\n")
    kb = import_kb([tmp_path / "facts.tsv", tmp_path / "links.tsv"], tmp_path / "kb")
    with pytest.raises(PrixError, match=r"3 of 3 names of .*kb \(100 %\)"):
        mirror(half_kept, tmp_path / "e", MirrorConfig(positives="links"), kb)


def test_a_kb_without_links_is_refused(bases: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "facts.tsv").write_text("lang\tsubject\trelation\tobject\nen\ta\tr\tb\n")
    kb = import_kb([tmp_path / "facts.tsv"], tmp_path / "kb")
    with pytest.raises(PrixError, match="has no links: use words as positives"):
        mirror(bases["xlmr"], tmp_path / "e", MirrorConfig(positives="links"), kb)


def test_presets_are_the_papers_and_one_for_small_models() -> None:
    paper, compact = MirrorConfig.preset("paper"), MirrorConfig.preset("compact")
    assert (paper.number, paper.epochs, paper.batch, paper.temperature) == (10_000, 2, 128, 0.2)
    assert (paper.training.lr, compact.training.lr) == (2e-5, 2e-3)
    original = MirrorConfig.preset("original")
    assert (original.batch, original.training.clip) == (200, math.inf)
    same = dataclasses.replace(paper.training, clip=math.inf)
    assert original == dataclasses.replace(paper, batch=200, training=same)
    with pytest.raises(PrixError, match="unknown preset large"):
        MirrorConfig.preset("large")


def test_words_are_the_most_frequent_ones_of_the_language() -> None:
    words = read_words(MirrorConfig(lang="fi", number=50))
    assert len(words) == 50 and "ja" in words
