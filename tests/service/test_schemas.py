"""The contract of the API: what a request may hold, and what every answer can be."""

import inspect

import pytest
from pydantic import BaseModel, ValidationError

from prixlm.service import schemas

REQUESTS = {
    schemas.MarkRequest: {"id": "fact-1", "verdict": "accept"},
    schemas.BulkRequest: {"filter": {}, "verdict": "accept", "expected": 3},
    schemas.ExportRequest: {"format": "nt"},
    schemas.Filter: {},
    schemas.UndoRequest: {},
}


def models() -> list[type[BaseModel]]:
    found = [
        value
        for _, value in inspect.getmembers(schemas, inspect.isclass)
        if issubclass(value, BaseModel) and value.__module__ == schemas.__name__
    ]
    assert len(found) > 30
    return found


@pytest.mark.parametrize("model", REQUESTS)
def test_an_unknown_field_of_a_request_is_refused(model: type[BaseModel]) -> None:
    values = REQUESTS[model]
    assert model.model_validate(values)
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        model.model_validate({**values, "verdcit": "accept"})


@pytest.mark.parametrize(
    ("model", "values"),
    [
        (schemas.MarkRequest, {"verdict": "maybe"}),
        (schemas.MarkRequest, {"id": "x" * 41}),
        (schemas.MarkRequest, {"replacement": {"text": "x" * (schemas.MAX_TEXT + 1)}}),
        (schemas.BulkRequest, {"verdict": "skip"}),
        (schemas.BulkRequest, {"expected": -1}),
        (schemas.BulkRequest, {"filter": {"state": "lost"}}),
        (schemas.Filter, {"min_confidence": 1.1}),
        (schemas.Filter, {"min_confidence": float("nan")}),
        (schemas.Filter, {"table": "entities"}),
        (schemas.ExportRequest, {"format": "docx"}),
        (schemas.ExportRequest, {"references": ["S854:http://x.org"] * 11}),
    ],
)
def test_a_value_outside_its_range_is_refused(
    model: type[BaseModel], values: dict[str, object]
) -> None:
    with pytest.raises(ValidationError):
        model.model_validate({**REQUESTS[model], **values})


@pytest.mark.parametrize("model", models())
def test_every_model_says_what_it_is_and_cannot_be_changed(model: type[BaseModel]) -> None:
    assert model.model_config["frozen"] and model.model_config["extra"] == "forbid"
    assert model.model_json_schema()["type"] == "object"


@pytest.mark.parametrize("model", schemas.EXAMPLES)
def test_examples_are_valid(model: type[schemas.Model]) -> None:
    assert model.model_validate(schemas.EXAMPLES[model])
