"""The nouns: frozen, comparable, and cheap to import."""

import dataclasses
import subprocess
import sys

import pytest

from prixlm.types import Answer, Asked, Entity, Link, Query, Triple

VALUES = [
    Entity(1, "fi", "Suomi", "Q33", 7),
    Triple("fi", 1, 2, 3),
    Link(1, 9),
    Query("fi", "Suomi", "capital"),
    Answer(3, "Helsinki", -0.1, 1),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_noun_is_a_frozen_value(value: object) -> None:
    copy = dataclasses.replace(value)  # type: ignore[type-var]
    assert copy == value and hash(copy) == hash(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, dataclasses.fields(value)[0].name, None)  # type: ignore[arg-type]


def test_the_rank_is_that_of_the_first_true_answer() -> None:
    answers = [Answer(1, "Turku", -0.1, 1), Answer(2, "Helsinki", -0.2, 2), Answer(3, "H", -3.0, 3)]
    query = Query("fi", "Suomi", "capital")
    assert Asked(query, ["H", "Helsinki"], answers).rank == 2
    assert Asked(query, ["Oslo"], answers).rank is None


def test_types_import_no_numpy() -> None:
    code = "import sys, prixlm.types; print('numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
