"""Loss scaling for passes in float16, whose gradients below 6e-8 would be 0 (Micikevicius et al., arXiv 1710.03740)."""

import torch
from torch import nn
from torch.amp import GradScaler

from gspo_cli.models.precision import compute_dtype

GROWTH_INTERVAL = 400
"""Steps without an overflow after which the scale is doubled; torch's 2000 is longer than many runs here."""
LEAST = 2.0**-16
"""A gradient that overflows even at this scale (torch starts at 2^16) is not finite for another reason."""


def loss_scaler(model: nn.Module) -> GradScaler:
    """torch's scaler for a model that computes in float16; one that does nothing for any other."""
    enabled = compute_dtype(model) == torch.float16
    return GradScaler(model.device.type, growth_interval=GROWTH_INTERVAL, enabled=enabled)  # type: ignore[arg-type]


def after_step(scaler: GradScaler, finite: bool) -> tuple[float | None, bool]:
    """Adjusts the scale after a gradient, unscaled before, that was finite or not. Returns the scale that it had (None
    without scaling), and whether the scale alone is to blame for a step that was not made.

    FSDP's gradients need nothing more: the norm is that of all ranks, and torch's check of a `DTensor` is too.
    """
    if not scaler.is_enabled():
        return None, False
    scale = scaler.get_scale()
    scaler.update()
    return scale, not finite and scale > LEAST
