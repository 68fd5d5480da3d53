"""The program that `chat_template.py` starts: it renders chat templates within limits, one request and reply a line."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from pathlib import Path

from jinja2.defaults import DEFAULT_NAMESPACE
from jinja2.filters import FILTERS
from transformers.utils.chat_template_utils import render_jinja_template

SECONDS, MEMORY = 5, 1 << 29
"""CPU seconds of a prompt, and bytes beyond those of the program itself."""
MOST_TEXT, MOST_TIMES = 1 << 20, 10
"""Characters that a template may make of nothing, and of each character of the request."""


def main() -> None:
    """Reply to each line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for names, drawn in ((FILTERS, "random"), (DEFAULT_NAMESPACE, "lipsum")):
        del names[drawn]  # a prompt is the same each time it is made
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever the template is at
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        own = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, own + MEMORY))
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                [text] = render_jinja_template(**json.loads(line))[0]
                fits = len(text) <= MOST_TEXT + MOST_TIMES * len(line)
                text.encode()  # half a surrogate pair is no text
                reply = {"text": text} if fits else {"error": f"it makes a text of {len(text):,} characters"}
            except Exception as error:  # a template is code of the model's authors, and raises what it likes
                reply = {"error": f"{type(error).__name__}: {error}"[:1000]}
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
