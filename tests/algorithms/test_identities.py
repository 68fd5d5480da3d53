"""What must hold between the algorithms whatever the numbers are, in float64 to 1e-12.

B = responses, T = token positions
"""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from oracle import ORACLES
from oracle_batch import Batch
from tensors import BANDS, ONE_ON_POLICY, SEEDS, Case, drawn, fraction, one_token, random_case, run, same, with_band

from gspo_cli.algorithms import ALGORITHMS, LossInputs
from gspo_cli.algorithms.clip import Clip, clipped_surrogate
from gspo_cli.algorithms.ops import num_tokens, sequence_log_ratio, sequence_token_log_ratio, sum_of_tokens

WIDE = Clip(low=0.9, high=9.0)
EVERY = pytest.mark.parametrize("name", list(ALGORITHMS))


def reduction(name: str) -> tuple[str, str]:
    """How the oracle reduces an algorithm's terms."""
    return ORACLES[name](Batch([[0.0]], [[0.0]], [[0.0]], [1.0], [[True]])).reduction


@pytest.mark.parametrize("name", ONE_ON_POLICY)
@drawn
@given(seed=SEEDS)
def test_on_policy_all_gradients_are_one(name: str, seed: int) -> None:
    # w = s = 1, f'(1) = 1: dJ/dl = A_i / (N L_i) under seq-mean-token-mean; another reduction replaces 1/(N L_i) by
    # 1/T, 1/N or 1/(N L_max)
    case = replace(random_case(seed), log_probs_BT=random_case(seed).old_BT)
    num_responses, tokens = len(case.mask_BT), int(case.mask_BT.sum())
    share_B1 = {
        ("mean", "N"): 1 / (num_responses * case.length_B1.double()),
        ("sum", "T"): 1 / tokens,
        ("sum", "N"): 1 / num_responses,
        ("sum", "N L_max"): 1 / (num_responses * 3000),
    }[reduction(name)]
    same(run(name, case).gradient_BT, torch.where(case.mask_BT, case.advantages[:, None] * share_B1, 0.0))


@drawn
@given(seed=SEEDS)
def test_gspo_is_gspo_token_where_a_response_has_one_advantage(seed: int) -> None:
    case = random_case(seed, spread=1e-3)
    expanded = replace(case, advantages=case.advantages[:, None].expand_as(case.mask_BT))
    gspo = run("gspo", case)
    for other in (run("gspo_token", case), run("gspo_token", expanded)):
        same(other.objective, gspo.objective)
        same(other.gradient_BT, gspo.gradient_BT)
        assert other.output.clipped_BT is not None and gspo.output.clipped_BT is not None
        assert torch.equal(other.output.clipped_BT, gspo.output.clipped_BT)


@drawn
@given(seed=SEEDS)
def test_gspo_tokens_ratio_is_the_sequences_to_the_bit(seed: int) -> None:
    case = random_case(seed, spread=1e-3)
    tensors = case.log_probs_BT.float(), case.old_BT.float(), case.mask_BT
    log_s_B1 = sequence_log_ratio(*tensors)
    assert torch.equal(sequence_token_log_ratio(*tensors), log_s_B1.expand_as(case.mask_BT))


@pytest.mark.parametrize("band", BANDS)
@drawn
@given(seed=SEEDS)
def test_gspo_is_grpo_for_equal_token_ratios(band: Clip, seed: int) -> None:
    case = random_case(seed)
    log_ratio_B1 = 3 * band.high * random_case(seed + 1, spread=1.0, tokens=1).log_probs_BT
    case = case.with_ratios(log_ratio_B1.expand_as(case.old_BT))
    grpo, gspo = (run(name, case, with_band(name, band)) for name in ("grpo", "gspo"))
    same(gspo.objective, grpo.objective)
    same(gspo.gradient_BT, grpo.gradient_BT)


