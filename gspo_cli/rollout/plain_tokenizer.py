"""What a plan needs of a model, without transformers, whose import takes seconds: its tokenizer and its sizes.

transformers alone knows how the files of a model become a tokenizer. What it made of them is stored in the cache under
the hash of these files, and read from there with the library beneath it.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from gspo_cli.errors import GspoError
from gspo_cli.models.files import check_source, read_config
from gspo_cli.models.remote_code import allowed_code
from gspo_cli.runlog.folder import cache_root
from gspo_cli.runlog.fs import write_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

READ = (".json", ".jinja", ".txt", ".model")
"""Suffixes of the files that a tokenizer or a configuration is made of."""
UNCHANGED = ("__call__", "_encode_plus", "decode", "_decode")
"""Methods of transformers' fast tokenizers that `PlainTokenizer` does the same as, unless a class has its own."""


class PlainTokenizer:
    """What prompts need of a fast tokenizer of transformers; the same ids and texts."""

    def __init__(self, backend: Tokenizer, special_tokens: dict[str, str], chat_template: str | None = None) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend, self.special_tokens_map, self.chat_template = backend, special_tokens, chat_template

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """`input_ids` of the text."""
        return {"input_ids": self.backend.encode(text, add_special_tokens=add_special_tokens).ids}

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """The text of token ids."""
        return str(self.backend.decode(ids, skip_special_tokens=skip_special_tokens))

    def get_chat_template(self) -> str | None:
        """Its only one."""
        return self.chat_template

    @property
    def eos_token(self) -> str:
        """What ends a response."""
        return self.special_tokens_map["eos_token"]

    @property
    def eos_token_id(self) -> int:
        """Its number."""
        return self.backend.token_to_id(self.eos_token)  # type: ignore[return-value]


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before its weights are loaded."""

    tokenizer: PlainTokenizer | PreTrainedTokenizerBase
    limit: int | None
    """Positions; None if it does not count them."""
    config: dict[str, Any]
    """Its configuration, defaults included."""


def read_model(source: str, revision: str | None) -> ModelFacts:
    """Tokenizer and configuration of a model folder or a hub name.

    Errors: GspoError for files that are missing or damaged, and for a tokenizer without an end-of-sequence token.
    """
    check_source(source, revision)
    if stored := _stored_at(source, revision):
        with suppress(OSError, ValueError, KeyError):
            table = json.loads(stored.read_text(encoding="utf-8"))
            backend = Tokenizer.from_str(table["tokenizer"])
            tokenizer = PlainTokenizer(backend, table["special_tokens"], table["chat_template"])
            return ModelFacts(tokenizer, table["limit"], table["config"])

    from gspo_cli.models.admission import position_limit  # these load torch
    from gspo_cli.models.load import load_tokenizer

    slow = load_tokenizer(source, revision, Path(source).is_dir())
    config = read_config(source, revision)
    table = config.to_dict() | {name: getattr(config, name, None) for name in config.attribute_map}
    facts = ModelFacts(slow, position_limit(config), table)
    stored = _stored_at(source, revision)
    if stored is not None and _is_plain(slow):
        text = json.dumps({
            "tokenizer": slow.backend_tokenizer.to_str(), "special_tokens": slow.special_tokens_map,
            "chat_template": slow.chat_template, "limit": facts.limit, "config": table,
        }, default=str)  # fmt: skip
        with suppress(OSError, GspoError):  # it only saves time
            write_text(stored, text)
    return facts


def _is_plain(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a `PlainTokenizer` does all the same."""
    from transformers import PreTrainedTokenizerFast

    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and all(getattr(type(tokenizer), name) is getattr(PreTrainedTokenizerFast, name) for name in UNCHANGED)
        and not (tokenizer.clean_up_tokenization_spaces or tokenizer.split_special_tokens)
        and not isinstance(tokenizer.chat_template, dict)
    )


def _stored_at(source: str, revision: str | None) -> Path | None:
    """Where the facts of these very files are kept; None where a run might take others, or run a model's own code."""
    if allowed_code() is not None:
        return None
    folder = Path(source)
    if not folder.is_dir():
        from huggingface_hub import constants, try_to_load_from_cache

        if not (constants.HF_HUB_OFFLINE or re.fullmatch("[0-9a-f]{40}", revision or "")):
            return None
        found = try_to_load_from_cache(source, "config.json", revision=revision)
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    digest = hashlib.sha256(f"{source} {version('transformers')} {version('tokenizers')}".encode())
    for path in sorted([*folder.glob("*"), *folder.glob("additional_chat_templates/*")]):
        if path.suffix in READ and path.is_file():
            content = path.read_bytes()
            digest.update(f"\n{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return cache_root() / "tokenizers" / f"{digest.hexdigest()[:24]}.json"
