"""How well gradients point where a reference points: cosine, bias, variance, signal-to-noise, from few draws of each.

B = rollout batches drawn before the updates, C = fresh rollout batches of the same size, D = numbers of a gradient
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Signal:
    """The on-policy gradient mu, known through C independent estimates of it."""

    mean_D: Tensor
    """Their mean."""
    squared_norm: float
    """|mu|^2: the mean inner product of two different estimates, which has no bias by their noise. Not positive where
    the reference is too small to tell the gradient from noise."""
    ceiling: float | None
    """Cosine that one fresh estimate has to mu on average, the most that any batch of this size can reach."""
    variance: float
    """Trace of the covariance of one estimate."""

    @property
    def resolved(self) -> bool:
        """Whether the reference tells the gradient from noise."""
        return self.squared_norm > 0


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Of one estimator, against mu. None where the reference or the number of batches does not allow it."""

    cosine: float | None
    """Mean over batches of the angle's cosine to mu; a batch without a gradient counts as 0."""
    cosines: tuple[float, ...]
    """Of each batch."""
    projection: float | None
    """E<g, mu> / |mu|^2: 1 = unbiased along mu, 0 = nothing left of it, negative = against it."""
    direction: float | None
    """Cosine of the expected gradient to mu, without the noise of a batch; needs two batches."""
    variance: float | None
    """Trace of the covariance of one batch's gradient, over |mu|^2; needs two batches."""
    snr: float | None
    """<E g, mu>^2 / (|mu|^2 tr Cov g): squared signal along mu over the noise; signed by the projection."""


def signal(estimates_CD: Tensor) -> Signal:
    """What C fresh on-policy gradients say of their expectation. Errors: asserts two or more."""
    num = len(estimates_CD)
    assert num > 1, "one estimate cannot tell signal from noise"
    products_CC = _products(estimates_CD, estimates_CD)
    norms_C = products_CC.diagonal()
    others_C = (products_CC.sum(1) - norms_C) / (num - 1)  # each with the mean of the others
    squared = float(others_C.mean())
    ceiling = None
    if squared > 0:
        lengths_C = norms_C.sqrt()
        ceiling = float(torch.where(lengths_C > 0, others_C / (lengths_C.clamp(min=1e-300) * squared**0.5), 0.0).mean())
    return Signal(estimates_CD.double().mean(0), squared, ceiling, float(norms_C.mean()) - squared)


def fidelity(gradients_BD: Tensor, reference: Signal) -> Fidelity:
    """An estimator's gradients of B batches, drawn independently of the reference.

    Inner products with the reference's mean carry its noise without bias; lengths do not, so they are never taken from
    it: |mu| comes from pairs of independent estimates (`Signal.squared_norm`), |E g| likewise from pairs of batches.
    """
    num = len(gradients_BD)
    products_BB = _products(gradients_BD, gradients_BD)
    along_B = _products(gradients_BD, reference.mean_D[None])[:, 0]
    norms_B = products_BB.diagonal()
    expected = float((products_BB.sum() - norms_B.sum()) / (num * (num - 1))) if num > 1 else None
    if not reference.resolved:
        return Fidelity(None, (), None, None, None, None)
    length = reference.squared_norm**0.5
    cosines_B = torch.where(norms_B > 0, along_B / (norms_B.sqrt().clamp(min=1e-300) * length), 0.0)
    mean_along = float(along_B.mean())
    projection = mean_along / reference.squared_norm
    variance = None if expected is None else float(norms_B.mean()) - expected
    return Fidelity(
        cosine=float(cosines_B.mean()),
        cosines=tuple(cosines_B.tolist()),
        projection=projection,
        direction=mean_along / (expected**0.5 * length) if expected is not None and expected > 0 else None,
        variance=None if variance is None else variance / reference.squared_norm,
        snr=abs(mean_along) * mean_along / (reference.squared_norm * variance) if variance else None,
    )


def _products(one_ND: Tensor, other_MD: Tensor) -> Tensor:
    """Inner products [N, M] in float64."""
    return (one_ND.double() @ other_MD.double().T).cpu()
