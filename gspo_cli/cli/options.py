"""Options that several commands share, and the completion of their values."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.errors import GspoError

PACKAGE = Path(__file__).parent.parent


def complete_recipe(incomplete: str) -> list[str]:
    """Complete a shipped recipe; the shell itself completes paths."""
    from gspo_cli.recipe import names

    return _matching(incomplete, names())


def complete_algorithms(incomplete: str) -> list[str]:
    """Complete the last algorithm of a list such as `grpo,gspo`."""
    return _matching_last(incomplete, registered("algorithms", "ALGORITHMS"))


def complete_benchmarks(incomplete: str) -> list[str]:
    """Complete the last benchmark of a list such as `aime24,math500`."""
    return _matching_last(incomplete, registered("evals/benchmarks", "BENCHMARKS"))


def complete_metric_or_algorithm(incomplete: str) -> list[str]:
    """Complete the argument of `gspo report explain`."""
    return _matching(incomplete, [*_metrics(), *registered("algorithms", "ALGORITHMS")])


def complete_comparison_metric(incomplete: str) -> list[str]:
    """Complete a logged metric for `gspo report compare --metric`."""
    return _matching(incomplete, [f"{name}:{form}" for name in _metrics() for form in ("last10", "area@steps")])


def complete_key(incomplete: str) -> list[str]:
    """Complete a recipe key for `--set`."""
    from gspo_cli.recipe import known_keys

    return _matching(incomplete, [f"{key}=" for key in known_keys()])


def typed(context: typer.Context, besides: Collection[str]) -> Iterator[str]:
    """The options and arguments on the command line besides these parameters, as a user knows them."""
    for parameter in context.command.params:
        source, name = context.get_parameter_source(str(parameter.name)), parameter.opts[-1]
        if source is not None and source.name == "COMMANDLINE" and parameter.name not in besides:
            yield name if name.startswith("-") else name.upper()


def refuse_beside(context: typer.Context, option: str, usable: Collection[str]) -> None:
    """Errors: GspoError for anything typed on the command line that has no effect beside this option."""
    for name in typed(context, usable):
        raise GspoError(f"{option} with {name}", f"{name} has no effect then", f"leave out {name}")


def registered(part: str, registry: str) -> list[str]:
    """The keys of a registry, read from its source: importing the algorithms would load torch."""
    module = ast.parse((PACKAGE / part / "__init__.py").read_text(encoding="utf-8"))
    (table,) = (
        node.value
        for node in module.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == registry and isinstance(node.value, ast.Dict)
    )
    return [key.value for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]


def listed(text: str) -> list[str]:
    """The parts of a comma-separated option, whose commas may be full-width ones."""
    return [part.strip() for part in text.replace("，", ",").split(",")]


def _metrics() -> list[str]:
    from gspo_cli.runlog.schema import METRICS

    return list(METRICS)


def _matching(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _matching_last(incomplete: str, names: list[str]) -> list[str]:
    """Completions of the last name in a comma-separated list, leaving out names that it already has."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return [f"{before}{comma}{name}" for name in _matching(last, names) if name not in given]


def complete_study(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a study, or a run as `<study>/<run>`, under `--out`; the shell itself completes paths."""
    from gspo_cli.runlog.folder import names_under

    known = names_under(ctx.params.get("out") or RESULTS)
    return [name for name in _matching(incomplete, known) if "/" in incomplete or "/" not in name]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete a run as `<study>/<run>`."""
    from gspo_cli.runlog.folder import names_under

    return [name for name in _matching(incomplete, names_under(ctx.params.get("out") or RESULTS)) if "/" in name]


RESULTS = Path("results")
"""Where studies are looked for by their names."""
RecipeArgument = Annotated[
    str, typer.Argument(help="A shipped recipe's name or a .toml file.", autocompletion=complete_recipe)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
Study = Annotated[
    str | None,
    typer.Argument(
        help="A study or run: its folder, or its name under --out.",
        show_default="the newest",
        autocompletion=complete_study,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        help="A run: its folder, <study>/<run>, or the first characters of its id.", autocompletion=complete_run
    ),
]
NewestRun = Annotated[
    str | None,
    typer.Argument(
        help="A run: its folder, <study>/<run>, or the first characters of its id.",
        show_default="the newest run",
        autocompletion=complete_run,
    ),
]
Results = Annotated[Path, typer.Option("--out", help="Folder that holds the studies.")]
Out = Annotated[Path, typer.Option(help="Root folder of all results.")]
Model = Annotated[str | None, typer.Option(help="A Hugging Face folder or hub name that replaces the recipe's model.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any recipe key: --set train.lr=2e-4.", autocompletion=complete_key),
]
TrustCode = Annotated[
    str | None,
    typer.Option("--trust-remote-code", metavar="REVISION", help="Run the model's own code from this commit."),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="svg, png, pdf, or several, comma-separated.", show_default="svg,png; pdf for paper"),
]
FigureWidth = Annotated[
    str | None,
    typer.Option("--paper", help="column (3.25 in) or page (7 in); puts notes into a .tex file, not the figure."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Answers to grade at once.", show_default="one per physical core")
]
UnsafeLocal = Annotated[bool, typer.Option("--unsafe-local", help="Run programs without isolation; this is recorded.")]
GraderPython = Annotated[
    str | None, typer.Option(help="Python interpreter for graded programs.", show_default="this one")
]


LARGEST_SEED = 2**63 - 1
NUMBERS = re.compile(r"[0-9]{1,100}(-[0-9]{1,100})?")
MOST_SEEDS = 10_000
"""Of one command; a slip such as 0-999999999 would fill the memory before anything is checked."""


def check_seed(seed: int) -> int:
    """The seed. Errors: GspoError for a negative one, or for one that tables cannot hold."""
    if not 0 <= seed <= LARGEST_SEED:
        raise GspoError(f"seed {seed} is out of range", "a seed is a whole number of 63 bits", f"0 to {LARGEST_SEED}")
    return seed


def parse_seeds(seed: int | None, seeds: str | None, default: int) -> list[int]:
    """The seeds of `--seed 3`, or of `--seeds 0-7` or `0,3,5`.

    Errors: GspoError for both options, for anything else, for too many, and for a seed given twice.
    """
    if seed is not None and seeds is not None:
        raise GspoError("--seed and --seeds together", "both set the seeds", "use one of them")
    if seeds is None:
        return [check_seed(default if seed is None else seed)]
    parsed: list[int] = []
    for part in listed(seeds):
        first, dash, last = part.partition("-")
        if not NUMBERS.fullmatch(part) or (dash and int(last) < int(first)):
            raise GspoError(
                f"--seeds {seeds:.100} is not a list of seeds", f"{part!r:.100} is not a number or a range", "e.g. 0-7"
            )
        low, high = check_seed(int(first)), check_seed(int(last or first))
        if high - low >= MOST_SEEDS:
            raise GspoError(
                f"--seeds {seeds} names {high - low + 1} seeds",
                f"one command trains at most {MOST_SEEDS} runs an arm",
                "name fewer",
            )
        parsed += range(low, high + 1)
    if len(set(parsed)) != len(parsed):
        raise GspoError(f"--seeds {seeds} names a seed twice", "each seed runs once per arm", "name each seed once")
    return parsed
