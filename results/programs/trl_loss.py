#!/usr/bin/env python3
"""Same tensors, TRL's loss code and ours: the loss and its gradient, side by side.

    python results/programs/trl_loss.py --ours-python PYTHON --peer-python PYTHON --json OUT

The peer's process builds a tiny Qwen3 and random responses, and runs `GRPOTrainer._compute_loss` as TRL ships it,
options set through `GRPOConfig`; ours reads the same weights, tokens, old and reference log-probabilities and
advantages, and runs `token_scores`, the algorithm's `loss` and the KL penalty. Compared are the loss and d loss / d
weights of every parameter, so the log-probabilities are compared too. It ends with an error where the loss or the
gradient (largest difference over the largest entry) differs by more than 1e-5.

Where TRL 1.16 differs by definition, the comparison gives both sides what they agree on:

* Advantages are input. TRL divides by std + 1e-4 and has no rule for groups without spread, so constant rewards may
  leave a rounding error divided by 1e-4; ours divides by std and gives such groups exactly 0.
* Denominators. TRL's `grpo`, `sapo`, `luspo`, `dr_grpo` average a micro-batch and divide by the number of accumulated
  ones, which equals ours only if all have the same number of responses; its `dapo` and `cispo` divide by the mean
  token count of the generation batch's optimizer steps, ours by the step's own. Here there is one micro-batch.
* KL. TRL multiplies its k3 by the importance ratio unless `use_bias_correction_kl=False`, as here; ours is plain k3.
* Clip metrics. TRL's `clip_ratio/*` has our signs and edges, but counts responses where the ratio is one a response;
  ours counts tokens (`clip/low_frac`, `clip/high_frac`). Both are printed. TRL's `cispo_clip_ratio` counts A > 0 alone.
* Layout. TRL pads prompts on the left and passes an attention mask; ours pads on the right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from workload import isolate

TOLERANCE = 1e-5
TEMPERATURE = 0.7
MAX_LENGTH = 12


class Case(NamedTuple):
    """One loss under both names."""

    algorithm: str
    params: dict[str, Any]
    """Ours; `clip` as (low, high)."""
    settings: dict[str, Any]
    """TRL's."""
    spread: float
    """How far the old policy's log-probabilities are from the present ones, in nats."""
    kl: float = 0.0


GRPO = {"loss_type": "grpo", "importance_sampling_level": "token", "epsilon": 0.2, "epsilon_high": 0.27}
GSPO = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
CASES = {
    "grpo": Case("grpo", {"clip": (0.2, 0.27)}, GRPO, 0.5),
    "gspo": Case("gspo", {"clip": (3e-4, 4e-4)}, GSPO, 1e-3),
    "grpo, dual clip 1.5": Case("grpo", {"clip": (0.2, 0.27), "dual_clip": 1.5}, GRPO | {"delta": 1.5}, 0.5),
    "grpo, KL 0.04 (k3)": Case(
        "grpo", {"clip": (0.2, 0.27)}, GRPO | {"beta": 0.04, "use_bias_correction_kl": False}, 0.5, kl=0.04
    ),
    "dapo": Case("dapo", {"clip": (0.2, 0.28)}, GRPO | {"loss_type": "dapo", "epsilon_high": 0.28}, 0.5),
    "dr_grpo": Case(
        "dr_grpo", {"clip": (0.2, 0.2), "max_length": MAX_LENGTH},
        GRPO | {"loss_type": "dr_grpo", "epsilon_high": 0.2}, 0.5,
    ),
    "luspo": Case(
        "luspo", {"clip": (2e-3, 2.5e-3)},
        GSPO | {"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3}, 5e-3,
    ),
    "cispo": Case("cispo", {"cap": 1.3}, GRPO | {"loss_type": "cispo", "epsilon_high": 1.3}, 0.5),
    "sapo": Case("sapo", {}, GRPO | {"loss_type": "sapo"}, 0.5),
}  # fmt: skip


def make_model(folder: Path, seed: int) -> None:
    """A two-layer Qwen3 with random weights far from uniform, and a tokenizer, as a Hugging Face folder."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(62))])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="<eos>"
    )
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_rows(seed: int) -> list[dict[str, Any]]:
    """16 responses with prompts of 2 to 6 and answers of 1 to 12 tokens, advantages of both signs, one of them 0."""
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for i in range(16):
        answer = [rng.randint(2, 63) for _ in range(rng.randint(1, MAX_LENGTH) - 1)] + [1]
        prompt = [rng.randint(2, 63) for _ in range(rng.randint(2, 6))]
        drift, noise = (-1.0) ** i * rng.uniform(0, 1), [rng.uniform(-1, 1) for _ in answer]
        rows.append(
            {
                "prompt": prompt,
                "answer": answer,
                "advantage": 0.0 if i == 5 else round((-1.0) ** (i // 2) * rng.uniform(0.1, 2), 3),
                "shift": [drift + 0.5 * x for x in noise],
                "ref_shift": [rng.uniform(-0.5, 0.5) for _ in answer],
            }
        )
    return rows


def padded(rows: list[list[Any]], left: bool, value: float) -> list[list[Any]]:
    """Rows of one length."""
    width = max(map(len, rows))
    return [[value] * (width - len(r)) + r if left else r + [value] * (width - len(r)) for r in rows]


def peer_trainer(kind: Any, folder: Path, settings: dict[str, Any]) -> Any:
    """A trainer of TRL's, or a class of it, in the state in which it computes a loss; for TRL's interpreter."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig

    config = GRPOConfig(
        output_dir=str(folder / "output"), num_generations=4, per_device_train_batch_size=16, steps_per_generation=1,
        gradient_accumulation_steps=1, temperature=TEMPERATURE, max_completion_length=MAX_LENGTH, bf16=False,
        gradient_checkpointing=False, use_cpu=True, report_to="none", disable_tqdm=True, use_vllm=False,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "sdpa"}, **({"beta": 0.0} | settings),
    )  # fmt: skip
    trainer = kind(
        model=str(folder / "model"), args=config, reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "w1"}] * 4),
        processing_class=AutoTokenizer.from_pretrained(folder / "model", padding_side="left"),
    )  # fmt: skip
    trainer.current_gradient_accumulation_steps = 1  # `train()` would set it
    trainer.model.train()
    return trainer


