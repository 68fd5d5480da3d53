"""Evaluations of others, compared problem by problem: logs that Inspect 0.3.285 wrote with its mock model (eight
problems, two samples each; `base` solves three, `tuned` six), and details as lighteval lays them out."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from program import Gspo, ok, refusal
from scipy import stats

from gspo_cli.errors import GspoError
from gspo_cli.report.compare import eval_log
from gspo_cli.report.compare.eval_log import read_evaluation, read_evaluations

LOGS = Path(__file__).parent / "inspect"


def compared(gspo: Gspo, *scores: str) -> dict[str, Any]:
    options = [part for one in scores for part in (("--scores", one) if not one.startswith("--") else (one,))]
    done = ok(gspo("report", "compare", *options, "--json"))
    return json.loads(done.out)  # type: ignore[no-any-return]


def inspect_log(path: Path, values: dict[str, list[Any]], method: int = zipfile.ZIP_DEFLATED, **header: Any) -> Path:
    """A log with these scores, a list for each problem, as older versions packed it."""
    about = {"task": "t", "task_version": 0, "task_args": {}, "model": path.stem, "model_generate_config": {}}
    table = {"status": "success", "eval": about, "results": {"scores": [{"name": "match"}]}} | header
    samples = [
        {"id": problem, "epoch": epoch, "target": "x", "scores": {"match": {"value": value}}}
        for problem, of in values.items() for epoch, value in enumerate(of, 1)
    ]  # fmt: skip
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("header.json", json.dumps(table))
        archive.writestr("summaries.json", json.dumps(samples))
    return path


def details(folder: Path, scores: list[float], old: bool = False) -> Path:
    """lighteval's file for one task, in the folder of a model and a time."""
    path = folder / "time" / "details_gsm8k_time.parquet"
    path.parent.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {"example": f"question {n}", "metrics": {"qem": score}} if old
        else {"doc": {"id": str(n), "query": f"question {n}", "task_name": "gsm8k|0"},
              "metric": {"em": score, "f1": 0.5}, "model_response": {"text": ["..."]}}
        for n, score in enumerate(scores)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_one_evaluation_is_not_two_seeds(tmp_path: Path) -> None:
    twin = tmp_path / "twin.eval"
    twin.write_bytes((LOGS / "base.eval").read_bytes())
    assert "given twice" in refusal(read_evaluations, [LOGS / "tuned.eval", LOGS / "base.eval", twin])


def test_two_logs_of_inspect(gspo_here: Gspo) -> None:
    found = compared(gspo_here, f"base={LOGS / 'base.eval'}", f"tuned={LOGS / 'tuned.eval'}")
    (one,) = found["comparisons"]
    assert [(run["run"], run["mean"]["value"]) for run in found["runs"]] == [("base", 0.375), ("tuned", 0.75)]
    # 3 of 8 problems won, none lost: t interval over the paired differences
    d_J = np.array([0, 0, 0, 1, 1, 0, 0, 1.0])
    half = stats.t.isf(0.025, 7) * d_J.std(ddof=1) / 8**0.5
    assert one["effect"] == 0.375 and one["ci_over_problems"] == pytest.approx([0.375 - half, 0.375 + half])
    assert {row["task"]: row["difference"] for row in one["per_task"]} == dict(zip("23456789", d_J, strict=True))
    assert one["verdict"] == "two_checkpoints" and "on match, mean of 8 problems" in one["sentence"]


def test_several_models_of_a_run_are_its_seeds(tmp_path: Path, gspo_here: Gspo) -> None:
    named = []
    for run, share in (("grpo", 0.3), ("gspo", 0.6)):
        for seed in range(6):
            rights = np.random.default_rng(seed).random((20, 4)) < share
            log = inspect_log(
                tmp_path / f"{run}{seed}.eval", {f"q{j}": ["CI"[not r] for r in of] for j, of in enumerate(rights)}
            )
            named.append(f"{run}={log}")
    (one,) = compared(gspo_here, *named)["comparisons"]
    assert one["seeds"] == [0, 1, 2, 3, 4, 5] and one["two_way"] is not None
    assert one["verdict"] == "suggestive" and "also for new" not in one["sentence"]
    assert "evaluations do not say which training runs collapsed" in one["sentence"]


