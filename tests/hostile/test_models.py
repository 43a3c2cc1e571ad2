"""Model folders of others: no code of theirs runs, and damage is one line in every command."""

import ast
import json
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from prixlm import KB, PrixError
from prixlm.files import read_json
from prixlm.lm import bases
from tests.conftest import make_family
from tests.helpers import Ran, run_python
from tests.hostile.attacks import (
    EVIL,
    NAMES,
    SEED,
    assert_harmless,
    attack,
    budget,
    damage,
    put,
    wrong_kinds,
)
from tests.hostile.conftest import MIRROR, House

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
        "reader": ["evaluate", "lp", "--kb", house.split, "--langs", "en", "--reader", model],
        "evaluate xel": ["evaluate", "xel", "--encoder", model, *asked],
        "evaluate probe": ["evaluate", "probe", "--model", model, "--prompts", house.queries_tsv],
        "enrich": [
            *("enrich", house.split, "--into", "fi", "--to", to / "w", "--model", model),
        ],
        "enrich reader": [
            *("enrich", house.split, "--into", "fi", "--to", to / "w", "--reader", model),
            *("--effort", "quick"),
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


@pytest.mark.parametrize("file", ["weights", "tokenizer"])
@pytest.mark.parametrize("name", [*NAMES, "$(touch owned)", "`touch owned`", "a'; touch owned #"])
def test_the_command_that_converts_a_model_runs_nothing_of_its_name(
    name: str, file: str, tmp_path: Path
) -> None:
    """A line to copy into a shell: there a folder called `$(...)` ran what it says."""
    folder = tmp_path / name.replace("/", "|")[:200].replace("\x00", "")
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "xlm-roberta"}')
    read = {"weights": bases._read_weights, "tokenizer": bases._read_tokenizer}[file]
    with pytest.raises(PrixError) as refused:
        read(folder)
    # A name that the error shows may hold a backtick too; in the command there is none.
    command = str(refused.value)[str(refused.value).rindex("`python -c ") + 1 :].partition("`")[0]
    *words, code = shlex.split(command)
    assert words == ["python", "-c"] and "touch owned`" not in command
    strings = [
        one.value
        for one in ast.walk(ast.parse(code))
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    assert strings == [str(folder)] * 2, "the same folder, whatever was escaped"


@pytest.mark.parametrize("layers", [0, -1, 10**8, 10**30, True, 2.0, "2", None, [1]])
def test_a_config_with_layers_without_end_is_refused_before_they_are_made(
    layers: object, tmp_path: Path
) -> None:
    values = {"model_type": "qwen3", "num_hidden_layers": layers}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(PrixError, match=r"layers, expected 1 to 1,000") as refused:
        bases._read_config(tmp_path)
    assert len(str(refused.value)) < 300 + len(str(tmp_path))


READ = """
import resource, sys
from prixlm.untrusted import log_to_stderr
log_to_stderr()
from prixlm.lm import bases
import transformers.models.qwen3.configuration_qwen3
resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
print(bases._read_config(sys.argv[1]).num_labels)
from transformers.utils import logging
logging.get_logger("transformers.x").warning(sys.argv[2])
"""


def test_a_config_neither_prints_nor_takes_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers printed its values as they are, and made a name for each label."""
    monkeypatch.delenv("CI", raising=False)  # where it is set, transformers logs twice
    values = {"model_type": "qwen3", "num_labels": 10**12, "id2label": {"0": EVIL}}
    values["rope_scaling"] = {"rope_type": EVIL}
    (tmp_path / "config.json").write_text(json.dumps(values))
    ran = run_python(READ, tmp_path, EVIL)
    assert ran.returncode == 0 and ran.stdout == "2\n", ran.stderr
    assert_harmless(Ran(0, ran.stdout, ran.stderr))
    assert ran.stderr.count("owned") == 1, "the warning of the test alone"


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


def change(path: Path, values: dict[str, Any]) -> None:
    """Replace some values of a JSON file."""
    path.write_text(json.dumps(read_json(path) | values), "utf-8")


LIES: dict[str, tuple[str, dict[str, Any]]] = {
    "trained is a list": ("prixlm.json", {"trained": []}),
    "trained has a text of numbers": ("prixlm.json", {"trained": {"triples": "x"}}),
    "a language is a number": ("prixlm.json", {"languages": [-1]}),
    "languages are a text": ("prixlm.json", {"languages": "abc"}),
    "infinite descriptions": ("prixlm.json", {"descriptions": float("inf")}),
    "long descriptions": ("prixlm.json", {"descriptions": 10**12}),
    "an unknown mask": ("prixlm.json", {"mask": "nope"}),
    "a mask that is a list": ("prixlm.json", {"mask": []}),
    "a reading that is a list": ("prixlm.json", {"reading": []}),
    "negative heads": ("config.json", {"num_attention_heads": -1}),
}


@pytest.mark.parametrize("what", LIES)
def test_settings_that_lie_are_refused_in_one_line_by_complete_and_mirror(
    what: str, house: House, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(house.model, model, ignore=shutil.ignore_patterns("checkpoints"))
    name, values = LIES[what]
    change(model / name, values)
    calls = loading(house, model, tmp_path)
    for command in ("complete", "mirror"):
        attack(*calls[command], codes=(2,))


def test_settings_of_other_kinds_are_read_or_refused_in_one_line(
    house: House, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(house.model, model, ignore=shutil.ignore_patterns("checkpoints"))
    settings = read_json(model / "prixlm.json")
    asked = loading(house, model, tmp_path)["complete"]
    for place, wrong in wrong_kinds(settings, budget(15, 800), "settings"):
        (model / "prixlm.json").write_text(json.dumps(put(settings, place, wrong)), "utf-8")
        try:
            attack(*asked)
        except BaseException as error:
            error.add_note(f"{place} is {str(wrong)[:80]}")
            raise


def test_a_damaged_tokenizer_from_before_trimming_is_one_line(house: House, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(house.model, model, ignore=shutil.ignore_patterns("checkpoints"))
    (model / "untrimmed-tokenizer.json").write_text("[1]")
    ran = attack(*loading(house, model, tmp_path)["translate"])
    mirrored = ["mirror", model, "--to", tmp_path / "m", "--kb", house.kb, *MIRROR]
    ran = attack(*mirrored, codes=(2,))
    assert "untrimmed-tokenizer.json" in ran.stderr


DECODER_DAMAGES = [spoil for spoil in DAMAGES if spoil is not another_tokenizer]
"""The tiny decoder has a tokenizer of another kind, which `another_tokenizer` cannot read."""


@pytest.mark.parametrize("spoil", DECODER_DAMAGES, ids=lambda spoil: str(spoil.__name__))
def test_a_damaged_decoder_that_is_asked_in_words_is_refused_in_one_line(
    spoil: Callable[[Path], None],
    house: House,
    merging_tokenizers: dict[str, Any],
    tmp_path: Path,
) -> None:
    model = make_family("qwen", merging_tokenizers, tmp_path / "qwen")
    asked = ["evaluate", "lp", "--kb", house.split, "--langs", "en", "--most", 1]
    attack(*asked, "--reader", model, codes=(0,))
    spoil(model)
    attack(*asked, "--reader", model, codes=(2,))
    given = ["--to", tmp_path / "w", "--reader", model, "--effort", "quick"]
    attack("enrich", house.split, "--into", "fi", *given, codes=(2,))
    assert not (model / "mark").exists(), "no code of the folder was run"


# A baseline of PyKEEN.


@pytest.fixture(scope="module")
def baseline(house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TransE of one language of the split, trained for an epoch."""
    pytest.importorskip("pykeen", reason="PyKEEN is an extra: pip install 'prixlm[baselines]'")
    from prixlm.rankers.pykeen import BaselineConfig, train_baseline

    folder = tmp_path_factory.mktemp("baseline") / "transe"
    train_baseline(KB(house.split), folder, BaselineConfig(model="TransE", dim=4, epochs=1), "en")
    return folder


def test_a_baseline_of_other_kinds_is_read_or_refused_in_one_line(
    baseline: Path, house: House, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(baseline, tmp_path / "transe"))
    path, settings = folder / "baseline.json", read_json(baseline / "baseline.json")
    asked = ["evaluate", "lp", "--kb", house.split, "--langs", "en", "--most", 1]
    asked += ["--baseline", folder]
    attack(*asked, codes=(0,))
    lies = [
        [],
        {name: value for name, value in settings.items() if name != "kb"},
        settings | {"nodes": 10**11},
        settings | {"relations": 10**11},
        settings | {"lang": None},
        settings | {"config": {"x": 1}},
        settings | {"config": settings["config"] | {"dim": 10**9}},
        settings | {"config": settings["config"] | {"model": "RotatE"}},
    ]
    for lying in lies:
        path.write_text(json.dumps(lying), "utf-8")
        attack(*asked, codes=(2,))
    for place, wrong in wrong_kinds(settings, budget(15, 400), "baseline"):
        path.write_text(json.dumps(put(settings, place, wrong)), "utf-8")
        try:
            attack(*asked)
        except BaseException as error:
            error.add_note(f"{place} is {str(wrong)[:80]}")
            raise


def test_a_damaged_baseline_is_read_or_refused_in_one_line(
    baseline: Path, house: House, tmp_path: Path
) -> None:
    """A changed weight may still be a number."""
    generator = random.Random(SEED)
    asked = ["evaluate", "lp", "--kb", house.split, "--langs", "en", "--most", 1]
    for number in range(budget(8, 200)):
        folder = Path(shutil.copytree(baseline, tmp_path / f"transe-{number}"))
        damage(generator.choice(sorted(folder.iterdir())), generator)
        attack(*asked, "--baseline", folder)
