"""Which passes of a model are right: tried on a few short rows when it is loaded, against its plain forward pass.

The fastest path whose log-probabilities are those of transformers' plain pass is used, else the next simpler one; a
model for which none is right is refused. To be quick, the trial runs on as many layers as it takes to have one of each
kind, with a head for the first tokens of the vocabulary only, and with windows that its rows exceed.

R = rows, T = token positions, V = vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from inspect import signature
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.models.attention import ATTENTION, UnknownAttention
from gspo_cli.models.decoding import CachedRows, Indices, OwnRows, Rows
from gspo_cli.models.fixed import FixedRows, FixedStep
from gspo_cli.models.packing import pack, take_rows
from gspo_cli.models.shortened import VOCABULARY, in_float32, shortened
from gspo_cli.models.trunk import head_logits, last_hidden, trunk_of

PROMPTS = (6, 4)
RESPONSES = ((2, 3), (3, 4))
"""Tokens of the trial's prompts, and of the responses to each."""
LIMIT, HALF_LIMIT = 1e-4, 0.05
"""Nats by which a log-probability may be off; in half precision, by which half of them may where rounding is less."""
TIMES_HALF_ROUNDING = 2
"""In half precision, half of the tokens may be off by so many times what it does to the plain pass."""
ROUNDING, TIMES_ROUNDING = 2e-5, 10
"""A cache or a layout may be off by this, or by so many times what padding is: the trial's rows are short, and an error
of a recurrence grows with length."""
LARGEST_CAST = 2**28
"""Parameters of a model of half precision that is cast whole, where it cannot do with fewer layers."""
SCALE_LIMIT = 2e-4
"""The same in units of the logits' own spread: in a freshly made model a wrong window moves nats by next to nothing."""


@dataclass(frozen=True, slots=True)
class Paths:
    """How a model is computed here."""

    attention: str = "sdpa"
    """transformers' name of the implementation: ours, or the model's own `eager`."""
    packed: bool = False
    """Whether training passes take packed rows."""
    cache: Literal["shared", "own", "none"] = "shared"
    """What the sampler continues rows on: ours with shared prefixes, the model's own, or none."""
    nats: float = 0.0
    """The largest difference from the plain pass that the trial found on these paths, in float32."""
    rounding: float = 0.0
    """What half precision does to the plain pass: nats that half of the tokens are off by. 0 for float32."""

    def describe(self) -> str:
        """One line for the user."""
        kernels = "this tool's attention" if self.attention == ATTENTION else f"attention {self.attention}"
        rows = "packed rows" if self.packed else "padded rows"
        cache = {"shared": "a shared cache", "own": "the model's own cache", "none": "no cache (slow)"}[self.cache]
        rounding = f" in float32 (half precision itself: {self.rounding:.1g})" if self.rounding else ""
        return (
            f"{kernels}, training on {rows}, sampling on {cache}; within {self.nats:.1g} nats of a plain pass{rounding}"
        )

    def as_dict(self) -> dict[str, Any]:
        """For `run.json`."""
        return asdict(self)


def paths_of(model: nn.Module) -> Paths:
    """The paths that `admit` has found; the plainest for a model that it has not seen."""
    found: Paths = getattr(model, "paths", Paths())
    return found


def use_paths(model: PreTrainedModel, paths: Paths) -> None:
    """Sets a model to paths that were found for it, or for another copy of it."""
    model.set_attn_implementation(paths.attention)
    model.paths = paths  # type: ignore[assignment]


@torch.no_grad()
def admit(model: PreTrainedModel, name: str) -> Paths:
    """Finds a model's paths and sets it to them.

    Errors: GspoError that names the model and the part that is not right.
    """
    with tried(model, name) as trial:
        paths, faults = Paths("eager", rounding=trial.rounding), list[str]()
        for implementation in (ATTENTION, "eager"):
            wrong = trial.error_of(implementation, trial.padded)
            if wrong.accepted:
                paths = replace(paths, attention=implementation, nats=wrong.nats)
                trial.limit = min(trial.limit, max(ROUNDING, TIMES_ROUNDING * wrong.nats))
                break
            faults.append(f"{implementation}: {wrong.what}")
        else:
            raise GspoError(
                f"{name}: its log-probabilities cannot be computed here",
                f"{type(model).__name__} on padded rows differs from its plain forward pass ({'; '.join(faults)})",
                "please report it with the model's config.json; another model of the family may work",
            )
        ours = paths.attention == ATTENTION
        packed = trial.error_of(paths.attention, trial.packed) if ours else None
        if packed and packed.accepted:
            paths = replace(paths, packed=True, nats=max(paths.nats, packed.nats))
        caches: tuple[Literal["shared", "own", "none"], ...] = ("shared", "own", "none") if ours else ("own", "none")
        for cache in caches:
            decoded = trial.error_of(paths.attention, lambda cache=cache: trial.decoded(cache))  # type: ignore[misc]
            if decoded.accepted:
                paths = replace(paths, cache=cache, nats=max(paths.nats, decoded.nats))
                break
            faults.append(f"cache {cache}: {decoded.what}")
        else:
            raise GspoError(
                f"{name}: it cannot be sampled from here",
                f"{type(model).__name__} decodes to other log-probabilities ({'; '.join(faults)})",
                "rollout.engine = 'vllm' samples with its own code; docs/models.md lists the families that were tried",
            )
    use_paths(model, paths)
    return paths


