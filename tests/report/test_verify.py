"""Provenance: what side files name, and that any altered byte is found and its file named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, check_refused, ok, tree

from gspo_cli.report.figures import plots
from gspo_cli.report.verify import verify
from gspo_cli.runlog.checksums import MUTABLE


@pytest.fixture(scope="module")
def reported(trained: Path, gspo_forked: Gspo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real study of two arms with two figures and a comparison."""
    study = Path(shutil.copytree(trained, tmp_path_factory.mktemp("verified") / "demo"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "FIGURES", {name: plots.FIGURES[name] for name in ("reward", "churn_clip")})
        for command in ("plots", "compare"):
            ok(gspo_forked("report", command, study))
    return study


@pytest.fixture
def study(reported: Path, tmp_path: Path) -> Path:
    """A copy of it, to be altered."""
    return Path(shutil.copytree(reported, tmp_path / "demo"))


def flipped(path: Path, position: float) -> None:
    """The file with the lowest bit of one byte turned, at a share of its length."""
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1
    path.write_bytes(bytes(data))


def problems(folder: Path) -> dict[str, str]:
    """File (relative) -> what is wrong."""
    return {str(Path(p.file).relative_to(folder)): p.what for p in verify(folder).problems}


def test_a_whole_study_is_verified_and_nothing_is_changed(reported: Path, gspo_here: Gspo) -> None:
    before = tree(reported)
    done = gspo_here("runs", "verify", str(reported), "--json")
    found = json.loads(done.out)
    assert (done.code, found["ok"], found["problems"]) == (0, True, [])
    assert found["num_files"] > 30
    assert tree(reported) == before


@pytest.mark.slow
@pytest.mark.parametrize("position", [0.37, *(pytest.param(p, marks=pytest.mark.slow) for p in (0.0, 1.0))])
def test_one_altered_byte_is_found_wherever_it_is(study: Path, position: float) -> None:
    checked = 0
    for name, whole in tree(study).items():
        if not whole or Path(name).name in MUTABLE or (name.startswith("gspo-s0") and position != 0.37):
            continue  # the other arm's files are like the first one's; an empty file has no byte; a lock is no record
        flipped(study / name, position)
        part = study / name.split("/")[0] if "-s0/" in name else study  # figures are drawn again for the study alone
        assert name in {f"{part.relative_to(study)}/{n}".removeprefix("./") for n in problems(part)}, name
        (study / name).write_bytes(whole)
        checked += 1
    assert checked > 30
    assert problems(study) == {}


def test_lost_files(study: Path) -> None:
    shutil.rmtree(study / "gspo-s0" / "checkpoints")
    found = verify(study)
    assert found.problems == []  # weights may be removed to save space
    assert any("checkpoints" in note for note in found.notes)
    for name in ("gspo-s0/perf.jsonl", "gspo-s0/run.json", "figures/reward.csv"):
        whole = (study / name).read_bytes()
        (study / name).unlink()
        assert name in problems(study)
        (study / name).write_bytes(whole)


def test_a_run_in_progress_is_noted_not_blamed(reported: Path, tmp_path: Path) -> None:
    run = tmp_path / "gspo-s0"
    shutil.copytree(reported / "gspo-s0", run)
    (run / "sealed.json").unlink()
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(line for line in lines if '"event":"end"' not in line))
    found = verify(run)
    assert found.problems == [] and "has not ended" in found.notes[0]


def test_a_figure_made_of_other_data_is_found(study: Path, gspo_here: Gspo) -> None:
    """Someone who alters the csv and every hash of it still cannot make the logs give that csv."""
    from gspo_cli.runlog.checksums import add_checksums, sha256_of

    csv, side = study / "figures" / "reward.csv", study / "figures" / "reward.json"
    csv.write_text(csv.read_text().replace("0.", "0.9", 1))
    table = json.loads(side.read_text())
    table["csv"] = {"bytes": csv.stat().st_size, "sha256": sha256_of(csv)}
    old = sha256_of(side)
    side.write_text(json.dumps(table, sort_keys=True, indent=2) + "\n")
    for image in (side.with_suffix(".svg"), side.with_suffix(".png")):
        image.write_bytes(image.read_bytes().replace(old.encode(), sha256_of(side).encode()))
    add_checksums(study, [csv, side, side.with_suffix(".svg"), side.with_suffix(".png")])
    assert problems(study) == {"figures/reward.csv": "made again from the logs it comes out otherwise"}
    done = gspo_here("runs", "verify", str(side))
    assert done.code == 3 and "reward.csv" in done.out


def test_side_files_name_runs_logs_and_what_was_left_out(reported: Path, study: Path, gspo_here: Gspo) -> None:
    (study / "gspo-s0" / "invalidated.json").write_text('{"reason": "wrong data"}')
    assert problems(study) == {}  # figures of before stay what they were
    assert gspo_here("report", "compare", str(study)).code == 3
    side: dict[str, Any] = json.loads((study / "compare.sources.json").read_text())
    assert side["file"] == "compare.json" and side["runs"] == []
    reasons = {run["run"]: run["reason"] for run in side["excluded"]}
    assert reasons == {"grpo-s0": "its partner is invalidated", "gspo-s0": "invalidated: wrong data"}
    assert all(len(run["log"]["sha256"]) == 64 and run["run_id"] for run in side["excluded"])
    used = json.loads((reported / "compare.sources.json").read_text())
    assert [run["run"] for run in used["runs"]] == ["grpo-s0", "gspo-s0"] and used["excluded"] == []


def test_runs_ls_show_diff_path(reported: Path, tmp_path: Path, gspo_here: Gspo) -> None:
    root = reported.parent
    rows = [json.loads(line) for line in gspo_here("runs", "ls", str(root), "--json").out.splitlines()]
    keys = ("run", "status", "steps", "planned")
    assert [[row[k] for k in keys] for row in rows] == [[f"{arm}-s0", "completed", 2, 2] for arm in ("grpo", "gspo")]
    (tmp_path / "gspo-s0").symlink_to(root / "demo" / "gspo-s0")
    (row,) = gspo_here("runs", "ls", str(tmp_path), "--json").out.splitlines()
    assert json.loads(row)["study"] == tmp_path.name
    about = json.loads(gspo_here("runs", "show", "demo/gspo-s0", "--out", str(root), "--json").out)
    assert about["about"]["model_sha256"] and about["config"]["algo.name"] == "gspo"
    done = gspo_here("runs", "diff", "demo/grpo-s0", "demo/gspo-s0", "--out", str(root), "--json")
    keys = {json.loads(line)["key"] for line in done.out.splitlines()}
    assert {"algo.name", "run.json arm"} <= keys and "seed" not in keys and "run.json model_sha256" not in keys
    assert gspo_here("runs", "path", "--out", str(root)).out.strip() == str(reported)
    check_refused(gspo_here("report", "plots", root), f"give one of them: {reported}")
