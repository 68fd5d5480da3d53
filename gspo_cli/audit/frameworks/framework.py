"""A trainer: how its configurations are recognised and written, from `frameworks.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gspo_cli.audit.findings import UNKNOWN, Findings, Settings, Value, pick

NEVER = r"(?!)"
"""A regular expression that matches nothing."""


NUMBERS = ("clip_low", "clip_high", "dual_clip", "kl_coef", "updates", "temperature", "top_p", "lr")


@cache
def tables() -> dict[str, dict[str, Any]]:
    """What `frameworks.toml` says of each trainer."""
    return tomllib.loads(Path(__file__).with_name("frameworks.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Framework:
    """A trainer by its name in `frameworks.toml`, and the function that reads its settings."""

    name: str
    reader: Callable[[Settings, Framework], Findings]

    @property
    def table(self) -> dict[str, Any]:
        """Its table, on that of the trainer which it is like."""
        own = tables()[self.name]
        return {**tables()[own["like"]], "command": NEVER, "keys": NEVER, **own} if "like" in own else own

    def pattern(self, name: str) -> str:
        """`command`, `keys` or `bases`: a regular expression."""
        return str(self.table.get(name, NEVER))

    def read(self, settings: Settings) -> Findings:
        """What a configuration computes. What should be a number and is none is unknown."""
        found = self.reader(settings, self)
        wrong = {
            name: Value(UNKNOWN, f"{value.source}: {str(value.value)[:60]} is no number")
            for name in NUMBERS
            if (value := getattr(found, name)).known
            and (isinstance(value.value, bool) or not isinstance(value.value, int | float | None))
        }
        return replace(found, **wrong)

    def facts(self, c: Settings, **others: Value) -> dict[str, Any]:
        """The facts that are one key each; `others` go before them."""
        plain = {
            name: c(row[0], row[1] if len(row) > 1 and row[1] != "" else None, *row[2:])
            for name, row in self.table["facts"].items()
        }
        return plain | others

    def loss(self, kind: Value) -> tuple[Value, Value]:
        """A loss's kind and the second word of its row."""
        kinds, units = ({name: row.split()[at] for name, row in self.table["losses"].items()} for at in (0, 1))
        return pick(kind, kinds), pick(kind, units)

    def mean(self, name: Value) -> Value:
        """What a name of a mean means."""
        return pick(name, self.table["means"])

    def advantage(self, name: Value) -> Value:
        """What an advantage estimator computes."""
        return pick(name, self.table["advantages"])
