"""Parameters, optimizer moments and random generators as named tensors, and back."""

import random
from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from gspo_cli.training.state.shards import Pieces, named_rows, read_into

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW keeps for a parameter."""

Named = Iterable[tuple[str, nn.Parameter]]


def make_moments(optimizer: torch.optim.Optimizer) -> None:
    """Gives a new AdamW its moments. torch makes them within the first step, in the room that activations have just
    left: on a GPU, large blocks could then never be given back to an engine that wakes up (tests/device)."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)  # where a fused step reads it
        moments = [torch.zeros_like(parameter) for _ in MOMENTS[1:]]
        optimizer.state[parameter] = dict(zip(MOMENTS, [step, *moments], strict=True))


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Named) -> dict[str, Tensor]:
    """AdamW's state under `<parameter>|<moment>`: an index would mean nothing to another version's model.

    Of sharded tensors the rows of this rank. A frozen parameter has no entry. (`torch.distributed.checkpoint` would
    create one, with a step already counted.)
    """
    tensors = dict[str, Tensor]()
    for name, parameter in parameters:
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors |= named_rows(f"{name}|{moment}", value)
    return tensors


def restore_parameters(parameters: Named, pieces: Pieces) -> None:
    """Fills parameters with what was saved. Errors: ValueError unless the names are the same."""
    known = dict(parameters)
    if known.keys() != pieces.keys():
        raise ValueError(f"parameters differ: {sorted(known.keys() ^ pieces.keys())[:3]}")
    for name, parameter in known.items():
        read_into(parameter, pieces[name], name)


def restore_optimizer(optimizer: torch.optim.Optimizer, parameters: Named, pieces: Pieces) -> None:
    """The reverse of `optimizer_tensors`, after `make_moments`. Errors: ValueError for a tensor that is not of this
    model."""
    states: dict[str, Pieces] = {}
    for key, value in pieces.items():
        name, _, moment = key.rpartition("|")
        states.setdefault(name, {})[moment] = value
    known = dict(parameters)
    for name, state in states.items():
        if name not in known or known[name] not in optimizer.state or set(state) != set(MOMENTS):
            raise ValueError(f"the optimizer's state of {name} does not belong to this model")
        for moment, value in state.items():
            read_into(optimizer.state[known[name]][moment], value, f"{name}|{moment}")


def seed_generators(seed: int) -> None:
    """Seeds the global generators; the tool draws from none of them (`seeds.py`), but dropout and a user's task may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def generator_tensors() -> dict[str, Tensor]:
    """The states of the global generators: torch's, each CUDA device's, numpy's, Python's.

    A run on a CPU leaves a GPU beside it alone: to ask for its generator would start CUDA.
    """
    kind, numpy_numbers, position, has_gauss, numpy_gauss = cast(
        tuple[str, np.ndarray, int, int, float], np.random.get_state(legacy=True)
    )
    version, numbers, gauss = random.getstate()
    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    assert version == 3 and kind == "MT19937"
    return {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(numpy_numbers.astype(np.int64)),
        "numpy_rest": torch.tensor([position, has_gauss, numpy_gauss], dtype=torch.float64),
        "python": torch.tensor(numbers, dtype=torch.int64),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
    } | {f"cuda{index}": torch.cuda.get_rng_state(index) for index in range(gpus)}


def restore_generators(tensors: dict[str, Tensor]) -> None:
    """The reverse of `generator_tensors`; skips devices that are gone (the comparison of machines reports them)."""
    torch.set_rng_state(tensors["torch"])
    position, has_gauss, gauss = tensors["numpy_rest"].tolist()
    np.random.set_state(("MT19937", tensors["numpy"].numpy().astype(np.uint32), int(position), int(has_gauss), gauss))
    rest = tensors["python_gauss"].tolist()
    random.setstate((3, tuple(tensors["python"].tolist()), rest[0] if rest else None))
    for index in range(torch.cuda.device_count()):
        if f"cuda{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda{index}"], index)
