#!/usr/bin/env python3
"""Does TRL train to the same curves? TRL's GRPOTrainer and `gspo train quickstart`, paired by seed.

    python results/programs/same_curves.py OUT --peer-python PEER/bin/python [--algos grpo,gspo] [--seeds 0-5]

Both sides start from the recipe's cold-started model, or from the one of `--model`, see the same prompts in the same
order, and are scored by the recipe's rewards; the rest of the settings comes from the recipe too, and `peer_curves.py`
gives them their names in TRL. What cannot be made equal is written in docs/other-trainers.md. Trained models of both
sides are evaluated alike, by `gspo eval`.

A finished pair of side and seed is a JSON file in OUT and is never run again, so the same command continues an
interrupted study, and several can work on one OUT. `curves_report.py OUT` judges what is there.
"""

import argparse
import fcntl
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
UPDATE_SERIES = (
    "clip/token_frac", "clip/seq_frac", "grad/norm", "lr",
    "ratio/token_log_mean", "ratio/token_log_std", "ratio/seq_log_mean", "ratio/seq_log_std",
)  # fmt: skip


def seeds_of(text: str) -> list[int]:
    """`0-5` or `0,2,3`."""
    if "-" in text:
        first, last = map(int, text.split("-"))
        return list(range(first, last + 1))
    return [int(part) for part in text.split(",")]


def job(
    recipe_name: str, algo: str, seed: int, batches: int, whole_groups: bool = False, model: Path | None = None
) -> dict[str, Any]:
    """Everything the two sides share, from the recipe: settings, start model, prompts in the order of this seed."""
    from transformers import AutoTokenizer

    from gspo_cli.models.device import prepare_torch
    from gspo_cli.recipe import load
    from gspo_cli.rollout.collect import PromptStream
    from gspo_cli.rollout.prompts import encode
    from gspo_cli.tasks import make_task
    from gspo_cli.training.cold_start import start_model
    from gspo_cli.training.study.arms import plan_runs

    [run] = plan_runs(load(recipe_name), [algo], [seed])
    recipe = run.recipe
    prepare_torch(recipe.model.threads)
    start = start_model(recipe, lambda *_: None) if model is None else model
    tokenizer = AutoTokenizer.from_pretrained(start)
    stream = PromptStream(make_task(recipe.task).problems(recipe.task.split), recipe.rollout.prompts, seed)
    problems = [problem for step in range(1, batches + 1) for problem in stream.batch(step)]
    rows = []
    for problem in problems:
        tokens = list(encode(tokenizer, problem, recipe.task).token_ids)
        text = tokenizer.decode(tokens)  # with its chat template, if it has one
        assert tokenizer(text)["input_ids"] == tokens, "TRL would get another prompt"
        rows.append({"prompt": text, "id": problem.id, "answer": problem.answer})
    is_moe = recipe.model.tiny is not None and recipe.model.tiny.kind == "qwen3_moe"
    return {
        "recipe": recipe_name, "algo": algo, "seed": seed, "batches": batches, "start": str(start),
        "task": recipe.task.model_dump(mode="json"), "bench": recipe.eval.bench[0],
        "from_folder": model is not None,
        "prompts": recipe.rollout.prompts, "samples": recipe.rollout.samples, "minibatches": recipe.minibatches,
        "temperature": recipe.rollout.temperature, "max_new_tokens": recipe.rollout.max_new_tokens,
        "lr": recipe.algo.lr or recipe.train.lr, "warmup": recipe.train.warmup,
        "betas": recipe.train.optimizer.betas, "weight_decay": recipe.train.optimizer.weight_decay,
        "grad_clip": recipe.train.grad_clip, "clip": {"low": run.params.clip.low, "high": run.params.clip.high},
        "whole_groups": whole_groups, "threads": recipe.model.threads or 1, "experts": "grouped_mm" if is_moe else None,
        "rows": rows,
    }  # fmt: skip


