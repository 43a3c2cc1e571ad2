"""Configurations: frozen dataclasses, read from TOML and written to TOML.

    config = read_config("run.toml", PretrainConfig.preset("compact"))

A table of the file is a nested dataclass. A setting that the file does not name keeps its default.
An unknown name or a value of the wrong type is refused with one line.

JSON that others may have written is checked in the same way, by type hints:

    values = checked(read_json(path), {"title": str, "numbers": dict[str, int]})

It has whatever someone put into it: a list where we write a text, a number of 400 digits where we
write a share. No value of another kind may end a command far from the file that it comes from.
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, TypeVar

from prixlm.errors import PrixError

Config = TypeVar("Config")
_MOST = 1 << 63
"""Whole numbers are smaller: what counts, is an id or is stored has at most 64 bits."""


def read_config(path: Path | str, defaults: Config) -> Config:
    """Return `defaults` with the settings of a TOML file in their place."""
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise PrixError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # TOML's, of its encoding, or of a number of thousands of digits
        raise PrixError(f"{path} is not TOML: {error}.") from None
    except RecursionError:
        raise PrixError(f"{path} is nested too deep: settings are one table in another.") from None
    return _replaced(defaults, values, str(path))


def changed(config: Config, flags: dict[str, dict[str, Any]]) -> Config:
    """Return a config with the command-line flags that were given, that is, are not None.

    flags: by table of the config, then by name; "" is the top level.
    """
    # An option that was not given is None: the config file or the default decides.
    changes = {name: value for name, value in flags.get("", {}).items() if value is not None}
    for table, values in flags.items():
        given = {name: value for name, value in values.items() if value is not None}
        if table and given:
            changes[table] = dataclasses.replace(getattr(config, table), **given)
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def from_dict(defaults: Config, values: dict[str, Any]) -> Config:
    """Return `defaults` with the values of `dataclasses.asdict`, read back from JSON.

    A value of None is the default's.
    """
    return _replaced(defaults, _without_none(values), type(defaults).__name__)


def to_toml(config: Any) -> str:
    """Return a config as TOML that `read_config` reads back. Settings of None are left out."""
    import tomli_w  # of the model extra, which a plain installation does without

    return tomli_w.dumps(_without_none(dataclasses.asdict(config)))


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the names of settings, such as `training.lr`, in which two configs differ.

    The configs are given as dicts.
    """
    names = []
    for name in sorted(one.keys() | other.keys()):
        left, right = one.get(name), other.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            names += [f"{name}.{inner}" for inner in differing(left, right)]
        elif left != right:
            names.append(name)
    return names


def is_kind(value: object, kind: Any) -> bool:
    """Tell whether a value of JSON is of a kind: a type hint such as `dict[str, int | None]`.

    A float is a number, whole or not, that Python has a float for. Tuples are lists in JSON.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(is_kind(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if kind is Any:
        return True
    if kind is None or kind is types.NoneType:
        return value is None
    # Not isinstance: True is an int for Python, but not a number of questions.
    if kind is int:
        return type(value) is int and -_MOST <= value < _MOST
    if kind is float:
        return type(value) is float or is_kind(value, int)
    if (origin or kind) in (list, tuple):
        inner = parts[0] if parts else Any
        return isinstance(value, list | tuple) and all(is_kind(item, inner) for item in value)
    if (origin or kind) is dict:
        inner = parts[1] if parts else Any
        return isinstance(value, dict) and all(is_kind(item, inner) for item in value.values())
    return type(value) is kind


def checked(
    values: object, kinds: Mapping[str, Any], optional: Container[str] = ()
) -> dict[str, Any]:
    """Return the values of a JSON object; ValueError says which is missing or of another kind.

    kinds: by name. Names that are not among them are not checked.
    optional: names that may be missing.
    """
    if not isinstance(values, dict):
        raise ValueError(f"found {_short(values)}, expected names with values")
    for name, kind in kinds.items():
        if name in values and not is_kind(values[name], kind):
            expected = (
                kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else kind
            )
            raise ValueError(f"{name} is {_short(values[name])}, expected {expected}")
        if name not in values and name not in optional:
            raise ValueError(f"{name} is missing")
    return values


def _short(value: object) -> str:
    """Return the beginning of what a value looks like."""
    # Not the whole of it: repr of a number of 400 digits, or of a list of a million, is no message.
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _replaced(config: Config, values: dict[str, Any], where: str) -> Config:
    """Return `config` with checked values; `where` names the file and table in errors."""
    kinds = typing.get_type_hints(type(config))
    changes: dict[str, Any] = {}
    for name, value in values.items():
        if name not in kinds:
            raise PrixError(f"{where}: unknown setting {name}. Expected one of {', '.join(kinds)}.")
        if dataclasses.is_dataclass(kinds[name]):
            if not isinstance(value, dict):
                raise PrixError(f"{where}: {name} is a value, expected a table [{name}].")
            changes[name] = _replaced(getattr(config, name), value, f"{where} [{name}]")
        else:
            changes[name] = _checked(value, kinds[name], f"{where}: {name}")
    return dataclasses.replace(config, **changes)  # type: ignore[type-var]


def _checked(value: Any, kind: Any, where: str) -> Any:
    """Return a TOML value as its field's type: lists as tuples, whole numbers as floats."""
    # `X | None` is checked as X: TOML has no null. `Literal` lists its words.
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kind = next(part for part in parts if part is not types.NoneType)
        return _checked(value, kind, where)
    if origin is typing.Literal:
        if value not in parts:
            raise PrixError(f"{where} is {value}; expected {' or '.join(map(str, parts))}.")
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_checked(item, parts[0], where) for item in value)
    if kind is float and is_kind(value, int):
        return float(value)
    # Not isinstance: True is an int for Python, but not a number of epochs.
    if type(value) is not (origin or kind):
        found, expected = type(value).__name__, (origin or kind).__name__
        raise PrixError(f"{where} is {value!r} ({found}); expected {expected}.")
    return value
