"""A host: whatever holds an engine's model for `HostedEngine`, in another process or in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HostLost(Exception):
    """The host died or did not answer in time; the message says which, and the last it said."""


class HostRefused(Exception):
    """The host lives and answered with an error: the same request would get it again."""


class Host(Protocol):
    """Answers requests; its methods are those of `hosts/vllm_backend.py`."""

    facts: dict[str, Any]
    """`versions` and `dtype` of what it runs."""
    replaceable: bool
    """Whether another can be opened after it is lost."""

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """One request, answered or an error: HostLost, HostRefused."""

    def load(self, weights: PreTrainedModel, version: int) -> dict[str, Any]:
        """Hands over the weights, with how many `tensors` there were. Errors as `ask`."""

    def close(self) -> None:
        """Ends it, hung or not."""

    def give_up(self) -> None:
        """Ends it after an error: nothing may be sampled from what it holds."""
