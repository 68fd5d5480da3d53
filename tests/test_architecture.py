"""The rules that hold the package together, read off its source and a fresh interpreter."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import typer
from program import GSPO

import gspo_cli
from gspo_cli import recipe
from gspo_cli.cli.main import app
from gspo_cli.cli.options import registered

PACKAGE = Path(gspo_cli.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"torch", "transformers", "vllm", "datasets", "pandas", "matplotlib", "scipy"}

BASE = {"types", "tables", "model_config", "task_config", "config", "errors", "seeds", "recipe"}
MAY_IMPORT = {
    "types": set(), "errors": set(), "seeds": set(), "tables": set(), "task_config": {"errors", "tables"},
    "model_config": {"tables"}, "config": {"tables", "model_config", "task_config"},
    "recipe": {"config", "errors", "plugins", "tables"},
    "plugins": {"errors"}, "events": {"errors"}, "sanitize": set(), "distributed": {"errors"},
    "rows": {"errors", "runlog"}, "hub": set(),
    "doctor": {"errors", "hub", "sandbox"},
    "algorithms": {"types", "errors"},
    "rewards": BASE | {"rows", "sandbox"},
    "sandbox": BASE,
    "tasks": BASE | {"hub", "rewards", "plugins", "rows", "sandbox"},
    "models": BASE | {"distributed", "hub"},
    "runlog": BASE | {"distributed"},
    "moe": BASE,
    "rollout": BASE | {"events", "models", "moe", "plugins", "tasks", "runlog", "distributed"},
    "evals": BASE | {"hub", "rollout", "models", "rewards", "sandbox", "runlog", "distributed", "rows"}
    | {"tasks", "plugins", "stats"},  # a benchmark names a task, or is the user's own
    "training": BASE | {"algorithms", "rollout", "moe", "models", "tasks", "runlog", "plugins", "distributed"}
    | {"evals", "events", "stats"},  # evaluates on its way; fits the tail of its ratios
    "launch": {"errors", "events", "distributed"},
    "authoring": BASE | {"algorithms", "evals", "plugins", "report", "rollout", "runlog", "tasks", "training"},
    "stats": set(),
    "report": BASE | {"rows", "runlog", "sanitize", "stats"},
    "instruments": BASE | {"algorithms", "models", "moe", "report", "rollout", "runlog", "stats", "training"},
    "exporters": {"errors", "runlog"},
    "audit": {"errors"},
    "plan": BASE | {"hub"},  # nothing that could load a weight
    "cli": {"distributed", "errors", "events", "sanitize"},
    "__init__": {"report"}, "__main__": {"cli"},
}  # fmt: skip
"""Within the package, besides itself; what a function imports counts too, except in `cli`."""

THIRD_PARTY = {
    "types": set(), "errors": set(), "seeds": set(), "tables": {"pydantic"},
    "task_config": {"pydantic"}, "model_config": {"pydantic"}, "config": {"pydantic"},
    "recipe": {"pydantic", "pydantic_core"},
    "plugins": set(), "events": set(),
    "distributed": {"torch"}, "sanitize": set(), "doctor": {"huggingface_hub", "packaging"}, "rows": {"pyarrow"},
    "hub": {"huggingface_hub", "datasets"},
    "algorithms": {"torch"},
    "rewards": {"latex2sympy2_extended", "math_verify", "sympy"},  # in the worker alone
    "sandbox": set(),
    "tasks": {"datasets", "pydantic", "verifiers"},
    "runlog": {"pydantic", "tensorboard", "wandb", "yaml"},
    "models": {"numpy", "torch", "transformers", "tokenizers", "safetensors", "peft"},
    "moe": {"torch", "transformers"},
    "launch": {"ray", "torch"},  # torch counts the GPUs
    "stats": {"numpy", "scipy"},
    "instruments": {"numpy", "pandas", "pydantic", "transformers", "pyarrow", "torch", "matplotlib"},
    "report": {
        "numpy", "pandas", "pyarrow", "matplotlib", "mpl_toolkits", "scipy", "jinja2", "markupsafe", "pydantic",
        "tokenizers",
        "pydantic_core",
    },
    "exporters": {"tensorboard", "trackio", "wandb"},
    "plan": {"transformers"},  # configurations alone
    "audit": {"yaml"},
    "cli": {"typer", "rich"},
    "authoring": {"pydantic"},
    "__init__": set(), "__main__": set(),
}  # fmt: skip
"""Outside the standard library; a package that is not named may import any dependency."""


def imports(module: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """(module, whether within a function) of every import that is executed."""
    for node in ast.iter_child_nodes(module):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from ((name.name, inside) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names = [f"gspo_cli.{name.name}" for name in node.names] if node.module == "gspo_cli" else [node.module]
            yield from ((str(name), inside) for name in names)
        yield from imports(node, inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def arrows(path: Path) -> tuple[set[str], set[str]]:
    """What a module imports: parts of the package, and other libraries. For `cli`: at the top of the file only."""
    own, others = set(), set()
    for module, inside in imports(tree(path)):
        top, _, rest = module.partition(".")
        if part_of(path) == "cli" and inside:
            continue
        if top != "gspo_cli":
            others.add(top)
        elif rest != "__version__":
            own.add(rest.split(".")[0])
    return own, others - sys.stdlib_module_names


def part_of(path: Path) -> str:
    """`algorithms`, `config`, ...: the package's part that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes() -> Iterator[tuple[str, Any]]:
    """(file:line, node) of every node of the package's syntax trees that stands somewhere."""
    for path in MODULES:
        name = str(path.relative_to(PACKAGE))
        for node in ast.walk(tree(path)):
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def test_a_module_imports_only_what_its_place_allows() -> None:
    wrong = {}
    for path in MODULES:
        own, others = arrows(path)
        part, name = part_of(path), path.relative_to(PACKAGE).as_posix()
        wrong[name] = (own - {part} - MAY_IMPORT[part]) | (others - THIRD_PARTY.get(part, others))
    assert len(wrong) > 50
    assert not {name: found for name, found in wrong.items() if found}


