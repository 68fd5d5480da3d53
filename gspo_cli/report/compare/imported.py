"""What a comparison of imported runs rests on: recorded configurations, and what nobody recorded."""

from collections.abc import Sequence
from dataclasses import replace

from gspo_cli.report.compare.settings import Settings
from gspo_cli.report.runs.facts import Facts

ASSUMABLE = {
    "start": "one start model",
    "data": "one order of the data",
    "tuning": "equal tuning",
    "collapse": "no collapsed run",
}
"""What `--assume` takes -> what is then assumed. Unless all that a comparison needs is stated, it is at most
suggestive."""


def why_not_judged(runs: Sequence[Facts]) -> str:
    """Why a study with imported runs is only described; empty if it may be judged, or has none."""
    own = [facts.name for facts in runs if not facts.imported]
    if len(own) == len(runs):
        return ""
    if own:
        return f"{own[0]} was trained here and others were imported, so what both sides share is not known"
    if bare := [facts.name for facts in runs if not facts.config.get("trainer")]:
        return f"the configuration of {bare[0]} is not recorded (gspo runs import --config)"
    return ""


def needed(settings: Settings, ranked: bool, paired: bool, collapses_known: bool) -> list[str]:
    """The names of what a comparison takes for granted, of `ASSUMABLE`. `ranked`: the metric has a good direction."""
    wanted = {
        "start": True,
        "data": paired,
        "tuning": ranked and bool(settings.unequal),
        "collapse": not collapses_known,
    }
    return [name for name in ASSUMABLE if wanted[name]]


def unstated(needs: list[str], stated: frozenset[str]) -> str:
    """Why no verdict is more than suggestive; empty if the user has stated all that is needed."""
    missing = [ASSUMABLE[name] for name in needs if name not in stated]
    return f"assumed, and not recorded: {', '.join(missing)}" if missing else ""


def with_assumptions(settings: Settings, stated: frozenset[str], paired: bool) -> Settings:
    """The settings whose sentences name what the user stated, and what else is not recorded."""
    texts = ["" if paired else "Unpaired: runs are matched in the order of their seeds."]
    if not settings.differences:
        texts.append("No recorded setting of the algorithm differs between the arms.")
    if stated:
        texts.append(f"Stated by the user, not recorded: {', '.join(ASSUMABLE[n] for n in ASSUMABLE if n in stated)}.")
    texts.append("Imported: code, versions and hardware are not recorded.")
    return replace(settings, tuning=" ".join(filter(None, texts)))
