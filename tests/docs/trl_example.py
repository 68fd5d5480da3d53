"""Run by an interpreter that has TRL: the example's loss and gradient against TRL's own, on one batch.

    python trl_example.py FOLDER        FOLDER holds gspo_in_trl.py

Prints one JSON object: algorithm -> {"loss": [ours, TRL's], "gradient": largest difference over the largest entry}.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL imports vLLM wherever it finds it
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[2] / "results" / "programs")]

import torch
from gspo_in_trl import Trainer
from trl import GRPOTrainer
from trl_loss import GRPO, GSPO, log_probs_now, make_model, make_rows, padded, peer_tensors, peer_trainer

from gspo_cli.algorithms import ALGORITHMS

SPREAD = {"grpo": 0.5, "gspo": 1e-3}
"""How far the old policy is from the present one, in nats: both sides of each clip range are reached."""


def inputs_for(trainer: Any, spread: float) -> dict[str, torch.Tensor]:
    """16 responses with advantages of both signs, as TRL lays them out."""
    rows = make_rows(seed=0)
    tensors = peer_tensors(rows)
    now_BT = log_probs_now(trainer, tensors)
    shift_BT = torch.tensor(padded([r["shift"] for r in rows], False, 0.0))
    advantages = torch.tensor([r["advantage"] for r in rows])
    return tensors | {"advantages": advantages, "old_per_token_logps": now_BT - spread * shift_BT}


def gradient(trainer: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, torch.Tensor]:
    """The loss, and its gradient by all weights as one vector."""
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def main() -> None:
    """Both algorithms."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    make_model(folder / "model", seed=0)
    result = {}
    for name, settings in (("grpo", GRPO), ("gspo", GSPO)):
        Trainer.algorithm, Trainer.params = ALGORITHMS[name], ALGORITHMS[name].Params()
        theirs, ours = peer_trainer(GRPOTrainer, folder, settings), peer_trainer(Trainer, folder, settings)
        inputs = inputs_for(theirs, SPREAD[name])
        (loss, own), (peer_loss, peer) = gradient(ours, inputs), gradient(theirs, inputs)
        clipped = ours._metrics["train"]["clip/token_frac"][0]
        difference = float((own - peer).abs().max() / peer.abs().max())
        result[name] = {"loss": [loss, peer_loss], "gradient": difference, "clipped": clipped}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
