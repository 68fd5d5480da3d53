"""Python code that comes with a model: never run unless the command names the exact revision to trust.

A revision is 40 hex digits: the commit of a hub repository, or the hash of the files that a local folder would run.
Only a command can name it, never a recipe: recipes are shared and read less closely.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from gspo_cli.errors import GspoError

OPTION = "--trust-remote-code"
_allowed: str | None = None


def allow_code(revision: str | None) -> None:
    """Lets this process run model code of one revision; None = of no revision.

    Errors: GspoError for a revision that could mean different code tomorrow.
    """
    global _allowed
    if revision is not None and not re.fullmatch("[0-9a-f]{40}", revision):
        raise GspoError(
            f"{OPTION} {revision} names no commit",
            "a branch or tag can mean different code tomorrow; a revision is 40 hex digits",
            "give the full commit that you have read; for a local folder, the error without the option shows it",
        )
    _allowed = revision


def allowed_code() -> str | None:
    """The revision that this process may run."""
    return _allowed


def code_arguments(source: str | Path) -> dict[str, Any]:
    """The arguments of `from_pretrained` for a model's code: by default it neither asks nor runs any.

    Errors: GspoError when a local folder's code is not the allowed revision.
    """
    if _allowed is None:
        return {"trust_remote_code": False}
    if Path(source).is_dir() and code_files(Path(source)) and (found := code_revision(Path(source))) != _allowed:
        raise GspoError(
            f"the code in {source} is not revision {_allowed}",
            f"it is {found}",
            f"read {', '.join(p.name for p in code_files(Path(source)))}, then {OPTION} {found}",
        )
    return {"trust_remote_code": True, "code_revision": _allowed}


def code_hint(source: str | Path, error: BaseException) -> str | None:
    """What to do about a model that was refused because of its code; None for any other error."""
    if "trust_remote_code" not in str(error):
        return None
    revision = code_revision(Path(source)) if Path(source).is_dir() else "REVISION (the commit)"
    return f"read its code, then {OPTION} {revision} (train, rollout, cold-start and eval benchmarks take it)"


def code_revision(folder: Path) -> str:
    """The hash of a local folder's code: names and bytes of the files that loading it would run."""
    digest = hashlib.sha1(usedforsecurity=False)
    for path in code_files(folder):
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def code_files(folder: Path) -> list[Path]:
    """The modules in a local folder that its `auto_map` names, and what they import from the folder."""
    from transformers.dynamic_module_utils import get_relative_import_files  # slow, and commands check the option first

    files: set[Path] = set()
    for config in ("config.json", "tokenizer_config.json"):
        for reference in _references(folder / config):
            module = folder / f"{reference.rpartition('.')[0]}.py"
            files |= {module, *map(Path, get_relative_import_files(module) if module.is_file() else [])}
    return sorted(files)


def _references(config: Path) -> list[str]:
    """`module.Class` of each class defined in the folder; classes of other repositories are pinned by their commit."""
    try:
        table = json.loads(config.read_text(encoding="utf-8"))["auto_map"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    values = table.values() if isinstance(table, dict) else []
    names = [name for value in values for name in (value if isinstance(value, list) else [value])]
    return [name for name in names if isinstance(name, str) and "--" not in name]