def measured(command: list[str], environment: dict[str, str]) -> float:
    """Runs a command and gives its processor seconds, those of its children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command[:3])} ... ended with {done.returncode}:\n{done.stderr[-4000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def train_ours(shared: dict[str, Any], folder: Path) -> tuple[dict[str, Any], Path]:
    """The plain command; a run that was interrupted is resumed. Gives its series and the trained model."""
    study = folder / "study"
    gspo = [sys.executable, "-m", "gspo_cli", "train"]
    fresh = not (study / f"{shared['algo']}-s{shared['seed']}" / "config.json").is_file()
    if fresh:
        shutil.rmtree(study, ignore_errors=True)
        command = [*gspo, shared["recipe"], "--algo", shared["algo"], "--seed", str(shared["seed"])]
        command += ["--steps", str(shared["batches"]), "--out", str(folder), "--name", "study"]
        command += ["--set", "eval.bench=[]", "--set", f"model.threads={shared['threads']}"]
        command += ["--model", shared["start"]] if shared["from_folder"] else []
    else:
        command = [*gspo, "--resume", str(study)]
    cpu_s = measured(command, dict(os.environ))
    run = study / f"{shared['algo']}-s{shared['seed']}"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    perf = [json.loads(line) for line in (run / "perf.jsonl").read_text(encoding="utf-8").splitlines()]
    rollouts = [line["metrics"] for line in lines if line["kind"] == "rollout"]
    updates = [line["metrics"] for line in lines if line["kind"] == "update"]
    series: dict[str, list[Any]] = {name: [r[name] for r in rollouts] for name in ("reward/mean", "length/mean")}
    times = {line["step"]: line["batch_s"] for line in perf if line["kind"] == "rollout"}
    series["batch_s"] = [times[step] for step in sorted(times)]
    series |= {f"updates/{name}": [u.get(name) for u in updates] for name in UPDATE_SERIES}
    result = {"series": series, "versions": versions(), "cpu_s": round(cpu_s, 2) if fresh else None}
    return result, run / "checkpoints" / f"step-{shared['batches']:06d}" / "model"


def versions() -> dict[str, str]:
    """Of Python and the packages that decide the numbers."""
    return {"python": sys.version.split()[0]} | {name: version(name) for name in ("gspo", "torch", "transformers")}


def train_peer(shared: dict[str, Any], folder: Path, python: str) -> tuple[dict[str, Any], Path]:
    """TRL in its own environment, with its series under gspo's names."""
    shutil.rmtree(folder / "model", ignore_errors=True)
    (folder / "job.json").write_text(json.dumps(shared), encoding="utf-8")
    out = folder / "peer.json"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    cpu_s = measured([python, str(HERE / "peer_curves.py"), str(folder / "job.json"), str(out)], environment)
    result = json.loads(out.read_text(encoding="utf-8")) | {"cpu_s": round(cpu_s, 2)}
    clip = {"grpo": "clip/token_frac", "gspo": "clip/seq_frac"}[shared["algo"]]
    names = {"clip_ratio/region_mean": clip, "grad_norm": "grad/norm", "learning_rate": "lr"}
    for theirs, name in names.items():
        result["series"][f"updates/{name}"] = result["series"].pop(f"updates/{theirs}")
    return result, folder / "model"


def held_out(model: Path, bench: str, seed: int, folder: Path) -> dict[str, float]:
    """avg@4 on the held-out problems, by `gspo eval`, with equal seeds on both sides."""
    shutil.rmtree(folder / "eval", ignore_errors=True)
    command = [sys.executable, "-m", "gspo_cli", "eval", "benchmarks", str(model), "--bench", bench, "--json"]
    command += ["--seed", str(seed), "--out", str(folder / "eval"), "--set", "model.threads=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the evaluation of {model} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    return {"average": found["average"], "standard_error": found["standard_error"]}


def one_run(shared: dict[str, Any], side: str, folder: Path, python: str) -> dict[str, Any]:
    """Trains and evaluates one side of one seed; what is written to OUT."""
    folder.mkdir(parents=True, exist_ok=True)
    result, model = train_ours(shared, folder) if side == "ours" else train_peer(shared, folder, python)
    settings = {name: value for name, value in shared.items() if name not in ("rows", "start")}
    result |= {"side": side, "settings": settings, "held_out": held_out(model, shared["bench"], shared["seed"], folder)}
    return result


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process may do the work behind `path`; the kernel frees the claim when it dies."""
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield not path.is_file()


def main() -> None:
    """Every side of every seed that is not done; seed 0 of all first, so that a stopped study is a balanced one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--peer-python", required=True, help="interpreter of TRL's environment")
    parser.add_argument("--recipe", default="quickstart", help="default %(default)s")
    parser.add_argument("--model", type=Path, help="folder to start from (default: the recipe's [model.tiny])")
    parser.add_argument("--algos", default="grpo,gspo", help="default %(default)s")
    parser.add_argument("--sides", default="ours,peer", help="default %(default)s")
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0-5"), help="default 0-5")
    parser.add_argument("--batches", type=int, default=60, help="rollout batches a run (default %(default)s)")
    parser.add_argument("--whole-groups", action="store_true", help="TRL without its shuffle: mini-batches as here")
    parser.add_argument("--keep", action="store_true", help="keep runs and weights, not only the JSON files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for algo in args.algos.split(","):
            for side in args.sides.split(","):
                done = args.out / f"{algo}-s{seed}-{side}.json"
                with claimed(done) as mine:
                    if not mine:
                        continue
                    work = args.out / "work" / done.stem
                    shared = job(args.recipe, algo, seed, args.batches, args.whole_groups, args.model)
                    result = one_run(shared, side, work, args.peer_python)
                    partial = done.with_suffix(".partial")
                    partial.write_text(json.dumps(result) + "\n", encoding="utf-8")
                    partial.replace(done)
                    if not args.keep:
                        shutil.rmtree(work, ignore_errors=True)
                reward = statistics.fmean(result["series"]["reward/mean"])
                print(
                    f"{done.stem}: mean reward {reward:.3f}, held out {result['held_out']['average']:.3f}", flush=True
                )


if __name__ == "__main__":
    main()
