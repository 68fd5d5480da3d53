"""The task of one's own data: prompts, columns by name, the held-out part, the built-in rewards, and their trial."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from program import refusal, strict_lines

from gspo_cli.config import TaskConfig
from gspo_cli.errors import GspoError
from gspo_cli.rollout.collect import problems_hash
from gspo_cli.task_config import BUILT_IN_REWARDS
from gspo_cli.tasks import make_task, read_problems
from gspo_cli.tasks.built_in_rewards import SINGLE
from gspo_cli.tasks.scoring import score
from gspo_cli.tasks.trial import try_rewards
from gspo_cli.types import Problem, Response

ROWS = [{"Frage": f"Was ist {n} + {n}?", "Lösung": 2 * n, "Stufe": "leicht", "Tags": ["a", n]} for n in range(60)]


def write(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def config(path: str, **keys: Any) -> TaskConfig:
    columns = {"prompt": "Frage", "answer": "Lösung"}
    return TaskConfig.model_validate({"name": "data", "path": path, "columns": columns, "reward": "number"} | keys)


def problems(path: str, split: str = "train", **keys: Any) -> list[Problem]:
    return make_task(config(path, **keys)).problems(split)


def test_nothing_is_added_and_a_template_takes_any_column(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    plain = problems(path)[1]
    assert (plain.id, plain.prompt, plain.answer) == ("row-2", "Was ist 1 + 1?", "2")
    filled = problems(path, template="[{Stufe}] {question} {Frage} \\frac{1}{2} {Tags} {Lösung}")[1]
    assert filled.prompt == '[leicht] Was ist 1 + 1? Was ist 1 + 1? \\frac{1}{2} ["a", 1] 2'
    spaced = write(tmp_path, [{"Rätsel (neu)": "1+1?", "max zeichen": 3, "Frage": "x", "Lösung": "2"}])
    assert problems(spaced, template="{Rätsel (neu)} {max zeichen} {a: b}")[0].prompt == "1+1? 3 {a: b}"
    path = write(tmp_path, ROWS)
    task = make_task(config(path, template="{Frage} {Stuffe}"))
    assert task.problems("train")[0].prompt == "Was ist 0 + 0? {Stuffe}"
    assert getattr(task, "notes", []) == [
        "task.template: {Stuffe} is no column, and stays as it is; did you mean '{Stufe}'?"
    ]


def test_messages_keep_their_roles_and_one_message_is_a_text(tmp_path: Path) -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    rows = [{"prompt": [system, user]}, {"prompt": [user]}]
    long, short = problems(write(tmp_path, rows), columns={}, reward="json")
    assert (long.prompt, long.messages, long.answer) == ("Be brief.\n\nHi", (system, user), "")
    assert (short.prompt, short.messages) == ("Hi", ())
    said = refusal(problems, write(tmp_path, rows), columns={}, reward="json", system="Be long.")
    assert "line 1 has a system prompt, and so has the recipe" in said


@pytest.mark.parametrize(
    ("rows", "keys", "said"),
    [
        (ROWS, {"columns": {"prompt": "frage"}}, "has no column 'frage'"),
        (ROWS, {"columns": {}}, "has no column 'prompt'"),
        (ROWS, {"columns": {"prompt": "Frage", "answer": "Losung"}}, "has no column 'Losung'"),
        (ROWS, {"template": "{frage}"}, "has no column of"),
        ([*ROWS, {"Frage": "Was?"}], {}, "line 61 has no 'Lösung'"),
        ([*ROWS, {"Frage": 7, "Lösung": 1}], {}, "line 61: 'Frage' is not text"),
        ([{"Frage": [{"role": "user"}], "Lösung": 1}], {}, "message 1 of 'Frage' is {'role': 'user'}"),
        ([{"Frage": [{"role": "assistant", "content": "x"}], "Lösung": 1}], {}, "ends with an answer of the assistant"),
        (ROWS[:2], {"held_out": 1e-9, "split": "held_out"}, "leaves none of 2 rows to evaluate"),
        (ROWS, {"held_out": "test"}, "no file test"),
        (ROWS, {"held_out": "test.jsonl"}, "no data file test.jsonl"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_prompts_are_named(tmp_path: Path, rows: list[dict[str, Any]], keys: dict[str, Any], said: str) -> None:
    assert said in refusal(problems, write(tmp_path, rows), **keys)


def test_a_share_is_held_out_by_prompt_and_appended_rows_move_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    train, held = problems(path, held_out=0.2), problems(path, "held_out", held_out=0.2)
    assert len(train) + len(held) == 60 and 4 <= len(held) <= 20  # 12 expected, 3.1 the standard deviation
    assert not {p.id for p in train} & {p.id for p in held}
    worded = problems(path, "held_out", held_out=0.2, template="{Stufe}: {question}")
    assert [p.id for p in worded] == [p.id for p in held] and worded[0].prompt.endswith(held[0].prompt)
    twice = [row | {"Lösung": 0} for row in ROWS] + [{"Frage": f"Neu {n}", "Lösung": n} for n in range(40)]
    longer = write(tmp_path, [*ROWS, *twice], "longer.jsonl")
    later = {split: problems(longer, split, held_out=0.2) for split in ("train", "held_out")}
    assert [p.id for p in later["held_out"]][: len(held)] == [p.id for p in held]
    assert not {p.prompt for p in later["train"]} & {p.prompt for p in later["held_out"]}


def test_rows_of_a_held_out_file_are_not_trained_on(tmp_path: Path) -> None:
    path, other = write(tmp_path, ROWS), write(tmp_path, ROWS[50:], "other.jsonl")
    task = make_task(config(path, held_out=other))
    assert [p.id for p in task.problems("train")] == [f"row-{n}" for n in range(1, 51)]
    assert "10 rows are held out" in getattr(task, "notes", [""])[0]
    assert [p.prompt for p in task.problems("held_out")] == [row["Frage"] for row in ROWS[50:]]


@pytest.mark.parametrize("form", ["csv", "semicolons", "tabs", "parquet", "json", "folder", "saved", "splits"])
def test_the_forms_of_data(tmp_path: Path, form: str) -> None:
    import datasets
    import pandas

    rows = [{"Frage": f'Was, "{n}"?\nJa', "Lösung": str(n)} for n in range(5)]
    path = tmp_path / f"rows.{form}"
    if form in (separators := {"csv": ",", "semicolons": ";", "tabs": "\t"}):
        path = path.with_suffix(".csv")
        pandas.DataFrame(rows).to_csv(path, index=False, sep=separators[form])
    elif form == "parquet":
        pandas.DataFrame(rows).to_parquet(path)
    elif form == "json":
        path.write_text(json.dumps(rows))
    elif form == "folder":
        path.mkdir()
        write(path, rows[:2], "a.jsonl"), write(path, rows[2:], "b.jsonl")
    else:
        data = datasets.Dataset.from_list(rows)
        saved = data if form == "saved" else datasets.DatasetDict(train=data, test=data.select([0]))
        saved.save_to_disk(str(path))
    assert [(p.prompt, p.answer) for p in problems(str(path))] == [tuple(row.values()) for row in rows]
    if form == "splits":
        assert len(problems(str(path), held_out="test")) == 4
        assert "has no split 'tset'" in refusal(problems, str(path), held_out="tset")


def test_csv_faults_are_named_with_their_line(tmp_path: Path) -> None:
    for text, said in (
        ("a,b\n1,2,3\n", "line 2 has more values"),
        ("a,a\n1,2\n", "two columns 'a'"),
        ("a\n", "no rows"),
        ('a;"b,c"\n"1"2;3\n', "not CSV with ';' between values"),
    ):
        (tmp_path / "x.csv").write_text(text)
        assert said in refusal(problems, str(tmp_path / "x.csv"))


def test_columns_reach_rewards_by_name_in_each_form(tmp_path: Path, own: Any) -> None:
    first, second = problems(write(tmp_path, ROWS))[:2]
    seen: list[Any] = []

    def one(completion: str, answer: int, **columns: Any) -> float:
        seen.append((completion, answer, columns["Stufe"], columns["Lösung"], columns["prompt"]))
        return answer

    def few(completion: str, Tags: list[Any]) -> float:
        return Tags[1] + len(completion)

    async def waits(completion: str, answer: int) -> float:
        return answer + len(completion)

    def trl(completions: list[str], prompts: list[str], answer: list[int], **columns: list[Any]) -> list[float | None]:
        seen.append((completions, prompts, columns["Stufe"]))
        return [None if not text else float(a) for text, a in zip(completions, answer, strict=True)]

    own.one, own.few, own.waits, own.trl = one, few, waits, trl
    own.pair = lambda problem, text: len(problem.answer) + len(text)
    responses = [(first, Response("ab")), (second, Response(""))]

    def values(name: str) -> list[float | None]:
        return [s.value for s in score(make_task(TaskConfig(name="data", reward=f"own_rewards:{name}")), responses)]

    assert values("one") == [0.0, 2.0]
    assert seen.pop() == ("", 2, "leicht", 2, "Was ist 1 + 1?") and seen.pop()[0] == "ab"
    assert values("few") == [2.0, 1.0] and values("waits") == [2.0, 2.0] and values("pair") == [3.0, 1.0]
    assert values("trl") == [0.0, None]
    assert seen == [(["ab", ""], ["Was ist 0 + 0?", "Was ist 1 + 1?"], ["leicht", "leicht"])]
    chat = Problem("c", "Hi", "", {"x": 1}, ({"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}))
    own.chat = lambda completions, x: [len(completions[0][0]["content"]) + x[0]]
    [found] = score(make_task(TaskConfig(name="data", reward="own_rewards:chat")), [(chat, "four")])
    assert found.value == 5.0


CASES = strict_lines(Path(__file__).with_name("built_in_rewards.jsonl"))
CASES += [
    {"reward": {"name": "length", "tokens": [4, 12]}, "answer": "", "text": Response("x", tokens), "value": value}
    for tokens, value in ((4, 0.0), (6, -0.25), (99, -1.0))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['reward']['name']} {case['text'][:20]!a}")
def test_built_in_rewards(case: dict[str, Any]) -> None:
    task = make_task(TaskConfig.model_validate({"name": "data", "rewards": [case["reward"]]}))
    assert score(task, [(Problem("p", "?", case["answer"]), case["text"])])[0].value == case["value"]


def test_every_built_in_reward_is_named_and_tested() -> None:
    assert set(BUILT_IN_REWARDS) == {*SINGLE, "code"} and {case["reward"]["name"] for case in CASES} == set(SINGLE)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"reward": "nubmer"}, "no reward 'nubmer'; did you mean 'number'?"),
        ({"reward": "regex"}, "the reward `regex` needs a pattern"),
        ({"rewards": [{"name": "exact", "pattern": "x"}]}, "pattern is a setting of format and regex"),
        ({"rewards": [{"name": "json", "tokens": [1, 2]}]}, "tokens is a setting of length"),
        ({}, "task data without a reward"),
        ({"rewards": [{"name": "task"}, {"name": "exact"}]}, "task data without a reward"),
    ],
)
def test_rewards_that_do_not_exist_are_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, GspoError)) as refused:
        make_task(TaskConfig.model_validate({"name": "data"} | keys))
    assert said in str(refused.value)


def test_other_columns_are_part_of_the_data_that_a_resume_must_find(tmp_path: Path) -> None:
    one, other = (problems(write(tmp_path, [ROWS[0] | {"Stufe": level}])) for level in ("leicht", "schwer"))
    assert one == other and problems_hash(one) != problems_hash(other)


def trial(folder: Path, code: str, **keys: Any) -> list[str]:
    """What the trial says of a function `reward` in a file of the user's own."""
    name = f"own_{len(sys.modules)}"
    (folder / f"{name}.py").write_text(code)
    made = config(write(folder, ROWS), reward=f"{name}:reward", **keys)
    task = make_task(made)
    return try_rewards(task, read_problems(task, made), made)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def reward(completion, answer):\n    return float(completion == rigth)\n", ["NameError", "line 2"]),
        ("def reward(completion, gold):\n    return 1.0\n", ["missing 1 required positional argument: 'gold'"]),
        ("def reward(completion, lsung):\n    return 1.0\n", ["did you mean 'Lösung'?", "gets Frage, Lösung, "]),
        ("def reward(completions, *, lsung):\n    return [1.0]\n", ["did you mean 'Lösung'?"]),
        ("def reward(completion, **c):\n    return c['gold']\n", ["KeyError: 'gold'", "line 2"]),
        ("def reward(completions, **c):\n    return helper(c)\n\ndef helper(c):\n    return c['x']\n",
         ["KeyError: 'x'", "line 5", "line 5: return c['x']; called from ", "line 2"]),
        ("def reward(completions):\n    return 0.0\n", ["gave a float for 9 responses"]),
        ("import json\ndef reward(completion):\n    return json.loads('{' + completion)['x']\n", ["line 3"]),
        ("def reward(completion):\n    return 'good'\n", ["gave 'good'"]),
    ],
)  # fmt: skip
def test_a_reward_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = refusal(trial, tmp_path, code)
    assert all(part in text for part in said) and "gspo_cli/" not in text and "json/decoder" not in text, text


def test_a_reward_that_fails_on_some_texts_or_tells_none_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [note] = trial(tmp_path, "def reward(completion, answer):\n    return float(int(completion) == answer)\n")
    assert note.startswith("no reward for an empty response to problem 'row-1'") and "line 2: return float" in note
    [note] = trial(tmp_path, "def reward(completion, answer):\n    return float(completion == answer)\n")
    assert note == "the reward is 0 for the reference answers, for empty responses and for other text alike"
    assert trial(tmp_path, "def reward(completion, answer):\n    return float(completion == str(answer))\n") == []
