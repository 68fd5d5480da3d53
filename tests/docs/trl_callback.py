"""Run by an interpreter that has TRL: what the documented callback adds to its log, against TRL's own and plain sums.

    python trl_callback.py FOLDER        FOLDER holds gspo_callback.py

Prints one JSON object: algorithm -> {"added": metrics of two micro-batches, "expected": the same by plain sums,
"loss": [with, without the callback]}, and "log": the last row of a short training with it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL imports vLLM wherever it finds it
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[2] / "results" / "programs")]

import torch
from gspo_callback import ClipCallback
from trl import GRPOTrainer
from trl_loss import GRPO, GSPO, log_probs_now, make_model, make_rows, padded, peer_tensors, peer_trainer

SPREAD = {"grpo": 0.5, "gspo": 1e-3}


def micro_batches(trainer: Any, spread: float) -> list[dict[str, torch.Tensor]]:
    """Two of 16 responses each; a quarter of the responses has no advantage."""
    found = []
    for seed in (0, 1):
        rows = make_rows(seed=seed)
        tensors = peer_tensors(rows)
        shift_BT = torch.tensor(padded([r["shift"] for r in rows], False, 0.0))
        advantages = torch.tensor([0.0 if i % 4 == 0 else r["advantage"] for i, r in enumerate(rows)])
        old_BT = log_probs_now(trainer, tensors) - spread * shift_BT
        found.append(tensors | {"advantages": advantages, "old_per_token_logps": old_BT})
    return found


def expected(trainer: Any, batches: list[dict[str, torch.Tensor]], settings: dict[str, Any]) -> dict[str, float]:
    """Shares and spreads over both micro-batches at once, from their definitions."""
    clipped, responses, tokens, log_w, log_s, skipped, rows = 0, 0, 0, [], [], 0, 0
    by_sequence = settings["importance_sampling_level"] == "sequence"
    for batch in batches:
        new_BT = log_probs_now(trainer, batch)
        for new_T, old_T, mask_T, a in zip(
            new_BT, batch["old_per_token_logps"], batch["completion_mask"].bool(), batch["advantages"], strict=True
        ):
            change_N = (new_T - old_T)[mask_T].double()
            ratio = change_N.mean() if by_sequence else change_N
            outside = ratio.exp() > 1 + settings["epsilon_high"] if a > 0 else ratio.exp() < 1 - settings["epsilon"]
            clipped += int((outside & (a != 0)).sum())
            tokens, responses, rows, skipped = tokens + len(change_N), responses + 1, rows + 1, skipped + int(a == 0)
            if a != 0:
                log_w.append(change_N)
                log_s.append(change_N.mean())
    name = "clip/seq_frac" if by_sequence else "clip/token_frac"
    return {
        name: clipped / (responses if by_sequence else tokens),
        "update/skipped_rows_frac": skipped / rows,
        "ratio/token_log_std": float(torch.cat(log_w).std()),
        "ratio/seq_log_std": float(torch.stack(log_s).std()),
    }


def main() -> None:
    """Both algorithms, then a short training."""
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    make_model(folder / "model", seed=0)
    result: dict[str, Any] = {}
    for name, settings in (("grpo", GRPO), ("gspo", GSPO)):
        plain, trainer = (peer_trainer(GRPOTrainer, folder, settings) for _ in range(2))
        callback = ClipCallback(trainer)
        batches = micro_batches(plain, SPREAD[name])
        losses = [[float(one._compute_loss(one.model, batch)) for batch in batches] for one in (trainer, plain)]
        callback.on_step_end()
        added = {key: values[0] for key, values in trainer._metrics["train"].items() if "/" in key}
        result[name] = {"added": added, "expected": expected(plain, batches, settings), "loss": losses}
    trainer = peer_trainer(GRPOTrainer, folder, GSPO)
    trainer.args.max_steps, trainer.args.logging_steps, trainer.args.save_strategy = 2, 1, "no"
    ClipCallback(trainer)
    trainer.train()
    result["log"] = next(row for row in reversed(trainer.state.log_history) if "reward" in row)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
