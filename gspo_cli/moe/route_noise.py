"""Synthetic router noise: the old policy's experts with a wanted share of the slots exchanged.

It stands for what makes a mixture of experts volatile (another engine, another precision, an update), at a size that
can be set. The exchange is what normal noise on the routers' logits does, so experts near the decision boundary change
first.
B = responses, T = token positions, L = MoE layers, R = rows of the routers, N = recorded tokens, K = experts per token,
E = experts
"""

from math import sqrt

import torch
from torch import Tensor

from gspo_cli.errors import GspoError
from gspo_cli.seeds import GAMMA, mix_bits, shift_right

SMALLEST, LARGEST, HALVINGS = 1e-4, 1e4, 30
"""Scales of the noise that are searched, in standard deviations of the logits, and steps of the search."""


def noised_routes(
    logits_LNE: Tensor, natural_LNK: Tensor, noise_LNE: Tensor, counted_M: Tensor, share: float
) -> Tensor:
    """The experts that logits + scale * noise choose, int64 [L, N, K]; each layer's scale changes `share` of the slots.

    The share is over the tokens `counted_M`, as close as their number allows.
    Errors: GspoError where the routers do not choose the experts with the largest logits.
    """
    top_k = natural_LNK.shape[-1]
    least_taken_LN = logits_LNE.gather(-1, natural_LNK.long()).amin(-1)
    kth_largest_LN = logits_LNE.topk(top_k, dim=-1).values[..., -1]
    # a softmax may round two logits that differ in the last digits to equal weights: either expert is right then
    if not torch.allclose(least_taken_LN, kth_largest_LN, rtol=0, atol=1e-5):
        raise GspoError(
            "noise.experts with routers that do not simply take the largest logits",
            "some models add a bias or choose among groups of experts first; noise on logits would miss that",
            "use a model such as Qwen3-MoE, Mixtral or OLMoE, or noise.token",
        )
    logits_LME, noise_LME, natural_LMK = logits_LNE[:, counted_M], noise_LNE[:, counted_M], natural_LNK[:, counted_M]
    spread_L = logits_LNE.double().std((1, 2)).clamp(min=1e-12)
    low_L, high_L = (torch.log(spread_L * limit) for limit in (SMALLEST, LARGEST))
    for _ in range(HALVINGS):
        middle_L = (low_L + high_L) / 2
        chosen_LMK = _top(logits_LME + middle_L.exp()[:, None, None] * noise_LME, top_k)
        too_many_L = _changed(natural_LMK, chosen_LMK) > share
        low_L, high_L = torch.where(too_many_L, low_L, middle_L), torch.where(too_many_L, middle_L, high_L)
    return _top(logits_LNE + low_L.exp()[:, None, None] * noise_LNE, top_k)


def _top(scores_LNE: Tensor, top_k: int) -> Tensor:
    return scores_LNE.topk(top_k, dim=-1).indices


def _changed(before_LMK: Tensor, after_LMK: Tensor) -> Tensor:
    """Share of the slots, per layer."""
    same_LMK = (before_LMK.long()[..., :, None] == after_LMK[..., None, :]).any(-1)
    return 1 - same_LMK.double().mean((1, 2))


def reachable(num_experts: int, top_k: int) -> float:
    """The share that random experts would change: no noise on logits reaches more."""
    return 1 - top_k / num_experts


def logit_noise(hashes_N: Tensor, layers: int, num_experts: int) -> Tensor:
    """Standard normal numbers [L, N, E] in float64 that depend on the hashes alone."""
    streams_LE = torch.arange(1, layers * num_experts + 1, device=hashes_N.device).view(layers, 1, num_experts)
    bits_LNE = mix_bits(hashes_N[:, None] + streams_LE * GAMMA)
    uniform_LNE = (shift_right(bits_LNE, 11).double() + 0.5) / 2**53
    return sqrt(2) * torch.erfinv(2 * uniform_LNE - 1)


def prefix_hashes(ids_BT: Tensor, key: int) -> Tensor:
    """A hash of the key and the tokens up to each position: int64 [B, T].

    Rows that begin alike have the same noise there, so it does not matter how rows are packed, split or ordered.
    """
    hash_B = torch.full_like(ids_BT[:, 0], key)
    columns = []
    for ids_B in ids_BT.unbind(1):
        hash_B = mix_bits(hash_B + (ids_B + 1) * GAMMA)
        columns.append(hash_B)
    return torch.stack(columns, 1)
