"""A small study for the documentation's own code."""

from pathlib import Path

import pytest
from program import Gspo, ok


@pytest.fixture(scope="session")
def small_study(tmp_path_factory: pytest.TempPathFactory, smoke: Path, gspo: Gspo) -> Path:
    """A folder whose `results/small` is a study of GRPO and GSPO, three seeds and two rollout batches each."""
    folder = tmp_path_factory.mktemp("small")
    where = ["--out", folder / "results", "--name", "small", "--set", "eval.limit=4"]
    ok(gspo("train", smoke, "--algo", "grpo,gspo", "--seeds", "0-2", *where))
    return folder
