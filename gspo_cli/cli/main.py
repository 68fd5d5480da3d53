"""The `gspo` program: its command groups and global options."""

import sys
from typing import Annotated

import typer

from gspo_cli import __version__
from gspo_cli.cli import cold_start, console, doctor, evaluate, recipes, report, rollout, runs, train
from gspo_cli.errors import ExitCode, GspoError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        console.out.print(f"gspo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Errors only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log lines instead of the live view.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    _version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """Train language models with GRPO, GSPO and their relatives under equal conditions, and compare them."""
    console.settings.update(quiet=quiet, verbose=verbose, debug=debug)


app.command("train")(train.train)
app.command("cold-start")(cold_start.cold_start)
app.command("rollout")(rollout.rollout)
app.command("doctor")(doctor.doctor)
app.add_typer(evaluate.app, name="eval")
app.add_typer(recipes.app, name="recipes")
app.add_typer(report.app, name="report")
app.add_typer(runs.app, name="runs")

GLOBAL = ("-q", "--quiet", "-v", "--verbose", "--debug")


def run() -> None:
    """The console script. The global flags may stand anywhere: `gspo train -q` is `gspo -q train`."""
    given = sys.argv[1:]
    arguments = [a for a in given if a in GLOBAL] + [a for a in given if a not in GLOBAL]
    if "--json" in given:
        sys.exit(run_for_a_program(arguments))
    app(arguments)


def run_for_a_program(arguments: list[str]) -> int:
    """As `app`, but what the parser refuses is one JSON object on stderr, like every other error; the exit code."""
    try:
        return app(arguments, standalone_mode=False) or ExitCode.OK
    except typer.Abort:
        return ExitCode.SIGINT
    except Exception as error:
        if not hasattr(error, "format_message"):  # the parser's own have no common name in all versions of Typer
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "gspo"
        refused = GspoError(error.format_message(), f"`{path}` does not take it", f"`{path} -h` shows what it takes")
        return console.report(refused, as_json=True)
