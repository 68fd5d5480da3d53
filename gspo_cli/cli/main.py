"""The `gspo` program: its command groups and global options."""

from typing import Annotated

import typer

from gspo_cli import __version__
from gspo_cli.cli import console

app = typer.Typer(
    help="Train language models with GRPO, GSPO and their relatives under equal conditions, and compare them.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        console.out.print(f"gspo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log lines instead of the live view.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Options of every command stand before it: `gspo -q train`."""
    console.settings.update(quiet=quiet, verbose=verbose, debug=debug)


from gspo_cli.cli import train as _train  # noqa: E402  (the app must exist first)

app.command("train")(_train.train)
app.command("cold-start")(_train.cold_start)
