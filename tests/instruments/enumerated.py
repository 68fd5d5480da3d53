"""A language of three tokens and at most three of them to a response, small enough to enumerate: 15 responses a prompt,
225 groups of two. B = responses, D = parameters."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from gspo_cli.config import Recipe
from gspo_cli.instruments.fidelity.gradients import Arm
from gspo_cli.training.setup import make_learner
from gspo_cli.training.study.arms import plan_runs
from gspo_cli.types import Group, Problem, Prompt, RolloutBatch, Sample, Score

EOS, LENGTH = 0, 3
RESPONSES = [
    *[(*body, EOS) for n in range(LENGTH) for body in itertools.product((1, 2), repeat=n)],
    *itertools.product((1, 2), repeat=LENGTH),
]
PROMPTS = ((1,), (2,))
SIGMA = 0.5
"""Of the parameters' change between old and present policy, relative to their own spread."""
Token = Callable[[list[float], list[float], float], list[float]]


def reward(response: tuple[int, ...]) -> float:
    """Tokens 1 before the end; several responses share a reward, so that some groups have no advantage."""
    return float(response.count(1))


@dataclass(frozen=True)
class World:
    """The model, its old and present weights, and what a brute-force enumeration says of both."""

    model: PreTrainedModel
    old: dict[str, Tensor]
    now: dict[str, Tensor]

    def use(self, weights: dict[str, Tensor]) -> None:
        self.model.load_state_dict(weights)

    def token_log_probs(self, prompt: tuple[int, ...], response: tuple[int, ...]) -> Tensor:
        """Under the weights in use, one response at a time: [T], with gradient."""
        logits_TV = self.model(torch.tensor([prompt + response]), use_cache=False).logits[0].double()
        log_probs_TV = torch.log_softmax(logits_TV, -1)[len(prompt) - 1 : -1]
        return log_probs_TV.gather(1, torch.tensor(response)[:, None])[:, 0]


def world() -> World:
    """A random model, and a neighbour of it."""
    config = Qwen3Config(
        vocab_size=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=4,
        intermediate_size=16, max_position_embeddings=16, eos_token_id=EOS, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(11)
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0 if parameter.dim() > 1 else 1.0)  # far from uniform
    old = {name: value.clone() for name, value in model.state_dict().items()}
    now = {name: value + SIGMA * 0.2 * torch.randn_like(value) * value.std() for name, value in old.items()
           if value.numel() > 1}  # fmt: skip
    return World(model, old, old | now)


def arms(model: PreTrainedModel, names: list[str], **tables: dict[str, object]) -> list[Arm]:
    """Arms with this model in place of the recipe's."""
    table = {
        "name": "enumerated",
        "model": {"tiny": {"kind": "qwen3"}},
        "rollout": {"prompts": 2, "samples": 2, "max_new_tokens": LENGTH},
        "train": {"minibatches": 2, "lr": 1e-2},
        "algo": {"name": "grpo"},
        "arms": tables,
    }
    return [Arm(run, make_learner(run, model)) for run in plan_runs(Recipe.model_validate(table), names, [0])]


def rollout(pairs: list[tuple[int, int, int]], log_probs: dict[tuple[int, int], Tensor], step: int = 1) -> RolloutBatch:
    """Groups of two given as (prompt, first response, second response); `log_probs` by (prompt, response)."""
    groups = []
    for g, (p, *chosen) in enumerate(pairs):
        samples = tuple(
            Sample(
                f"g{g}", i, 0, RESPONSES[r], tuple(log_probs[p, r].tolist()),
                "stop" if RESPONSES[r][-1] == EOS else "length", 0,
            )
            for i, r in enumerate(chosen)
        )  # fmt: skip
        scores = tuple(Score(reward(RESPONSES[r]), "counted") for r in chosen)
        groups.append(Group(Problem(f"g{g}", "", ""), Prompt(f"g{g}", PROMPTS[p]), samples, ("", ""), scores))
    return RolloutBatch(step, tuple(groups), LENGTH)


