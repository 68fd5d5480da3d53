"""Optimizer states and generator states as named tensors, and back."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from gspo_cli.models.sharding import like, whole
from gspo_cli.ranks import ALONE, Ranks

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW holds for a parameter, once that has had a gradient."""

Named = Iterable[tuple[str, nn.Parameter]]


def parameter_tensors(parameters: Named, ranks: Ranks) -> dict[str, Tensor]:
    """Parameters by name, whole; with several ranks each gets every `size`-th."""
    gathered = ((number, name, whole(p.detach())) for number, (name, p) in enumerate(parameters))
    return {name: rows.cpu().contiguous() for number, name, rows in gathered if number % ranks.size == ranks.rank}


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Named, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """AdamW's state under `<parameter>|<moment>`: by name, since an index means nothing to another version's model.

    Whole tensors, whatever they are divided over; with several ranks each gets those of every `size`-th parameter.
    """
    found = {}
    for number, (name, parameter) in enumerate(parameters):
        for moment, value in optimizer.state.get(parameter, {}).items():
            rows = whole(value.detach())
            if number % ranks.size == ranks.rank:
                found[f"{name}|{moment}"] = rows.cpu().contiguous()
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, parameters: Named, saved: dict[str, Tensor]) -> None:
    """Puts it back.

    Errors: ValueError for a parameter that the model does not have, of another shape, or with a part of its state.
    """
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in saved.items():
        name, _, moment = key.rpartition("|")
        states.setdefault(name, {})[moment] = value
    known = dict(parameters)
    for name, state in states.items():
        if name not in known or set(state) != set(MOMENTS):
            raise ValueError(f"the optimizer's state of {name} does not belong to this model")
        if state["exp_avg"].shape != known[name].shape:
            raise ValueError(f"the optimizer's state of {name} has another shape")
        # a fused step reads its count beside the parameter
        on_device = {m: v.to(known[name].device).clone() for m, v in state.items()}
        optimizer.state[known[name]] = {m: v if m == "step" else like(known[name], v) for m, v in on_device.items()}


def restore_parameters(parameters: Named, saved: dict[str, Tensor]) -> None:
    """Copies values into parameters, in place.

    Errors: ValueError unless the names are the same.
    """
    known = dict(parameters)
    if known.keys() != saved.keys():
        raise ValueError(f"parameters differ: {sorted(known.keys() ^ saved.keys())[:3]}")
    with torch.no_grad():
        for name, parameter in known.items():
            parameter.copy_(like(parameter, saved[name]))


def first_nonfinite(tensors: dict[str, Tensor]) -> str | None:
    """The name of a tensor that holds a NaN or an infinity, if one does."""
    return next((n for n, t in tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())), None)


def generator_tensors() -> dict[str, Tensor]:
    """The states of the global generators: torch's, each CUDA device's, numpy's, Python's. The tool itself draws from
    none of them (`seeds.py`); dropout and the user's own task may."""
    kind, numpy_numbers, position, has_gauss, numpy_gauss = cast(
        tuple[str, np.ndarray, int, int, float], np.random.get_state(legacy=True)
    )
    version, numbers, gauss = random.getstate()
    assert version == 3 and kind == "MT19937"
    found = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(numpy_numbers.astype(np.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, numpy_gauss], dtype=torch.float64),
        "python": torch.tensor(numbers, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
    }
    for index in range(torch.cuda.device_count()):
        found[f"cuda{index}"] = torch.cuda.get_rng_state(index)
    return found


def seed_generators(seed: int) -> None:
    """Starts all of them from one seed, so that a run's draws from them repeat."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def restore_generators(saved: dict[str, Tensor]) -> None:
    """Puts them back; devices that are not there any more are left out (the check of the machine says so)."""
    torch.set_rng_state(saved["torch"])
    position, has_gauss, gauss = saved["numpy_rest"].tolist()
    np.random.set_state(("MT19937", saved["numpy"].numpy().astype(np.uint32), int(position), int(has_gauss), gauss))
    rest = saved["python_gauss"].tolist()
    random.setstate((3, tuple(saved["python"].tolist()), rest[0] if rest else None))
    for index in range(torch.cuda.device_count()):
        if f"cuda{index}" in saved:
            torch.cuda.set_rng_state(saved[f"cuda{index}"], index)
