"""What is known of LoRA adapters without loading anything: whether a folder holds them, whether peft is there."""

from importlib.util import find_spec
from pathlib import Path

from gspo_cli.errors import GspoError


def require_peft(what: str) -> None:
    """Errors: GspoError when peft, which `what` needs, is not installed."""
    if find_spec("peft") is None:
        raise GspoError(f"{what} needs the package peft", "it is optional and not installed", "pip install peft")


def is_adapter(path: str | Path) -> bool:
    """Whether a folder holds adapters instead of a full model."""
    return (Path(path) / "adapter_config.json").is_file()


def refuse_adapter(path: str | Path, what: str) -> None:
    """Errors: GspoError when `path`, from which `what` would start, holds adapters."""
    if is_adapter(path):
        raise GspoError(
            f"{what} cannot start from the adapters in {path}",
            "a start model must be a full one: the KL penalty and new adapters refer to it",
            "merge them with peft's merge_and_unload() (docs/real-models.md), and start from that folder",
        )
