"""Pretraining as users run it: bases, processes, configurations, estimates, and bad input."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from prixlm import KB, PrixError, import_kb
from prixlm.config import changed, read_config, to_toml
from prixlm.lm.card import model_card
from prixlm.lm.compact import make_compact
from prixlm.lm.encoding import BatchEncoder
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import build_tokens
from prixlm.reports.console import sparkline
from prixlm.reports.plots import plot_metrics, read_metrics
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps
from prixlm.training.estimate import estimate_pretrain
from prixlm.training.loop import TrainingConfig, choose_precision
from prixlm.training.pretrain import PretrainConfig, PretrainTask, pretrain
from prixlm.training.sampler import SupplyConfig
from tests.training.test_loop import TINY, losses

TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("kind", ["xlmr", "mbert"])
def test_hub_bases_load_train_and_save(
    kind: str, trim: bool, bases: dict[str, Path], toy: KB, tmp_path: Path
) -> None:
    config = dataclasses.replace(TINY, base=str(bases[kind]), epochs=12, trim=trim)
    model = pretrain(toy, tmp_path / "run", config)
    found = losses(tmp_path / "run")
    assert found[max(found)] < 0.8 * found[1]
    again = PrixLM.load(tmp_path / "run")
    for ours, theirs in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert AutoModel.from_pretrained(tmp_path / "run").config.model_type in ("xlm-roberta", "bert")
    assert "[O]" in AutoTokenizer.from_pretrained(tmp_path / "run").get_vocab()
    assert again.settings.trained["base"] == bases[kind].name
    start = PrixLM.load(checkpoint_folder(tmp_path / "run", 0))
    moved = [
        not torch.equal(a, b) for a, b in zip(start.parameters(), model.parameters(), strict=True)
    ]
    assert all(moved[:3])  # the embeddings are trained too


TWO = """
import sys
sys.path.insert(0, {tests!r})
from prixlm import KB
from prixlm.config import read_config
from prixlm.training.pretrain import PretrainConfig, pretrain
pretrain(KB({kb!r}), {run!r}, read_config({config!r}, PretrainConfig()))
"""


def launch(script: Path, processes: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)]
    env = os.environ | {"ACCELERATE_USE_CPU": "true"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("base", ["folder", "compact"])
def test_two_processes_with_half_the_batch_give_the_losses_of_one(
    base: str, toy: KB, tmp_path: Path
) -> None:
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    make_compact(toy, compact).save(tmp_path / "base")
    config = dataclasses.replace(TINY, base=str(tmp_path / "base"), compact=compact)
    if base == "compact":
        config = dataclasses.replace(config, base="compact", epochs=2)
    else:
        pretrain(toy, tmp_path / "one", config)
    (tmp_path / "config.toml").write_text(to_toml(config), "utf-8")
    code = TWO.format(
        tests=str(TESTS),
        kb=str(toy.folder),
        run=str(tmp_path / "two"),
        config=str(tmp_path / "config.toml"),
    )
    (tmp_path / "two.py").write_text(code, "utf-8")
    done = launch(tmp_path / "two.py", 2)
    assert done.returncode == 0, done.stderr[-3000:]
    if base == "compact":  # each process alone would train other pieces
        assert PrixLM.load(tmp_path / "two").settings.trained["variant"] == "All"
        return
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert one.keys() == two.keys() and len(one) > 10
    for step, loss in one.items():
        assert two[step] == pytest.approx(loss, abs=1e-5)


def test_single_is_one_language_without_links(toy: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, supply=SupplyConfig(langs=("fi",)))
    model = pretrain(toy, tmp_path / "run", config)
    assert model.settings.trained["triples"] == {"fi": 3}
    assert model.settings.trained["links_an_epoch"] == {}
    assert model.settings.trained["variant"] == "Single"


def test_the_length_rule_is_counted_by_language(toy: KB, tmp_path: Path) -> None:
    model = make_compact(toy, TINY.compact)
    supply = SupplyConfig(max_tokens=8)
    task = PretrainTask(toy, model, dataclasses.replace(TINY, supply=supply))
    batches = BatchEncoder(model.encoder, toy, build_tokens(toy, model.encoder.tokenizer))
    from tests.lm.test_encoding import all_facts

    facts = all_facts(toy)
    long = batches.num_tokens(facts) >= 8
    for kind, is_link in (("triples", facts.relation >= 0), ("links", facts.relation < 0)):
        rows = facts.subject[long & is_link]
        codes = [toy.languages[place] for place in batches.language(rows)]
        expected = {code: codes.count(code) for code in sorted(set(codes))}
        assert task.trained[f"{kind}_too_long"] == expected
    assert sum(task.trained["triples_too_long"].values()) > 0


def test_the_card_says_what_it_was_trained_on_and_how_auto_models_read(
    toy: KB, tmp_path: Path
) -> None:
    model = pretrain(toy, tmp_path / "run", TINY)
    card = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert 'language: ["ar", "en", "fi", "ja", "te"]' in card
    assert "facts.tsv" in card and "`PrixLM` applies that mask" in card
    assert "plain `AutoModel` reads its whole input in both directions" in card
    assert str(tmp_path) not in card
    assert model.settings.trained["kb_fingerprint"] in card
    hostile = model_card(["en"], "prefix", {"licence": "``` <script>\n# x", "sources": ["a`b"]})
    assert "\n# x" not in hostile and "```` ``` <script> # x ````" in hostile


def test_a_config_goes_to_toml_and_back(tmp_path: Path) -> None:
    config = PretrainConfig(
        epochs=3,
        trim=True,
        supply=SupplyConfig(langs=("et", "fi"), max_links=3),
        training=TrainingConfig(lr=1e-4, betas=(0.8, 0.99), patience=4, trackers=("tensorboard",)),
    )
    (tmp_path / "run.toml").write_text(to_toml(config), "utf-8")
    assert read_config(tmp_path / "run.toml", PretrainConfig()) == config
    (tmp_path / "part.toml").write_text("epochs = 9\n[training]\nlr = 1\n", "utf-8")
    part = read_config(tmp_path / "part.toml", config)
    assert part.epochs == 9 and part.training.lr == 1.0 and part.training.patience == 4
    flagged = changed(part, {"": {"epochs": 2, "base": None}, "training": {"lr": 0.5}})
    assert (flagged.epochs, flagged.base, flagged.training.lr) == (2, part.base, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", r"has epoch, which is no setting: base, epochs"),
        ("[training]\nlrr = 3", r"\[training\] has lrr, which is no setting: lr, betas"),
        ("epochs = 'three'", r"epochs is 'three' \(str\); expected int"),
        ("epochs = true", r"epochs is True \(bool\); expected int"),
        ("[supply]\nlinks = 'some'", r"links is some; expected all or none"),
        ("supply = 3", r"supply is a table"),
        ("epochs = ", r"is not TOML"),
        ("epochs = 0", r"epochs, batch and num_valid have to be 1 or more"),
        ("[training]\ntrackers = ['mlflow']", r"tracker mlflow: expected tensorboard or wandb"),
    ],
)
def test_a_wrong_config_is_one_clear_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text, "utf-8")
    with pytest.raises(PrixError, match=message):
        read_config(tmp_path / "bad.toml", PretrainConfig())


def test_a_dry_run_writes_nothing_and_is_right(toy: KB, tmp_path: Path) -> None:
    before = sorted(path.name for path in toy.folder.rglob("*"))
    estimate = estimate_pretrain(toy, TINY)
    assert sorted(path.name for path in toy.folder.rglob("*")) == before
    assert "Nothing was written" in estimate.as_text()
    model = pretrain(toy, tmp_path / "run", TINY)
    assert estimate.steps == model.settings.trained["steps"]
    assert estimate.parameters == sum(parameter.numel() for parameter in model.parameters())
    folder = checkpoint_folder(tmp_path / "run", checkpoint_steps(tmp_path / "run")[-1])
    names = ("model.safetensors", "optimizer.safetensors")
    size = sum((folder / name).stat().st_size for name in names)
    assert estimate.checkpoint == pytest.approx(size, rel=0.1)
    assert estimate.facts_per_second > 1 and estimate.seconds > 0


def test_tensorboard_gets_the_losses(toy: KB, tmp_path: Path) -> None:
    training = dataclasses.replace(TINY.training, trackers=("tensorboard",))
    pretrain(toy, tmp_path / "run", dataclasses.replace(TINY, training=training))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [events] = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents*")}
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    seen = {event.step: event.value for event in accumulator.Scalars("loss")}
    expected = losses(tmp_path / "run")
    assert seen.keys() == expected.keys()
    assert seen[3] == pytest.approx(expected[3], rel=1e-5)


def test_a_tracker_that_is_not_installed_is_named(toy: KB, tmp_path: Path) -> None:
    try:
        import wandb  # noqa: F401
    except ImportError:
        training = dataclasses.replace(TINY.training, trackers=("wandb",))
        with pytest.raises(PrixError, match="wandb is not installed: run `pip install wandb`"):
            pretrain(toy, tmp_path / "run", dataclasses.replace(TINY, training=training))
    else:
        pytest.skip("wandb is installed here")


def test_early_stop_ends_before_the_last_step_with_its_best(toy: KB, tmp_path: Path) -> None:
    from prixlm.kb.split import SplitConfig, split_kb

    split = split_kb(toy, tmp_path / "split", SplitConfig(test=0.1, valid=0.2, seed=1))
    training = TrainingConfig(lr=0.5, validate_every=2, patience=2, log_every=1)
    config = dataclasses.replace(TINY, epochs=40, training=training)
    pretrain(split, tmp_path / "run", config)
    metrics = read_metrics(tmp_path / "run")
    last = max(line["step"] for line in metrics)
    assert last < PretrainTask(split, make_compact(split, TINY.compact), config).num_steps
    losses = {line["step"]: line["valid_loss"] for line in metrics if "valid_loss" in line}
    best = min(losses, key=lambda step: losses[step])
    assert best < last
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    kept = checkpoint_folder(tmp_path / "run", best) / "model.safetensors"
    assert kept.read_bytes() == weights
    pretrain(split, tmp_path / "run", config)  # the same command again: it has stopped already
    assert read_metrics(tmp_path / "run") == metrics
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_a_kb_without_facts_or_without_the_language_is_refused(toy: KB, tmp_path: Path) -> None:
    links = "lang_a\tname_a\tlang_b\tname_b\nen\tFinland\tfi\tSuomi\n"
    (tmp_path / "l.tsv").write_text(links, "utf-8")
    only_links = import_kb([tmp_path / "l.tsv"], tmp_path / "only-links")
    single = dataclasses.replace(TINY, supply=SupplyConfig(langs=("en",)))
    with pytest.raises(PrixError, match="no train facts in en: there is nothing to learn from"):
        pretrain(only_links, tmp_path / "run", single)
    config = dataclasses.replace(TINY, supply=SupplyConfig(langs=("sw",)))
    with pytest.raises(PrixError, match="has no sw; it has ar, en, fi, ja, te"):
        pretrain(toy, tmp_path / "run", config)
    with pytest.raises(PrixError, match="has no sw; it has"):
        estimate_pretrain(toy, config)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_of_another_kb_or_tokenizer_is_refused(toy: KB, tmp_path: Path) -> None:
    pretrain(toy, tmp_path / "run", TINY)
    more = tmp_path / "more.tsv"
    more.write_text("lang\tsubject\trelation\tobject\nsw\tUfini\tcapital\tHelsinki\n", "utf-8")
    other = import_kb([more], tmp_path / "other")
    with pytest.raises(PrixError, match=r"a checkpoint of another run \(other KB\)"):
        pretrain(other, tmp_path / "run", TINY)
    last = checkpoint_folder(tmp_path / "run", checkpoint_steps(tmp_path / "run")[-1])
    path = last / "tokenizer.json"
    state = json.loads(path.read_text("utf-8"))
    state["model"]["vocab"][-1][1] -= 1.0
    path.write_text(json.dumps(state), "utf-8")
    with pytest.raises(PrixError, match=r"a checkpoint of another run \(other tokenizer\)"):
        pretrain(toy, tmp_path / "run", TINY)


def test_a_damaged_checkpoint_is_named(toy: KB, tmp_path: Path) -> None:
    pretrain(toy, tmp_path / "run", TINY)
    last = checkpoint_folder(tmp_path / "run", checkpoint_steps(tmp_path / "run")[-1])
    (last / "optimizer.safetensors").write_bytes(b"\x00" * 10)
    with pytest.raises(PrixError, match=r"step-\d+ is damaged .* the one before"):
        pretrain(toy, tmp_path / "run", TINY)
    shutil.rmtree(last)
    pretrain(toy, tmp_path / "run", TINY)


LIMITED = """
import resource, sys
sys.path.insert(0, {tests!r})
from tests.training.test_loop import TINY
from prixlm import KB, PrixError
from prixlm.training.pretrain import pretrain
def progress(name, done, total):
    if name.startswith("train loss") and done == 5:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    pretrain(KB({kb!r}), {run!r}, TINY, progress)