def test_what_a_score_is(tmp_path: Path) -> None:
    values = {"a": ["C", "I"], "b": ["P", "N"], "c": [0.25, True]}
    assert read_evaluation(inspect_log(tmp_path / "x.eval", values)).scores == {"a": 0.5, "b": 0.25, "c": 0.625}
    both = {"results": {"scores": [{"name": "f1"}, {"name": "match"}]}}
    path = inspect_log(tmp_path / "y.eval", values, **both)
    assert read_evaluation(path, "match").scores["a"] == 0.5
    said = refusal(read_evaluation, path)
    assert "cannot read the evaluation" in said and "has no number as f1" in said


@pytest.mark.parametrize("old", [False, True])
def test_details_of_lighteval(tmp_path: Path, gspo_here: Gspo, old: bool) -> None:
    paths = [details(tmp_path / name, scores, old) for name, scores in (("a", [1, 0, 1, 0]), ("b", [1, 1, 1, 0]))]
    found = compared(gspo_here, *map(str, paths))
    assert [run["run"] for run in found["runs"]] == ["a", "b"]
    assert found["comparisons"][0]["effect"] == 0.25 and found["tasks"] == 4
    if not old:
        assert compared(gspo_here, *map(str, paths), "--metric=f1")["comparisons"][0]["effect"] == 0


def test_other_problems_and_other_settings_are_refused(tmp_path: Path) -> None:
    one = inspect_log(tmp_path / "a.eval", {"q": ["C"]})
    about = {"task": "t", "task_version": 0, "task_args": {}, "model": "m", "model_generate_config": {"temperature": 1}}
    for other, key in (
        (inspect_log(tmp_path / "b.eval", {"p": ["C"]}), "problems"),
        (inspect_log(tmp_path / "c.eval", {"q": ["C", "C"]}), "samples of a problem"),
        (inspect_log(tmp_path / "d.eval", {"q": ["C"]}, eval=about), "generation"),
        (details(tmp_path / "e", [1.0]), "format"),
    ):
        said = refusal(read_evaluations, [one, other])
        assert "are not the same evaluation" in said and key in said


def test_files_that_are_no_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (LOGS / "base.eval").read_bytes()
    flipped = bytearray(whole)
    at = whole.index(b"summaries.json") + 60
    flipped[at] ^= 0xFF
    bad = tmp_path / "bad.eval"
    for content in (b"", b"PK", whole[:-30], bytes(flipped)):
        bad.write_bytes(content)
        refused(bad)
    for values, header in (
        ({"q": [None]}, {}), ({"q": ["good"]}, {}), ({"q": [{"a": 1}]}, {}), ({"q": [float("nan")]}, {}),
        ({"q": ["C", "C"], "p": ["C"]}, {}), ({}, {}), ({"q": ["C"]}, {"status": "error"}), ({"q": ["C"]}, {"eval": 3}),
        ({"q": ["C"]}, {"results": None}), ({"q": ["C"]}, {"results": {"scores": []}}),
    ):  # fmt: skip
        refused(inspect_log(bad, values, **header))
    refused(inspect_log(bad, {"q": ["C"]}, zipfile.ZIP_LZMA))
    refused(tmp_path / "absent.eval")
    os.mkfifo(tmp_path / "pipe.eval")
    refused(tmp_path / "pipe.eval")
    for name, rows in (("a", [{"x": 1}]), ("b", [{"doc": {"id": "1", "query": "?"}, "metric": {"em": None}}]),
                       ("c", [{"doc": {"id": "1", "query": "?"}, "metric": {"em": 1.0}}] * 2)):  # fmt: skip
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
        refused(tmp_path / f"{name}.parquet")
    monkeypatch.setattr(eval_log, "MOST_BYTES", 1000)
    refused(LOGS / "base.eval")


def refused(path: Path) -> None:
    with pytest.raises(GspoError) as error:
        read_evaluation(path)
    assert error.value.code == 2 and all((error.value.message, error.value.why, error.value.hint))
