"""What the shell completes after Tab: names, without loading what they name."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def recipes(incomplete: str) -> list[str]:
    """Shipped recipes; nothing where a path begins, which the shell completes itself."""
    from gspo_cli.recipe import names

    return _beginning(incomplete, names())


def algorithms(incomplete: str) -> list[str]:
    """The last of `grpo,gspo`."""
    return _last(incomplete, registered("algorithms", "ALGORITHMS"))


def benchmarks(incomplete: str) -> list[str]:
    """The last of `aime24,math500`."""
    return _last(incomplete, registered("evals", "BENCHMARKS"))


def metrics(incomplete: str) -> list[str]:
    """What is logged."""
    from gspo_cli.runlog.schema import METRICS

    return _beginning(incomplete, METRICS)


def explained(incomplete: str) -> list[str]:
    """What `gspo report explain` takes."""
    return [*metrics(incomplete), *_beginning(incomplete, registered("algorithms", "ALGORITHMS"))]


def numbers(incomplete: str) -> list[str]:
    """What `gspo report compare --metric` takes of what is logged."""
    return _beginning(incomplete, [f"{name}:{form}" for name in metrics("") for form in ("last10", "area@steps")])


def keys(incomplete: str) -> list[str]:
    """A recipe's keys, for `--set`."""
    from gspo_cli.recipe import known_keys

    return _beginning(incomplete, [f"{key}=" for key in known_keys()])


def registered(part: str, registry: str) -> list[str]:
    """The keys of a registry, read off its source: importing the algorithms would load torch."""
    module = ast.parse((PACKAGE / part / "__init__.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in module.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == registry and isinstance(node.value, ast.Dict)
    )
    return [key.value for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _last(incomplete: str, names: list[str]) -> list[str]:
    """With what stands before the last comma, and not again what stands there already."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, names) if name not in given]
