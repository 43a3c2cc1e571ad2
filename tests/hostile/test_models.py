"""Model folders of others: no code of theirs runs, and damage is one line in every command."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.hostile.attacks import EVIL, SEED, attack, budget, damage
from tests.hostile.conftest import House

WEIGHTS = "model.safetensors"


def with_nan(folder: Path) -> None:
    """Put a value that is not a number into the first weights."""
    # Copied: the file is mapped, and it is written below.
    weights = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    name = next(iter(sorted(weights)))
    weights[name].view(-1)[0] = float("nan")
    save_file(weights, folder / WEIGHTS)


def cut(folder: Path) -> None:
    """Leave half of the weights."""
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])


def pickled(folder: Path) -> None:
    """Leave a pickle that would run code, in place of the weights."""
    (folder / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(folder / "mark").encode() + b"'\ntR."
    )
    (folder / WEIGHTS).unlink()


def renamed_pickle(folder: Path) -> None:
    """Call a pickle safetensors."""
    weights = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    torch.save(weights, folder / WEIGHTS)


def lying(folder: Path) -> None:
    """Ask for more memory than any machine has."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"vocab_size": 10**12}))


def another_tokenizer(folder: Path) -> None:
    """Add pieces that the model has no embedding for."""
    path = folder / "tokenizer.json"
    values = json.loads(path.read_text("utf-8"))
    values["model"]["vocab"] += [[f"piece{n}", -9.0] for n in range(5000)]
    path.write_text(json.dumps(values))


def with_code(folder: Path) -> None:
    """Bring Python code for the config, the model and the tokenizer."""
    path = folder / "config.json"
    auto_map = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer"), "code.Own")
    values = json.loads(path.read_text("utf-8")) | {"auto_map": auto_map, "model_type": EVIL}
    path.write_text(json.dumps(values))
    (folder / "code.py").write_text(f"open({str(folder / 'mark')!r}, 'w').close()\n")


def deep(folder: Path) -> None:
    """Nest the config deeper than a parser goes."""
    (folder / "config.json").write_text("[" * 200_000)


DAMAGES: list[Callable[[Path], None]] = [
    with_nan, cut, pickled, renamed_pickle, lying, another_tokenizer, with_code, deep,
]  # fmt: skip


def loading(house: House, model: Path, to: Path) -> dict[str, list[object]]:
    """Return a call of every command that loads a model folder."""
    asked = ["--kb", house.kb]
    return {
        "pretrain": ["pretrain", house.kb, "--to", to / "p", "--base", model],
        "mirror": ["mirror", model, "--to", to / "m", *asked],
        "complete": [
            *("complete", model, *asked),
            *("--lang", "en", "--subject", "x", "--relation", "capital"),
        ],
        "translate": ["translate", model, *asked, "--from", "en", "--to", "fi", "--name", "x"],
        "link": ["link", model, *asked, "--mention", "x"],
        "evaluate lp": ["evaluate", "lp", "--kb", house.split, "--model", model],
        "evaluate xel": ["evaluate", "xel", "--encoder", model, *asked],
        "evaluate probe": ["evaluate", "probe", "--model", model, "--prompts", house.queries_tsv],
        "enrich": [
            *("enrich", house.split, "--into", "fi", "--to", to / "w", "--model", model),
        ],
    }


@pytest.mark.parametrize("spoil", DAMAGES, ids=lambda spoil: str(spoil.__name__))
def test_a_damaged_or_hostile_model_is_refused_in_one_line_by_every_command(
    spoil: Callable[[Path], None], house: House, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(house.model, model, ignore=shutil.ignore_patterns("checkpoints"))
    spoil(model)
    for args in loading(house, model, tmp_path).values():
        ran = attack(*args, codes=(2,))
        assert ran.stderr.count("\n") == 1, ran.stderr
    assert not (model / "mark").exists(), "no code of the folder was run"


def test_a_pickle_is_refused_with_how_to_convert_it(house: House, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(house.model, model, ignore=shutil.ignore_patterns("checkpoints"))
    pickled(model)
    ran = attack("mirror", model, "--to", tmp_path / "m", "--kb", house.kb, codes=(2,))
    assert "has no model.safetensors" in ran.stderr and "save_pretrained" in ran.stderr


@pytest.mark.parametrize("kind", ["model", "encoder", "graph"])
def test_any_changed_byte_of_a_folder_is_refused_or_harmless(
    kind: str, house: House, tmp_path: Path
) -> None:
    """A changed weight may still be a number."""
    generator = random.Random(f"{SEED} {kind}")
    for number in range(budget(8, 300)):
        folder = tmp_path / f"{kind}-{number}"
        shutil.copytree(
            getattr(house, kind), folder, ignore=shutil.ignore_patterns("checkpoints", "*.png")
        )
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        path = generator.choice(files)
        damage(path, generator)
        ask = ("--lang", "en", "--subject", "France", "--relation", "capital")
        if kind == "model":
            attack("complete", folder, "--kb", house.kb, *ask)
        elif kind == "encoder":
            attack("link", folder, "--kb", house.kb, "--mention", "Suomi")
        else:
            attack("evaluate", "lp", "--kb", house.kb, "--graph", folder, "--split", "test")
        shutil.rmtree(folder)
