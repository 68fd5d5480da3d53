"""Reads YAML and TOML as flat tables `a.b.c -> value` that remember their lines, with the files they inherit from."""

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from gspo_cli.audit.findings import UNKNOWN, Value, parsed
from gspo_cli.errors import GspoError

MAX_TABLE, MAX_KEYS, MAX_DEPTH, MAX_BASES = 400_000, 20_000, 40, 20


def read_yaml(text: str, name: str) -> dict[str, Value]:
    """The leaves of a YAML mapping by dotted key. Errors: GspoError if it is none, or too large once expanded."""
    try:
        if len(text) > MAX_TABLE:
            raise GspoError(f"cannot read {name}", f"it has more than {MAX_TABLE:,} characters", "name a configuration")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        why = getattr(error, "problem", None) or type(error).__name__
        raise GspoError(f"cannot read {name}", f"it is no YAML: {why}", "check its syntax") from error
    if not isinstance(node, yaml.MappingNode):
        raise GspoError(f"cannot read {name}", "it holds no keys", "name a configuration of a trainer")
    leaves: dict[str, Value] = {}
    seen = 0

    def visit(node: yaml.Node, key: str, depth: int) -> None:
        nonlocal seen
        seen += 1
        if seen > MAX_KEYS or depth > MAX_DEPTH:
            raise GspoError(f"cannot read {name}", "its aliases or levels expand without end", "name a configuration")
        if isinstance(node, yaml.MappingNode):
            for inner, value in sorted(node.value, key=lambda pair: pair[0].value != "<<"):  # merged keys come first
                if isinstance(inner, yaml.ScalarNode):
                    visit(value, key if inner.value == "<<" else f"{key}.{inner.value}".strip("."), depth + 1)
            return
        source = f"{name}:{node.start_mark.line + 1}"
        if isinstance(node, yaml.SequenceNode):
            items = [item.value for item in node.value if isinstance(item, yaml.ScalarNode)]
            leaves[key] = Value(items, source)
            for item in node.value:
                if isinstance(item, yaml.MappingNode):
                    visit(item, f"{key}[]", depth + 1)
        else:
            leaves[key] = Value(node.value, source) if node.style else _written(node.value, source)

    visit(node, "", 0)
    return leaves


