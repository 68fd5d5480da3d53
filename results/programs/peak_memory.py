#!/usr/bin/env python3
"""Peak memory of one training step on one long response: the naive way against `token_scores`.

    python results/programs/peak_memory.py --json OUT [--repeats 3] [--vocab 32768,151936] [--tokens 1024,2048,4096]

A step is forward, loss and backward of a small dense Qwen3 in float32 on a CPU. The naive way takes the model's logits
of all positions, `log_softmax`, `gather` and the entropy, as textbook code does; ours calls
`gspo_cli.models.log_probs.token_scores`. Each is measured alone, in a process of its own, by the largest resident
memory that the kernel saw (`ru_maxrss`): as it is, and less what the process had needed up to then (libraries, model
and tokens). The values and gradients of both are compared: largest difference over largest entry.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import interleave, run_self, shown, spread, write
from workload import isolate

SIDES = ("naive", "ours")
PROMPT = 16
TEMPERATURE = 0.7


def peak() -> float:
    """The process's largest resident memory so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def step(args: argparse.Namespace) -> None:
    """One side's step; prints its memory and leaves values and gradients in the folder."""
    isolate(args.threads)
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from gspo_cli.models.log_probs import token_scores

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    length = PROMPT + args.tokens
    config = Qwen3Config(
        vocab_size=args.vocab, hidden_size=args.hidden, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=args.hidden // 4, intermediate_size=2 * args.hidden,
        max_position_embeddings=length, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config)
    ids_BT = torch.randint(args.vocab, (1, length))
    mask_BT = torch.arange(length)[None, :] >= PROMPT
    weights_N = torch.randn(args.tokens)  # stands for advantages and ratios
    before = peak()
    if args.side == "ours":
        scores = token_scores(model, ids_BT, mask_BT, TEMPERATURE)
        log_probs_N, entropy_N = scores.log_probs_BT[mask_BT], scores.entropy_BT[mask_BT]
    else:
        logits_BTV = model(input_ids=ids_BT, use_cache=False).logits[:, :-1] / TEMPERATURE
        log_probs_BTV = torch.log_softmax(logits_BTV, dim=-1)
        log_probs_N = log_probs_BTV.gather(-1, ids_BT[:, 1:, None])[:, :, 0][mask_BT[:, 1:]]
        with torch.no_grad():
            entropy_N = -(log_probs_BTV.exp() * log_probs_BTV).sum(-1)[mask_BT[:, 1:]]
    (-(weights_N * log_probs_N).mean()).backward()
    after = peak()
    tensors = {"log_probs": log_probs_N.detach().clone(), "entropy": entropy_N.clone()}
    tensors |= {f"gradient {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    save_file(tensors, args.folder / f"{args.side}.safetensors")
    print(json.dumps({"peak_mib": after, "added_mib": after - before}))


def compare(folder: Path) -> None:
    """Prints how far the two sides' tensors are apart, each relative to its largest entry: entries and norms."""
    from safetensors.torch import load_file

    naive, ours = (load_file(folder / f"{side}.safetensors") for side in SIDES)
    assert naive.keys() == ours.keys()
    largest, norm = {}, {}
    for name, a in naive.items():
        kind = name.split()[0]
        b = ours[name].double()
        largest[kind] = max(largest.get(kind, 0.0), float((a - b).abs().max() / a.abs().max()))
        norm[kind] = max(norm.get(kind, 0.0), float((a - b).norm() / a.double().norm()))
    print(json.dumps({"largest": largest, "norm": norm}))


def measure(args: argparse.Namespace, vocab: int, tokens: int) -> dict[str, Any]:
    """Both sides of one size, in turn."""
    size = ["--vocab", str(vocab), "--tokens", str(tokens), "--hidden", str(args.hidden)]
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for side in interleave(SIDES, repeat):
                found[side].append(run_self(__file__, ["--side", side, "--folder", folder, *size]))
        difference = run_self(__file__, ["--side", "compare", "--folder", folder])
    row: dict[str, Any] = {"vocab": vocab, "tokens": tokens, "hidden": args.hidden, "difference": difference}
    for key in ("peak_mib", "added_mib"):
        series = {side: [run[key] for run in found[side]] for side in SIDES}
        row[key] = {side: spread(values) for side, values in series.items()}
        row[key]["ratio"] = spread([b / a for a, b in zip(*series.values(), strict=True)])
    return row


def print_row(row: dict[str, Any]) -> None:
    """One size in two lines."""
    print(f"vocabulary {row['vocab']}, {row['tokens']} tokens: {row['difference']}")
    for key in ("peak_mib", "added_mib"):
        memory = ", ".join(f"{side} {shown(row[key][side], '.0f')}" for side in SIDES)
        print(f"  {key:9} {memory}, ratio {shown(row[key]['ratio'])}", flush=True)


def main() -> None:
    """All sizes, or one side of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", default="32768,151936", help="vocabularies, comma-separated (default %(default)s)")
    parser.add_argument("--tokens", default="1024,2048,4096", help="response lengths (default %(default)s)")
    parser.add_argument("--hidden", type=int, default=64, help="width of the model (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each side (default %(default)s)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the result is written")
    parser.add_argument("--side", choices=(*SIDES, "compare"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    vocabs, lengths = ([int(x) for x in text.split(",")] for text in (args.vocab, args.tokens))
    if args.side == "compare":
        compare(args.folder)
    elif args.side:
        (args.vocab,), (args.tokens,) = vocabs, lengths
        step(args)
    else:
        rows = []
        for vocab, tokens in itertools.product(vocabs, lengths):
            rows.append(measure(args, vocab, tokens))
            print_row(rows[-1])
            write(args.json, {"command": " ".join(["python", *sys.argv]), "sizes": rows})


if __name__ == "__main__":
    main()
