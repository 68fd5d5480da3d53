"""The one-prompt check: after every hand-over of weights, engine and trainer score the same text.

Two texts are sampled once, when the engine opens. The check scores one, and samples a few more tokens after it, at a
lower temperature: the text is longer than a block of the engine's prefix cache, so keys and values of old weights would
show in the second part, and so would log-probabilities taken before the temperature. The other text is a second
opinion: where two experts are level to the last digit, the two sides may choose differently and both be right, but
hardly so on two texts at once, while wrong weights show on every text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gspo_cli.distributed import SINGLE_PROCESS, Ranks
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.models.log_probs import token_scores
from gspo_cli.models.precision import compute_dtype
from gspo_cli.rollout.engine import SyncReport
from gspo_cli.rollout.vllm.host import Host, vllm_sampling
from gspo_cli.types import Sampling

COOLER = 0.7
LENGTH, MORE = 160, 16  # tokens; vLLM's blocks on a CPU have 128
EXACT = 1e-4  # nats of any token, both sides in float32: sums are merely taken in another order
RELOAD = 1e-6  # nats of any token, the same weights loaded again
START = 0.1  # nats in the mean, lower precision, at the start: about 0.01 is rounding, other weights give whole nats
WIDER = 3.0  # lower precision: median difference over that of the start, when both sides had loaded the same files


@dataclass(frozen=True)
class Gap:
    """|engine - trainer| over the probe's tokens, in nats."""

    largest: float
    mean: float
    median: float
    """Of the text or of what was sampled after it, whichever is larger."""


@torch.no_grad()
def trainer_log_probs(model: PreTrainedModel, ids: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probabilities of every token but the first, in float64 on the CPU."""
    ids_BT = torch.tensor([ids], device=model.device)
    mask_BT = torch.arange(len(ids), device=model.device)[None] > 0
    return token_scores(model, ids_BT, mask_BT, temperature).log_probs_BT[0, 1:].double().cpu()


class SyncProbe:
    """Fixed texts with what is expected of the two sides on them. Among several ranks each asks its own engine, and all
    agree on the verdict, because each takes part in the others' passes."""

    def __init__(self, host: Host, weights: PreTrainedModel, deadline_s: float, ranks: Ranks = SINGLE_PROCESS) -> None:
        self.deadline_s, self.ranks = deadline_s, ranks
        self.exact = compute_dtype(weights) == torch.float32 and host.facts["dtype"] == "float32"
        room = min(LENGTH, int(host.facts["positions"]) - MORE - 1)
        first = weights.config.vocab_size // 2
        self.texts = [[first, *self._sample(host, [first], room - 1, seed)[0]] for seed in (1, 2)]
        self.limit = EXACT
        if not self.exact:
            gaps = [self.gap(host, weights, text) for text in self.texts]
            self.limit = WIDER * max(gap.median for gap in gaps)
            if not self._all(max(gap.mean for gap in gaps) <= START):
                raise self._differs(max(gaps, key=lambda gap: gap.mean), 0, f"{START:g} in the mean")
        self.check(host, weights, 0, 0)

    def check(self, host: Host, weights: PreTrainedModel, version: int, tensors: int) -> SyncReport:
        """Errors: GspoError (exit code 5) when the engine's weights cannot be the trainer's."""
        for text in self.texts:
            gap = self.gap(host, weights, text)
            # in lower precision a single token may be far off: experts that were level are chosen differently
            if self._all((gap.largest if self.exact else gap.median) <= self.limit):
                return SyncReport(version, tensors, gap.largest, gap.mean, host.facts.get("wake_room_gb"))
        kind = "at most" if self.exact else "in the median, three times the difference at the start"
        raise self._differs(gap, version, f"{self.limit:.2g} {kind}")

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
        """The engine's log-probabilities of all texts."""
        found = host.ask("score", sequences=self.texts, deadline_s=self.deadline_s)["log_probs"]
        return [float(log_prob) for text in found for log_prob in text]

    def gap(self, host: Host, weights: PreTrainedModel, text: list[int]) -> Gap:
        """The engine's log-probabilities of a text and of what it samples after it, against the trainer's."""
        [scored] = host.ask("score", sequences=[text], deadline_s=self.deadline_s)["log_probs"]
        more, sampled = self._sample(host, text, MORE, temperature=COOLER)
        cooler_T = trainer_log_probs(weights, [*text, *more], COOLER)[len(scored) :]
        trained_T = torch.cat([trainer_log_probs(weights, text), cooler_T])
        difference_T = (torch.tensor([*scored, *sampled], dtype=torch.float64) - trained_T).abs()
        medians = [float(part_T.median()) for part_T in difference_T.split([len(scored), len(sampled)])]
        return Gap(float(difference_T.max()), float(difference_T.mean()), max(medians))

    def _sample(
        self, host: Host, prompt: list[int], length: int, seed: int = 1, temperature: float = 1.0
    ) -> tuple[list[int], list[float]]:
        sampling = vllm_sampling(Sampling(temperature, length))
        [sample] = host.ask(
            "generate", prompts=[prompt], requests=[[0, seed]], sampling=sampling, stop=False,
            deadline_s=self.deadline_s,
        )["samples"]  # fmt: skip
        return sample[3], sample[4]

    def _all(self, fits: bool) -> bool:
        """Whether it is so on all ranks."""
        return all(self.ranks.all_gather(lambda: fits))

    def _differs(self, gap: Gap, version: int, allowed: str) -> GspoError:
        return GspoError(
            f"the engine does not compute with the trainer's weights of step {version}",
            f"log-probabilities of the same {len(self.texts[-1]) + MORE} tokens differ by {gap.largest:.2g} nats at "
            f"most and {gap.median:.2g} in the median, here or on another rank, on another text as well; allowed are "
            f"{allowed}",
            "nothing was sampled with them; use rollout.engine = 'transformers', and report this with the versions "
            "that `gspo doctor` prints",
            ExitCode.ENGINE,
        )
