"""The Hugging Face hub: find out quickly whether it can be reached, so that nothing retries for a minute."""

import sys
from functools import cache

TIMEOUT_S = 5.0


def prepare_hub() -> None:
    """Before a hub name is used: if the hub does not answer, only what is already in the cache is used.

    The libraries retry each file for 30 to 50 s otherwise, with a warning each time. Any answer counts, and a proxy
    is used as the libraries would.
    """
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE and hub_problem(constants.ENDPOINT):
        constants.HF_HUB_OFFLINE = True
        if copied := sys.modules.get("datasets.config"):
            copied.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def may_be_read(model: str, revision: str | None) -> bool:
    """Whether the hub can be reached, or a model of that name is in its cache. Errors: of the library, for no name."""
    from huggingface_hub import constants, try_to_load_from_cache

    prepare_hub()
    cached = try_to_load_from_cache(model, "config.json", revision=revision)
    return isinstance(cached, str) or not constants.HF_HUB_OFFLINE


@cache
def hub_problem(endpoint: str) -> str | None:
    """Why the hub does not answer; None if it does."""
    from huggingface_hub import get_session

    try:
        get_session().head(endpoint, timeout=TIMEOUT_S)
    except Exception as error:  # the session's library and its errors differ between versions
        return str(error) or type(error).__name__
    return None
