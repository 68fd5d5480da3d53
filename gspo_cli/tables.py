"""What all tables of a recipe share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidatorFunctionWrapHandler, field_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""Tables hold whole numbers of 64 bits."""
PositiveInt = Annotated[int, Field(ge=1, le=10**9)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Table(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _no_switch_as_number(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        checked = validate(value)
        if isinstance(value, bool) and not isinstance(checked, bool):  # pydantic takes true for 1
            raise ValueError("a number is expected, not true or false")
        return checked
