"""`gspo doctor`: what is installed, whether it fits together, and how to mend what does not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import JsonLines, Results
from gspo_cli.errors import ExitCode


@console.command
def doctor(
    vllm_python: Annotated[
        str | None, typer.Option(help="The interpreter of vLLM's own environment, as in rollout.vllm.python.")
    ] = None,
    out: Results = Path("results"),
    json_: JsonLines = False,
) -> None:
    """Check this environment, this machine, and the environment of engine `vllm` if named; exit code 3 for a fault.

    Examples:

        gspo doctor

        gspo doctor --vllm-python ~/vllm-env/bin/python --json
    """
    from gspo_cli.checkup import judge_hub, judge_machine, judge_sandbox
    from gspo_cli.rollout.capabilities import find_python
    from gspo_cli.rollout.environment import judge_own, judge_vllm, look
    from gspo_cli.training.cold_start import cache_root

    named = None if vllm_python is None else find_python(vllm_python)
    checks = [
        *judge_own(look(sys.executable, with_vllm=False)),
        *judge_machine(out, cache_root()),
        *judge_hub(),
        judge_sandbox(),
    ]
    if named is not None:
        checks += judge_vllm(look(named, with_vllm=True), named)
    if json_:
        console.print_json(check.as_dict() for check in checks)
    else:
        table = console.table("check", "found", "verdict", "fix")
        for column in table.columns:
            column.overflow = "fold"
        for check in checks:
            table.add_row(check.check, check.found, check.verdict, check.fix)
        console.out.print(table)
    if any(check.verdict == "fault" for check in checks):
        raise typer.Exit(ExitCode.CHECK_FAILED)
