"""The policy-optimisation algorithms, one small file each.

To add one: write a module with `Params` (a frozen dataclass whose defaults are the published setting), `advantage`,
`denominator` and `loss`, and name it below. The signatures are pinned in `contract.py`; `grpo.py` is the template, and
`diff grpo.py gspo.py` is the GSPO paper. Nothing in this package knows of models, files or devices.
"""

from gspo_cli.algorithms import (
    cispo,
    dapo,
    dr_grpo,
    gmpo,
    grpo,
    gspo,
    gspo_token,
    luspo,
    minirl,
    ppo,
    reinforce,
    sapo,
)
from gspo_cli.algorithms.contract import NEEDED, Algorithm, LossOutput

ALGORITHMS: dict[str, Algorithm] = {
    "grpo": grpo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "sapo": sapo,
    "ppo": ppo,
    "reinforce": reinforce,
    "dapo": dapo,
    "dr_grpo": dr_grpo,
    "cispo": cispo,
    "gmpo": gmpo,
    "luspo": luspo,
    "minirl": minirl,
}

__all__ = ["ALGORITHMS", "NEEDED", "Algorithm", "LossOutput"]
