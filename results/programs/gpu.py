"""What only a GPU can show, in one command of at most nine minutes.

    python results/programs/gpu.py --json gpu.json               all six points
    python results/programs/gpu.py --points numbers,step         some of them
    python results/programs/gpu.py --tiny --device cpu           the rehearsal: the same code on a CPU, in small shapes

Each point runs in a process of its own with its share of the time, so that one that fails or hangs costs no other. A
point that is late leaves out its last cases and names them; one that is stopped keeps the cases that it has done. The
JSON holds for each point its result, or the error; and the versions and the machine. docs/gpu.md explains the points.

The other side of point `rollout` is TRL in the same Python: installed there, or a wheel in `--packages`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

HERE = Path(__file__).parent
SHARES = {"numbers": 1.0, "sampling": 2.5, "step": 2.0, "rollout": 1.5, "learning": 2.5, "sharding": 0.5}
"""Point -> its share of the time; what one leaves is the next ones'."""
STOP_AFTER = 0.75
"""Share of a point's time after which it begins no further case, so that it ends by itself."""
PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "numpy", "pydantic")


def main() -> None:
    options = arguments()
    report: dict[str, Any] = {"settings": {"device": options.device, "tiny": options.tiny, "minutes": options.minutes}}
    deadline = time.monotonic() + 60 * options.minutes
    report |= {"points": {}, "versions": {"python": sys.version.split()[0]} | installed()}
    with tempfile.TemporaryDirectory() as folder:
        carried = [wheel for wheel in sorted(options.packages.glob("*.whl")) if is_wanted(wheel)]
        report["carried"] = [wheel.name for wheel in carried]
        for wheel in carried:  # a wheel with compiled parts cannot be imported as it is
            zipfile.ZipFile(wheel).extractall(folder)
        for position, point in enumerate(options.points):
            shares = [SHARES[name] for name in options.points[position:]]
            limit = (deadline - time.monotonic()) * shares[0] / sum(shares)
            report["points"][point] = run_point(point, options, limit, folder)
            if options.json:  # after each point: what is measured is kept, whatever comes
                options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            print(point, json.dumps(report["points"][point])[:2000], flush=True)


def run_point(point: str, options: argparse.Namespace, limit: float, packages: str) -> dict[str, Any]:
    """The result of one point with its seconds, or its error."""
    command = [sys.executable, str(HERE / "gpu_points.py"), point, "--device", options.device]
    command += ["--seconds", f"{STOP_AFTER * limit:.1f}", *(["--tiny"] if options.tiny else [])]
    path = os.pathsep.join([str(HERE.parents[1]), packages, os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ) | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    start = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return latest(said) | {"error": f"not done within {limit:.0f} s"}
    seconds = round(time.monotonic() - start, 1)
    if done.returncode:
        return latest(done.stdout) | {"error": done.stderr[-3000:], "seconds": seconds}
    return {"seconds": seconds} | latest(done.stdout)


def latest(said: str) -> dict[str, Any]:
    """The last whole JSON object among a point's lines: it prints one after each case."""
    for line in reversed(said.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return {}


def is_wanted(wheel: Path) -> bool:
    """Whether a wheel fits this Python, and what it holds is not installed."""
    name, _, _, tags = parse_wheel_filename(wheel.name)
    try:
        version(name)
    except PackageNotFoundError:
        return not tags.isdisjoint(sys_tags())
    return False


def installed() -> dict[str, str]:
    """The versions of what matters, as far as it is there."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--points", type=lambda text: text.split(","), default=list(SHARES), help=",".join(SHARES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, for the rehearsal")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all points together")
    parser.add_argument("--packages", type=Path, default=HERE / "carried", help="wheels, from gpu_wheels.py")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    unknown = set(options.points) - set(SHARES)
    if unknown:
        parser.error(f"no such point: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    main()
