"""The smoke recipe, trained by the program itself: what it prints, what it leaves, and that a seed fixes every byte."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import torch
from peft import PeftModel
from program import Done, Gspo, check_refused, ok, strict_lines, tree
from transformers import AutoModelForCausalLM, AutoTokenizer

from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.config import ModelConfig, Recipe
from gspo_cli.models.load import load_policy, weights_hash
from gspo_cli.runlog.schema import metric

ARMS = ("grpo", "gspo")
LOGS = {"metrics.jsonl", "perf.jsonl", "events.jsonl"}
FILES = LOGS | {"run.json", "config.json", "recipe.toml", "code.diff", "run.lock", "sealed.json"}
COLUMNS = {
    "step", "problem_id", "prompt", "answer", "sample", "seed", "prompt_ids", "token_ids", "log_probs", "text",
    "finish", "weight_version", "reward", "reason",
}  # fmt: skip


class Study(NamedTuple):
    """A study and what its command printed."""

    folder: Path
    done: Done

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """The lines of a run's log."""
        return strict_lines(self.folder / run / "metrics.jsonl")


@pytest.fixture(scope="module")
def study(gspo_forked: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Both algorithms, with colour asked for and forbidden."""
    out = tmp_path_factory.mktemp("first")
    asked = ["train", smoke, "--algo", "grpo,gspo", "--out", out, "--name", "one"]
    done = ok(gspo_forked(*asked, NO_COLOR="1", FORCE_COLOR="1"))
    return Study(out / "one", done)


@pytest.fixture(scope="module")
def again(gspo_forked: Gspo, smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The same under another name in another place, quiet, as JSON, and with a profile."""
    out = tmp_path_factory.mktemp("second")
    asked = ["train", smoke, "-q", "--json", "--algo", "grpo,gspo", "--out", out, "--name", "two", "--profile", "2"]
    done = ok(gspo_forked(*asked, FORCE_COLOR="1"))
    return Study(out / "two", done)


# What it prints


def test_stdout_holds_the_folder_alone_or_an_object_a_run(study: Study, again: Study) -> None:
    assert study.done.out == f"{study.folder}\n"
    assert "\x1b" not in study.done.out + study.done.err  # though FORCE_COLOR is set, too
    said = [json.loads(line) for line in again.done.out.splitlines()]
    assert said == [{"run": str(again.folder / f"{arm}-s0"), "arm": arm, "seed": 0} for arm in ARMS]
    assert again.done.err == ""


def test_without_a_terminal_each_step_is_one_line_of_pairs(study: Study) -> None:
    steps = [line for line in study.done.err.splitlines() if line.startswith("run=")]
    pairs = [dict(pair.split("=") for pair in line.split(" ")) for line in steps]
    assert [(p["run"], p["step"]) for p in pairs] == [(f"{arm}-s0", f"{step}/2") for arm in ARMS for step in (1, 2)]
    logged = [line for arm in ARMS for line in pick(study.metrics(f"{arm}-s0"), "rollout")]
    for shown, line in zip(pairs, logged, strict=True):
        assert float(shown["reward"]) == pytest.approx(line["metrics"]["reward/mean"], abs=5e-4)
        assert float(shown["length"]) == pytest.approx(line["metrics"]["length/mean"], abs=5e-2)


def test_help_is_coloured_as_the_reader_wishes(gspo: Gspo) -> None:
    assert "\x1b" not in gspo("train", "--help", NO_COLOR="1", FORCE_COLOR="1", GITHUB_ACTIONS="true").out
    assert "\x1b" in gspo("train", "--help", FORCE_COLOR="1").out


@pytest.mark.slow
def test_a_terminal_without_width_that_cannot_show_a_sign_gets_whole_lines_with_question_marks(gspo: Gspo) -> None:
    done = gspo("report", "explain", "gspo", PYTHONIOENCODING="ascii", COLUMNS="0")
    assert (done.code, done.err) == (0, "") and "2507.18071, ?5.1" in done.out


# What it leaves


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_folder_holds_what_its_contract_names(study: Study, smoke: Path, arm: str) -> None:
    run = study.folder / f"{arm}-s0"
    assert {p.name for p in run.iterdir() if p.is_file()} == FILES
    assert not list(study.folder.rglob(".tmp*"))
    record, config = (json.loads((run / name).read_text()) for name in ("run.json", "config.json"))
    assert (record["arm"], record["seed"], record["study"], record["threads"]) == (arm, 0, "one", 1)
    assert record["argv"][1:3] == ["train", str(smoke)]
    assert (run / "recipe.toml").read_text() == smoke.read_text()
    assert Recipe.model_validate(config).algo.name == config["algo"]["name"] == arm
    del config["name"]
    assert record["config_sha256"] == hashlib.sha256(canonical(config).encode()).hexdigest()
    other = json.loads((study.folder / f"{ARMS[0]}-s0" / "run.json").read_text())
    for name in ("model_sha256", "tokenizer_sha256", "data_sha256", "start_model"):
        assert record[name] == other[name]
    events = strict_lines(run / "events.jsonl")
    assert (events[0]["event"], events[-1]["event"], events[-1]["status"]) == ("start", "end", "completed")
    folder = run / "checkpoints" / "step-000002" / "model"  # an ordinary one
    assert AutoTokenizer.from_pretrained(folder)("3+5=")["input_ids"] == [22, 14, 24, 32]  # 3 specials, then from " "
    assert weights_hash(AutoModelForCausalLM.from_pretrained(folder)) != record["model_sha256"]


# The log


def pick(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The lines of one kind."""
    return [line for line in lines if line["kind"] == kind]


def canonical(value: Any) -> str:
    """The JSON text that hashes are taken of."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


@pytest.mark.parametrize("arm", ARMS)
def test_every_line_has_metrics_of_its_schema_and_times_beside_it(study: Study, arm: str) -> None:
    lines = study.metrics(f"{arm}-s0")
    assert max(line["metrics"]["reward/mean"] for line in pick(lines, "rollout")) > 0
    assert pick(lines, "step")[-1]["metrics"]["compute/updates"] > 0
    for line in lines:
        assert line["metrics"]
        for name in line["metrics"]:
            assert line["kind"] in metric(name).lines.split(", "), name
    perf = strict_lines(study.folder / f"{arm}-s0" / "perf.jsonl")
    key = ("seq", "step", "kind", "mini_batch")
    assert [[p[k] for k in key] for p in perf] == [[m[k] for k in key] for m in lines]
    assert all(p["rollout_s"] > 0 and p["batch_s"] >= p["rollout_s"] for p in pick(perf, "rollout"))
    whole, first = pick(lines, "step")[0]["metrics"]["compute/flops"] / 1e12, pick(perf, "rollout")[0]
    assert 0.2 * whole < first["update_tflops"] * first["update_s"] < 0.9 * whole  # the rest is sampling's


@pytest.mark.parametrize("arm", ARMS)
def test_the_same_seed_gives_the_same_bytes(study: Study, again: Study, arm: str) -> None:
    name = f"{arm}-s0/metrics.jsonl"
    assert (study.folder / name).read_bytes() == (again.folder / name).read_bytes()


def test_a_profile_shows_one_batchs_training_by_phase(study: Study, again: Study) -> None:
    (path,) = (again.folder / "gspo-s0" / "profile").iterdir()
    assert path.name == "batch-000002-rank-0.json.gz" and not (study.folder / "gspo-s0" / "profile").exists()
    names = Counter(event["name"] for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"])
    assert names["update_s"] == 2 and names["sync_s"] == 1 and names["aten::mm"] > 2 and not names["rollout_s"]


def test_the_arms_see_the_same_first_batch(study: Study) -> None:
    first = [pick(study.metrics(f"{arm}-s0"), "rollout")[0]["metrics"] for arm in ARMS]
    same = [name for name in first[0] if name.startswith(("reward/", "length/", "group/"))]
    assert len(same) > 8
    assert {n: first[0][n] for n in same} == {n: first[1][n] for n in same}
    assert study.metrics("grpo-s0")[-2]["metrics"] != study.metrics("gspo-s0")[-2]["metrics"]


def test_a_stored_batch_has_every_sample(study: Study) -> None:
    run = study.folder / "gspo-s0"
    line = pick(study.metrics(run.name), "rollout")[0]["metrics"]
    rows = pq.read_table(run / "rollouts" / "step_000001.parquet").to_pylist()
    assert len(rows) == 4 * 32
    assert sum(row["reward"] for row in rows) / len(rows) == pytest.approx(line["reward/mean"], abs=1e-12)
    assert sum(len(row["token_ids"]) for row in rows) == line["compute/gen_tokens"]


# Other commands on the same recipe


@pytest.mark.slow
def test_every_other_algorithm_trains(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    names = [name for name in ALGORITHMS if name not in ARMS]
    sets = ["--set", "eval.bench=[]", "--set", "rollout.store=0"]
    ok(gspo_here("train", smoke, "--algo", ",".join(names), "--out", tmp_path, "--name", "study", *sets))
    for name in names:
        steps = pick(strict_lines(tmp_path / "study" / f"{name}-s0" / "metrics.jsonl"), "step")
        assert steps[-1]["metrics"]["compute/updates"] > 0, name


def test_rollout_stores_trainings_first_batch(gspo_here: Gspo, study: Study, smoke: Path, tmp_path: Path) -> None:
    done = gspo_here("rollout", smoke, "--out", tmp_path / "batch", "--json")
    said = json.loads(done.out)
    stored = pq.read_table(said["path"])
    assert set(stored.column_names) == COLUMNS
    assert (said["prompts"], said["responses"], stored.num_rows) == (4, 128, 128)
    assert stored.equals(pq.read_table(study.folder / "gspo-s0" / "rollouts" / "step_000001.parquet"))
    metadata = {key.decode(): value.decode() for key, value in stored.schema.metadata.items()}
    record = json.loads((study.folder / "gspo-s0" / "run.json").read_text())
    assert metadata["gspo.temperature"] == "1.0"
    assert metadata["gspo.model_sha256"] == record["model_sha256"]


LORA = ["--set", "model.lora.rank=4", "--set", "model.lora.experts=true", "--set", "algo.kl.coef=0.01"]


@pytest.mark.slow
def test_a_run_with_adapters_from_its_start_to_its_evaluation(gspo_here: Gspo, smoke: Path, tmp_path: Path) -> None:
    ok(gspo_here("train", smoke, *LORA, "--set", "eval.every=0", "--out", tmp_path, "--name", "small"))
    ok(gspo_here("train", smoke, "--out", tmp_path, "--name", "full", "--set", "eval.bench=[]", "--steps", "1"))
    run = tmp_path / "small" / "gspo-s0"
    record, other = (json.loads((tmp_path / n / "gspo-s0" / "run.json").read_text()) for n in ("small", "full"))
    # both start from the one cold start, and from the same policy
    assert [record[k] == other[k] for k in ("start_model", "model_sha256", "data_sha256")] == [True] * 3
    assert 0 < record["num_trained"] < record["num_parameters"] / 2
    assert other["num_trained"] == other["num_parameters"]
    lines = [strict_lines(tmp_path / n / "gspo-s0" / "metrics.jsonl") for n in ("small", "full")]
    rewards = [next(line for line in log if line["kind"] == "rollout")["metrics"]["reward/mean"] for log in lines]
    assert rewards[0] == rewards[1] > 0
    assert lines[0][-2]["metrics"]["kl/ref_k3"] >= 0

    folder = run / "checkpoints" / "step-000002" / "model"
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {p.name for p in folder.iterdir()}
    ours, tokenizer = load_policy(ModelConfig(path=str(folder), device="cpu"), folder)
    start = AutoModelForCausalLM.from_pretrained(record["start_model"]).eval()
    ids = torch.tensor([tokenizer("3+5=")["input_ids"]])
    with torch.no_grad():
        before = start(ids).logits
        after = PeftModel.from_pretrained(start, folder)(ids).logits
        torch.testing.assert_close(ours(ids).logits, after, rtol=0, atol=1e-5)
    assert float((after - before).abs().max()) > 1e-3

    evaluated = gspo_here("eval", "benchmarks", run, "--samples", "1", "--json")
    assert json.loads(evaluated.out)["average"] == lines[0][-1]["metrics"]["arithmetic/avg@1"]

    files = tree(tmp_path)
    again = gspo_here("train", smoke, "--model", folder, "--out", tmp_path, "--name", "again")
    check_refused(again, "training cannot start from the adapters", "merge_and_unload")
    check_refused(
        gspo_here("cold-start", smoke, "--set", f"model={{path='{folder}'}}", "--out", tmp_path / "cold"), "adapters"
    )
    assert tree(tmp_path) == files


def test_adapters_without_peft_are_refused_before_anything_is_written(
    gspo_here: Gspo, smoke: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gspo_cli.models.adapters.find_spec", lambda _: None)
    check_refused(gspo_here("train", smoke, *LORA, "--out", tmp_path), "[model.lora] needs the package peft")
    assert tree(tmp_path) == {}
