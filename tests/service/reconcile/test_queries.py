"""What a query may say: limits are brought into range, anything else wrong is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from prixlm.service.reconcile.queries import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_VALUES,
    ConditionQuery,
    EntityValue,
    ExtendQuery,
    Query,
)

NAME = {"matchType": "name", "propertyValue": "x"}


@pytest.mark.parametrize(("given", "kept"), [(3, 3), (2.7, 2), (0, 1), (-5, 1), (1e300, MAX_LIMIT)])
def test_a_limit_is_brought_into_range(given: float, kept: int) -> None:
    assert Query.model_validate({"query": "x", "limit": given}).limit == kept
    assert ConditionQuery.model_validate({"conditions": [NAME], "limit": given}).limit == kept


def test_a_query_without_a_limit_has_the_default() -> None:
    assert Query(query="x").limit == DEFAULT_LIMIT


def test_values_may_be_text_numbers_booleans_entities_and_lists_of_them() -> None:
    values = ["x", 3, 1.5, True, {"id": "Q1", "name": "one"}]
    query = Query.model_validate({"properties": [{"pid": "p", "v": values}]})
    assert query.properties[0].v == [*values[:4], EntityValue(id="Q1", name="one")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": 3},
        {"query": "x", "limit": "3"},
        {"query": "x", "limit": True},
        {"query": "x", "limit": float("nan")},
        {"query": "x", "props": []},
        {"query": "x", "type_strict": "maybe"},
        {"query": "x", "properties": [{"pid": "p"}]},
        {"query": "x", "properties": [{"pid": "p", "v": {"name": "without id"}}]},
        {"query": "x", "properties": [{"pid": "p", "v": ["x"] * (MAX_VALUES + 1)}]},
    ],
)
def test_a_wrong_query_of_version_0_2_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Query.model_validate(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"conditions": []},
        {"conditions": [{"propertyValue": "x"}]},
        {"conditions": [NAME | {"matchType": "sound"}]},
        {"conditions": [NAME | {"matchQuantifier": "most"}]},
        {"conditions": [NAME], "type": ["a", "b"]},
        {"conditions": [NAME], "dir": "up"},
        {"conditions": [NAME], "query": "x"},
    ],
)
def test_a_wrong_query_of_version_1_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ConditionQuery.model_validate(wrong)


def test_an_extension_needs_ids_and_properties() -> None:
    with pytest.raises(ValidationError):
        ExtendQuery.model_validate({"ids": ["x"]})
    query = ExtendQuery.model_validate({"ids": ["x"], "properties": [{"id": "p"}]})
    assert query.properties[0].settings == {}