@dataclass(frozen=True)
class Enumeration:
    """Every group of two of every prompt: its probability under the old policy and the estimator's gradient."""

    probability_PRR: Tensor
    gradient_PRRD: Tensor

    @property
    def mean_D(self) -> Tensor:
        """E g, the same for any number of groups with prompts drawn in turn."""
        return (self.probability_PRR[..., None] * self.gradient_PRRD).sum((1, 2)).mean(0)

    def variance(self, groups_per_prompt: int, along_D: Tensor | None = None) -> float:
        """Trace of the covariance of a batch's gradient, or its variance along a direction."""
        gradient = self.gradient_PRRD if along_D is None else (self.gradient_PRRD @ along_D)[..., None]
        mean_PD = (self.probability_PRR[..., None] * gradient).sum((1, 2))
        square_P = (self.probability_PRR * gradient.square().sum(-1)).sum((1, 2))
        each_P = square_P - mean_PD.square().sum(-1)
        return float(each_P.sum() / len(PROMPTS) ** 2 / groups_per_prompt)


def weights_of(name: str, clip: tuple[float, float]) -> Token:
    """dJ/dl of a response's tokens, times the number of responses, written out from the papers' equations."""

    def keep(ratio: float, advantage: float) -> bool:
        return not ((advantage > 0 and ratio > 1 + clip[1]) or (advantage < 0 and ratio < 1 - clip[0]))

    def grpo(now: list[float], old: list[float], advantage: float) -> list[float]:
        ratios = [math.exp(a - b) for a, b in zip(now, old, strict=True)]
        return [keep(w, advantage) * w * advantage / len(now) for w in ratios]

    def gspo(now: list[float], old: list[float], advantage: float) -> list[float]:
        s = math.exp((sum(now) - sum(old)) / len(now))
        return [keep(s, advantage) * s * advantage / len(now)] * len(now)

    def reinforce(now: list[float], _old: list[float], advantage: float) -> list[float]:
        return [advantage / len(now)] * len(now)

    return {"grpo": grpo, "gspo": gspo, "reinforce": reinforce}[name]


def enumerate_groups(world: World, sampler: dict[str, Tensor], token_weights: Token) -> Enumeration:
    """All groups of two responses drawn with the weights `sampler`, with gradients at the weights `world.now`."""
    parameters = list(world.model.parameters())
    world.use(sampler)
    with torch.no_grad():
        old = {(p, r): world.token_log_probs(PROMPTS[p], RESPONSES[r]) for p, r in every()}
    world.use(world.now)
    now, jacobian = {}, {}
    for p, r in every():
        log_probs_T = world.token_log_probs(PROMPTS[p], RESPONSES[r])
        parts = [torch.autograd.grad(one, parameters, retain_graph=True) for one in log_probs_T]
        jacobian[p, r] = torch.stack([torch.cat([x.flatten() for x in row]) for row in parts]).double()
        now[p, r] = log_probs_T.detach()
    count, size = len(RESPONSES), sum(x.numel() for x in parameters)
    probability = torch.zeros(len(PROMPTS), count, count, dtype=torch.float64)
    gradient = torch.zeros(len(PROMPTS), count, count, size, dtype=torch.float64)
    for p, a, b in itertools.product(range(len(PROMPTS)), range(count), range(count)):
        probability[p, a, b] = (old[p, a].sum() + old[p, b].sum()).exp()
        gap = reward(RESPONSES[a]) - reward(RESPONSES[b])
        for r, sign in ((a, 1), (b, -1)):
            # two rewards: each is half the gap from the mean, and their deviation (n - 1) is gap / sqrt(2)
            advantage = 0.0 if gap == 0 else sign * math.copysign(1, gap) / math.sqrt(2)
            weight_T = torch.tensor(token_weights(now[p, r].tolist(), old[p, r].tolist(), advantage)).double()
            gradient[p, a, b] += weight_T @ jacobian[p, r] / 2
    return Enumeration(probability, gradient)


def every() -> list[tuple[int, int]]:
    """(prompt, response) of all."""
    return list(itertools.product(range(len(PROMPTS)), range(len(RESPONSES))))