@torch.no_grad()
def fixed_steps(model: PreTrainedModel) -> Difference:
    """How far decoding in steps of fixed shape (`FixedRows`, not compiled) is off, for a model that was admitted."""
    paths = paths_of(model)
    with tried(model, type(model).__name__) as trial:
        trial.limit = min(trial.limit, max(ROUNDING, TIMES_ROUNDING * paths.nats))
        found = trial.error_of(paths.attention, lambda: trial.decoded("fixed"))
    use_paths(model, paths)
    return found


@contextmanager
def tried(model: PreTrainedModel, name: str) -> Iterator[Trial]:
    """Within the context, a model is shortened if it can be, and its trial has a reference. Errors: GspoError."""
    failures = (IndexError, KeyError, RuntimeError, TypeError, ValueError, AttributeError)
    trial = Trial(model)
    with shortened(model) as restored:
        try:
            trial.set_reference()
        except failures:
            restored()  # some architectures cannot do with fewer layers
            try:
                trial.set_reference(whole=True)
            except failures as error:
                raise GspoError(
                    f"{name}: its forward pass fails",
                    f"{type(model).__name__}: {type(error).__name__}: {' '.join(str(error).split())[:200]}",
                    "its config.json does not fit its weights or this version of transformers",
                ) from error
        yield trial


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a path is from the plain pass."""

    nats: float
    accepted: bool
    what: str


class Trial:
    """A few rows, the logits of a plain pass over each of them alone, and the same by other paths: [tokens, V]."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.limit = model, LIMIT
        self.half, self.rounding = model.dtype.itemsize <= 2, 0.0
        ids = np.random.default_rng(0).integers(1, min(VOCABULARY, input_ids_of(model)), (2, 40)).tolist()
        self.prompts = [tuple(row[:length]) for row, length in zip(ids, PROMPTS, strict=True)]
        self.rows = [
            (prompt, tuple(row[20 + i : 20 + i + length]))
            for prompt, row, lengths in zip(self.prompts, ids, RESPONSES, strict=True)
            for i, length in enumerate(lengths)
        ]
        self.more = tuple(ids[0][30:])

    def set_reference(self, whole: bool = False) -> None:
        """The plain pass, in float32; of a large `whole` model in its half precision, since the cast copies weights."""
        self.exact = self.half and not (whole and self.model.num_parameters() > LARGEST_CAST)
        with self.precise():
            self.logits_NV = self._plain()
        if self.exact:
            self.rounding = float(self._off(self._plain())[0].median())

    def precise(self) -> AbstractContextManager[None]:
        """Within the context, a model of half precision computes in float32."""
        return in_float32(self.model) if self.exact else nullcontext()

    def _plain(self) -> Tensor:
        """Rows of one length, without padding, cache or mask, by the model's own code."""
        self.model.set_attn_implementation("eager")
        longest = max(len(prompt + response) for prompt, response in self.rows)
        # shorter rows go on with tokens of their own, so that there is no padding
        rows = [prompt + (response + self.more)[: longest - len(prompt)] for prompt, response in self.rows]
        kept = longest - min(PROMPTS) + 1
        keep = {"logits_to_keep": kept} if "logits_to_keep" in signature(type(self.model).forward).parameters else {}
        ids_BT = torch.tensor(rows, device=self.model.device)
        logits_BTV = self.model(input_ids=ids_BT, use_cache=False, **keep).logits
        skipped = longest - logits_BTV.shape[1]
        return self._before_tokens(list(logits_BTV), skipped).float()

    def error_of(self, implementation: str, path: Callable[[], Tensor]) -> Difference:
        """How far a path is off, or what it raised."""
        before = self.model.config._attn_implementation
        try:
            self.model.set_attn_implementation(implementation)
            with self.precise():
                nats_N, scaled_N = self._off(path().float())
            rounded_N = self._off(path().float())[0] if self.exact else nats_N
        except (UnknownAttention, TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError, IndexError,
                KeyError, AssertionError) as error:  # fmt: skip
            self.model.set_attn_implementation(before)
            return Difference(float("inf"), False, f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
        # in half precision a token may get other experts, while a wrong layout changes most tokens
        limit = max(HALF_LIMIT, TIMES_HALF_ROUNDING * self.rounding)
        accepted = not self.half or bool(rounded_N.median() <= limit)
        if self.exact or not self.half:
            accepted &= bool(nats_N.max() <= self.limit and scaled_N.max() <= SCALE_LIMIT)
        else:
            accepted &= bool(scaled_N.median() <= HALF_LIMIT)
        return Difference(float(nats_N.max()), accepted, f"{float(nats_N.max()):.2g} nats")

    def _off(self, logits_NV: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's largest difference from the reference in nats; its mean one in units of the logits' spread."""
        nats_NV = (logits_NV.log_softmax(-1) - self.logits_NV.log_softmax(-1)).abs()
        likely_NV = self.logits_NV.softmax(-1) > 1e-6  # of the others, only rounding would be seen
        spread_N = self.logits_NV.std(-1).clamp(min=1e-12)
        return nats_NV.masked_fill(~likely_NV, 0.0).amax(-1), (logits_NV - self.logits_NV).abs().mean(-1) / spread_N

    def padded(self) -> Tensor:
        """Rows of all lengths, padded on the right."""
        rows = [prompt + response for prompt, response in self.rows]
        width = max(map(len, rows))
        ids_BT = torch.tensor([row + (0,) * (width - len(row)) for row in rows], device=self.model.device)
        hidden_BTH = last_hidden(trunk_of(self.model), ids_BT, None).unflatten(0, ids_BT.shape)
        return self._head([hidden_BTH[b] for b in range(len(rows))])

    def packed(self) -> Tensor:
        """The same rows packed, with their common prompts once."""
        rows = [prompt + response for prompt, response in self.rows]
        packing = pack(rows).to(self.model.device)
        ids_BT = packing.input_ids[0][packing.index_BT]
        hidden_NH = last_hidden(trunk_of(self.model), ids_BT, packing)
        return self._head([take_rows(hidden_NH, packing.index_BT[b]) for b in range(len(rows))])

    def _head(self, hidden: list[Tensor]) -> Tensor:
        return head_logits(self.model, self._before_tokens(hidden))

    def _before_tokens(self, states: list[Tensor], skipped: int = 0) -> Tensor:
        """What the responses' tokens are drawn from; of each row, the first positions may have been `skipped`."""
        places = [len(prompt) - 1 - skipped for prompt, _ in self.rows]
        lengths = [len(response) for _, response in self.rows]
        return torch.cat([x[start : start + n] for x, start, n in zip(states, places, lengths, strict=True)])

    def decoded(self, cache: str) -> Tensor:
        """The same responses token by token, as the sampler does it: rows split after their prompts, and end."""
        responses = [response for _, response in self.rows]
        if cache in ("shared", "fixed"):
            both: Rows = (
                CachedRows(self.model, self.prompts, max(map(len, responses)), len(self.rows)) if cache == "shared" else
                FixedRows(self.model, self.prompts, max(map(len, responses)), len(self.rows), FixedStep(self.model))
            )  # fmt: skip
            # a row's first continuation stays, the others follow
            hidden = self._continued(both, [0, 2, 1, 3], np.array([0, 1, 0, 1]))
        else:
            hidden = []
            for prompt, pair in zip(self.prompts, ([0, 1], [2, 3]), strict=True):
                alone = OwnRows(self.model, [prompt, prompt], cache == "own")
                hidden += self._continued(alone, pair, np.arange(2))
        return head_logits(self.model, torch.cat(hidden))

    def _continued(self, rows: Rows, order: list[int], sources: Indices) -> list[Tensor]:
        """The hidden states before each response's tokens, in the order of the responses; row i takes `order[i]`."""
        found = {i: [rows.hidden_RH[source].clone()] for i, source in zip(order, sources, strict=True)}
        for t in range(max(len(self.rows[i][1]) for i in order) - 1):
            responses = [self.rows[i][1] for i in order]
            rows.step(sources, np.array([ids[t] if t < len(ids) else 0 for ids in responses]))
            sources = np.arange(len(order))
            for row, i in enumerate(order):
                if t + 1 < len(self.rows[i][1]):
                    found[i].append(rows.hidden_RH[row].clone())
        return [torch.stack(found[i]) for i in sorted(order)]


def row_limit(model: PreTrainedModel) -> int | None:
    """The most tokens of prompt and response together: see `position_limit`."""
    return position_limit(model.config)


LIMITS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "index_topk")
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "data2vec-text", "xmod")
"""Architectures that number positions from behind the padding token's id."""


def position_limit(configuration: PreTrainedConfig) -> int | None:
    """The model's positions by its configuration, or None if it does not count them.

    Where the rotary frequencies depend on the length of what is fed (dynamic scaling, LongRoPE), a token's
    log-probability would depend on the rows beside it; such models are used up to their original length only. Where
    attention picks the highest-scored positions (DeepSeek-V3.2), it is exact up to so many: rounding orders near-ties.
    """
    config = configuration.get_text_config()
    limits = [getattr(config, name, None) for name in LIMITS]
    if limits[0] and config.model_type in OFFSET_POSITIONS:
        limits[0] -= (config.pad_token_id or 0) + 1
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if part.get("rope_type") in ("dynamic", "longrope"):
            limits.append(part.get("original_max_position_embeddings") or limits[0])
    return min((limit for limit in limits if limit), default=None)


def input_ids_of(model: PreTrainedModel) -> int:
    """The number of token ids that may be fed."""
    return int(model.get_input_embeddings().num_embeddings)
