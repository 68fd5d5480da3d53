"""A hub that cannot be reached is found out once, before the libraries begin to retry."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from gspo_cli import hub
from gspo_cli.doctor import check_hub

AWAY = "http://127.0.0.1:9"  # the discard port: closed


class Missing(BaseHTTPRequestHandler):
    """Any answer will do, even this one."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    """A server that has nothing."""
    made = HTTPServer(("127.0.0.1", 0), Missing)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize("there", [True, False])
def test_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch, server: str, there: bool) -> None:
    import datasets.config

    hub.hub_problem.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", server if there else AWAY)
    for _ in range(2):
        hub.prepare_hub()
        assert constants.HF_HUB_OFFLINE is datasets.config.HF_HUB_OFFLINE is (not there)
    assert hub.hub_problem.cache_info().misses == 1
    hub.hub_problem.cache_clear()


def test_the_doctor_says_whether_it_is_offline_away_or_there(monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    found = {}
    for name, offline, endpoint in (("offline", True, AWAY), ("away", False, AWAY), ("there", False, server)):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        found[name] = list(check_hub())
    assert [checks[0].verdict for checks in found.values()] == ["ok", "warning", "ok"]
    assert "refused" in found["away"][0].found and found["there"][0].found == "reachable"
    assert "canary" not in str(found)
