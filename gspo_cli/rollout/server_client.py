"""HTTP to a vLLM server: the standard library's client, a time limit on every request, no request left to chance."""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from gspo_cli.errors import ExitCode, GspoError

TRIES, PAUSE_S, ANSWER_S = 4, 0.5, 10.0
PASSING = {429, 500, 502, 503, 504}
"""Statuses after which the same request may succeed."""


class ServerClient:
    """One server, at `url`. Every method: GspoError (exit code 5) when the server does not answer as it should."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url, self.deadline_s = url.rstrip("/"), deadline_s

    def get(self, path: str, within_s: float = ANSWER_S) -> dict[str, Any]:
        """What stands there, asked for again where the failure may pass."""
        return self.repeated(path, None, time.monotonic() + within_s)

    def post(self, path: str, body: dict[str, Any] | None = None, within_s: float | None = None) -> dict[str, Any]:
        """An order, given once: it may have been carried out although no answer came."""
        try:
            return self._request(path, body or {}, time.monotonic() + (within_s or self.deadline_s))
        except urllib.error.HTTPError as error:
            raise self.lost(f"{path}: {_said(error)}") from error
        except (OSError, ValueError) as error:
            raise self.lost(f"{path}: {error or type(error).__name__}") from error

    def repeated(self, path: str, body: dict[str, Any] | None, until: float) -> dict[str, Any]:
        """A request that changes nothing, repeated after a growing pause while its failure may pass."""
        for attempt in range(TRIES):
            try:
                return self._request(path, body, until)
            except urllib.error.HTTPError as error:
                why = _said(error)
                if error.code not in PASSING:
                    raise self.lost(why) from error
            except (OSError, ValueError) as error:  # no connection, a broken one, or half an answer
                why = str(error) or type(error).__name__
            pause = PAUSE_S * 2**attempt
            if time.monotonic() + pause > until:
                break
            time.sleep(pause)
        raise self.lost(f"{why} ({attempt + 1} tries)")

    def _request(self, path: str, body: dict[str, Any] | None, until: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=max(0.1, until - time.monotonic())) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def lost(self, why: str) -> GspoError:
        """For the user."""
        return GspoError(
            f"the server at {self.url} did not answer as it should",
            why,
            "see its own log; rollout.vllm.concurrency and rollout.deadline_s set how hard and how long it is asked",
            ExitCode.ENGINE,
        )


def _said(error: urllib.error.HTTPError) -> str:
    return f"{error.code} {error.reason}: {error.read(500).decode(errors='replace').strip()}"


def in_time(work: Callable[[], None], seconds: float) -> bool:
    """Whether `work`, in a thread that nothing waits for at the end, came back within so many seconds.

    Errors: those of `work`.
    """
    import threading

    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    return not thread.is_alive()
