"""What is evaluated: an engine that holds the weights, with everything that identifies them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gspo_cli.models.load import tokenizer_hash, weights_hash
from gspo_cli.rollout.engine import Engine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Subject:
    """A model behind an engine; its weights must not change while it is evaluated."""

    engine: Engine
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    """The path or hub name that was given."""

    @property
    def commit(self) -> str | None:
        """The hub's commit; None for a local folder."""
        return getattr(self.model.config, "_commit_hash", None)

    @property
    def context(self) -> int:
        """Tokens that prompt and response may have together."""
        return int(self.model.config.max_position_embeddings)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What two evaluations must share for their answers to be those of one model."""
        template = self.tokenizer.chat_template
        return {
            "model_sha256": weights_hash(self.model),
            "tokenizer_sha256": tokenizer_hash(self.tokenizer),
            "chat_template_sha256": template and hashlib.sha256(str(template).encode()).hexdigest(),
            "device": self.model.device.type,
            "engine": self.engine.info.as_dict(),
        }
