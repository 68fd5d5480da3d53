"""`gspo doctor`: check what is installed, whether it fits together, and how to fix what does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
    from rich.live import Live

    from gspo_cli.models.files import check_source
    from gspo_cli.rollout.engine import find_python

    interpreter = None if vllm_python is None else find_python(vllm_python)
    if model is not None:
        check_source(model)
    console.note("checking this machine; importing torch and transformers takes seconds")
    faults, checks = 0, _checks(out, interpreter, model)
    table = console.table("check", "found", "verdict", "fix", overflow="fold")
    rows_appear = console.out.is_terminal and not json_
    with Live(table, console=console.out) if rows_appear else nullcontext():
        for check in checks:
            faults += check.verdict == "fault"
            table.add_row(check.check, check.found, check.verdict, check.fix)
            if json_:
                console.print_json(asdict(check))
    if not (json_ or rows_appear):
        console.out.print(table)
    if faults:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _checks(out: Path, interpreter: str | None, model: str | None) -> Iterator[Check]:
    """All checks, what is quickly known first."""
    from gspo_cli.doctor import check_hub, check_machine, check_packages, check_sandbox, check_vllm, probe_environment
    from gspo_cli.runlog.folder import cache_root

    with ThreadPoolExecutor(1) as pool:
        probe = pool.submit(probe_environment, sys.executable, with_vllm=False)
        yield from check_machine(out, cache_root())
        yield check_sandbox()
        yield from check_hub()
        yield from check_packages(probe.result())
    if interpreter is not None:
        yield from check_vllm(probe_environment(interpreter, with_vllm=True), interpreter)
    if model is not None:
        yield _check_model(model)


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