def read_toml(text: str, name: str) -> dict[str, Value]:
    """The leaves of a TOML document by dotted key. Errors: GspoError."""
    try:
        if len(text) > MAX_TABLE:
            raise ValueError(f"it has more than {MAX_TABLE:,} characters")
        table = tomllib.loads(text)
        leaves = dict(_leaves(table, ""))
    except (ValueError, RecursionError) as error:
        raise GspoError(f"cannot read {name}", f"it is no TOML: {error}", "check its syntax") from error
    lines, section = {}, ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[+\s*([\w.\"'-]+)\s*\]+", line):
            section = head[1].replace('"', "").replace("'", "")
            lines[section] = number
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            lines.setdefault(f"{section}.{key[1]}".strip("."), number)
    return {
        key: Value(value, f"{name}:{lines.get(key, lines.get(key.rpartition('.')[0], 1))}")
        for key, value in leaves.items()
    }


def _leaves(table: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The leaves by dotted key; of a list of tables, only how many there are."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            tables = isinstance(value, list) and any(isinstance(item, dict) for item in value)
            yield f"{prefix}{key}", len(value) if tables else value


def inherit(
    path: Path,
    name: str,
    text: str,
    read_text: Callable[[Path], str],
    built_in: Callable[[str], bool],
    folders: tuple[Path, ...] = (),
) -> tuple[dict[str, Value], list[str]]:
    """A YAML file on top of the files in its `defaults`, and the names of those that could not be read.

    `built_in` = whether a base belongs to the framework itself, so that its defaults stand for it.
    Errors: GspoError for bases that form a circle.
    """
    unread: list[str] = []
    count = 0

    def load(path: Path, name: str, text: str, above: tuple[Path, ...]) -> dict[str, Value]:
        nonlocal count
        count += 1
        here = Path(os.path.abspath(path))
        if here in above or count > MAX_BASES:
            raise GspoError(f"cannot read {name}", "its defaults form a circle", "remove one of them from the circle")
        own = read_yaml(text, name)
        bases = own.pop("defaults", Value([], "")).value
        bases = [bases] if isinstance(bases, str) else bases if isinstance(bases, list) else []
        merged: dict[str, Value] = {}
        for base in bases:
            if base == "_self_":
                continue
            base = base.removesuffix("@_here_").removesuffix("@_global_")
            own_base = built_in(Path(base).stem)
            target = None if own_base and not base.endswith((".yaml", ".yml")) else find(here.parent, base, folders)
            if target is not None:
                beside = os.path.join(os.path.dirname(name), os.path.relpath(target, here.parent))
                shown = base if name == "-" else beside
                merged = over(merged, load(target, os.path.normpath(shown), read_text(target), (*above, here)))
            elif not own_base:
                unread.append(base)
        return over(merged, own)

    return load(path, name, text, ()), unread


def over(base: dict[str, Value], top: dict[str, Value]) -> dict[str, Value]:
    """`base` with `top` on it: a leaf replaces a table of that name, and a table a leaf."""
    tables = {table for key in top for table in _tables_of(key)}
    kept = {key: value for key, value in base.items() if key not in tables and top.keys().isdisjoint(_tables_of(key))}
    return kept | top


def _tables_of(key: str) -> list[str]:
    """`a` and `a.b` of the key `a.b.c`."""
    return [key[:at] for at, sign in enumerate(key) if sign == "."]


def find(folder: Path, base: str, folders: tuple[Path, ...] = ()) -> Path | None:
    """The file of a base configuration: relative, a regular file, and no link."""
    if not re.fullmatch(r"[\w.@+/ -]{1,300}", base) or base.startswith("/"):
        return None
    names = [base] if base.endswith((".yaml", ".yml")) else [f"{base}.yaml", f"{base}.yml"]
    for place in (folder, folder / "config", *folders):
        for name in names:
            target = Path(os.path.normpath(place / name))
            if target.is_file() and not target.is_symlink():
                return target
    return None


def hydra(words: Sequence[tuple[str, int]], name: str) -> dict[str, Value]:
    """Overrides `a.b=c`, `+a.b=c`, `++a.b=c` of a command; what becomes of a key without it (`~a.b`) is not known."""
    found = {}
    for text, line in words:
        if match := re.match(r"\+{0,2}([A-Za-z_][\w.@/-]*)=(.*)", text, re.DOTALL):
            found[match[1].replace("/", ".").split("@")[0]] = _written(match[2], f"{name}:{line}")
        elif match := re.fullmatch(r"~([A-Za-z_][\w./-]*)(=.*)?", text, re.DOTALL):
            found[match[1].replace("/", ".")] = Value(UNKNOWN, f"{name}:{line} (it is taken away)")
    return found


def flags(words: Sequence[tuple[str, int]], name: str, single: bool = False) -> dict[str, Value]:
    """Options `--key value...`, `--key=value`, `--switch`; hyphens of a name are underscores.

    `single` = a key takes one value, since what follows is an override.
    """
    values: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    key = ""  # of the option that takes the words which follow
    for text, line in words:
        if re.match(r"--?[A-Za-z]", text):
            head, equal, value = text.lstrip("-").partition("=")
            key = head.replace("-", "_")
            values[key], lines[key] = [value] if equal else [], line
            key = "" if equal else key
        elif key:
            values[key].append(text)
            lines[key] = line
            key = "" if single else key
    return {
        key: _written(True if not given else given[0] if len(given) == 1 else given, f"{name}:{lines[key]}")
        for key, given in values.items()
    }


def _written(text: Any, source: str) -> Value:
    """A value as it stands on a command line; a text with `${` in it was quoted, so the framework resolves it."""
    return Value(text, source) if isinstance(text, str) and "${" in text else parsed(text, source)