def test_which_token_carries_the_ratio() -> None:
    # e^3 and e^-3 cancel in s: gspo's weight is A/(N L) = 1/3 wherever they stand; grpo clips the token with e^3
    zeros, mask_BT = torch.zeros(1, 3, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    case = Case(zeros, zeros, torch.ones(1, dtype=torch.float64), mask_BT)
    orders = [[3.0, -3.0, 0.0], [0.0, 3.0, -3.0], [-3.0, 0.0, 3.0]]
    cases = [case.with_ratios(torch.tensor([order], dtype=torch.float64)) for order in orders]
    for order, carried in zip(orders, cases, strict=True):
        same(run("gspo", carried).gradient_BT, torch.full((1, 3), 1 / 3, dtype=torch.float64))
        expected = [0.0 if x > 0 else math.exp(x) / 3 for x in order]
        assert run("grpo", carried).gradient_BT[0].tolist() == pytest.approx(expected, rel=1e-12)


@drawn
@given(seed=SEEDS)
def test_gmpo_is_gspo_where_nothing_is_clamped(seed: int) -> None:
    case = random_case(seed, spread=0.02)
    gmpo, gspo = run("gmpo", case), run("gspo", case, with_band("gspo", WIDE))
    same(gmpo.objective, gspo.objective)
    same(gmpo.gradient_BT, gspo.gradient_BT)


def test_gmpo_clamps_before_the_mean() -> None:
    # A = 1, log-ratios 1 and 0: gmpo e^{(0.4 + 0)/2} with no gradient at the first token; gspo e^{1/2}, within its band
    zeros, mask_BT = torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    case = Case(zeros, zeros, torch.ones(1, dtype=torch.float64), mask_BT)
    case = case.with_ratios(torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    gmpo, gspo = run("gmpo", case), run("gspo", case, with_band("gspo", WIDE))
    assert float(gmpo.objective) == pytest.approx(math.exp(0.2), rel=1e-12)
    assert gmpo.gradient_BT[0].tolist() == pytest.approx([0.0, math.exp(0.2) / 2], rel=1e-12)
    assert float(gspo.objective) == pytest.approx(math.exp(0.5), rel=1e-12)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_sapo_at_the_old_policy(advantage: float) -> None:
    # f(1) = (4/tau) sigmoid(0) = 2/tau, f'(1) = 1
    tau = 1.0 if advantage > 0 else 1.05
    result = run("sapo", one_token(0.0, advantage))
    assert float(result.objective) == pytest.approx(advantage * 2 / tau, rel=1e-12)
    assert float(result.gradient_BT) == pytest.approx(advantage, rel=1e-12)


@pytest.mark.parametrize(("advantage", "tau", "side"), [(2.0, 1.0, "pos"), (-2.0, 1.05, "neg")])
def test_sapos_gate_is_sech_squared(advantage: float, tau: float, side: str) -> None:
    for w in (0.01, 0.5, 0.8, 1.2, 2.0, 5.0):
        result, gate = run("sapo", one_token(math.log(w), advantage)), 1 / math.cosh(tau * (w - 1) / 2) ** 2
        assert fraction(result, "gate/mean") == fraction(result, f"gate/mean_{side}") == pytest.approx(gate, rel=1e-12)
        assert fraction(result, "gate/weight_mean") == pytest.approx(gate * w, rel=1e-12)
        assert float(result.gradient_BT) == pytest.approx(gate * w * advantage, rel=1e-12)


@pytest.mark.parametrize("name", ["cispo", "minirl"])
def test_no_gradient_through_a_detached_weight(name: str) -> None:
    # l = -2, o = -2.5, A = 3: weight e^0.5, J = A e^0.5 l, and dJ/dl = A e^0.5, not A e^0.5 (1 + l); minirl's clip
    # would act here, and is set wide
    case = replace(one_token(0.0, 3.0), old_BT=torch.tensor([[-2.5]], dtype=torch.float64))
    case = case.with_ratios(torch.tensor([[0.5]], dtype=torch.float64))
    result = run(name, case, with_band(name, WIDE) if name == "minirl" else None)
    assert float(result.objective) == pytest.approx(-2 * 3 * math.exp(0.5), rel=1e-12)
    assert float(result.gradient_BT) == pytest.approx(3 * math.exp(0.5), rel=1e-12)


@pytest.mark.parametrize("log_ratio", [-5.0, -0.3, 0.1, 0.5, 5.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_cispo_caps_and_never_drops(log_ratio: float, advantage: float) -> None:
    # a cap written elsewhere as 1 + 0.2 is 1.2 here
    result = run("cispo", one_token(log_ratio, advantage), ALGORITHMS["cispo"].Params(cap=1.2))
    assert float(result.gradient_BT) == pytest.approx(min(math.exp(log_ratio), 1.2) * advantage, rel=1e-12)
    assert fraction(result, "weight/capped_frac") == (math.exp(log_ratio) > 1.2)


@pytest.mark.parametrize("band", [*BANDS, Clip(low=2e-3, high=2.5e-3)])
@drawn
@given(seed=SEEDS)
def test_gspo_as_a_token_mean_would_be_luspo(band: Clip, seed: int) -> None:
    # 1/T sum_i sum_t x_i = N/T * (1/N sum_i L_i x_i)
    case = random_case(seed, spread=2 * band.high)
    log_ratio = sequence_log_ratio(case.log_probs_BT, case.old_BT, case.mask_BT)
    inputs = LossInputs(case.log_probs_BT, case.old_BT, case.advantages, case.mask_BT)
    surrogate = clipped_surrogate(log_ratio, inputs, band)
    forced = sum_of_tokens(surrogate.value, case.mask_BT) / num_tokens(case.mask_BT)
    luspo = run("luspo", case, with_band("luspo", band))
    same(forced, luspo.objective * len(case.mask_BT) / case.mask_BT.sum())
    gspo = run("gspo", case, with_band("gspo", band))
    same(luspo.gradient_BT, gspo.gradient_BT * case.length_B1)


@EVERY
def test_each_algorithm_reduces_token_terms_as_its_paper_does(name: str) -> None:
    # terms 1 | 2, 3 in responses of 1 and 2 tokens, the third response has none; a penalty uses the same reduction
    terms_BT = torch.tensor([[1.0, math.nan], [2.0, 3.0], [math.nan, math.inf]], dtype=torch.float64)
    mask_BT = torch.tensor([[True, False], [True, True], [False, False]])
    algorithm = ALGORITHMS[name]
    value = algorithm.token_terms(terms_BT, mask_BT) / algorithm.denominator(mask_BT, algorithm.Params())
    expected = {
        ("mean", "N"): (1 / 1 + 5 / 2) / 2, ("sum", "T"): 6 / 3, ("sum", "N"): 6 / 2,
        ("sum", "N L_max"): 6 / (2 * 3000),
    }  # fmt: skip
    assert float(value) == pytest.approx(expected[reduction(name)], rel=1e-12)
