"""Collects wheels for a GPU machine without a network, and checks that they can be carried there.

    python results/programs/gpu_wheels.py                     into results/programs/carried, which git ignores
    python results/programs/gpu_wheels.py --packages pydantic --python 3.13

gpu.py unpacks what is in that folder. The limit is for these wheels and the repository's own files together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WHOLE = ("pydantic",)
"""Packages that are fetched with what they need: their parts must fit each other."""
ALONE = (
    "datasets", "dill", "multiprocess", "xxhash", "trl", "math-verify", "latex2sympy2-extended",
    "antlr4-python3-runtime==4.13.2",
)  # fmt: skip
"""Packages whose other needs a machine with torch, transformers, pandas and pyarrow has; all of gspo's and TRL's that
such a machine may lack. pyarrow is not among them: it takes 40 MiB and more."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def fetch(packages: tuple[str, ...], deps: bool, python: str, folder: Path) -> list[str]:
    """Downloads wheels into the folder. Returns an error for each package that has none."""
    faults = []
    for package in packages:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(folder)]
        command += ["--python-version", python, *(f"--platform={name}" for name in PLATFORMS)]
        done = subprocess.run([*command, *([] if deps else ["--no-deps"]), package], capture_output=True, text=True)
        if done.returncode:
            faults.append(f"{package}: {done.stderr.strip().splitlines()[-1]}")
    return faults


def tracked_bytes(root: Path) -> int:
    """Of the files that travel with the repository."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout.split(b"\0")
    paths = (root / name.decode() for name in names if name)
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, default=HERE / "carried")
    parser.add_argument("--python", default="3.12", help="version on the GPU machine")
    parser.add_argument("--packages", nargs="*", help="instead of all that the benchmark may need; without their needs")
    parser.add_argument("--limit-mib", type=float, default=64.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    whole, alone = (WHOLE, ALONE) if options.packages is None else ((), tuple(options.packages))
    faults = fetch(whole, True, options.python, options.folder)
    faults += fetch(alone, False, options.python, options.folder)
    sizes = {path.name: path.stat().st_size for path in sorted(options.folder.glob("*.whl"))}
    tree = tracked_bytes(HERE.parents[1])
    total = (tree + sum(sizes.values())) / 2**20
    mib = {name: round(size / 2**20, 2) for name, size in sizes.items()}
    print(json.dumps({"wheels_mib": mib, "tree_mib": round(tree / 2**20, 2), "total_mib": round(total, 2)}, indent=1))
    if total > options.limit_mib:
        faults.append(f"{total:.1f} MiB together, and {options.limit_mib:g} can be carried: leave out the largest")
    if faults:
        raise SystemExit("\n".join(faults))


if __name__ == "__main__":
    main()
