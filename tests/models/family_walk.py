#!/usr/bin/env python3
"""Every causal language model that transformers can build tiny: its paths here, and how far they are from a plain pass.

    python tests/models/family_walk.py [--markdown] [KIND ...]

Rows are longer than every window; the sampler draws them, then each is scored by a plain pass of an untouched copy.
"""

import argparse
import copy
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from expert_walk import experts_of
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gspo_cli.config import Lora
from gspo_cli.errors import GspoError
from gspo_cli.models.admission import Paths, admit
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.lora import add_lora
from gspo_cli.models.packing import pack
from gspo_cli.models.tiny import character_tokenizer
from gspo_cli.rollout.builtin.sampler import sample
from gspo_cli.types import Sampling

DATA: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("family_sizes.toml").read_text("utf-8"))
SIZES, SPECIAL = DATA["sizes"], DATA["special"]
LARGEST = 3_000_000  # parameters; a kind that cannot be made smaller by these names is left out
TEMPERATURE = 0.8


class Row(NamedTuple):
    """What the walk found of one kind."""

    kind: str
    paths: Paths | None
    nats: dict[str, float]
    """Largest difference from a plain pass: of the sampler, and of padded and packed training rows."""
    refused: str = ""
    experts: str = ""
    """What a mixture of experts can be trained with, see `experts_of`; empty for a dense model."""


def build(kind: str, **changes: Any) -> PreTrainedModel:
    """A tiny random model. Errors: those of transformers, and ValueError for one that stays large."""
    known = AutoConfig.for_model(kind)
    keys = SIZES | SPECIAL.get(kind, {}) | changes
    given = {k: v for k, v in keys.items() if v != "none" and (k in known.to_dict() or hasattr(known, k))}
    config = AutoConfig.for_model(kind, **given)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    return model


def saved(model: PreTrainedModel, folder: Path) -> Path:
    """The folder, with the model and a tokenizer in it."""
    for part in (model, character_tokenizer()):
        part.save_pretrained(folder)
    return folder


def walk(kind: str) -> Row:
    """One kind, from the admission to sampled and trained rows."""
    model = build(kind)
    plain = copy.deepcopy(model)
    try:
        paths = admit(model, kind)
    except GspoError as error:
        return Row(kind, None, {}, error.why)
    generator = torch.Generator().manual_seed(5)
    prompts = [tuple(torch.randint(3, 61, (n,), generator=generator).tolist()) for n in (5, 13)]
    drawn = sample(model, prompts, [[1, 2, 3], [4, 5]], Sampling(TEMPERATURE, 20), frozenset(), 1e18)
    rows = [(prompts[p], tuple(one.token_ids), one.log_probs) for p, group in enumerate(drawn) for one in group]
    expected = [plain_log_probs(plain, prompt, response) for prompt, response, _ in rows]
    nats = {"sampler": worst([torch.tensor(log_probs) for *_, log_probs in rows], expected)}
    texts = [prompt + response for prompt, response, _ in rows]
    width = max(map(len, texts))
    ids_BT = torch.tensor([text + (0,) * (width - len(text)) for text in texts])
    mask_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for b, (prompt, response, _) in enumerate(rows):
        mask_BT[b, len(prompt) : len(prompt) + len(response)] = True
    for name, packing in {"padded": None, "packed": pack(texts)}.items():
        if name == "padded" or paths.packed:
            scores_BT = token_scores(model, ids_BT, mask_BT, TEMPERATURE, packing).log_probs_BT.detach()
            nats[name] = worst([scores_BT[b][mask_BT[b]] for b in range(len(rows))], expected)
    experts = experts_of(model, plain)
    with suppress(GspoError):  # peft finds no layers that it can adapt
        nats["LoRA"] = adapted_difference(model, ids_BT, mask_BT, packed=paths.packed, texts=texts)
    return Row(kind, paths, nats, experts=experts)


@torch.no_grad()
def plain_log_probs(model: PreTrainedModel, prompt: tuple[int, ...], response: tuple[int, ...]) -> torch.Tensor:
    """By a pass of the untouched model over this row alone."""
    logits_TV = model(input_ids=torch.tensor([prompt + response]), use_cache=False).logits[0].float() / TEMPERATURE
    log_probs_TV = logits_TV[len(prompt) - 1 : -1].log_softmax(-1)
    return log_probs_TV[torch.arange(len(response)), torch.tensor(response)]


def worst(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


@torch.no_grad()
def adapted_difference(
    model: PreTrainedModel, ids_BT: torch.Tensor, mask_BT: torch.Tensor, packed: bool, texts: list[tuple[int, ...]]
) -> float:
    """Training rows of the model with adapters that do something, against its plain pass with the same adapters."""
    add_lora(model, Lora(rank=2), "start", None, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    scores_BT = token_scores(model, ids_BT, mask_BT, TEMPERATURE, pack(texts) if packed else None).log_probs_BT
    model.set_attn_implementation("eager")
    differences = []
    for b, text in enumerate(texts):
        start = int(mask_BT[b].nonzero()[0])
        expected = plain_log_probs(model, text[:start], text[start:])
        differences.append(float((scores_BT[b][mask_BT[b]] - expected).abs().max()))
    return max(differences)


def kinds() -> Iterator[str]:
    """Those that can be built tiny."""
    for kind in sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}):
        try:
            with torch.no_grad():
                build(kind)(input_ids=torch.ones(1, 9, dtype=torch.long), use_cache=False)
        except Exception:
            continue  # it needs other files or sizes
        yield kind


def table(rows: Iterable[Row]) -> list[str]:
    """The kinds that work alike, in one line of markdown each, with the worst of their differences."""
    caches = {"shared": "shared cache", "own": "its own cache", "none": "no cache"}
    alike: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.paths is None:
            key = ("refused: padded rows differ from the plain forward pass", "", "")
        else:
            layout = "packed" if row.paths.packed else "padded"
            attention = "" if row.paths.attention == "gspo" else ", the model's attention"
            key = (layout + attention, caches[row.paths.cache], row.experts)
        alike.setdefault(key, []).append(row)
    lines = ["| training rows | sampling | experts | worst, nats | kinds |", "|---|---|---|---|---|"]
    for key in sorted(alike):
        nats = [nat for row in alike[key] for nat in row.nats.values()]
        worst_nats = f"{max(nats):.0e}" if nats else ""
        lines.append(f"| {' | '.join(key)} | {worst_nats} | {', '.join(row.kind for row in alike[key])} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/models.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = (walk(kind) for kind in options.kinds or kinds())
    for line in table(rows) if options.markdown else rows:
        print(line, flush=True)


if __name__ == "__main__":
    main()