def peer_tensors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Token ids and masks as TRL lays them out."""
    import torch

    return {
        f"{part}_{kind}": torch.tensor(padded([values(r[key]) for r in rows], left, 0))
        for part, key, left in (("prompt", "prompt", True), ("completion", "answer", False))
        for kind, values in (("ids", list), ("mask", lambda ids: [1] * len(ids)))
    }


def log_probs_now(trainer: Any, tensors: dict[str, Any]) -> Any:
    """What the trainer gives the answers' tokens, without gradient."""
    import torch

    whole = [torch.cat([tensors[f"prompt_{k}"], tensors[f"completion_{k}"]], 1) for k in ("ids", "mask")]
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(trainer.model, *whole, tensors["completion_ids"].size(1))[0]


def peer(folder: Path, seed: int) -> None:
    """TRL's side: makes the model and the rows, and leaves losses and gradients of all cases."""
    sys.modules["vllm"] = None  # type: ignore[assignment]  # TRL imports vLLM wherever it finds it
    import torch
    from safetensors.torch import save_file
    from trl import GRPOTrainer

    torch.set_num_threads(1)
    make_model(folder / "model", seed)
    rows, results = make_rows(seed), {}
    tensors = peer_tensors(rows)
    for name, case in CASES.items():
        trainer = peer_trainer(GRPOTrainer, folder, case.settings)
        now = log_probs_now(trainer, tensors)
        shift, ref_shift = (torch.tensor(padded([r[k] for r in rows], False, 0.0)) for k in ("shift", "ref_shift"))
        inputs = tensors | {
            "advantages": torch.tensor([r["advantage"] for r in rows]),
            "old_per_token_logps": now - case.spread * shift,
            "ref_per_token_logps": now + ref_shift,
            "num_items_in_batch": tensors["completion_mask"].sum(),
        }
        trainer.model.zero_grad()
        loss = trainer._compute_loss(trainer.model, inputs)
        loss.backward()
        gradient = {n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None}
        save_file(gradient | {"old": inputs["old_per_token_logps"], "ref": inputs["ref_per_token_logps"]},
                  folder / f"{name}.safetensors")  # fmt: skip
        measured = {key: value[0] for key, value in trainer._metrics["train"].items() if "clip_ratio" in key}
        results[name] = {"loss": loss.item(), "metrics": measured}
    (folder / "rows.json").write_text(json.dumps(rows))
    write(folder / "peer.json", results, ("trl", "torch", "transformers", "accelerate"))


