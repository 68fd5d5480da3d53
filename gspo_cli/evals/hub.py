"""Files of a published data set, at a pinned commit, through the hub's own client and cache."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from gspo_cli.errors import GspoError

PROBE_S = 5.0
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubData:
    """A data set on the hub."""

    repo: str
    revision: str
    """The commit whose files were checked against the fingerprint."""
    files: tuple[str, ...]


def download(data: HubData, revision: str | None, benchmark: str) -> tuple[list[Path], str]:
    """The files' local copies, and the commit they belong to. What the cache holds of a commit needs no network.

    Errors: GspoError that says how to bring the data by hand.
    """
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    wanted = revision or data.revision
    cached = bool(COMMIT.fullmatch(wanted))
    try:
        try:
            paths = _get(data, wanted, local_files_only=cached)
        except OSError:
            if not cached:
                raise
            if not huggingface_hub.constants.HF_HUB_OFFLINE:
                # the client itself tries for 23 s before it gives up
                huggingface_hub.get_session().head(huggingface_hub.constants.ENDPOINT, timeout=PROBE_S)
            paths = _get(data, wanted, local_files_only=False)
    except (OSError, ValueError, HfHubHTTPError, _transport_error()) as error:
        raise _unreachable(data, wanted, benchmark, error) from error
    commits = {p.parts[p.parts.index("snapshots") + 1] for p in paths}
    return paths, commits.pop()


def _get(data: HubData, revision: str, local_files_only: bool) -> list[Path]:
    import huggingface_hub

    return [
        Path(
            huggingface_hub.hf_hub_download(
                data.repo, name, repo_type="dataset", revision=revision, local_files_only=local_files_only
            )
        )
        for name in data.files
    ]


def _transport_error() -> type[Exception]:
    """The base of the hub client's network errors; which library it uses has changed and may again."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(c for c in HfHubHTTPError.__mro__ if c.__name__ == "HTTPError")


def _unreachable(data: HubData, revision: str, benchmark: str, error: Exception) -> GspoError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    names = " ".join(data.files)
    return GspoError(
        f"cannot get the problems of {benchmark}",
        f"{data.repo} at {revision[:12]} is not in the cache, and the hub gave: {first}",
        f"where there is a network: hf download {data.repo} {names} --repo-type dataset --revision {revision} "
        f"--local-dir {benchmark}-data; then here: --data {benchmark}={benchmark}-data",
    )
