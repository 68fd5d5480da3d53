"""`gspo report claims`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspo_cli.cli import console
from gspo_cli.cli.options import Json, Results, Study


@console.command
def claims(
    study: Study = None,
    out: Results = Path("results"),
    json_: Json = False,
) -> None:
    """Put each claim of the GSPO paper to the test of a study: supported, contradicted, inconclusive or not tested.

    The verdicts are about these runs; whether the paper is right about its own is not said.

    Examples:

        gspo report claims

        gspo report claims results/claims-reward --json
    """
    from gspo_cli.report.claims import claims as test_claims
    from gspo_cli.report.folders import find_study

    found = test_claims(find_study(study, out))
    if json_:
        console.print_json(found)
        return
    for row in found["rows"]:
        _show(row)


def _show(row: dict[str, Any]) -> None:
    from gspo_cli.report.claim_text import found_text

    verdict = row["verdict"].replace("_", " ")
    here = f"{verdict} here" if verdict in ("supported", "contradicted") else verdict
    console.out.print(f"{row['id']}: {here}")
    console.out.print(f"  claim: {row['claim']} ({row['place']})")
    if "value" in row:
        console.out.print(f"  found: {found_text(row)}")
    if row["why"]:
        console.out.print(f"  why: {row['why']}")
    if row.get("differs"):
        console.out.print(f"  differs: {'; '.join(row['differs'])}")
    if row["decide"] and row["decide"] != row["why"]:
        console.out.print(f"  would decide it: {row['decide']}")
