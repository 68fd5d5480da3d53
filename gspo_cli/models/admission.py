"""Which passes of a model are right: tried on a few short rows when it is loaded, against its plain forward pass.

The fastest path whose log-probabilities are those of transformers' plain pass is used, else the next simpler one; a
model for which none is right is refused. To be quick, the trial runs on as many layers as it takes to have one of each
kind, with a head for the first tokens of the vocabulary only, and with windows that its rows exceed.

R = rows, T = token positions, V = vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import signature

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from gspo_cli.errors import GspoError
from gspo_cli.models.attention import ATTENTION, install_attention
from gspo_cli.models.decoding import CachedRows, Indices, OwnRows, Rows
from gspo_cli.models.fixed import FixedRows, FixedStep
from gspo_cli.models.packing import pack, take_rows
from gspo_cli.models.shortened import VOCABULARY, in_float32, shortened
from gspo_cli.models.trunk import MODEL_ERRORS, head_logits, last_hidden, one_line, trunk_of

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


CACHES = ("shared", "own", "none")
Logits = Callable[[], Tensor]
"""Computes those before the trial's tokens, [tokens, V]."""


@dataclass(frozen=True, slots=True)
class Paths:
    """How a model is computed here."""

    attention: str = "sdpa"
    """transformers' name of the implementation: ours, or the model's own `eager`."""
    packed: bool = False
    """Whether training passes take packed rows."""
    cache: str = "shared"
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


def paths_of(model: nn.Module) -> Paths:
    """The paths that `admit` has found; the plainest for a model that it has not seen."""
    found: Paths = getattr(model, "paths", Paths())
    return found


def use_paths(model: PreTrainedModel, paths: Paths) -> None:
    """Sets a model to paths that were found for it, or for another copy of it."""
    install_attention()
    model.set_attn_implementation(paths.attention)
    model.paths = paths  # type: ignore[assignment]


@torch.no_grad()
def admit(model: PreTrainedModel, name: str) -> Paths:
    """Finds a model's paths and sets it to them.

    Errors: GspoError that names the model and the part that is not right.
    """
    install_attention()
    with tried(model, name) as trial:
        attention, faults = trial.first_right([(kind, kind, trial.trained) for kind in (ATTENTION, "eager")])
        if attention is None:
            raise GspoError(
                f"{name}: its log-probabilities cannot be computed here",
                f"{type(model).__name__} on padded rows differs from its plain forward pass ({faults})",
                "please report it with the model's config.json; another model of the family may work",
            )
        trial.set_limit(trial.nats)
        ours = attention == ATTENTION
        packed, _ = trial.first_right([("packed", attention, partial(trial.trained, packed=True))] if ours else [])
        kinds = CACHES if ours else CACHES[1:]
        cache, faults = trial.first_right([(kind, attention, partial(trial.decoded, kind)) for kind in kinds])
        if cache is None:
            raise GspoError(
                f"{name}: it cannot be sampled from here",
                f"{type(model).__name__} decodes to other log-probabilities ({faults})",
                "rollout.engine = 'vllm' samples with its own code; docs/models.md lists the families that were tried",
            )
    paths = Paths(attention, packed is not None, cache, trial.nats, trial.rounding)
    use_paths(model, paths)
    return paths


@torch.no_grad()
def fixed_steps(model: PreTrainedModel) -> Difference:
    """How far decoding in steps of fixed shape (`FixedRows`, not compiled) is off, for a model that was admitted."""
    paths = paths_of(model)
    with tried(model, type(model).__name__) as trial:
        trial.set_limit(paths.nats)
        found = trial.difference(paths.attention, partial(trial.decoded, "fixed"))
    use_paths(model, paths)
    return found


