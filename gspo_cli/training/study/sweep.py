"""A sweep: one study for each combination of values of one or two recipe keys, side by side in one folder."""

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.recipe import parse_set
from gspo_cli.training.study.plans import NAME

MOST_VALUES = 100
"""Of a key."""
EXAMPLE = "e.g. --sweep rollout.max_lag=0,4"
OWN_OPTIONS = {"seed": "--seeds", "name": "--name", "algo.name": "--algo"}
"""Keys that have an option of their own."""


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One study of a sweep."""

    name: str
    """Of its folder, such as `max_lag-4_token-0.3`."""
    sets: tuple[str, ...]
    """What `--set` would get: one value of each axis."""


def parse_sweep(texts: list[str]) -> dict[str, list[str]]:
    """`task.terms=[3,5],[8,11]` -> key and values, as texts. Commas within brackets and quotes do not divide.

    Errors: GspoError for anything but one or two keys with at least two different values each.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        key, _, given = text.partition("=")
        key, found = key.strip(), [part.strip() for part in divide(given) if part.strip()]
        values = [parse_set(f"value={part}").table["value"] for part in found]
        if not key or not 2 <= len(found) <= MOST_VALUES or any(v in values[:i] for i, v in enumerate(values)):
            raise GspoError(
                f"--sweep {text} is not an axis",
                f"an axis is a recipe key with 2 to {MOST_VALUES} different values",
                EXAMPLE,
            )
        if key in OWN_OPTIONS:
            raise GspoError(f"--sweep {text}", f"{OWN_OPTIONS[key]} does that, in one study", EXAMPLE)
        if any(f"{key}.".startswith(f"{axis}.") or f"{axis}.".startswith(f"{key}.") for axis in axes):
            raise GspoError(f"--sweep names {key} twice", "an axis has all its values in one place", EXAMPLE)
        axes[key] = found
    if len(axes) > 2:
        raise GspoError(f"a sweep over {len(axes)} keys", "a map has one or two axes", "use --set for the others")
    return axes


def divide(text: str) -> list[str]:
    """The parts between commas that lie outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote or sign in "\"'":
            quote = "" if sign == quote else quote or sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def sweep_cells(axes: dict[str, list[str]]) -> list[SweepCell]:
    """The combinations, the last axis fastest. Errors: GspoError where two would have the same folder."""
    short = {key: key.rpartition(".")[2] for key in axes}
    if len(set(short.values())) < len(short):
        short = {key: key for key in axes}
    found = [
        SweepCell(
            "_".join(f"{short[key]}-{_plain(value)}" for key, value in zip(axes, values, strict=True)),
            tuple(f"{key}={value}" for key, value in zip(axes, values, strict=True)),
        )
        for values in itertools.product(*axes.values())
    ]
    twice = [name for name, count in Counter(cell.name for cell in found).items() if count > 1]
    if twice:
        raise GspoError(
            f"two cells of the sweep would be {twice[0]}",
            "folder names keep letters, digits, dots and hyphens of a value, and these do not differ in them",
            "sweep the two values in separate studies",
        )
    return found


def _plain(value: str) -> str:
    """A value as part of a folder's name."""
    text = value.replace("-", "m", 1) if re.match(r"-\d", value) else value  # -1 must not become 1
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def studies_of(path: Path) -> list[Path]:
    """The studies of a sweep's folder, sorted; a study or a run is its own only one."""
    if (path / NAME).is_file() or (path / "run.json").is_file() or not path.is_dir():
        return [path]
    return sorted(file.parent for file in path.glob(f"*/{NAME}")) or [path]
