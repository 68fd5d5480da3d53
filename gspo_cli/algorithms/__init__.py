"""The policy-optimisation algorithms, one file each; `diff grpo.py gspo.py` is the GSPO paper.

To add one, write a module with the names and signatures of `contract.py` (`grpo.py` is the template) and list it below.
Nothing in this package knows about models, files or devices.
"""

from gspo_cli.algorithms.lazy_torch import torch_when_used

with torch_when_used():
    from gspo_cli.algorithms import (
        aspo,
        cispo,
        dapo,
        dppo_kl,
        dppo_tv,
        dr_grpo,
        gepo,
        gmpo,
        grpo,
        gspo,
        gspo_token,
        ipo,
        luspo,
        maxrl,
        minirl,
        ppo,
        reinforce,
        reinforce_pp,
        rloo,
        sapo,
        vespo,
    )
    from gspo_cli.algorithms.contract import NEEDED, AlgorithmSpec, LossInputs, LossOutput, loss_from_tensors

ALGORITHMS: dict[str, AlgorithmSpec] = {
    "grpo": AlgorithmSpec.of(grpo),
    "gspo": AlgorithmSpec.of(gspo),
    "gspo_token": AlgorithmSpec.of(gspo_token),
    "sapo": AlgorithmSpec.of(sapo),
    "ppo": AlgorithmSpec.of(ppo),
    "reinforce": AlgorithmSpec.of(reinforce),
    "dapo": AlgorithmSpec.of(dapo),
    "dr_grpo": AlgorithmSpec.of(dr_grpo),
    "cispo": AlgorithmSpec.of(cispo),
    "gmpo": AlgorithmSpec.of(gmpo),
    "luspo": AlgorithmSpec.of(luspo),
    "minirl": AlgorithmSpec.of(minirl),
    "dppo_tv": AlgorithmSpec.of(dppo_tv),
    "dppo_kl": AlgorithmSpec.of(dppo_kl),
    "ipo": AlgorithmSpec.of(ipo),
    "vespo": AlgorithmSpec.of(vespo),
    "rloo": AlgorithmSpec.of(rloo),
    "reinforce_pp": AlgorithmSpec.of(reinforce_pp),
    "maxrl": AlgorithmSpec.of(maxrl),
    "aspo": AlgorithmSpec.of(aspo),
    "gepo": AlgorithmSpec.of(gepo),
}

__all__ = ["ALGORITHMS", "NEEDED", "AlgorithmSpec", "LossInputs", "LossOutput", "loss_from_tensors"]
