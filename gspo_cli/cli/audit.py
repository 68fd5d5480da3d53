"""`gspo audit`: which policy-optimisation algorithm a configuration of another trainer really is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import JsonLines
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gspo_cli.audit.findings import Findings, Settings, Value
    from gspo_cli.audit.judge import Verdict

TOKEN_SPREAD = 0.034
"""Standard deviation of a token's log-ratio in nats, at which GSPO's published range discards the published share: 15 %
at 3e-4 / 4e-4 and about 10,000 tokens (arXiv 2507.18071, §5.1)."""


def audit(
    paths: Annotated[list[str], typer.Argument(help="Files or folders; - reads standard input.")],
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a typical response: estimates what the clip discards.")
    ] = None,
    trainer_version: Annotated[
        str | None, typer.Option(help="Version of the trainer.", show_default="as pinned in or above the file")
    ] = None,
    recipe: Annotated[bool, typer.Option("--recipe", help="Print the equal recipe of this tool instead.")] = False,
    json_: JsonLines = False,
) -> None:
    """Say which algorithm a configuration of another trainer really is. Exit code 3 if its name says another.

    Reads files of TRL, Unsloth, verl, ms-swift, slime, miles, NeMo-RL, SkyRL, ROLL, AReaL, prime-rl, OpenRLHF and
    open-instruct. Runs nothing. A file that cannot be read is reported in its place; the exit code is then 2.

    Examples:
        gspo audit run_gspo.sh
        gspo audit configs/ --json
        gspo audit train.py --trainer-version 0.22 --length 4000
        gspo audit run_gspo.sh --recipe > equal.toml
    """
    from gspo_cli.audit.frameworks import FRAMEWORKS
    from gspo_cli.audit.judge import judge
    from gspo_cli.audit.read import NoConfiguration
    from gspo_cli.audit.recipe import recipe as equal

    if trainer_version is not None and not trainer_version[:1].isdigit():
        raise GspoError(f"--trainer-version {trainer_version}", "a version begins with a digit", "e.g. 0.22 or 2026-03")
    differs, found_any, skipped, unreadable = False, False, 0, False
    for name, found in _read_all(paths, trainer_version):
        if isinstance(found, NoConfiguration) and name not in paths:
            skipped += 1
            console.note(f"skipped {name}: {found.why}")
        elif isinstance(found, GspoError):
            unreadable = True
            if json_:
                console.print_json({"file": name} | found.as_dict())
            else:
                console.note(str(found))
        else:
            for settings in found:
                found_any = True
                findings = FRAMEWORKS[settings.framework].read(settings)
                verdict = judge(findings, settings, FRAMEWORKS[settings.framework])
                differs |= verdict.differs
                if recipe:
                    console.out.print(equal(findings, verdict, settings))
                elif json_:
                    console.print_json(as_json(settings, findings, verdict, length))
                else:
                    console.out.print(f"{settings.file}: {verdict.sentence}.")
                    if paths == [name]:
                        show(settings, findings, verdict, length)
    if skipped:
        console.note(f"{console.plural(skipped, 'file')} skipped")
    if unreadable:
        raise typer.Exit(ExitCode.USER_ERROR)
    if not found_any:
        raise GspoError(
            f"nothing to audit in {', '.join(paths)}",
            "no file there is a configuration of a trainer that is known",
            "name a configuration of " + ", ".join(FRAMEWORKS),
        )
    if differs:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _read_all(paths: list[str], version: str | None) -> Iterator[tuple[str, list[Settings] | GspoError]]:
    """What every path holds, or why it cannot be read."""
    from gspo_cli.audit.read import read_path

    for path in paths:
        try:
            yield from read_path(path, version)
        except GspoError as error:
            yield path, error


def rows(f: Findings, verdict: Verdict, length: int | None) -> dict[str, Value]:
    """What the table shows."""
    from gspo_cli.audit.findings import derive
    from gspo_cli.audit.judge import distribution

    shown = {
        "algorithm": verdict.algorithm,
        "ratio": f.unit,
        "mean": f.mean,
        "advantage": f.advantage,
        "divided by std": f.std,
        "updates a batch": f.updates,
        "clip low": f.clip_low,
        "clip high": f.clip_high,
        "dual clip": f.dual_clip,
        "KL": f.kl,
        "correction": f.correction,
        "old log-probs": f.old_log_probs,
        "same distribution": distribution(f),
        "dynamic sampling": f.dynamic_sampling,
        "routing replay": f.replay,
    }
    if length:
        shown["clip discards"] = derive(
            lambda low, high, unit, one: discarded(low, high, unit, one, length),
            f.clip_low,
            f.clip_high,
            f.unit,
            _as_value(verdict.ratio_is_one),
        )
    return shown


def _as_value(one: bool | None) -> Value:
    from gspo_cli.audit.findings import UNKNOWN, Value

    return Value(UNKNOWN if one is None else one, "updates a batch")


def discarded(low: float | None, high: float | None, unit: str, one: bool, length: int) -> str:
    """What the clip discards at a length, for tokens that move independently as in GSPO's paper."""
    from gspo_cli.stats.clip_share import share_discarded

    if low is None or high is None:
        return "there is no clip"
    if one:
        return "nothing: all ratios are 1"
    spread = TOKEN_SPREAD / length**0.5 if unit == "sequence" else TOKEN_SPREAD
    share = share_discarded(min(low, 1 - 1e-9), high, spread)
    return f"{share:.1%} of the {'responses' if unit == 'sequence' else 'tokens'}, estimated at {length:,} tokens"


