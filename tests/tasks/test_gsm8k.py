"""GSM8K: reading rows from files of one's own, and answers that are no numbers."""

import json
from pathlib import Path
from typing import Any

import pytest

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.rewards.math.normalize import number
from gspo_cli.tasks import make_task


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_own_file_with_own_columns(tmp_path: Path, ending: str) -> None:
    import pandas as pd

    rows = [{"q": "1+1?", "a": "two\n#### 2"}, {"q": "2+2?", "a": "4"}]
    path = tmp_path / f"data.{ending}"
    if ending == "parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif ending == "json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    task = make_task(TaskConfig(name="gsm8k", path=str(path), columns={"prompt": "q", "answer": "a"}))
    problems = task.problems("train")
    assert [p.answer for p in problems] == ["2", "4"]
    assert problems[0].prompt.startswith("1+1?")
    assert task.reward(problems[0], "#### 2.0").value == 1.0


@pytest.mark.slow
def test_real_data(shared_data: Path) -> None:
    task = make_task(TaskConfig(name="gsm8k", path=str(shared_data / "gsm8k_train.jsonl")))
    problems = task.problems("train")
    assert len(problems) == 7473
    assert all(number(p.answer) is not None for p in problems)
    solution = json.loads((shared_data / "gsm8k_train.jsonl").read_text().splitlines()[0])["answer"]
    assert task.reward(problems[0], solution).value == 1.0
    assert task.reward(problems[0], solution + "1").value == 0.0


def test_answers_that_are_no_numbers_are_said_or_refused(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"

    def task(*answers: str) -> Any:
        data.write_text("".join(json.dumps({"question": "How many?", "answer": a}) + "\n" for a in answers))
        return make_task(TaskConfig(name="gsm8k", path=str(data)))

    some = task("#### 1", "yes", "2")
    assert len(some.problems("train")) == 3 and some.notes == [
        "no response can be scored where the answer is no number: rows [2]"
    ]
    with pytest.raises(GspoError, match=r"no answer of .*data\.jsonl is a number"):
        task("yes", "no").problems("train")
    with pytest.raises(GspoError, match=r"line 2: 'answer' is empty"):
        task("1", " ").problems("train")
