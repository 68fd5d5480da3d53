"""How answers are cut into portions: each key once, like lengths together, padded tokens within a bound."""

from __future__ import annotations

from itertools import pairwise

from gspo_cli.evals.runner import PORTION, PORTION_TOKENS, portions
from gspo_cli.types import Prompt

LENGTHS = [(37 * i) % 901 + 1 for i in range(400)] + [3000, 100_000]
PROMPTS = {f"p{i}": Prompt(f"p{i}", (1,) * length) for i, length in enumerate(LENGTHS)}
WANTED = [(problem, sample) for problem in PROMPTS for sample in range(3)]


def test_the_built_in_engine_gets_prompts_of_like_length() -> None:
    cut = portions(PROMPTS, 3, 64, "transformers")
    assert sorted(key for keys in cut for key in keys) == sorted(WANTED)
    lengths = [[len(PROMPTS[problem].token_ids) for problem, _ in keys] for keys in cut]
    assert all(max(one) <= min(other) for one, other in pairwise(lengths))
    assert all(len(one) * (max(one) + 64) <= PORTION_TOKENS for one in lengths[:-3])
    assert [len(one) for one in lengths[-3:]] == [1, 1, 1]  # a prompt beyond the bound comes alone
    assert max(map(len, cut)) == PORTION
    padded = sum(len(one) * max(one) for one in lengths)
    assert padded < 1.2 * sum(map(sum, lengths))


def test_vllm_gets_many_in_the_order_of_the_problems() -> None:
    cut = portions(PROMPTS, 3, 32768, "vllm")
    assert [key for keys in cut for key in keys] == WANTED
    assert [len(keys) for keys in cut[:-1]] == [PORTION] * (len(cut) - 1)


def test_long_answers_come_a_few_at_a_time() -> None:
    assert {len(keys) for keys in portions(PROMPTS, 1, PORTION_TOKENS // 2 - 1000, "transformers")} == {1, 2}
