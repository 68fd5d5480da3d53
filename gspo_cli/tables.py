"""What all tables of a recipe share."""

from collections.abc import Iterator
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
    def _no_other_kind_of_value(cls, value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        checked = validate(value)
        for given, taken in _pairs(value, checked):
            if isinstance(given, bool) and not isinstance(taken, bool):  # pydantic takes true for 1
                raise ValueError("a number is expected, not true or false")
            refuse_text(given, taken)
        return checked


def refuse_text(given: Any, taken: Any) -> None:
    """Errors: ValueError for text that was taken for a number: pydantic takes "8" for 8."""
    if isinstance(given, str) and isinstance(taken, bool | int | float):
        kind = "true or false" if isinstance(taken, bool) else "a number"
        raise ValueError(f"{kind} is expected, not text: remove the quotation marks")


def _pairs(value: Any, checked: Any) -> Iterator[tuple[Any, Any]]:
    """A value and what it was taken for, or those in a list of them."""
    if isinstance(value, list | tuple) and isinstance(checked, list | tuple):
        for given, taken in zip(value, checked, strict=False):
            yield from _pairs(given, taken)
    else:
        yield value, checked