def dotted(path: Path) -> str:
    """The dotted name of a file's module."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_circle_of_imports() -> None:
    known = {dotted(path) for path in MODULES}
    needs: dict[str, set[str]] = {}
    for path in MODULES:
        named = {
            name if (name := f"{node.module}.{alias.name}") in known else node.module  # a module, or a name from one
            for node in ast.walk(tree(path))  # those under TYPE_CHECKING and within functions too
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        needs[dotted(path)] = named & known - {dotted(path), "gspo_cli"}
    assert sum(map(len, needs.values())) > 500
    assert tuple(TopologicalSorter(needs).static_order())  # CycleError names the circle


def test_no_folder_has_too_many_files() -> None:
    folders = Counter(path.parent.relative_to(PACKAGE).as_posix() for path in MODULES)
    folders["algorithms"] -= len(registered("algorithms", "ALGORITHMS"))  # one file each, however many
    assert {folder: count for folder, count in folders.items() if count > 20} == {}


def fresh(program: str) -> str:
    """What a program prints in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import io, json, sys, contextlib; sys.argv = ['gspo', '--help']\n"
        "from gspo_cli.cli.main import run\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit): run()\n"
        "assert 'Usage' in out.getvalue()\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    loaded = json.loads(fresh(program))
    assert "gspo_cli.cli.train.command" in loaded
    assert not HEAVY & set(loaded)


def test_help_answers_in_a_blink() -> None:
    typer = [sys.executable, "-c", "import rich.console, typer.main"]  # on a busy machine all is slower, this too
    seconds = [(seconds_of([str(GSPO), "--help"]), seconds_of(typer)) for _ in range(3)]
    assert min(ours for ours, _ in seconds) < max(0.3, 4 * min(theirs for _, theirs in seconds))


