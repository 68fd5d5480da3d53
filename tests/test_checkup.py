"""What `gspo doctor` says of a machine that lacks something."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants

from gspo_cli.checkup import judge_folder, judge_hub, judge_machine, judge_sandbox
from gspo_cli.sandbox import choose


def test_a_folder_that_cannot_be_written_to_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = judge_folder("results", tmp_path / "file" / "results", "--out")
    assert (found.verdict, found.fix) == ("fault", "name another folder: --out")
    assert judge_folder("results", tmp_path / "not" / "yet", "--out").verdict in ("ok", "warning")
    assert not (tmp_path / "not").exists()


def test_little_room_and_memory_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gspo_cli.checkup.LEAST_DISK", 1e18)
    monkeypatch.setattr("gspo_cli.checkup.LEAST_MEMORY", 1e18)
    found = {check.check: check for check in judge_machine(tmp_path, tmp_path / "cache")}
    assert [found[name].verdict for name in ("cores", "memory", "results", "cache")] == ["ok"] + 3 * ["warning"]
    assert "GSPO_CACHE" in found["cache"].fix and "--out" in found["results"].fix


def test_the_hub_offline_away_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            """Nothing on the tests' stderr."""

    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = {}
        for name, offline, port in (("offline", True, 1), ("away", False, 1), ("there", False, server.server_port)):
            monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
            monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
            found[name] = list(judge_hub())
        server.shutdown()
    assert [checks[0].verdict for checks in found.values()] == ["ok", "warning", "ok"]
    assert "refused" in found["away"][0].found and found["there"][0].found == "reachable"
    assert "canary" not in str(found)


def test_no_sandbox_is_a_warning_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "MAKERS", {"bwrap": lambda *_: None, "sandlock": lambda *_: None})
    found = judge_sandbox()
    assert found.verdict == "warning" and "bwrap is not installed" in found.found and "apt install" in found.fix
