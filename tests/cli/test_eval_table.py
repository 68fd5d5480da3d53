"""The table of `gspo eval benchmarks`."""

from __future__ import annotations

from gspo_cli.cli.views.evaluation import result_table


def test_rows_of_several_runs_name_them() -> None:
    shared = {
        "benchmark": "held_out", "pass_at_k": {}, "data": {"excluded": {}}, "verdicts_differ": None, "samples": 1,
        "average": 0.5, "incomplete": False, "standard_error": 0.1, "num_problems": 2, "mean_tokens": 3.0,
        "truncated_frac": 0.0, "no_answer_frac": 0.0, "grader_errors": 0,
    }  # fmt: skip
    folders = [f"results/study/{run}/eval/held_out/step-000004" for run in ("grpo-s0", "gspo-s0")]
    table = result_table([shared | {"folder": folder} for folder in folders])
    assert list(table.columns[0].cells) == ["held_out grpo-s0", "held_out gspo-s0"]
    assert list(result_table([shared | {"folder": folders[0]}]).columns[0].cells) == ["held_out"]