def seconds_of(command: list[str]) -> float:
    """Of the processor: on a busy machine the clock on the wall tells of the others."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_report_never_loads_torch() -> None:
    files = (PACKAGE / "report").rglob("*.py")
    names = sorted(".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in files)
    program = f"import importlib, sys\nfor n in {names}: importlib.import_module(n)\nprint('torch' in sys.modules)"
    assert len(names) > 5
    assert fresh(program).strip() == "False"


def test_every_function_is_annotated() -> None:
    bare = []
    for place, node in nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            missing = [a.arg for a in arguments if a and a.annotation is None and a.arg not in ("self", "cls")]
            bare += [f"{place} {node.name}({name})" for name in missing + ["return"] * (node.returns is None)]
    assert bare == []


def test_no_error_is_swallowed() -> None:
    broad = {"Exception", "BaseException"}
    swallowed = []
    for place, node in nodes():
        if isinstance(node, ast.ExceptHandler):
            does_nothing = all(isinstance(s, ast.Pass | ast.Continue) or _is_ellipsis(s) for s in node.body)
            if node.type is None or (does_nothing and broad & _names(node.type)):
                swallowed.append(place)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress") and broad & _names(node):
            swallowed.append(place)
    assert swallowed == []


FORBIDDEN = {
    "nan_to_num", "nan_to_num_",  # hides an overflow
    "read_pickle", "to_pickle", "Unpickler", "Pickler",
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",  # collectives that pickle
}  # fmt: skip
PICKLES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "shelve", "marshal", "joblib"}


def test_no_pickle_and_no_nan_painted_over() -> None:
    found = []
    for place, node in nodes():
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        whole = ast.unparse(node) if isinstance(node, ast.Attribute) else name
        if name in FORBIDDEN or whole in ("torch.load", "torch.save"):
            found.append(f"{place} {whole}")
        if isinstance(node, ast.ImportFrom):
            wrong = {n.name for n in node.names} & (FORBIDDEN | ({"load", "save"} if node.module == "torch" else set()))
            found += [f"{place} {name}" for name in wrong]
        if isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            found += [f"{place} {node.arg}"] if ast.unparse(node.value) == "True" else []
    assert found == []
    modules = {module.split(".")[0] for path in MODULES for module, _ in imports(tree(path))}
    assert not modules & PICKLES


WRITERS = {
    "runlog/fs.py": "the one way to change a run's files",
    "runlog/folder.py": "empties a run folder that this process holds, and tries whether one can be written to",
    "runlog/lock.py": "the lock that the kernel frees, and its own heartbeat",
    "runlog/log.py": "fills a path of `write_atomic`, and removes unfinished files",
    "report/figures/save.py": "fills a path of `write_atomic`",
    "report/runs/archive.py": "fills a path of `write_atomic`, or a temporary folder that is then renamed",
    "training/state/checkpoint_folder.py": "the manifest in the temporary folder, forced to the disk there",
    "training/state/checkpoints.py": "fills the temporary folder of a checkpoint",
    "training/state/shards.py": "fills a rank's part of a checkpoint, forced to the disk there before it is named",
    "runlog/prune.py": "removes what a complete run needs no more; a link takes a copy's place by rename",
    "training/cold_start.py": "builds in a temporary folder of the cache under a lock, then renames it",
    "evals/store.py": "the lock, and its own parts once the whole answers are written",
    "training/worker.py": "its pipe to the parent",
    "rollout/vllm/worker/child.py": "its pipe to the parent",
    "rollout/vllm/worker/vllm_backend.py": "the name of memory that vLLM shares on a CPU",
    "rewards/math/algebra_worker.py": "its pipe to the parent, and /dev/null",
    "rewards/code/harness/channel.py": "/dev/null",
    "sandbox/choose.py": "the folder of a graded program",
}
"""Files that change what is on disk themselves, and why `runlog/fs.py` does not do it for them."""
CHANGES = {"write_text", "write_bytes", "unlink", "rmdir", "rmtree", "touch", "symlink_to", "hardlink_to", "link_to"}
OF_MODULES = {f"os.{name}" for name in ("replace", "rename", "remove", "truncate", "removedirs", "link", "symlink")} | {
    f"shutil.{name}" for name in ("move", "copy", "copy2", "copyfile", "copytree")
}


def changes_files(node: ast.Call) -> bool:
    """Whether a call opens a file for writing, or writes, renames or removes one by name."""
    function = ast.unparse(node.func)
    owner, _, name = function.rpartition(".")
    if name in ("open", "fdopen"):
        after_path = node.args[1:] if owner in ("", "os", "io") else node.args
        modes = [ast.unparse(mode) for mode in (*after_path[:1], *(k.value for k in node.keywords if k.arg == "mode"))]
        return any("O_WRONLY" in m or "O_RDWR" in m or (m[0] == "'" and set(m) & set("wax+")) for m in modes)
    if owner == "fs":
        return False
    of_a_module = function in OF_MODULES or (owner != "" and name in CHANGES)
    # one argument: `Path.replace`; two: `str.replace`
    return of_a_module or (bool(owner) and name in ("replace", "rename") and len(node.args) == 1)


def test_files_are_changed_in_one_place() -> None:
    changing = {
        place.rpartition(":")[0] for place, node in nodes() if isinstance(node, ast.Call) and changes_files(node)
    }
    assert changing == set(WRITERS)


def test_a_change_of_a_file_is_told_from_reading() -> None:
    changing = """open('x', 'w') | path.open('ab') | path.open(mode='x') | os.open(p, os.O_WRONLY) | os.replace(a, b)
        | a.rename(b) | os.rename(a, b) | shutil.rmtree(p) | path.write_text('x') | path.replace(other)
        | shutil.move(a, b)"""
    reading = "open('x') | p.open('rb') | 'a'.replace('a', 'b') | fs.rename(a, b) | os.open(p, 0)"
    for lines, expected in ((changing, True), (reading, False)):
        for line in lines.split("|"):
            call = ast.parse(line.strip(), mode="eval").body
            assert isinstance(call, ast.Call) and changes_files(call) == expected, line


def test_every_user_error_has_three_parts() -> None:
    parts = ("message", "why", "hint")
    checked, wrong = 0, []
    for place, node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "GspoError":
            named = {k.arg: k.value for k in node.keywords}
            given = dict(zip(parts, node.args, strict=False)) | named
            wrong += [f"{place} {part}" for part in parts if part not in given or _may_be_empty(given[part])]
            checked += 1
    assert checked > 30
    assert wrong == []


def _may_be_empty(text: ast.expr) -> bool:
    """Whether a string expression has a literal empty form; what only runs can tell is taken as text."""
    if isinstance(text, ast.Constant):
        return not str(text.value or "").strip()
    if isinstance(text, ast.IfExp):
        return _may_be_empty(text.body) or _may_be_empty(text.orelse)
    return isinstance(text, ast.JoinedStr) and not text.values


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _is_ellipsis(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """("eval list", its command) for every command of the program."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_two_examples_that_parse(name: str) -> None:
    command = COMMANDS[name]
    about, marker, examples = (command.callback.__doc__ or "").partition("Examples:")
    lines = [line.split() for line in examples.splitlines() if line.strip().startswith("gspo ")]
    assert about.strip() and marker and len(lines) >= 2
    for line in lines:
        assert line[1 : 1 + len(name.split())] == name.split()
        given = command.make_context(name, line[1 + len(name.split()) :]).params
        if "set_" in given and {"recipe", "name"} & given.keys():
            recipe.load(given.get("recipe") or given.get("name"), {}, given["set_"] or [])