def show(settings: Settings, f: Findings, verdict: Verdict, length: int | None) -> None:
    """Print the facts with their sources, and what to change."""
    console.out.print()
    for name, value in rows(f, verdict, length).items():
        console.out.print(f"  {name:<18} {text_of(value):<20} {lines_joined(value.source)}")
    console.out.print()
    for name, where in verdict.named:
        console.out.print(f"  called {name} by its {where.removeprefix('_')}")
    for note in settings.notes:
        console.out.print(f"  note: {note}")
    for line in verdict.changes:
        console.out.print(f"  change: {line}")


def text_of(value: Value) -> str:
    """A value for the table."""
    shown = {None: "none", True: "yes", False: "no"}
    if not value.known:
        return "unknown"
    known = value.value is None or isinstance(value.value, bool)
    return shown[value.value] if known else f"{value.value:g}" if isinstance(value.value, float) else str(value.value)


def lines_joined(source: str) -> str:
    """`a.sh:3; a.sh:5` as `a.sh:3, 5`."""
    joined: dict[str, list[str]] = {}
    for part in source.split("; "):
        file, _, line = part.rpartition(":")
        joined.setdefault(file if line.isdigit() else part, []).extend([line] if line.isdigit() else [])
    return "; ".join(f"{file}:{', '.join(lines)}" if lines else file for file, lines in joined.items())


def as_json(settings: Settings, f: Findings, verdict: Verdict, length: int | None) -> dict[str, Any]:
    """The verdict as one object. A value that is unknown is the string `unknown`."""
    from gspo_cli.audit.judge import distribution

    values = {"algorithm": verdict.algorithm} | vars(f) | {"same_distribution": distribution(f)}
    if length:
        values["clip_discards"] = rows(f, verdict, length)["clip discards"]
    return {
        "file": settings.file,
        "framework": settings.framework,
        "version": settings.version,
        "verdict": verdict.sentence,
        "differs": verdict.differs,
        "name_matches": verdict.name_matches,
        "named": [list(pair) for pair in verdict.named],
        "ratio_is_one": verdict.ratio_is_one,
        "facts": {
            name: {"value": value.value if value.known else "unknown", "source": value.source}
            for name, value in values.items()
        },
        "changes": list(verdict.changes),
        "notes": settings.notes,
    }
