"""What a launcher tells the processes that it begins: when their command began, and why it begins them once more."""

from __future__ import annotations

import os
from datetime import UTC, datetime

LAUNCHED, AGAIN = "GSPO_LAUNCHED", "GSPO_LAUNCHED_AGAIN"


def command_began() -> datetime:
    """When the launcher was started, which is the same in its second try; now, without one."""
    told = os.environ.get(LAUNCHED)
    return datetime.fromisoformat(told) if told else datetime.now(UTC)


def why_again() -> str:
    """Why a first try of this command ended; empty in the first one."""
    return os.environ.get(AGAIN, "")


def of_first_try(created: str) -> bool:
    """Whether something made at that time (ISO; empty = unknown, not yet noted) is this command's own first try's."""
    return bool(why_again()) and (not created or datetime.fromisoformat(created) >= command_began())
