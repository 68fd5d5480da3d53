"""The program that `chat_template.py` starts: it renders chat templates within limits, one request and reply a line."""

import contextlib
import json
import resource
import signal
import sys
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS, MEMORY = 5, 1 << 29
"""CPU seconds of a prompt, and bytes beyond those of the program itself."""
TODAY = datetime(2024, 7, 26)
"""The day on which templates are rendered, whatever the clock says: that of Llama's where they are told none."""
MOST_TEXT, MOST_TIMES = 1 << 20, 10
"""Characters that a template may make of nothing, and of each character of the request."""


class Generation(Extension):
    """`{% generation %}` marks what the model says, and changes no text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's content, whose variables end with it."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def environment() -> ImmutableSandboxedEnvironment:
    """What templates find in transformers' `apply_chat_template`, whose import takes a second, but nothing random."""

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **more)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    del made.filters["random"], made.globals["lipsum"]  # a prompt is the same each time it is made
    made.filters["tojson"] = to_json
    made.globals |= {"raise_exception": raise_exception, "strftime_now": TODAY.strftime}
    return made


def main() -> None:
    """Reply to each line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    compiled = cache(environment().from_string)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, whatever the template is at
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        own = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + MEMORY, own + MEMORY))
    with contextlib.suppress(BrokenPipeError):
        for line in sys.stdin:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                request = json.loads(line)
                text = compiled(request.pop("chat_template")).render({"tools": None, "documents": None} | request)
                fits = len(text) <= MOST_TEXT + MOST_TIMES * len(line)
                text.encode()  # half a surrogate pair is no text
                reply = {"text": text} if fits else {"error": f"it makes a text of {len(text):,} characters"}
            except Exception as error:  # a template is code of the model's authors, and raises what it likes
                reply = {"error": f"{type(error).__name__}: {error}"[:1000]}
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
