"""The policy-optimisation algorithms, one file each; `diff grpo.py gspo.py` is the GSPO paper.

To add one, write a module with the names and signatures of `contract.py` (`grpo.py` is the template) and list it below.
Nothing in this package knows about models, files or devices.
"""

from gspo_cli.algorithms import cispo, dapo, dr_grpo, gmpo, grpo, gspo, gspo_token, luspo, minirl, ppo, reinforce, sapo
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
