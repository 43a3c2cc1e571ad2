"""Options that hold lists."""

import pytest

from prixlm import PrixError
from prixlm.cli.options import parse_codes, parse_list


def test_a_list_is_split_at_commas_without_spaces_and_gaps() -> None:
    assert parse_list(" capital, currency ,,") == ["capital", "currency"]
    assert parse_list("") == []


def test_codes_are_checked() -> None:
    assert parse_codes("en, fi") == ("en", "fi")
    with pytest.raises(PrixError, match="unknown language xx"):
        parse_codes("en,xx")
