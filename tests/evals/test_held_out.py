"""The rows that a recipe holds out: evaluated in training and by `gspo eval benchmarks` with the recipe's rewards."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from program import Gspo, check_refused, ok, refusal, strict_lines

from gspo_cli.config import Recipe, TinyModel
from gspo_cli.evals.benchmark import GraderChoice, ProblemSet
from gspo_cli.evals.benchmarks import find_benchmark
from gspo_cli.evals.settings import Overrides, resolve_settings
from gspo_cli.evals.store import Answer
from gspo_cli.evals.summary import score
from gspo_cli.models.tiny import build_tiny
from gspo_cli.recipe import load
from gspo_cli.stats.problems import t_quantile
from gspo_cli.types import Problem, Response

RECIPE = """
name = "own"
model = { path = "model", threads = 1 }
rollout = { prompts = 2, samples = 2, max_new_tokens = 8, stop = ["e"] }
train = { steps = 2, minibatches = 1 }
eval = { every = 1, samples = 2 }
[task]
name = "data"
path = "train.jsonl"
columns = { prompt = "Frage", answer = "Antwort" }
system = "Sei kurz."
held_out = 0.2
rewards = [{ name = "exact" }, { name = "MODULE:kurz", weight = 0.5 }]
"""
CODE = "def kurz(completion, Stufe):\n    return -completion.num_tokens / (10 if Stufe == 'leicht' else 20)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a chat template, 20 rows, a reward and a recipe; commands start elsewhere."""
    model, tokenizer = build_tiny(TinyModel(kind="qwen3", tokenizer="bytes", hidden=16, layers=1), seed=0)
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    rows = [{"Frage": f"{n}?", "Antwort": str(n), "Stufe": "leicht" if n % 2 else "schwer"} for n in range(20)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    module = f"marks_{len(sys.modules)}"  # each test its own: a module is loaded once
    (tmp_path / f"{module}.py").write_text(CODE)
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("MODULE", module))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_training_and_the_command_evaluate_alike(gspo_here: Gspo, folder: Path) -> None:
    ok(gspo_here("train", folder / "recipe.toml", "--name", "own"))
    run = folder / "work/results/own/gspo-s0"
    lines = list(strict_lines(run / "metrics.jsonl"))
    logged = [line["metrics"]["held_out/avg@2"] for line in lines if line["kind"] == "eval"]
    assert len(logged) == 3  # before training, and after each batch
    done = ok(gspo_here("eval", "benchmarks", "results/own", "--bench", "held_out", "--json"))
    summary = json.loads(done.out)
    assert summary["average"] == pytest.approx(logged[-1], abs=1e-9) and summary["metric"] == "held_out/avg@2"
    held = pq.read_table(run / "eval/held_out/step-000002/answers.parquet").to_pandas()
    trained = {f"row-{n}" for n in range(1, 21)} - set(held["problem_id"])
    assert 0 < held["problem_id"].nunique() < 20 and len(held) == 2 * held["problem_id"].nunique()
    level = {f"row-{n + 1}": 10 if n % 2 else 20 for n in range(20)}
    for row in held.itertuples():
        assert row.reward == pytest.approx(-0.5 * row.n_tokens / level[row.problem_id]) and row.n_tokens <= 8
        assert "e" not in row.text[:-1] and row.verdict == "wrong"
    assert summary["average"] == pytest.approx(held.groupby("problem_id")["reward"].mean().mean())
    assert summary["pass_at_k"] == {} and summary["interval_95"][0] < summary["average"] < summary["interval_95"][1]
    assert len(trained) + summary["num_problems"] == 20
    again = gspo_here("eval", "benchmarks", "results/own", "--bench", "held_out", "--json")
    assert "used again" in again.err and "changed since" not in again.err
    stored = run / "eval/held_out/step-000002/answers.parquet"
    check_refused(gspo_here("eval", "benchmarks", "--bench", "held_out", "--answers", stored), "without a run")
    graded = ok(gspo_here("eval", "benchmarks", "results/own", "--bench", "held_out", "--answers", stored, "--json"))
    assert json.loads(graded.out)["average"] == summary["average"]
    rows = (folder / "train.jsonl").read_text()
    (folder / "train.jsonl").write_text(rows.replace('"Antwort": "3"', '"Antwort": "4"'))
    assert "the rows changed since" in gspo_here("eval", "benchmarks", "results/own", "--bench", "held_out").err
    next(folder.glob("marks_*.py")).write_text(CODE.replace("return -", "return "))
    grader = find_benchmark("held_out", load(str(folder / "recipe.toml"))).grader(ProblemSet((), {}), GraderChoice())
    assert grader.about["version"] != summary["grader"]["version"]  # stored answers are graded anew


def test_the_mean_reward_is_clustered_by_problem(folder: Path) -> None:
    bench = find_benchmark("held_out", load(str(folder / "recipe.toml")))
    rows = [Problem(name, "?", name, {"Stufe": "leicht"}) for name in ("a", "b")]
    texts = {"a": ("a", "x"), "b": ("b", "b")}
    pairs = [(row, Response(text, 1)) for row in rows for text in texts[row.id]]
    grades = bench.grader(ProblemSet(tuple(rows), {}), GraderChoice()).grade(pairs)
    answers = [Answer(p.id, n % 2, 0, "", str(t), False, 1, "stop") for n, (p, t) in enumerate(pairs)]
    # problem a: 1 - 0.05 and 0 - 0.05, mean 0.45; problem b: 0.95 twice; mean 0.7, error 0.5 / 2
    figures = score(answers, grades)
    assert figures["average"] == pytest.approx(0.7) and figures["standard_error"] == pytest.approx(0.25)
    half = t_quantile(1) * 0.25
    assert figures["interval_95"] == pytest.approx((0.7 - half, 0.7 + half))


def test_a_recipe_of_ones_own_data_is_evaluated_on_nothing_else(folder: Path) -> None:
    recipe = load(str(folder / "recipe.toml"))
    assert recipe.eval.bench == ("held_out",) and recipe.eval.every == 1
    assert resolve_settings(find_benchmark("held_out", recipe), Overrides(), 0).sampling.max_new_tokens == 8
    without = recipe.model_dump(mode="json")
    without["task"]["held_out"] = None
    del without["eval"]["bench"]
    other = Recipe.model_validate(without)
    assert other.eval.bench == ()
    assert "held_out without rows that are held out" in refusal(find_benchmark, "held_out", other)


def test_rewards_see_the_thinking_part_that_the_template_opens(gspo_here: Gspo, folder: Path) -> None:
    """In training and evaluation alike: otherwise an answer inside of an unclosed part would count in one of them."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{{ '<think>\\n' }}"
    (folder / "model" / "chat_template.jinja").write_text(template)
    next(folder.glob("marks_*.py")).write_text(
        "def kurz(completion):\n    return 2.0 * completion.startswith('<think>')\n"
    )
    ok(gspo_here("train", folder / "recipe.toml", "--name", "own", "--steps", "1"))
    run = folder / "work/results/own/gspo-s0"
    lines = [line["metrics"] for line in strict_lines(run / "metrics.jsonl")]
    seen = [line[name] for line in lines for name in ("reward/mean", "held_out/avg@2") if name in line]
    assert len(seen) == 3 and set(seen) == {1.0}
    texts = pq.read_table(next(run.glob("rollouts/*.parquet")))["text"].to_pylist()
    assert not any(text.startswith("<think>") for text in texts)
