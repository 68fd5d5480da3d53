"""The `gspo` program: its commands and global options."""

import codecs
import io
import re
import sys
from collections import Counter
from collections.abc import Collection
from typing import Annotated, Any

import typer
from typer.main import get_command

from gspo_cli import __version__
from gspo_cli.cli import audit, console, doctor, eval, explain, fidelity, recipes, report, report_map, rollout, runs
from gspo_cli.cli.train import command
from gspo_cli.distributed import exit_rank
from gspo_cli.errors import ExitCode, GspoError

app = console.Commands(
    no_args_is_help=True, pretty_exceptions_show_locals=False, context_settings={"help_option_names": ["-h", "--help"]}
)
DASHED = re.compile(r"(-|[–—]+)[a-z]{2}")
"""One hyphen, or the dashes that text programs make of two."""
ONCE = frozenset(("--algo", "--seed", "--seeds", "--metric", "--baseline", "--treatment"))
"""Options that a reader may take for a list when they are given twice. Of the others the last counts, so that a line
that is repeated with another `--steps` at its end does what it says."""
GLOBAL = ("-q", "--quiet", "-v", "--verbose", "--debug")


def _print_version(value: bool) -> None:
    if value:
        console.out.print(f"gspo {__version__}")
        raise typer.Exit


@app.callback()
def main(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print errors only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print log lines instead of a live view.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Train language models with GRPO, GSPO and related algorithms under equal conditions, and compare them."""
    console.settings.update(quiet=quiet, verbose=verbose, debug=debug)


app.command("train")(command.train)
app.command("cold-start")(rollout.cold_start)
app.command("rollout")(rollout.rollout)
app.command("audit")(audit.audit)
app.command("doctor")(doctor.doctor)
app.add_typer(eval.app, name="eval")
app.add_typer(recipes.app, name="recipes")
report.app.command("explain")(explain.explain)
report.app.command("fidelity")(fidelity.fidelity)
report.app.command("map")(report_map.effect_map)
app.add_typer(report.app, name="report")
app.add_typer(runs.app, name="runs")


def run() -> None:
    """The console script, and what each rank of a launch runs."""
    try:
        run_arguments()
    except SystemExit as end:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            console.out.on_broken_pipe()
        exit_rank(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def run_arguments() -> None:
    """Run the command line. Global flags work anywhere on it: `gspo train -q` is `gspo -q train`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")  # for terminals that cannot show every sign
    words = sys.argv[1:]
    arguments = [word for word in words if word in GLOBAL] + [word for word in words if word not in GLOBAL]
    if slip := slip_in(arguments):
        sys.exit(console.report(slip, as_json="--json" in words))
    if "--json" in words:
        sys.exit(run_with_json_errors(arguments))
    app(arguments)


def slip_in(arguments: list[str]) -> GspoError | None:
    """What the parser takes in silence or cannot explain: an option of `ONCE` given twice, of which the last would
    count, a recipe key as an option, one with a single hyphen or a dash for its two hyphens, or bytes that are no
    text."""
    if any("\udc80" <= sign <= "\udcff" for word in arguments for sign in word):
        return GspoError(
            "an argument is not UTF-8", "it holds bytes that are no text", "type it again, or rename the file"
        )
    names = Counter(word.partition("=")[0] for word in arguments if word.startswith("--"))
    twice = [name for name, count in names.items() if count > 1]
    dashed = {word: f"--{word.lstrip('-–—')}" for word in arguments if DASHED.match(word)}
    if not names and not dashed:
        return None
    command: Any = get_command(app)
    for word in arguments:
        command = getattr(command, "commands", {}).get(word, command)
    options = {name: option for option in command.params for name in option.opts}
    for name in twice:
        if name in ONCE and name in options and not options[name].multiple:
            return GspoError(
                f"{name} is given twice",
                "it takes one value, and only the last would count",
                f"give {name} once" + (", e.g. --algo grpo,gspo" if name == "--algo" else ""),
            )
    for word in arguments:
        if word.startswith("--") and (key := meant_key(word, options)):
            value = word.partition("=")[2] or next(iter(arguments[arguments.index(word) + 1 :]), "VALUE")
            return GspoError(
                f"no option {word.partition('=')[0]}", "recipe keys are set with --set", f"write --set {key}={value}"
            )
    for word, meant in dashed.items():
        if meant.partition("=")[0] in options:
            return GspoError(f"no option {word!r}", "an option's name begins with two hyphens", f"write {meant}")
    return None


def meant_key(word: str, options: Collection[str]) -> str | None:
    """The recipe key that an unknown option such as `--lr` names by its last part; None for a command without `--set`,
    and where no key ends so, or several tables have it."""
    name = word.partition("=")[0]
    if "--set" not in options or name in options:
        return None
    from gspo_cli.recipe import known_keys

    last = name.removeprefix("--").replace("-", "_")
    found = [key for key in known_keys() if last in (key, key.rpartition(".")[2])]
    usual = [key for part in ("train.", "rollout.") for key in found if key.startswith(part)]
    return usual[0] if usual else found[0] if len(found) == 1 else None


def run_with_json_errors(arguments: list[str]) -> int:
    """Run `app`, but report the parser's errors too as one JSON object on stderr; returns the exit code."""
    try:
        return app(arguments, standalone_mode=False) or ExitCode.OK
    except typer.Abort:
        return ExitCode.SIGINT
    except Exception as error:
        if not hasattr(error, "format_message"):  # parser errors have no public base class in all versions of Typer
            raise
        context = getattr(error, "ctx", None)
        path = context.command_path if context else "gspo"
        rejected = GspoError(error.format_message(), f"`{path}` does not accept it", f"see `{path} -h`")
        return console.report(rejected, as_json=True)