def ours(folder: Path) -> None:
    """Our side: the same cases, and how far they are from the peer's."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from gspo_cli.algorithms import ALGORITHMS, LossInputs
    from gspo_cli.algorithms.clip import Clip
    from gspo_cli.algorithms.kl import kl_terms
    from gspo_cli.models.log_probs import token_scores
    from gspo_cli.training.step.batches import Row, lay_out
    from gspo_cli.types import Mean, Sample

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="sdpa")
    rows, peer_results, results = json.loads((folder / "rows.json").read_text()), read(folder / "peer.json"), {}
    for name, case in CASES.items():
        theirs = load_file(folder / f"{name}.safetensors")

        def batch(values_BT: Any) -> Any:
            """The rows, with these numbers in place of the sampler's log-probabilities."""
            numbers = [v[: len(r["answer"])] for v, r in zip(values_BT.tolist(), rows, strict=True)]
            samples = [
                Sample("", 0, 0, tuple(r["answer"]), tuple(x), "stop", 0) for r, x in zip(rows, numbers, strict=True)
            ]
            built = [Row(tuple(r["prompt"]), s, r["advantage"]) for r, s in zip(rows, samples, strict=True)]
            return lay_out(built, torch.device("cpu"))

        micro, module = batch(theirs.pop("old")), ALGORITHMS[case.algorithm]
        ref_BT = batch(theirs.pop("ref")).sampler_log_probs_BT
        own = {k: Clip(*v) if k == "clip" else v for k, v in case.params.items()}
        params, mask_BT = module.Params(**own), micro.mask_BT
        model.zero_grad()
        log_probs_BT = token_scores(model, micro.input_ids_BT, mask_BT, TEMPERATURE).log_probs_BT
        inputs = LossInputs(log_probs_BT, micro.sampler_log_probs_BT, micro.advantages, mask_BT)
        output = module.loss(inputs, params)
        numerator = output.loss_numerator
        if case.kl:
            terms_BT = kl_terms(log_probs_BT, ref_BT, mask_BT, "k3")
            numerator = numerator + case.kl * module.token_terms(terms_BT, mask_BT)
        loss = numerator / module.denominator(mask_BT, params)
        loss.backward()
        gradient = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert gradient.keys() == theirs.keys()
        largest = max(float(g.abs().max()) for g in theirs.values())
        difference = max(float((gradient[n] - theirs[n]).abs().max()) for n in theirs)
        fractions = {k: float(v.numerator / v.denominator) for k, v in output.metrics.items() if isinstance(v, Mean)}
        results[name] = {
            "loss": loss.item(),
            "loss_difference": abs(loss.item() - peer_results["cases"][name]["loss"]),
            "gradient_largest": largest,
            "gradient_difference": difference / largest,
            "metrics": fractions,
        }
    write(folder / "ours.json", results, ("torch", "transformers"))


def write(path: Path, cases: dict[str, Any], packages: tuple[str, ...]) -> None:
    """A side's results with its versions."""
    versions = {"python": sys.version.split()[0]} | {name: version(name) for name in packages}
    path.write_text(json.dumps({"cases": cases, "versions": versions}, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def run_side(side: str, python: str, folder: Path, seed: int) -> None:
    """One side in a process of its own environment."""
    environment = {name: value for name, value in os.environ.items() if side == "ours" or name != "PYTHONPATH"}
    command = [python, __file__, "--side", side, "--folder", str(folder), "--seed", str(seed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{side} ended with {done.returncode}:\n{done.stderr[-4000:]}")


def print_table(result: dict[str, Any]) -> bool:
    """One line a case; whether all agree."""
    head = f"seed {result['seed']}"
    print(f"{head:20} {'our loss':>13} {'difference':>11} {'gradient':>9}  clipped low / high: ours (tokens), TRL")
    agree = True
    for name, mine in result["ours"]["cases"].items():
        agree &= mine["loss_difference"] <= TOLERANCE and mine["gradient_difference"] <= TOLERANCE
        found, theirs = mine["metrics"], result["peer"]["cases"][name]["metrics"]
        clips = [found.get(f"clip/{side}_frac") for side in ("low", "high")]
        clips += [theirs.get(f"clip_ratio/{side}_mean") for side in ("low", "high")]
        shown = " ".join("  n/a" if x is None else f"{x:.3f}" for x in clips)
        gaps = f"{mine['loss_difference']:11.1e} {mine['gradient_difference']:9.1e}"
        print(f"{name:20} {mine['loss']:13.9f} {gaps}  {shown}", flush=True)
    return agree


def main() -> None:
    """Both sides in turn, or one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours-python", help="interpreter of this project's environment")
    parser.add_argument("--peer-python", help="interpreter of TRL's environment")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where losses, differences and versions are written")
    parser.add_argument("--seeds", type=int, default=3, help="draws of weights and responses (default %(default)s)")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        isolate(threads=1)
        ours(args.folder) if args.side == "ours" else peer(args.folder, args.seed)
        return
    if not (args.ours_python and args.peer_python):
        parser.error("--ours-python and --peer-python are needed")
    results, agree = [], True
    for seed in range(args.seeds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for side, python in (("peer", args.peer_python), ("ours", args.ours_python)):
                run_side(side, python, folder, seed)
            results.append({"seed": seed} | {side: read(folder / f"{side}.json") for side in ("ours", "peer")})
        agree &= print_table(results[-1])
    if args.json:
        args.json.write_text(json.dumps({"tolerance": TOLERANCE, "runs": results}, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if agree else f"a difference is larger than {TOLERANCE}")


if __name__ == "__main__":
    main()