@contextmanager
def tried(model: PreTrainedModel, name: str) -> Iterator[Trial]:
    """Within the context, a model is shortened if it can be, and its trial has a reference. Errors: GspoError."""
    trial = Trial(model)
    with shortened(model) as restored:
        try:
            trial.set_reference()
        except MODEL_ERRORS:
            restored()  # some architectures cannot do with fewer layers
            try:
                trial.set_reference(whole=True)
            except MODEL_ERRORS as error:
                raise GspoError(
                    f"{name}: its forward pass fails",
                    f"{type(model).__name__}: {one_line(error)}",
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
        self.half, self.rounding, self.nats = model.dtype.itemsize <= 2, 0.0, 0.0
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

    def set_limit(self, nats: float) -> None:
        """From now on a path may be off by rounding alone, given what padding is off by."""
        self.limit = min(self.limit, max(ROUNDING, TIMES_ROUNDING * nats))

    def first_right(self, options: Iterable[tuple[str, str, Logits]]) -> tuple[str | None, str]:
        """The first (name, implementation, path) that is right, and what is wrong with those before it."""
        faults = list[str]()
        for name, implementation, path in options:
            difference = self.difference(implementation, path)
            if difference.accepted:
                self.nats = max(self.nats, difference.nats)
                return name, "; ".join(faults)
            faults.append(f"{name}: {difference.what}")
        return None, "; ".join(faults)

    def difference(self, implementation: str, path: Logits) -> Difference:
        """How far a path is off, or what it raised."""
        before = self.model.config._attn_implementation
        try:
            self.model.set_attn_implementation(implementation)
            with self.precise():
                nats_N, scaled_N = self._off(path().float())
            rounded_N = self._off(path().float())[0] if self.exact else nats_N
        except MODEL_ERRORS as error:
            self.model.set_attn_implementation(before)
            return Difference(float("inf"), False, one_line(error))
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

    def trained(self, packed: bool = False) -> Tensor:
        """Rows of all lengths as training feeds them: padded on the right, or packed, with common prompts once."""
        rows = [prompt + response for prompt, response in self.rows]
        width = max(map(len, rows))
        ids_BT = torch.tensor([row + (0,) * (width - len(row)) for row in rows], device=self.model.device)
        packing = pack(rows).to(self.model.device) if packed else None
        hidden_NH = last_hidden(trunk_of(self.model), ids_BT, packing)
        hidden_BTH = take_rows(hidden_NH, packing.index_BT) if packing else hidden_NH.unflatten(0, ids_BT.shape)
        return head_logits(self.model, self._before_tokens(list(hidden_BTH)))

    def _before_tokens(self, states: list[Tensor], skipped: int = 0) -> Tensor:
        """What the responses' tokens are drawn from; of each row, the first positions may have been `skipped`."""
        places = [len(prompt) - 1 - skipped for prompt, _ in self.rows]
        lengths = [len(response) for _, response in self.rows]
        return torch.cat([x[start : start + n] for x, start, n in zip(states, places, lengths, strict=True)])

    def decoded(self, cache: str) -> Tensor:
        """The same responses token by token, as the sampler does it: rows split after their prompts, and end."""
        responses = [response for _, response in self.rows]
        if cache in ("shared", "fixed"):
            sizes = (self.model, self.prompts, max(map(len, responses)), len(responses))
            rows: Rows = CachedRows(*sizes) if cache == "shared" else FixedRows(*sizes, FixedStep(self.model))
            # a row's first continuation stays, the others follow
            hidden = self._continued(rows, [0, 2, 1, 3], np.array([0, 1, 0, 1]))
        else:
            hidden = []
            for prompt, pair in zip(self.prompts, ([0, 1], [2, 3]), strict=True):
                rows = OwnRows(self.model, [prompt, prompt], cache == "own")
                hidden += self._continued(rows, pair, np.arange(2))
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


LIMITS = ("max_position_embeddings", "max_seq_len", "max_target_positions", "index_topk")


def position_limit(configuration: PreTrainedConfig) -> int | None:
    """The most tokens of prompt and response together by the configuration; None if it does not count positions.

    Where the rotary frequencies depend on the length of what is fed (dynamic scaling, LongRoPE), a token's
    log-probability would depend on the rows beside it; such models are used up to their original length only. Where
    attention picks the highest-scored positions (DeepSeek-V3.2), it is exact up to so many: rounding orders near-ties.
    """
    config = configuration.get_text_config()
    limits = [getattr(config, name, None) for name in LIMITS]
    rope = getattr(config, "rope_parameters", None) or {}
    for part in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if part.get("rope_type") in ("dynamic", "longrope"):
            limits.append(part.get("original_max_position_embeddings") or limits[0])
    return min((limit for limit in limits if limit), default=None)


def input_ids_of(model: PreTrainedModel) -> int:
    """The number of token ids that may be fed."""
    return int(model.get_input_embeddings().num_embeddings)
