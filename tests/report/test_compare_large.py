"""Long studies are compared quickly, in bounded memory, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from compare_studies import change, write_run
from report_runs import canonical, records, write_log

from gspo_cli.runlog.checksums import write_run_checksums

STEPS = 10_000


def test_reports_load_neither_torch_nor_the_test_oracle(tmp_path: Path) -> None:
    for arm in ("grpo", "gspo"):
        for seed in range(3):
            write_run(tmp_path / "demo", arm, seed, [0.5 + seed / 100 + (arm == "gspo") * seed / 50] * 20)
    program = (
        "import sys; from gspo_cli.cli.report import app\n"
        "assert not {'scipy', 'pandas', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        f"app(['compare', '--out', {str(tmp_path)!r}], standalone_mode=False)\n"
        "assert 'scipy' in sys.modules\n"
        "assert not {'torch', 'transformers', 'matplotlib', 'statsmodels'} & set(sys.modules)\n"
        f"app(['plots', '--out', {str(tmp_path)!r}], standalone_mode=False)\n"
        "assert 'matplotlib' in sys.modules and not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_twelve_runs_of_ten_thousand_steps(tmp_path: Path) -> None:
    study = tmp_path / "demo"
    for arm in ("grpo", "gspo"):
        for seed in range(6):
            run = write_run(study, arm, seed, [0.5] * 20)
            change(run / "config.json", {"train.steps": STEPS})
            write_log(run / "metrics.jsonl", (with_queries(r) for r in records(arm, seed, STEPS)))
            kinds = ("rollout", *["update"] * 4, "step")
            times = [{"kind": kind, "step": step, "time": "2026-01-01T00:00:00.000+00:00"} | (
                {"rollout_s": 0.3, "update_s": 0.5, "probe_s": 0.1, "batch_s": 1.0} if kind == "rollout" else {}
            ) for step in range(1, STEPS + 1) for kind in kinds]  # fmt: skip
            (run / "perf.jsonl").write_text("".join(canonical(t) + "\n" for t in times))
            write_run_checksums(run)
    program = (
        "import resource, sys; from gspo_cli.cli.report import app\n"
        f"app(['compare', {str(study)!r}, '--metric', 'reward/mean:area@seconds', '--json'], standalone_mode=False)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "lines = open('/proc/self/status').read().split()\n"  # ru_maxrss would be that of the process that forked
        "print(used.ru_utime + used.ru_stime, int(lines[lines.index('VmHWM:') + 1]) / 1e6, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    found = json.loads(done.stdout)
    assert found["budget"]["seconds"]["baseline"] == pytest.approx(0.8 * STEPS)
    assert (found["n"], found["verdict"]) == (6, "better")
    # processor time, which is at least the time on an idle machine and does not depend on who else computes
    seconds, gigabytes = map(float, done.stderr.split()[-2:])
    assert seconds < 10 and gigabytes < 1, (seconds, gigabytes)


def with_queries(record: dict[str, object]) -> dict[str, object]:
    """The line with the prompts consumed so far."""
    metrics, step = record["metrics"], record["step"]
    assert isinstance(metrics, dict) and isinstance(step, int)
    queries = {"compute/queries": 32 * step} if record["kind"] == "rollout" else {}
    return {**record, "metrics": metrics | queries}
