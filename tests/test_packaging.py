"""The wheel and the sdist, their metadata, and the files around them that must agree."""

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import gspo_cli

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_there_is_one_version() -> None:
    headings = re.findall(r"^## .*", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert all(re.fullmatch(r"## \[\d+\.\d+\.\d+\] - (unreleased|\d{4}-\d\d-\d\d)", line) for line in headings)
    assert re.findall(r"\[(.*)\]", headings[0]) == [CITATION["version"]] == [gspo_cli.__version__]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it; no network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def files_under(folder: str) -> Iterator[str]:
    """Its files by their path from the root, without caches."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return (path.relative_to(ROOT).as_posix() for path in paths)


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_the_recipes_alone(built: tuple[Path, Path]) -> None:
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    assert names == {*files_under("gspo_cli"), *(f"gspo_cli/{name}" for name in files_under("recipes"))}


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_build_and_test(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    parts = [
        name for folder in ("gspo_cli", "recipes", "results/programs", "tests", "docs") for name in files_under(folder)
    ]
    files = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md"}
    assert names == {*parts, *files, "PKG-INFO", ".gitignore"}


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel; what it depends on is seen in ours, this source is not."""
    folder = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*install, str(built[1])], check=True, capture_output=True, timeout=120)
    (site,) = folder.glob("lib/python*/site-packages")
    # a path in a .pth file is searched for modules; .pth files in it, such as that of this source, are not read
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.mark.slow
def test_the_wheel_works_away_from_its_source(installed: Path, cache: Path, tmp_path: Path) -> None:
    env = {"PATH": f"{installed / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), "GSPO_CACHE": str(cache),
           "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # fmt: skip

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert "Warning" not in done.stderr, done.stderr
        return done.stdout

    where = run("python", "-c", "import gspo_cli; print(gspo_cli.__file__)").strip()
    assert Path(where).is_relative_to(installed)
    assert run("gspo", "--version").split()[-1] == gspo_cli.__version__
    recipes = [json.loads(line)["name"] for line in run("gspo", "recipes", "ls", "--json").splitlines()]
    assert {"quickstart", "real/qwen3-4b-8gpu"} <= set(recipes)
    short = ["--set", "cold_start.steps=20", "--set", "eval.bench=[]"]
    run("gspo", "train", "--algo", "grpo,gspo", "--steps", "2", "--name", "first", *short)
    run("gspo", "report", "plots", "first")
    run("gspo", "report", "plots", "--paper", "column")
    run("gspo", "report", "html", "first")
    run("gspo", "runs", "export", "first")
    run("gspo", "runs", "verify", "first")
    study = tmp_path / "results" / "first"
    for name in ("figures/reward.svg", "figures/reward-column.pdf", "report.html"):
        assert (study / name).stat().st_size > 10_000
    assert len(list(study.glob("tensorboard/*/events.out.*"))) == 2
