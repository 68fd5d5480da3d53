"""The rules that hold the package together, read off its source and a fresh interpreter."""

from __future__ import annotations

import ast
import json
import re
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

import gspo_cli
from gspo_cli import recipe
from gspo_cli.cli.main import app
from gspo_cli.cli.options import registered

PACKAGE = Path(gspo_cli.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"torch", "transformers", "vllm", "datasets", "pandas", "matplotlib", "scipy"}

BASE = {"types", "tables", "model_config", "rollout_config", "task_config", "config", "errors", "seeds", "recipe"}
PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
MAY_IMPORT = {
    part: {*re.findall(r"`(\S+?)`", may), *(BASE if may.startswith("base") else ())}
    for part, _, may in re.findall(r"^\| `(\S+)` \| (.{11,}) \| (.+) \|$", PAGE, flags=re.M)
}
"""What a part may import within the package, besides itself; what a function imports counts too, except in `cli`."""

THIRD_PARTY = {
    "types": set(), "errors": set(), "seeds": set(), "events": set(), "plugins": set(), "sanitize": set(),
    "sandbox": set(), "algorithms": {"torch"}, "stats": {"numpy", "scipy"}, "cli": {"typer", "rich"},
    "rewards": {"latex2sympy2_extended", "math_verify", "sympy"},  # in the worker alone
    "moe": {"torch", "transformers"}, "launch": {"ray", "torch"},  # torch counts the GPUs
    "report": {"numpy", "pandas", "pyarrow", "matplotlib", "mpl_toolkits", "scipy", "jinja2", "markupsafe", "pydantic",
               "pydantic_core", "tokenizers"},
    "plan": {"transformers"},  # configurations alone
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
    assert {part_of(path) for path in MODULES} == MAY_IMPORT.keys()
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
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


@pytest.mark.slow
def test_the_report_never_loads_torch() -> None:
    files = (PACKAGE / "report").rglob("*.py")
    names = sorted(".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in files)
    program = f"import importlib, sys\nfor n in {names}: importlib.import_module(n)\nprint('torch' in sys.modules)"
    assert len(names) > 5
    assert fresh(program).strip() == "False"


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
