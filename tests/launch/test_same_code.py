"""A run's process runs the code of the command that started it, wherever that command was given."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gspo_cli.errors import GspoError
from gspo_cli.launch.local import same_package
from gspo_cli.runlog import provenance
from gspo_cli.runlog.provenance import PACKAGE, code_state, package_sha256
from gspo_cli.training.worker import check_package


def test_a_folder_of_the_same_name_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "gspo_cli" / "runlog").mkdir(parents=True)
    for folder in (tmp_path / "gspo_cli", tmp_path / "gspo_cli" / "runlog"):
        (folder / "__init__.py").write_text("raise SystemExit(77)")
    command = same_package("gspo_cli.runlog.provenance:package_sha256")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stderr.strip() == package_sha256() and done.returncode == 1  # `sys.exit(text)` prints it


def test_a_worker_with_other_code_refuses() -> None:
    check_package({"package": {"path": str(PACKAGE), "sha256": package_sha256()}})
    with pytest.raises(GspoError, match="runs other code") as refused:
        check_package({"package": {"path": "/other/gspo_cli", "sha256": "0" * 64}})
    assert "/other/gspo_cli" in refused.value.why and str(PACKAGE) in refused.value.why


def test_an_installed_package_records_its_code_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "SOURCE", tmp_path)  # no checkout around it, as in site-packages
    assert code_state() == {"sha256": package_sha256()} and len(package_sha256()) == 64
