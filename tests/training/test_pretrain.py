"""Pretraining as users run it: bases, several processes, configurations, and bad input."""

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from prixlm import KB, PrixError, import_kb
from prixlm.config import read_config, to_toml
from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.decoding.free import FreeWriter
from prixlm.lm import token_cache
from prixlm.lm.backbones import BACKBONES
from prixlm.lm.bases import load_base
from prixlm.lm.compact import make_compact
from prixlm.lm.model import PrixLM
from prixlm.lm.trim import pieces_to_keep
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, drop_checkpoints
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig, PretrainTask, make_model, pretrain
from prixlm.training.sampler import SupplyConfig
from prixlm.types import Query
from tests.conftest import FAMILIES
from tests.lm.helpers import all_facts, batch_encoder
from tests.training.helpers import (
    TINY,
    losses,
    run_processes,
    run_torchrun,
    same_weights,
    two_processes,
)


@pytest.mark.parametrize(
    ("kind", "trim"), [*((kind, True) for kind in FAMILIES), ("xlmr", False), ("llama", False)]
)
def test_hub_bases_load_train_and_save(
    kind: str,
    trim: bool,
    families: dict[str, Path],
    shared_toy: KB,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = partial(pieces_to_keep, num_words=20)  # 50,000 words take seconds
    monkeypatch.setattr("prixlm.training.pretrain.pieces_to_keep", few)
    training = dataclasses.replace(TINY.training, save_every=1000, validate_every=1000)
    config = dataclasses.replace(
        TINY, base=str(families[kind]), epochs=12, trim=trim, training=training
    )
    model = pretrain(shared_toy, tmp_path / "run", config)
    by_step = losses(tmp_path / "run")
    assert by_step[max(by_step)] < 0.8 * by_step[1]
    again = PrixLM.load(tmp_path / "run")
    assert same_weights(model, again)
    assert AutoModel.from_pretrained(tmp_path / "run").config.model_type in BACKBONES
    assert "[O]" in AutoTokenizer.from_pretrained(tmp_path / "run").get_vocab()
    assert again.settings.lineage.base == families[kind].name
    assert again.settings.lineage.earlier_kbs is None
    start = PrixLM.load(checkpoint_folder(tmp_path / "run", 0))
    pairs = zip(start.parameters(), model.parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in list(pairs)[:3]), "embeddings are trained too"


@pytest.mark.parametrize("kind", ["gemma", "xlmr"])
def test_a_run_with_lora_resumes_exactly_and_ends_as_a_plain_checkpoint(
    kind: str, families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    training = dataclasses.replace(TINY.training, lr=2e-2)
    config = dataclasses.replace(
        TINY, base=str(families[kind]), adapt="lora", lora_rank=4, training=training, epochs=8
    )
    model = pretrain(shared_toy, tmp_path / "run", config)
    by_step = losses(tmp_path / "run")
    assert by_step[max(by_step)] < 0.9 * by_step[1] and model.adapter is None
    assert not (tmp_path / "run" / "trained.safetensors").exists()
    again = PrixLM.load(tmp_path / "run")
    assert same_weights(model, again) and all(p.requires_grad for p in again.parameters())
    names = {name for name, _ in again.backbone.named_parameters()}
    plain, _, _ = load_base(families[kind])
    assert names == {name for name, _ in plain.named_parameters()}
    # Stop in the middle: drop the last checkpoints and the end of the run, and run it again.
    shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    steps = checkpoint_steps(tmp_path / "stopped")
    drop_checkpoints(tmp_path / "stopped", steps[: len(steps) // 2 + 1])
    for path in (tmp_path / "stopped").glob("*.safetensors"):
        path.unlink()
    resumed = pretrain(shared_toy, tmp_path / "stopped", config)
    assert losses(tmp_path / "stopped") == by_step and same_weights(model, resumed)
    # A checkpoint on the way is plain, too, and knows what was trained.
    half = checkpoint_folder(tmp_path / "run", steps[1])
    assert (half / "trained.safetensors").is_file()
    assert "lora" not in " ".join(load_file(half / "model.safetensors"))
    with pytest.raises(PrixError, match="different config"):
        pretrain(shared_toy, tmp_path / "run", dataclasses.replace(config, lora_rank=2))


def test_a_run_on_a_decoder_reads_names_after_a_space_from_its_start_to_its_answers(
    families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    config = dataclasses.replace(TINY, base=str(families["gemma"]))
    pretrain(shared_toy, tmp_path / "run", config)
    assert json.loads((tmp_path / "run" / "prixlm.json").read_text("utf-8"))["space"] is True
    completer = Completer(tmp_path / "run", shared_toy)
    model = completer.model
    exact = SearchConfig(search="exact")
    answers = completer.complete("France", "capital", lang="en", config=exact)
    prefix = model.encoder.encode("France", "capital", None)
    for answer in answers:
        name = model.encoder.tokenizer.encode(f" {answer.name}", add_special_tokens=False).ids
        ids = [*prefix, *name, model.end_of_name]
        lengths = torch.tensor([len(prefix)]), torch.tensor([len(ids)])
        with torch.no_grad():
            logs = model.log_probabilities(model.hidden(torch.tensor([ids]), *lengths))[0]
        score = sum(logs[at - 1, ids[at]].item() for at in range(len(prefix), len(ids)))
        assert answer.score == pytest.approx(score, abs=1e-4)
    [written] = FreeWriter(completer).write([Query("en", "Finland", to="fi")])
    assert written and all(name == name.strip() for name, _ in written)


@pytest.mark.parametrize("adapt", ["full", "lora"])
def test_a_run_of_a_version_without_the_space_resumes_as_it_began(
    adapt: str,
    families: dict[str, Path],
    shared_toy: KB,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = dataclasses.replace(
        TINY, base=str(families["gemma"]), adapt=adapt, lora_rank=4, trim=True
    )
    with monkeypatch.context() as older:
        few = partial(pieces_to_keep, num_words=0, spaced=False)
        older.setattr("prixlm.training.pretrain.pieces_to_keep", few)
        older.setattr("prixlm.lm.model.word_space", lambda _: "")
        whole = pretrain(shared_toy, tmp_path / "run", config)
    assert not whole.settings.space
    shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    steps = checkpoint_steps(tmp_path / "stopped")
    drop_checkpoints(tmp_path / "stopped", steps[: len(steps) // 2 + 1])
    resumed = pretrain(shared_toy, tmp_path / "stopped", config)
    assert not resumed.settings.space and same_weights(whole, resumed)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "run")


def test_recomputing_layers_changes_nothing(
    families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """Dropout included: each mask is drawn again as it was."""
    for kind in ("xlmr", "gemma"):
        config = dataclasses.replace(TINY, base=str(families[kind]), epochs=2)
        plain = pretrain(shared_toy, tmp_path / kind, config)
        config = dataclasses.replace(config, recompute=True)
        again = pretrain(shared_toy, tmp_path / f"{kind}-again", config)
        assert losses(tmp_path / kind) == losses(tmp_path / f"{kind}-again")
        assert same_weights(plain, again)


def test_settings_of_a_decoder_are_checked(shared_toy: KB) -> None:
    for values, reason in (
        ({"prefix": "half"}, "prefix half: expected own or both"),
        ({"adapt": "some"}, "expected full or lora"),
        ({"base": "compact", "adapt": "lora"}, "leave out --adapt and --prefix"),
    ):
        with pytest.raises(PrixError, match=reason):
            PretrainConfig(**values)  # type: ignore[arg-type]
    own, both = PretrainConfig(), PretrainConfig(prefix="both")
    assert own.fingerprint() != both.fingerprint()
    assert own.fingerprint() == PretrainConfig(recompute=True, lora_rank=3).fingerprint()


def test_a_run_folder_has_the_model_the_config_a_plot_and_a_card(
    shared_toy: KB, tiny: PretrainConfig, tiny_run: Path
) -> None:
    assert read_config(tiny_run / "run.toml", PretrainConfig()) == tiny
    assert (tiny_run / "loss.png").stat().st_size > 5000
    card = (tiny_run / "README.md").read_text("utf-8")
    assert 'language: ["ar", "en", "fi", "ja", "te"]' in card and "facts.tsv" in card
    assert shared_toy.fingerprint() in card
    assert str(tiny_run.parent) not in card, "folders of this machine are not published"


def test_a_prix_lm_as_base_is_recorded_with_its_kbs(
    shared_toy: KB, tiny: PretrainConfig, tiny_run: Path
) -> None:
    config = dataclasses.replace(tiny, base=str(tiny_run))
    task = PretrainTask(shared_toy, PrixLM.load(tiny_run), config)
    assert task.lineage.earlier_kbs == [shared_toy.fingerprint()]
    assert task.lineage.base == tiny_run.name
    assert PrixLM.load(tiny_run).settings.lineage.earlier_kbs == []  # of a base without facts


def train_as_one_of_two(kb: str, run: str, config: PretrainConfig) -> None:
    pretrain(KB(kb), run, config)
    os._exit(0)  # without gloo's threads, which would wait for each other


def launch_two(
    kb: KB,
    run: Path,
    config: PretrainConfig,
    target: Callable[[str, str, PretrainConfig], None] = train_as_one_of_two,
) -> None:
    """Train in two processes with the environment that `torchrun` gives to each."""
    args = (str(kb.folder), str(run), config)
    assert run_processes(target, *args, environments=two_processes()) == [0, 0]


def test_two_processes_with_half_the_batch_give_the_losses_of_one(
    shared_toy: KB, tmp_path: Path
) -> None:
    compact = dataclasses.replace(TINY.compact, dropout=0.0)  # its masks differ by process
    make_compact(shared_toy, compact).save(tmp_path / "base")
    config = dataclasses.replace(TINY, base=str(tmp_path / "base"), compact=compact)
    pretrain(shared_toy, tmp_path / "one", config)
    launch_two(shared_toy, tmp_path / "two", config)
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert one.keys() == two.keys() and len(one) > 10
    for step, loss in one.items():
        assert two[step] == pytest.approx(loss, abs=1e-5)


def test_torchrun_starts_the_command_and_gives_the_losses_of_one_process(
    shared_toy: KB, tmp_path: Path
) -> None:
    compact = dataclasses.replace(TINY.compact, dropout=0.0)  # its masks differ by process
    make_compact(shared_toy, compact).save(tmp_path / "base")
    config = dataclasses.replace(TINY, base=str(tmp_path / "base"), epochs=2, compact=compact)
    pretrain(shared_toy, tmp_path / "one", config)
    (tmp_path / "run.toml").write_text(to_toml(config), "utf-8")
    command = ("prixlm", "pretrain", shared_toy.folder, "--to", tmp_path / "two")
    ran = run_torchrun(*command, "--config", tmp_path / "run.toml", "--json", timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["metrics"], "only the first process prints"
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert one and two == pytest.approx(one, abs=1e-5)


def test_two_processes_share_one_compact_tokenizer(shared_toy: KB, tmp_path: Path) -> None:
    """Each process alone would train other pieces."""
    launch_two(shared_toy, tmp_path / "two", dataclasses.replace(TINY, epochs=2))
    lineage = PrixLM.load(tmp_path / "two").settings.lineage
    assert lineage.variant == "All" and lineage.base == "compact"
    assert not list((tmp_path / "two" / "checkpoints").glob("start*"))


def prepare_slowly(kb: str, run: str, config: PretrainConfig) -> None:
    """Tokenise slowly, and note who did it."""
    real = token_cache._write_tokens

    def write(*args: Any) -> None:
        assert not torch.distributed.is_initialized(), "the group starts after the tokens"
        with Path(f"{run}-tokenised").open("a") as file:
            file.write(os.environ["RANK"])
        time.sleep(1)
        real(*args)

    token_cache._write_tokens = write
    pretrain(KB(kb), run, config)
    assert torch.distributed.is_initialized()
    os._exit(0)  # without gloo's threads, which would wait for each other


def test_one_process_tokenises_before_the_process_group_starts(toy: KB, tmp_path: Path) -> None:
    launch_two(toy, tmp_path / "two", dataclasses.replace(TINY, epochs=1), prepare_slowly)
    assert (tmp_path / "two-tokenised").read_text() in ("0", "1")
    assert (tmp_path / "two" / "model.safetensors").is_file()


def test_a_run_that_is_killed_before_its_first_checkpoint_keeps_its_tokenizer(
    shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training the tokenizer again would give other pieces."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("prixlm.training.pretrain.train", stop)
        with pytest.raises(KeyboardInterrupt):
            pretrain(shared_toy, tmp_path / "run", TINY)
    [start] = (tmp_path / "run" / "checkpoints").glob("start-*")
    pieces = (start / "tokenizer.json").read_bytes()
    pretrain(shared_toy, tmp_path / "run", TINY)
    assert (tmp_path / "run" / "tokenizer.json").read_bytes() == pieces
    # With another size it is another model, which does not start from there.
    other = dataclasses.replace(
        TINY, compact=dataclasses.replace(TINY.compact, layers=TINY.compact.layers + 1)
    )
    pretrain(shared_toy, tmp_path / "other", other)
    assert not list((tmp_path / "other" / "checkpoints").glob("start*"))


def test_two_processes_start_with_the_same_random_head(
    bases: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    """A base without a prediction head: its start depends on the seed and on nothing else."""
    base = shutil.copytree(bases["xlmr"], tmp_path / "base")
    AutoModel.from_pretrained(base).save_pretrained(base)
    config = dataclasses.replace(TINY, base=str(base), epochs=2)
    launch_two(shared_toy, tmp_path / "two", config, train_and_keep_every_rank)
    for step in (0, config.epochs):  # the first and the last weights of each process
        ranks = [load_file(tmp_path / f"two-rank-{rank}-{step}.safetensors") for rank in (0, 1)]
        assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    pretrain(shared_toy, tmp_path / "one", config)
    starts = [checkpoint_folder(tmp_path / run, 0) / "model.safetensors" for run in ("one", "two")]
    assert starts[0].read_bytes() == starts[1].read_bytes()


def train_and_keep_every_rank(kb: str, run: str, config: PretrainConfig) -> None:
    """Write the weights of each process before and after training, beside the run."""
    rank = os.environ["RANK"]
    torch.manual_seed(int(rank))  # processes of one fork server would begin alike

    def keep(model: PrixLM, step: int) -> None:
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        save_file(weights, f"{run}-rank-{rank}-{step}.safetensors")

    real = PretrainTask.validate

    def validate(task: PretrainTask, model: PrixLM) -> dict[str, float]:
        if not Path(f"{run}-rank-{rank}-0.safetensors").exists():
            keep(model, 0)
        return real(task, model)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PretrainTask, "validate", validate)
        keep(pretrain(KB(kb), run, config), config.epochs)
    os._exit(0)  # without gloo's threads, which would wait for each other


def test_a_run_resumes_with_a_lower_token_budget(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    """Without dropout, whose masks depend on the passes, only the order of sums differs."""
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    make_compact(shared_toy, compact).save(tmp_path / "base")
    config = dataclasses.replace(tiny, base=str(tmp_path / "base"))
    pretrain(shared_toy, tmp_path / "whole", config)
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    drop_checkpoints(tmp_path / "run", {2})
    lower = dataclasses.replace(config, token_budget=96)
    assert checkpoint_steps(tmp_path / "run") == [2]
    pretrain(shared_toy, tmp_path / "run", lower)
    whole, resumed = losses(tmp_path / "whole"), losses(tmp_path / "run")
    assert whole.keys() == resumed.keys() and len(whole) > 10
    assert [resumed[step] for step in whole] == pytest.approx(list(whole.values()), abs=1e-4)
    assert resumed != whole, "the passes were cut in another way"


def test_a_run_resumes_with_another_path_to_the_same_base(
    shared_toy: KB, tiny: PretrainConfig, tiny_run: Path, tiny_copy: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(tiny.base, tmp_path / "moved")
    drop_checkpoints(tiny_copy, {0})
    pretrain(shared_toy, tiny_copy, dataclasses.replace(tiny, base=str(moved)))
    assert losses(tiny_copy) == losses(tiny_run)
    weights = load_file(moved / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, moved / "model.safetensors")
    with pytest.raises(PrixError, match=r"another run \(different base\)"):
        pretrain(shared_toy, tiny_copy, dataclasses.replace(tiny, base=str(moved)))


def test_single_is_one_language_without_links(shared_toy: KB, tiny: PretrainConfig) -> None:
    config = dataclasses.replace(tiny, supply=SupplyConfig(langs=("fi",)))
    lineage = PretrainTask(shared_toy, PrixLM.load(tiny.base), config).lineage
    assert lineage.triples == {"fi": 3}
    assert lineage.links_an_epoch == {}
    assert lineage.variant == "Single"


def test_facts_that_are_too_long_are_counted_by_language(
    shared_toy: KB, tiny: PretrainConfig
) -> None:
    model = PrixLM.load(tiny.base)
    config = dataclasses.replace(tiny, supply=SupplyConfig(max_tokens=8))
    counts = PretrainTask(shared_toy, model, config).lineage.facts_by_language
    batches = batch_encoder(model.encoder, shared_toy)
    facts = all_facts(shared_toy)
    is_long = batches.num_tokens(facts) >= 8
    for kind, is_link in (("triples", facts.relation >= 0), ("links", facts.relation < 0)):
        subjects = facts.subject[is_long & is_link]
        codes = [shared_toy.languages[index] for index in batches.language(subjects)]
        expected = {code: codes.count(code) for code in sorted(set(codes))}
        assert counts[f"{kind} too long"] == expected
    assert sum(counts["triples too long"].values()) > 0


def test_a_kb_without_facts_or_without_the_language_is_refused(
    shared_toy: KB, tmp_path: Path
) -> None:
    links = "lang_a\tname_a\tlang_b\tname_b\nen\tFinland\tfi\tSuomi\n"
    (tmp_path / "l.tsv").write_text(links, "utf-8")
    only_links = import_kb([tmp_path / "l.tsv"], tmp_path / "only-links")
    single = dataclasses.replace(TINY, supply=SupplyConfig(langs=("en",)))
    with pytest.raises(PrixError, match="has no train facts in en"):
        pretrain(only_links, tmp_path / "run", single)
    config = dataclasses.replace(TINY, supply=SupplyConfig(langs=("sw",)))
    with pytest.raises(PrixError, match="has no sw; it has ar, en, fi, ja, te"):
        pretrain(shared_toy, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_other_files_is_left_alone(shared_toy: KB, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(PrixError, match="is not a run of `prixlm pretrain`"):
        pretrain(shared_toy, tmp_path / "mine", TINY)
    # A graph embedding has checkpoints too; a finished one may have none of them left.
    (tmp_path / "graph" / "checkpoints").mkdir(parents=True)
    (tmp_path / "graph" / "graph.json").write_text("{}")
    with pytest.raises(PrixError, match="found a graph embedding, expected a model folder"):
        pretrain(shared_toy, tmp_path / "graph", TINY)
    with pytest.raises(PrixError, match="is a file"):
        pretrain(shared_toy, tmp_path / "mine" / "thesis.txt", TINY)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_facts_longer_than_the_model_are_refused(shared_toy: KB, tiny: PretrainConfig) -> None:
    config = dataclasses.replace(tiny, supply=SupplyConfig(max_tokens=500))
    with pytest.raises(PrixError, match=r"max_tokens 500 allows inputs of 510 tokens"):
        PretrainTask(shared_toy, PrixLM.load(tiny.base), config)


def test_a_run_of_a_few_steps_ends_with_its_schedule(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(tiny, steps=3)
    pretrain(shared_toy, tmp_path / "short", config)
    lines = (tmp_path / "short" / "metrics.jsonl").read_text("utf-8").splitlines()
    rates = [row["lr"] for row in map(json.loads, lines) if "lr" in row]
    assert checkpoint_steps(tmp_path / "short")[-1] == 3
    assert rates and rates[-1] < config.training.lr / 2  # decayed over these steps
    # More steps than the epochs have change nothing.
    task = PretrainTask(shared_toy, make_model(shared_toy, tiny), tiny)
    many = dataclasses.replace(tiny, steps=10**9)
    assert PretrainTask(shared_toy, make_model(shared_toy, many), many).num_steps == task.num_steps


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="unknown preset big: expected paper, compact, demo"):
        PretrainConfig.preset("big")
    with pytest.raises(PrixError, match=r"epochs 0, .*: expected 1 or more"):
        PretrainConfig(epochs=0)
    with pytest.raises(PrixError, match="steps 0: expected 1 or more"):
        PretrainConfig(steps=0)
    with pytest.raises(PrixError, match="--keep requires --trim"):
        PretrainConfig(keep="words.txt")
    with pytest.raises(PrixError, match="leave out --trim"):
        PretrainConfig(base="compact", trim=True)


def test_a_config_comes_back_from_its_toml(tmp_path: Path) -> None:
    config = PretrainConfig(
        epochs=3,
        trim=True,
        supply=SupplyConfig(langs=("et", "fi"), max_links=3),
        training=TrainingConfig(lr=1e-4, betas=(0.8, 0.99), patience=4, trackers=("tensorboard",)),
    )
    (tmp_path / "run.toml").write_text(to_toml(config), "utf-8")
    assert read_config(tmp_path / "run.toml", PretrainConfig()) == config
    (tmp_path / "part.toml").write_text("epochs = 9\n[training]\nlr = 1\n", "utf-8")
    changed = read_config(tmp_path / "part.toml", config)
    assert (changed.epochs, changed.training.lr, changed.training.patience) == (9, 1.0, 4)
    (tmp_path / "bad.toml").write_text("[supply]\nlinks = 'some'\n", "utf-8")
    with pytest.raises(PrixError, match="links is some; expected all or none"):
        read_config(tmp_path / "bad.toml", PretrainConfig())


def test_settings_that_do_not_affect_what_is_learnt_are_not_in_the_fingerprint() -> None:
    other = dataclasses.replace(TINY.training, save_every=7, log_every=3, checkpoints=(1.0,))
    assert dataclasses.replace(TINY, training=other).fingerprint() == TINY.fingerprint()
    assert dataclasses.replace(TINY, token_budget=64).fingerprint() == TINY.fingerprint()
    other = dataclasses.replace(TINY.training, lr=1.0)
    assert dataclasses.replace(TINY, training=other).fingerprint() != TINY.fingerprint()


def test_the_reading_is_part_of_what_is_learnt() -> None:
    romanised = dataclasses.replace(TINY, reading="romanised")
    assert romanised.fingerprint() != TINY.fingerprint()
    with pytest.raises(PrixError, match="reading latin: expected script, romanised, both"):
        dataclasses.replace(TINY, reading="latin")  # type: ignore[arg-type]


def test_the_texts_to_keep_count_and_not_the_path_of_their_file(tmp_path: Path) -> None:
    texts = {"one": "Suomi\n", "same": "Suomi\n", "other": "Ranska\n"}
    prints = {}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8")
        config = PretrainConfig(trim=True, keep=str(tmp_path / name))
        prints[name] = config.fingerprint()
    assert prints["one"] == prints["same"] != prints["other"]
