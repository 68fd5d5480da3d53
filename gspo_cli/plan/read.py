"""The architecture of the model that a recipe names, without loading a weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspo_cli.config import ModelConfig
from gspo_cli.errors import GspoError
from gspo_cli.plan.architecture import KINDS, Architecture, of_config, of_tiny
from gspo_cli.plan.published import PUBLISHED, published


def architecture_of(model: ModelConfig) -> tuple[Architecture, str]:
    """The architecture, and where it was read.

    A folder's configuration, or one in the hub's cache, comes first; then the built-in table; then the hub.
    Errors: GspoError for a model whose configuration cannot be had, or of a kind that the planner cannot count.
    """
    if model.tiny is not None:
        return of_tiny(model.tiny), "the recipe's model.tiny"
    assert model.path is not None
    known = published(model.path)
    try:
        found = read_config(model.path, model.revision, offline=known is not None)
    except (OSError, ValueError) as error:
        if known is not None:
            return known, "the built-in table of published numbers"
        raise GspoError(
            f"cannot read the configuration of {model.path}",
            str(error).strip().splitlines()[0],
            f"give a model folder with --model; without network the planner knows {', '.join(PUBLISHED)}",
        ) from error
    if found.model_type not in KINDS:
        raise GspoError(
            f"the planner cannot count a model of type {found.model_type!r}",
            f"it knows {', '.join(KINDS)}",
            "train without --dry-run: the trainer takes more kinds than the planner",
        )
    return of_config(found), f"the configuration of {model.path}"


def read_config(path: str, revision: str | None, offline: bool) -> Any:
    """A transformers configuration; `offline` = from the disk or not at all."""
    from transformers import AutoConfig

    local = offline and not Path(path).is_dir()
    return AutoConfig.from_pretrained(path, revision=revision, local_files_only=local)
