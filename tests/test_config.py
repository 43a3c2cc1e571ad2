"""Configurations: TOML in, TOML out, flags on top, and one line for a wrong setting."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from prixlm.config import (
    changed,
    checked,
    differing,
    from_dict,
    is_kind,
    read_config,
    to_toml,
)
from prixlm.errors import PrixError


@dataclass(frozen=True, kw_only=True)
class Training:
    lr: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.98)
    schedule: Literal["linear", "constant"] = "linear"

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise PrixError(f"lr {self.lr}: expected more than 0.")


@dataclass(frozen=True, kw_only=True)
class Config:
    epochs: int = 10
    langs: tuple[str, ...] | None = None
    name: str | None = None
    bf16: bool = False
    training: Training = field(default_factory=Training)


def read(folder: Path, text: str, defaults: Config | None = None) -> Config:
    (folder / "run.toml").write_text(text, "utf-8")
    return read_config(folder / "run.toml", defaults or Config())


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    text = 'epochs = 3\nlangs = ["fi", "日"]\n[training]\nlr = 1\n'
    config = read(tmp_path, text, Config(name="mine", training=Training(schedule="constant")))
    assert config == Config(
        epochs=3,
        langs=("fi", "日"),
        name="mine",
        training=Training(lr=1.0, schedule="constant"),
    )
    assert isinstance(config.training.lr, float)


def test_a_config_comes_back_from_its_toml(tmp_path: Path) -> None:
    config = Config(epochs=2, langs=("en",), training=Training(betas=(0.5,), lr=3e-5))
    assert read(tmp_path, to_toml(config)) == config
    assert "name" not in to_toml(config), "None has no TOML"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch = 3", r"run\.toml: unknown setting epoch\. Expected one of epochs, langs"),
        ("[training]\nlrr = 3", r"run\.toml \[training\]: unknown setting lrr"),
        ("training = 3", r"training is a value, expected a table \[training\]"),
        ("epochs = 1.5", r"epochs is 1\.5 \(float\); expected int"),
        ("epochs = true", r"epochs is True \(bool\); expected int"),
        ('langs = "fi"', r"langs is 'fi' \(str\); expected tuple"),
        ("langs = [1]", r"langs is 1 \(int\); expected str"),
        ('[training]\nschedule = "cosine"', r"cosine; expected linear or constant"),
        ("[training]\nlr = 0", r"lr 0\.0: expected more than 0"),
        ("epochs =", r"run\.toml is not TOML"),
    ],
)
def test_a_wrong_setting_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match=message) as error:
        read(tmp_path, text)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PrixError, match=r"nowhere\.toml cannot be read: No such file"):
        read_config(tmp_path / "nowhere.toml", Config())
    (tmp_path / "run.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(PrixError, match="is not TOML"):
        read_config(tmp_path / "run.toml", Config())


def test_flags_that_were_given_change_a_config() -> None:
    flags = {"": {"epochs": 5, "name": None}, "training": {"lr": 0.5, "schedule": None}}
    assert changed(Config(name="mine"), flags) == Config(
        epochs=5, name="mine", training=Training(lr=0.5)
    )
    config = Config()
    assert changed(config, {"": {}, "training": {"lr": None}}) == config


def test_a_config_comes_back_from_its_json() -> None:
    config = Config(
        epochs=2, langs=("en", "日"), bf16=True, training=Training(betas=(0.5, 1.0), lr=3e-5)
    )
    values = json.loads(json.dumps(asdict(config)))
    assert from_dict(Config(), values) == config
    # None in JSON is the default's value, which may be set.
    assert from_dict(Config(name="mine"), values).name == "mine"
    assert from_dict(Config(epochs=7), {"training": {"lr": 1}}) == Config(
        epochs=7, training=Training(lr=1.0)
    )


def test_values_of_another_config_are_one_line() -> None:
    for values, message in (
        ({"epoch": 3}, "Config: unknown setting epoch. Expected one of epochs, langs"),
        ({"training": {"lr": "fast"}}, "Config [training]: lr is 'fast' (str); expected float"),
    ):
        with pytest.raises(PrixError, match=re.escape(message)):
            from_dict(Config(), values)


def test_differing_settings_are_named_with_their_table() -> None:
    one, other = asdict(Config()), asdict(Config(epochs=1, training=Training(lr=1.0)))
    assert differing(one, other) == ["epochs", "training.lr"]
    assert differing(one, one) == []
    assert differing({"a": 1}, {"b": {"c": 1}}) == ["a", "b"]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, int),
        (1, float),
        (0.5, float),
        (float("nan"), float),
        ("a", str),
        (None, int | None),
        ([1, None], list[int | None]),
        ([[0.1, 0.9]], list[list[float]]),
        ([1, 2], tuple[int, ...]),
        ({"fi": {"all": 3}}, dict[str, dict[str, int]]),
        ({}, dict[str, int]),
        ("both", Literal["script", "both"]),
        ([object()], list),
        (object(), Any),
    ],
)
def test_a_value_is_of_its_kind(value: object, kind: Any) -> None:
    assert is_kind(value, kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, int),
        (1, bool),
        (1.0, int),
        (10**400, int),
        (10**400, float),
        (1 << 63, int),
        (float("nan"), int),
        (float("inf"), int),
        (None, str),
        ("ab", list[str]),
        ([1, "a"], list[int]),
        ({"fi": "x"}, dict[str, int]),
        ([], dict),
        ([], Literal["script", "both"]),
        ("a", int | None),
    ],
)
def test_a_value_of_another_kind_is_told(value: object, kind: Any) -> None:
    assert not is_kind(value, kind)


def test_what_is_wrong_is_named() -> None:
    kinds: dict[str, Any] = {"title": str, "numbers": dict[str, int], "notes": list[str]}
    values = {"title": "a", "numbers": {"fi": 3}, "more": object()}
    assert checked(values, kinds, optional=["notes"]) is values
    with pytest.raises(ValueError, match="notes is missing"):
        checked(values, kinds)
    with pytest.raises(ValueError, match=r"numbers is \{'fi': 'x'\}, expected dict\[str, int\]"):
        checked(values | {"numbers": {"fi": "x"}}, kinds)
    with pytest.raises(ValueError, match="title is 1, expected str"):
        checked(values | {"title": 1}, kinds)
    with pytest.raises(ValueError, match=r"found \[\], expected names with values"):
        checked([], kinds)


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ValueError, match="…") as refused:
        checked({"title": ["x"] * 10_000}, {"title": str})
    assert len(str(refused.value)) < 120
