"""What both sides of the speed comparison share: command line, prompts, reward and the JSON that comes out.

Standard library only, because the two sides run in different environments.
"""

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

PHASES = ("generate", "old_log_probs", "train", "other")
"""They add up to `batch`, the seconds of a whole rollout batch."""
COUNTS = ("generated_tokens", "response_length", "padding_share", "reward")

Batch = defaultdict[str, float]
"""What was measured in one rollout batch: `batch` and `PHASES` in seconds, and `COUNTS`."""


def parse_arguments(description: str) -> argparse.Namespace:
    """The command line of one side."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path, metavar="MODEL_DIR", help="model and tokenizer, Hugging Face layout")
    parser.add_argument("prompts_file", type=Path, metavar="PROMPTS.jsonl", help='rows {"prompt": ..., "answer": ...}')
    parser.add_argument("--batches", type=int, default=10, help="timed rollout batches (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=2, help="rollout batches before them (default %(default)s)")
    parser.add_argument("--prompts", type=int, default=32, help="prompts a rollout batch (default %(default)s)")
    parser.add_argument("--samples", type=int, default=16, help="responses a prompt (default %(default)s)")
    parser.add_argument("--minibatches", type=int, default=4, help="optimizer steps a batch (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="limit of a response (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch (default %(default)s)")
    parser.add_argument("--experts", default="grouped_mm", help="expert implementation; '' for a dense model")
    parser.add_argument("--reward", default="answer", choices=REWARDS, help="what is scored (default %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-4, help="constant learning rate (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result here instead of standard output")
    args = parser.parse_args()
    if args.prompts * args.samples % args.minibatches:
        parser.error("prompts * samples must be a multiple of --minibatches")
    return args


def isolate(threads: int) -> None:
    """Before the first import of torch: no network, no accelerator, a fixed number of threads."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def read_prompts(args: argparse.Namespace) -> list[dict[str, str]]:
    """The rows of all batches, in order; a file that is too short is an error: repeated prompts are other work."""
    count = (args.warmup + args.batches) * args.prompts
    lines = args.prompts_file.read_text(encoding="utf-8").splitlines()[:count]
    if len(lines) < count:
        sys.exit(f"{args.prompts_file} has {len(lines)} prompts, the run needs {count}")
    return [json.loads(line) for line in lines]


def last_number(text: str, answer: str) -> float:
    """1 if what stands after the last `=` (or all of it) is the answer."""
    return float(text.rsplit("=", 1)[-1] == answer)


def parity(text: str, _answer: str) -> float:
    """1 for a text of odd length: gives every group a signal, whatever the model can do."""
    return float(len(text) % 2)


REWARDS = {"answer": last_number, "parity": parity}


def write_result(
    args: argparse.Namespace, side: str, batches: list[Batch], found: dict[str, Any], packages: tuple[str, ...]
) -> None:
    """The JSON of README.md: every series over all batches, warm-up first, and medians over the timed ones."""
    seconds = {phase: [round(batch[phase], 6) for batch in batches] for phase in ("batch", *PHASES)}
    medians = {phase: round(statistics.median(each[args.warmup :]), 6) for phase, each in seconds.items()}
    settings = {name: value for name, value in vars(args).items() if name not in ("model", "prompts_file", "json")}
    result: dict[str, Any] = {"side": side, "settings": settings, "found": found}
    result |= {"seconds_median": medians, "seconds": seconds}
    result |= {name: [round(batch[name], 6) for batch in batches] for name in COUNTS}
    result["versions"] = {"python": sys.version.split()[0]} | {name: version(name) for name in packages}
    text = json.dumps(result, indent=1)
    if args.json:
        args.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
