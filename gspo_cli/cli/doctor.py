"""`gspo doctor`: check what is installed, whether it fits together, and how to fix what does not."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gspo_cli.cli import console
from gspo_cli.cli.options import JsonLines, Results
from gspo_cli.errors import ExitCode, GspoError

if TYPE_CHECKING:
    from gspo_cli.doctor import Check


def doctor(
    vllm_python: Annotated[
        str | None, typer.Option(help="Python interpreter of vLLM's own environment, as in rollout.vllm.python.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model folder or hub name: shows on which paths its numbers are right here.")
    ] = None,
    out: Results = Path("results"),
    json_: JsonLines = False,
) -> None:
    """Check this machine and environment, and vLLM's own environment if named. Exit code 3 if something is broken.

    Examples:
        gspo doctor
        gspo doctor --vllm-python ~/vllm-env/bin/python --json
        gspo doctor --model ./my-model
    """
    from gspo_cli.doctor import check_hub, check_machine, check_packages, check_sandbox, check_vllm, probe_environment
    from gspo_cli.rollout.engine import find_python
    from gspo_cli.runlog.folder import cache_root

    interpreter = None if vllm_python is None else find_python(vllm_python)
    checks = [
        *check_packages(probe_environment(sys.executable, with_vllm=False)),
        *check_machine(out, cache_root()),
        *check_hub(),
        check_sandbox(),
    ]
    if interpreter is not None:
        checks += check_vllm(probe_environment(interpreter, with_vllm=True), interpreter)
    if model is not None:
        checks.append(_check_model(model))
    if json_:
        console.print_json(map(asdict, checks))
    else:
        table = console.table("check", "found", "verdict", "fix", overflow="fold")
        for check in checks:
            table.add_row(check.check, check.found, check.verdict, check.fix)
        console.out.print(table)
    if any(check.verdict == "fault" for check in checks):
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _check_model(name: str) -> Check:
    """Loads a model, which tries its paths against its plain forward pass."""
    from gspo_cli.config import ModelConfig
    from gspo_cli.doctor import Check
    from gspo_cli.models.admission import paths_of, position_limit
    from gspo_cli.models.load import load_policy

    try:
        loaded, _ = load_policy(ModelConfig(path=name), name)
    except GspoError as error:
        return Check(f"model {name}", f"{error.message}: {error.why}", "fault", error.hint)
    limit = position_limit(loaded.config)
    positions = "any number of tokens" if limit is None else f"up to {limit} tokens"
    return Check(f"model {name}", f"{paths_of(loaded).describe()}; {positions}", "ok")
