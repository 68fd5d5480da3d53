"""Any text as a recipe: it loads, or is refused with the file's name and in three parts; nothing else happens."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program import Gspo, check_refused

from gspo_cli import recipe
from gspo_cli.errors import ExitCode, GspoError

FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
SMOKE = (Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml").read_text()
LINES = [line for line in SMOKE.splitlines() if line]
VALUES = ["-1", "0", "1e999", "nan", "inf", "-inf", "true", '""', '"\\u0000"', "[]", "[[]]", "{}", "{ name = 1 }",
          "2024-01-01", "12:30:00", "9" * 5000, '"""', "'gspo'", "1_000", "0x_", "=", "\u202e", "1e-400",
          '"../../x"']  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A valid recipe with a few of its lines dropped, doubled, moved, given another value or key, or torn."""
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[at].partition(" = ")
        change = draw(st.sampled_from(["value", "value", "key", "drop", "double", "move", "cut", "insert"]))
        if change == "value" and equals:
            lines[at] = f"{key} = {draw(st.sampled_from(VALUES))}"
        elif change == "key" and equals:
            lines[at] = f"{draw(st.text(max_size=8))}{lines[at]}"
        elif change == "drop":
            lines[at] = ""
        elif change == "double":
            lines.insert(at, lines[at])
        elif change == "move":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        elif change == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        else:
            lines[at] += draw(st.text(max_size=8))
    return "\n".join(lines)


def check(folder: Path, data: bytes) -> None:
    """The file loads or is refused."""
    file = folder / "mine.toml"
    file.write_bytes(data)
    try:
        recipe.load(str(file))
    except GspoError as error:
        assert error.code is ExitCode.USER_ERROR
        assert error.message.strip() and error.why.strip() and error.hint.strip()
        if b"extends" not in data:  # what is wrong there is another file's name
            assert "mine.toml" in error.message
        try:
            tomllib.loads(data.decode("utf-8-sig"))
        except ValueError as broken:
            assert str(broken) in error.why  # with line and column where TOML's parser knows them
        except RecursionError:
            assert "recursion" in error.why


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


@FUZZ
@given(data=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda t: t.encode(errors="surrogatepass"))))
def test_any_bytes(folder: Path, data: bytes) -> None:
    check(folder, data)


@FUZZ
@given(text=mutated())
def test_mutated_recipes(folder: Path, text: str) -> None:
    check(folder, text.encode(errors="surrogatepass"))


@FUZZ
@given(assignment=st.one_of(st.text(max_size=30), st.builds(
    lambda key, value: f"{key}={value}",
    st.sampled_from(["model", "model.tiny", "train.lr", "algo.name", "algo.clip", "task", "arms", "arms.x", "eval.data",
                     "report.metric", "name", "seed", "rollout.vllm", "model.tiny.hidden.x", "train.optimizer.betas"]),
    st.sampled_from(VALUES) | st.text(max_size=8),
)))  # fmt: skip
def test_any_assignment(assignment: str) -> None:
    try:
        recipe.load(str(Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml"), {}, [assignment])
    except GspoError as error:
        assert error.code is ExitCode.USER_ERROR and error.message and error.why and error.hint


@pytest.mark.parametrize(
    "key", ["resume", "resume_from_checkpoint", "train.resume_from_checkpoint", "checkpoint.resume"]
)
def test_a_key_that_would_be_ignored_is_refused(key: str) -> None:
    """Elsewhere a resume asked for in the recipe was passed over in silence, and the run began anew."""
    with pytest.raises(GspoError, match="unknown key"):
        recipe.load(str(Path(__file__).parents[1] / "recipes_for_tests" / "smoke.toml"), {}, [f"{key}='x'"])


@pytest.mark.parametrize(
    "text",
    ["", "x", "\0", "[model]\nthreads = ", "[" * 3000, 'extends = "mine"', 'extends = 3', "[model]\npath = 3",
     "a = 9" + "9" * 5000,
     SMOKE.replace("prompts = 4", "prompts = nan"), SMOKE.replace("[rollout]", "[rolout]"), SMOKE + "\n[model]\n"],
    ids=range(12),
)  # fmt: skip
def test_the_program_says_so_and_makes_no_folder(gspo_here: Gspo, tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    done = gspo_here("train", tmp_path / "mine.toml", "--out", tmp_path / "out", "--name", "x")
    check_refused(done)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]
