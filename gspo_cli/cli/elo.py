"""`gspo eval elo`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import JsonLines


@console.command
def elo(
    contests: Annotated[Path, typer.Option(help="Snapshot file of contests, or a folder of them.")],
    submissions: Annotated[Path, typer.Option(help="Verdicts of the attempts at each contest's problems.")],
    ratings: Annotated[Path | None, typer.Option(help="Rating table, for the percentile.")] = None,
    json_: JsonLines = False,
) -> None:
    """Rate submissions by CodeElo's formula, from local standings of the contests.

    Examples:

        gspo eval elo --contests contests.json --submissions submissions.json

        gspo eval elo --contests contests/ --submissions submissions.json --ratings ratings.json --json
    """
    from gspo_cli.evals.elo import mean_rating, rate
    from gspo_cli.evals.elo_files import read_contests, read_ratings, read_submissions

    table = read_ratings(ratings) if ratings else None
    entries = read_submissions(submissions, read_contests(contests))
    results = [rate(entry.contest, entry.attempts) for entry in entries]
    rows = [
        asdict(r)
        | {"contest": entry.label, "percentile": table.percentile(r.rating) if table and r.rating is not None else None}
        for entry, r in zip(entries, results, strict=True)
    ]
    if json_:
        console.print_json(rows)
        return
    shown = console.table("contest", "rating", "score", "penalty", "rank", "percentile", "note")
    for row in rows:
        note = "at the cap" if row["at_cap"] else row["reason"]
        cells = (row[k] for k in ("contest", "rating", "score", "penalty", "rank", "percentile"))
        shown.add_row(*("n/a" if c is None else f"{c:g}" if isinstance(c, float) else str(c) for c in cells), note)
    console.out.print(shown)
    mean = mean_rating(results)
    if mean["elo"] is not None:
        spread = "" if mean["sd"] is None else f", sd {mean['sd']:.0f}"
        console.out.print(
            f"mean of {mean['contests']} contests: {mean['elo']:.0f}{spread}; {mean['at_cap']} at the cap, "
            f"{mean['skipped']} skipped" + (f"; percentiles: {table.source}" if table else "")
        )
