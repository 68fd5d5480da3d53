"""An algorithm of the user's own is tried on four short responses before a study begins.

B = responses, T = token positions
"""

from typing import Any

import torch
from torch import Tensor

from gspo_cli.algorithms import AlgorithmSpec, LossInputs, LossOutput
from gspo_cli.errors import GspoError
from gspo_cli.plugins import users_code
from gspo_cli.runlog.schema import is_known

REWARDS_B, GROUPS_B = torch.tensor([1.0, 0.0, 0.5, 0.25]), torch.tensor([0, 0, 1, 1])
MASK_BT = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=torch.bool)
OLD_BT = -torch.arange(1.0, 13.0).reshape(4, 3) / 8 * MASK_BT


def try_algorithm(name: str, algorithm: AlgorithmSpec, params: Any) -> None:
    """Call each function of the contract once.

    Errors: GspoError where one fails, or returns something of another type or shape, or numbers that are not finite.
    """

    def call(function: str, *arguments: Any) -> Any:
        with users_code(f"algorithm {name!r} failed in {function}()"):
            return getattr(algorithm, function)(*arguments)

    advantages = call("advantage", REWARDS_B.clone(), GROUPS_B.clone(), params)
    check_tensor(name, "advantage()", advantages, (4,))
    denominator = call("denominator", MASK_BT.clone(), params)
    if not isinstance(denominator, (int, float)):  # a plain number serves as well
        check_tensor(name, "denominator()", denominator, ())
    check_tensor(name, "token_terms()", call("token_terms", OLD_BT.clone(), MASK_BT.clone()), ())
    log_probs_BT = (OLD_BT * 1.01).requires_grad_()
    inputs = LossInputs(log_probs_BT, OLD_BT.clone(), advantages, MASK_BT.clone(), GROUPS_B.clone(), OLD_BT.clone())
    output = call("loss", inputs, params)
    if not isinstance(output, LossOutput):
        raise rejected(name, "loss()", describe(output), "a gspo_cli.algorithms.LossOutput")
    check_tensor(name, "loss_numerator", output.loss_numerator, ())
    check_tensor(name, "denominator", output.denominator, ())
    check_tensor(name, "gradient_weight_BT", output.gradient_weight_BT, (4, 3))
    if output.clipped_BT is not None:
        check_tensor(name, "clipped_BT", output.clipped_BT, (4, 3))
    for metric in output.metrics:
        if not is_known(metric):
            raise rejected(name, "a metric", repr(metric), "one that `gspo report explain` lists; no other is logged")
    if not output.loss_numerator.requires_grad:
        raise rejected(name, "loss_numerator", "a tensor without a gradient", "one that depends on log_probs_BT")
    with users_code(f"algorithm {name!r} failed in the gradient of its loss"):
        (gradient_BT,) = torch.autograd.grad(output.loss_numerator, log_probs_BT)
    check_tensor(name, "the gradient of loss_numerator", gradient_BT, (4, 3))


def check_tensor(name: str, what: str, found: Any, shape: tuple[int, ...]) -> None:
    """Errors: GspoError unless it is a tensor of this shape with finite numbers."""
    wanted = f"a tensor of shape {list(shape)} with finite numbers"
    if not isinstance(found, Tensor) or found.shape != shape:
        raise rejected(name, what, describe(found), wanted)
    if not bool(torch.isfinite(found).all()):
        raise rejected(name, what, f"{found.tolist()}", wanted)


def rejected(name: str, what: str, found: str, wanted: str) -> GspoError:
    """What the trial got and what it needs."""
    return GspoError(
        f"algorithm {name!r}: {what} is {found}",
        f"in a trial on 4 responses of up to 3 tokens it must be {wanted}",
        "correct the code; docs/extending.md has a complete example",
    )


def describe(found: Any) -> str:
    """A value by its type, and a tensor by its shape."""
    if isinstance(found, Tensor):
        return f"a tensor of shape {list(found.shape)}"
    return "None" if found is None else f"of type {type(found).__name__}"
