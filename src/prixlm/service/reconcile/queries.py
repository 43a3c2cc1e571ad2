"""What a request of the reconciliation API may say, in versions 0.2 and 1.0-draft."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
)

from prixlm.errors import PrixError

MAX_ENTITIES, MAX_PROPERTIES = 1000, 100
"""Rows and columns of a data extension."""
MAX_LIMIT = 50
"""Candidates of a query."""
DEFAULT_LIMIT = 5
MAX_VALUES = 100
"""Values of one property."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _positive(limit: float) -> int:
    return int(min(max(limit, 1), MAX_LIMIT))


_Number = StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)]
_Limit = Annotated[_Number, AfterValidator(_positive)]


class EntityValue(BaseModel):
    """A value that was itself reconciled before."""

    id: StrictStr
    name: StrictStr | None = None


_Value = StrictStr | StrictBool | _Number | EntityValue
_Values = _Value | Annotated[list[_Value], Field(max_length=MAX_VALUES)]


class PropertyValue(BaseModel):
    """A property of version 0.2."""

    pid: StrictStr
    v: _Values | None


class Query(_Model):
    """A query of version 0.2."""

    query: StrictStr | None = None
    type: StrictStr | list[StrictStr] | None = None
    limit: _Limit = DEFAULT_LIMIT
    properties: Annotated[list[PropertyValue], Field(max_length=MAX_PROPERTIES)] = []
    type_strict: Literal["any", "should", "all"] = "any"


class Condition(BaseModel):
    """A condition of version 1.0."""

    matchType: Literal["name", "id", "property"]
    propertyId: StrictStr | None = None
    propertyValue: _Values
    required: StrictBool = False
    matchQuantifier: Literal["any", "all", "none"] = "any"
    matchQualifier: StrictStr | None = None


class ConditionQuery(_Model):
    """A query of version 1.0."""

    type: StrictStr | None = None
    limit: _Limit = DEFAULT_LIMIT
    lang: StrictStr | None = None
    dir: Literal["ltr", "rtl", "auto"] | None = None
    conditions: Annotated[list[Condition], Field(min_length=1, max_length=MAX_PROPERTIES)]


class ExtendProperty(BaseModel):
    """A column to fetch."""

    id: StrictStr
    settings: dict[str, Any] = {}


class ExtendQuery(BaseModel):
    """Entities and the columns to fetch for them."""

    ids: Annotated[list[StrictStr], Field(max_length=MAX_ENTITIES)]
    properties: Annotated[list[ExtendProperty], Field(max_length=MAX_PROPERTIES)]


class Refused(PrixError):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}
