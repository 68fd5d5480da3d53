"""A model to evaluate, and the command that does it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from program import Done, Gspo, save_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level model folder; leave it unchanged."""
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny", tokenizer="bytes")


@pytest.fixture
def evaluate(gspo_here: Gspo, tiny: Path, tmp_path: Path) -> Callable[..., Done]:
    """`gspo eval benchmarks` of that model."""

    def run(*more: str | Path) -> Done:
        fast = ("--set", "model.threads=1", "--max-tokens", "6")
        return gspo_here("eval", "benchmarks", tiny, "--out", tmp_path / "out", *fast, *more)

    return run


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, int], str]], None]:
    """Lets the model say `answer(problem id, sample)` instead of what it draws."""
    from gspo_cli.evals import runner

    real: Callable[..., Any] = runner.generate

    def script(answer: Callable[[str, int], str]) -> None:
        def scripted(*args: Any) -> Any:
            for answers in real(*args):
                yield [replace(a, text=answer(a.problem_id, a.sample)) for a in answers]

        monkeypatch.setattr(runner, "generate", scripted)

    return script
