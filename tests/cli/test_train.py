"""`prixlm pretrain`, `mirror` and `graph`."""

import json
import math
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from prixlm import KB
from tests.cli.conftest import succeed, succeed_json
from tests.helpers import run_prixlm

PRETRAIN = ("--preset", "demo", "--epochs", "1", "--width", "16", "--vocab", "600")


def test_a_finished_pretraining_is_not_repeated(toy_run: Path, tmp_path: Path) -> None:
    options = ("pretrain", toy_run / "kb", "--to", tmp_path / "model", *PRETRAIN)
    made = succeed_json(*options)
    assert made["metrics"][-1]["step"] == 1
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert succeed_json(*options) == made
    other = run_prixlm(*options, "--epochs", "2")
    assert other.returncode == 2 and "checkpoint of another run" in other.stderr


def test_a_pretraining_prints_its_facts_and_its_loss(toy_run: Path) -> None:
    command = ("pretrain", toy_run / "kb", "--to", toy_run / "model")
    text = succeed(*command, "--config", toy_run / "run.toml")
    assert "Training loss" in text and "te  Telugu" in text and "too long" in text


def test_flags_override_the_file_and_the_file_the_preset(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("batch = 8\nepochs = 3\n[compact]\nwidth = 8\n", "utf-8")
    command = ("pretrain", toy_run / "kb", "--preset", "demo", "--config", tmp_path / "run.toml")
    points = ("--checkpoints", "0, 20k, 1", "--save-every", "3", "--validate-every", "4")
    succeed(*command, *points, "--epochs", "1", "--vocab", "600", "--to", tmp_path / "model")
    text = (tmp_path / "model" / "run.toml").read_text("utf-8")
    assert "batch = 8\n" in text and "epochs = 1\n" in text and "width = 8\n" in text
    training = tomllib.loads(text)["training"]
    assert training["checkpoints"] == [0.0, 20_000.0, 1.0]
    assert (training["save_every"], training["validate_every"]) == (3, 4)


@pytest.mark.parametrize("command", [("pretrain", *PRETRAIN), ("graph", "--rank", "4")])
def test_a_dry_run_tells_time_and_memory_and_writes_nothing(
    command: tuple[str, ...], toy_run: Path, tmp_path: Path
) -> None:
    name, *options = command
    files = sorted(toy_run.rglob("*"))
    text = succeed(name, toy_run / "kb", *options, "--dry-run")
    assert "Would train" in text and "Memory" in text and "Disk" in text
    estimate = succeed_json(name, toy_run / "kb", *options, "--dry-run")
    assert estimate["steps"] >= 1 and estimate["seconds"] > 0
    assert sorted(toy_run.rglob("*")) == files


def test_mirror_prints_the_width_of_the_encoder(toy_run: Path, tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("Finland\nFrance\nEuro\n", "utf-8")
    sizes = ("--words", tmp_path / "words.txt", "--batch", 3, "--epochs", 1)
    made = succeed_json("mirror", toy_run / "model", "--to", tmp_path / "encoder", *sizes)
    assert made == {"encoder": str(tmp_path / "encoder"), "width": 32, "positives": "words"}


def test_the_original_mirror_takes_the_words_of_its_file(toy_run: Path, tmp_path: Path) -> None:
    command = ("mirror", toy_run / "model", "--to", tmp_path / "encoder", "--preset", "original")
    ran = run_prixlm(*command)
    assert ran.returncode == 2 and "pass --words en_words_top_10k.txt" in ran.stderr
    words = tmp_path / "words.txt"
    words.write_text("\n".join(f"{a}{b}{c}" for a in "bdfgkl" for b in "aeiou" for c in "nrstlmk"))
    succeed(*command, "--words", words, "--epochs", 1, "--precision", "no")
    settings = tomllib.loads((tmp_path / "encoder" / "run.toml").read_text("utf-8"))
    assert (settings["batch"], settings["words"]) == (200, str(words))
    assert settings["training"]["clip"] == math.inf
    assert settings["training"]["precision"] == "no"
    ran = run_prixlm(*command, "--words", words, "--precision", "half")
    assert ran.returncode == 2 and "precision half: expected auto, no, bf16 or fp16" in ran.stderr


def test_a_named_kb_means_links_unless_a_file_says_words(toy_run: Path, tmp_path: Path) -> None:
    settings = tmp_path / "mirror.toml"
    sizes = ("--number", 8, "--batch", 4, "--epochs", 1, "--kb", toy_run / "kb")
    for text, expected in (("epochs = 1\n", "links"), ('positives = "words"\n', "words")):
        settings.write_text(text)
        options = ("--to", tmp_path / expected, "--config", settings, *sizes)
        assert succeed_json("mirror", toy_run / "model", *options)["positives"] == expected


def test_graph_prints_what_it_made_and_how_to_use_it(split: Path, graph: Path) -> None:
    command = ("graph", split, "--to", graph, "--rank", 8, "--epochs", 4)
    text = succeed(*command)
    made = succeed_json(*command)
    counts = f"on {made['triples']:,} triples: {made['concepts']:,} concepts, 9 relations."
    assert f"Trained ComplEx of rank 8 {counts}" in text and made["concepts"] > 1500
    assert f"prixlm enrich {split} --into CODES --graph {graph} --to proposals" in text
    assert f"prixlm evaluate lp --kb {split} --graph {graph}" in text
    losses = [line["valid_loss"] for line in made["metrics"] if "valid_loss" in line]
    assert losses[-1] < losses[0]


def test_a_graph_of_one_language_with_another_score(split: Path, tmp_path: Path) -> None:
    options = ("--rank", 4, "--epochs", 1, "--score", "rotate", "--langs", "et")
    text = succeed("graph", split, "--to", tmp_path / "graph", *options)
    assert f"Trained RotatE of rank 4 on {KB(split).num_triples('et', 'train'):,} triples" in text
    wrong = run_prixlm("graph", split, "--to", tmp_path / "other", "--score", "best")
    assert wrong.returncode == 2 and "--score best: expected complex, transe" in wrong.stderr


def test_a_graph_of_other_settings_is_refused(split: Path, graph: Path) -> None:
    other = run_prixlm("graph", split, "--to", graph, "--rank", 8, "--epochs", 5)
    assert other.returncode == 2 and "checkpoint of another run" in other.stderr


def test_a_graph_is_used_by_evaluate(split: Path, graph: Path) -> None:
    text = succeed("evaluate", "lp", "--kb", split, "--graph", graph, "--most", 20)
    assert "ComplEx" in text


def test_a_killed_graph_resumes_to_the_same_weights(toy_run: Path, tmp_path: Path) -> None:
    """A real kill, as soon as the first checkpoint is there."""
    settings = tmp_path / "graph.toml"
    settings.write_text("rank = 8\nepochs = 400\n[training]\nsave_every = 50\n", "utf-8")
    command = ["graph", str(toy_run / "kb"), "--config", str(settings), "--to"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", "prixlm", *command, str(killed)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not list(killed.glob("checkpoints/step-*/state.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "model.safetensors").exists()
    resumed, straight = succeed_json(*command, killed), succeed_json(*command, whole)
    losses = [
        {line["step"]: line["loss"] for line in made["metrics"] if "loss" in line}
        for made in (resumed, straight)
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 40
    first, second = (load_file(folder / "model.safetensors") for folder in (killed, whole))
    assert all((first[name] == second[name]).all() for name in second)
    assert json.loads((killed / "graph.json").read_text()) == json.loads(
        (whole / "graph.json").read_text()
    )
