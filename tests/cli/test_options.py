"""Options that several commands share: lists, and where a command runs."""

import pytest

from prixlm import PrixError
from prixlm.cli.options import parse_codes, parse_engine, parse_list


def test_a_list_is_split_at_commas_without_spaces_and_gaps() -> None:
    assert parse_list(" capital, currency ,,") == ["capital", "currency"]
    assert parse_list("") == []


def test_codes_are_checked() -> None:
    assert parse_codes("en, fi") == ("en", "fi")
    with pytest.raises(PrixError, match="unknown language xx"):
        parse_codes("en,xx")


def test_the_engine_is_checked() -> None:
    assert parse_engine("local", None, None, 0.0).workers is None
    assert parse_engine("ray", "auto", 3, 0.5).gpus_per_worker == 0.5
    with pytest.raises(PrixError, match="--engine spark: expected local or ray"):
        parse_engine("spark", None, None, 0.0)