except PrixError as error:
    print(error)
    sys.exit(2)
"""


def test_a_full_disk_while_saving_is_one_line_and_the_last_checkpoint_is_whole(
    toy: KB, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the disk: the write fails all the same."""
    run = tmp_path / "run"
    code = LIMITED.format(tests=str(TESTS), kb=str(toy.folder), run=str(run))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr[-2000:]
    assert "is full. Free some space" in done.stdout
    assert checkpoint_steps(run)[-1] == 4
    model = pretrain(toy, run, TINY)
    assert max(losses(run)) == model.settings.trained["steps"]


def test_a_folder_that_is_no_run_is_left_alone(toy: KB, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(PrixError, match="is no run of prixlm pretrain"):
        pretrain(toy, tmp_path / "mine", TINY)
    with pytest.raises(PrixError, match="is a file"):
        pretrain(toy, tmp_path / "mine" / "thesis.txt", TINY)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_an_unfinished_run_is_not_taken_for_a_model(toy: KB, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    with pytest.raises(PrixError, match="is a run that is not finished"):
        PrixLM.load(tmp_path / "run")


def test_facts_longer_than_the_model_are_refused(toy: KB) -> None:
    config = dataclasses.replace(TINY, supply=SupplyConfig(max_tokens=500))
    with pytest.raises(PrixError, match=r"max_tokens 500 allows inputs of 510 tokens"):
        PretrainTask(toy, make_compact(toy, TINY.compact), config)


def test_bf16_is_refused_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU decides otherwise")
    assert choose_precision("auto") == "no" and choose_precision("no") == "no"
    monkeypatch.setattr("prixlm.training.loop._cpu_has_bf16", lambda: False)
    with pytest.raises(PrixError, match="cannot multiply in bf16"):
        choose_precision("bf16")
    monkeypatch.setattr("prixlm.training.loop._cpu_has_bf16", lambda: True)
    assert choose_precision("bf16") == "bf16"


MIXED = """
import dataclasses, sys
sys.path.insert(0, {tests!r})
from tests.training.test_loop import TINY
from prixlm import KB
from prixlm.training.pretrain import pretrain
training = dataclasses.replace(TINY.training, precision="bf16")
pretrain(KB({kb!r}), {run!r}, dataclasses.replace(TINY, base={base!r}, training=training))
"""


def test_bf16_learns_as_float32_does(toy: KB, tmp_path: Path) -> None:
    make_compact(toy, dataclasses.replace(TINY.compact, dropout=0.0)).save(tmp_path / "base")
    base = str(tmp_path / "base")
    run = tmp_path / "bf16"
    code = MIXED.format(tests=str(TESTS), kb=str(toy.folder), run=str(run), base=base)
    # Some virtual machines claim AMX and die of it: here the processor's plainer units are used.
    env = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-2000:]
    pretrain(toy, tmp_path / "float32", dataclasses.replace(TINY, base=base))
    mixed, plain = losses(run), losses(tmp_path / "float32")
    assert mixed != plain
    assert mixed[1] == pytest.approx(plain[1], rel=0.01)
    assert mixed[max(mixed)] == pytest.approx(plain[max(plain)], rel=0.1)
    assert PrixLM.load(run).backbone.dtype == torch.float32


def test_metrics_are_drawn(tmp_path: Path) -> None:
    assert plot_metrics(tmp_path) is None
    lines = [{"step": n, "loss": 5 / (n + 1), "facts_per_second": 1.0} for n in range(30)]
    lines.append({"step": 30, "valid_loss": 0.3, "valid_nats_per_name": 1.0})
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"step": 31, "lo'
    (tmp_path / "metrics.jsonl").write_text(text, "utf-8")
    path = plot_metrics(tmp_path)
    assert path is not None and path.read_bytes().startswith(b"\x89PNG")
    assert sparkline([1.0, 0.5, 0.0]) == "█▅▁" and sparkline([]) == ""
