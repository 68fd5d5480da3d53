"""The one-prompt check: after every hand-over of weights, engine and trainer score the same text.

A text is sampled once, when the engine opens. The check scores it, and samples a few more tokens after it: the text is
longer than a block of the engine's prefix cache, so keys and values of old weights would show in the second part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.log_probs import token_scores
from gspo_cli.rollout.engine import SyncReport
from gspo_cli.rollout.host import Host

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH, MORE = 160, 8  # tokens; vLLM's blocks on a CPU have 128
EXACT = 1e-4  # nats of any token, both sides in float32: sums are merely taken in another order
RELOAD = 1e-6  # nats of any token, the same weights loaded again
WIDER = 3.0  # lower precision: mean difference over that of the start, when both sides had loaded the same files
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


@dataclass(frozen=True)
class Gap:
    """|engine - trainer| over the probe's tokens, in nats."""

    largest: float
    mean: float


class SyncProbe:
    """A fixed text with what is expected of the two sides on it."""

    def __init__(self, host: Host, weights: PreTrainedModel, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.exact = weights.dtype == torch.float32 and host.facts["dtype"] == "float32"
        room = min(LENGTH, int(host.facts["positions"]) - MORE - 1)
        first = weights.config.vocab_size // 2
        self.text = [first, *self._sample(host, [first], room - 1)[0]]
        self.first = self.gap(host, weights)
        if self.exact and not self.first.largest <= EXACT:
            raise self._differs(self.first, 0, EXACT)

    def check(self, host: Host, weights: PreTrainedModel, version: int, tensors: int) -> SyncReport:
        """Errors: GspoError (exit code 5) when the engine's weights cannot be the trainer's."""
        gap = self.gap(host, weights)
        if self.exact and not gap.largest <= EXACT:
            raise self._differs(gap, version, EXACT)
        if not self.exact and not gap.mean <= WIDER * self.first.mean:
            raise self._differs(gap, version, WIDER * self.first.mean)
        return SyncReport(version, tensors, gap.largest, gap.mean)

    def check_reload(self, host: Host, weights: PreTrainedModel) -> None:
        """Hands over the weights that the engine has already: nothing may change beyond scoring twice.

        Errors: GspoError (exit code 5), without a tolerance to argue about where both sides use float32.
        """
        before, again = self.score(host), self.score(host)
        host.load(weights, 0)
        after = self.score(host)
        noise, moved = (max(abs(x - y) for x, y in zip(before, other, strict=True)) for other in (again, after))
        limit = max(RELOAD, 0.0 if self.exact else WIDER * noise)
        if not moved <= limit:
            raise GspoError(
                "the engine computes something else after loading the same weights again",
                f"log-probabilities of {len(before)} tokens moved by up to {moved:.2g} nats on the reload of step 0's "
                f"weights; allowed is {limit:.2g}, scoring twice differs by {noise:.2g}",
                "it would not follow the trainer; use rollout.engine = 'transformers', and report this with the "
                "versions that `gspo doctor` prints",
                ExitCode.ENGINE,
            )

    def score(self, host: Host) -> list[float]:
        """The engine's log-probabilities of the text."""
        return [float(s) for s in host.ask("score", sequences=[self.text], deadline_s=self.deadline_s)["log_probs"][0]]

    def gap(self, host: Host, weights: PreTrainedModel) -> Gap:
        """The engine's log-probabilities of the text and of what it samples after it, against the trainer's."""
        more, sampled = self._sample(host, self.text, MORE)
        ids_BT = torch.tensor([[*self.text, *more]], device=weights.device)
        mask_BT = torch.ones_like(ids_BT, dtype=torch.bool)
        mask_BT[:, 0] = False
        was_training = weights.training
        with torch.no_grad():
            trained_T = token_scores(weights.eval(), ids_BT, mask_BT, 1.0).log_probs_BT[0, 1:].double().cpu()
        weights.train(was_training)
        difference_T = (torch.tensor([*self.score(host), *sampled], dtype=torch.float64) - trained_T).abs()
        return Gap(float(difference_T.max()), float(difference_T.mean()))

    def _sample(self, host: Host, prompt: list[int], length: int) -> tuple[list[int], list[float]]:
        [sample] = host.ask(
            "generate", prompts=[prompt], requests=[[0, 1]], sampling=SAMPLING | {"max_tokens": length}, stop=False,
            deadline_s=self.deadline_s,
        )["samples"]  # fmt: skip
        return sample[3], sample[4]

    def _differs(self, gap: Gap, version: int, limit: float) -> GspoError:
        return GspoError(
            f"the engine does not compute with the trainer's weights of step {version}",
            f"log-probabilities of the same {len(self.text) + MORE} tokens differ by {gap.largest:.2g} nats at most "
            f"and {gap.mean:.2g} in the mean; allowed are {limit:.2g} "
            + ("at most" if self.exact else "in the mean, three times the difference at the start"),
            "nothing was sampled with them; use rollout.engine = 'transformers', and report this with the versions "
            "that `gspo doctor` prints",
            ExitCode.ENGINE,
        )
