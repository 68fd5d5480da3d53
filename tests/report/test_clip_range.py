"""`gspo report clip`: shares and ranges by hand, and a study's own."""

import json
import math
from pathlib import Path
from statistics import NormalDist

import pytest
from compare_studies import change
from program import refusal
from report_runs import Record, line, write_run

from gspo_cli.report.clip_range import TARGETS, clip_ranges
from gspo_cli.report.runs.folders import read_study
from gspo_cli.stats.clip_share import range_for, share_discarded


def test_share_by_hand() -> None:
    """Range of one deviation to either side in log space: Q(1) = 0.1587 on each; half the advantages have each sign."""
    low, high = 1 - 2.718281828**-0.1, 2.718281828**0.1 - 1
    assert share_discarded(low, high, 0.1) == pytest.approx(0.158655, abs=1e-5)
    assert share_discarded(0.2, 0.27, 0.0) == 0
    # a range far inside the spread discards half at most: the other side of the clip does not act
    assert 0.49 < share_discarded(3e-4, 4e-4, 1.0) < 0.5


@pytest.mark.parametrize("share", TARGETS)
def test_a_proposed_range_discards_its_share(share: float) -> None:
    low, high = range_for(share, 0.3)
    assert share_discarded(low, high, 0.3) == pytest.approx(share)
    assert math.log(1 + high) == pytest.approx(0.3 * NormalDist().inv_cdf(1 - share))
    assert (1 - low) * (1 + high) == pytest.approx(1)


def lines(std: float, clipped: float, more: dict[str, float]) -> list[Record]:
    """Two rollout batches of two mini-batches; the first one of each is on policy and has no part."""
    found = []
    for step in (1, 2):
        found.append(line(step, "rollout", None, {"length/mean": 30.0 + 10 * step}, {}))
        for index in (0, 1):
            values = {
                "ratio/seq_log_std": index * std, "ratio/token_log_std": index * 3 * std,
                "clip/seq_frac": index * clipped, "clip/token_frac": index * clipped, **more,
            }  # fmt: skip
            found.append(line(step, "update", index, values, {}))
    return found


def study(
    folder: Path, clips: dict[str, tuple[float, float] | None], clipped: float, more: dict[str, float] | None = None
) -> Path:
    for arm, clip in clips.items():
        run = write_run(folder / "s", arm, 0, lines(0.01, clipped, more or {}))
        change(run / "config.json", {"algo.clip": clip and dict(zip(("low", "high"), clip, strict=True))})
    return folder / "s"


def test_arms_of_a_study(tmp_path: Path) -> None:
    folder = study(tmp_path, {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.27), "sapo": None}, 0.45)
    found = {one.arm: one for one in clip_ranges(read_study(folder))}
    assert set(found) == {"gspo", "grpo"}  # sapo has no clip range
    gspo, grpo = found["gspo"], found["grpo"]
    assert (gspo.unit, gspo.length_mean, gspo.log_std, gspo.measured) == ("sequence", 45.0, 0.01, 0.45)
    assert (grpo.unit, grpo.log_std, grpo.scaled_by_length) == ("token", 0.03, None)
    assert gspo.scaled_by_length == pytest.approx(3e-4 * (10_000 / 45) ** 0.5)
    assert gspo.predicted == pytest.approx(0.486, abs=0.001)
    assert gspo.verdict.startswith("It discards 45 % of the responses with an advantage, more than a third")
    assert gspo.proposals[0.15] == pytest.approx({"clip.low": 0.01031, "clip.high": 0.01042}, abs=1e-5)


def test_only_what_has_an_advantage_counts_and_every_algorithm_has_its_own_row(tmp_path: Path) -> None:
    """18 % of all responses are 45 % of the two fifths with an advantage; the same of tokens, as the log says."""
    more = {"update/skipped_rows_frac": 0.6, "clip/token_frac_active": 0.45}
    folder = study(
        tmp_path, {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.27), "luspo": (2e-3, 2.5e-3), "gmpo": None}, 0.18, more
    )
    change(folder / "gmpo-s0" / "config.json", {"algo.log_clip_low": 0.4, "algo.log_clip_high": 0.3})
    found = {one.arm: one for one in clip_ranges(read_study(folder))}
    assert [one.measured for one in found.values()] == pytest.approx([0.45] * 4)
    gmpo = found["gmpo"]
    assert (gmpo.unit, gmpo.log_std, gmpo.scaled_by_length) == ("token", 0.03, None)
    assert gmpo.range == pytest.approx({"log_clip_low": 0.4, "log_clip_high": 0.3})
    edge = 0.03 * NormalDist().inv_cdf(0.85)
    assert gmpo.proposals[0.15] == pytest.approx({"log_clip_low": edge, "log_clip_high": edge})
    assert found["luspo"].unit == "sequence" and found["luspo"].scaled_by_length is None  # 3e-4 was published for GSPO


def test_an_algorithm_of_ones_own_is_judged_by_the_unit_that_its_run_recorded(tmp_path: Path) -> None:
    folder = study(tmp_path, {"mine:algorithm": (3e-4, 4e-4)}, 0.45)
    (run,) = folder.iterdir()
    assert clip_ranges(read_study(folder))[0].unit == "token"
    (run / "events.jsonl").write_text(json.dumps({"event": "clip_range", "unit": "sequence"}) + "\n")
    assert clip_ranges(read_study(folder))[0].unit == "sequence"


def test_a_range_that_does_nothing_is_named(tmp_path: Path) -> None:
    (one,) = clip_ranges(read_study(study(tmp_path / "vain", {"gspo": (0.2, 0.2)}, 0.0)))
    assert one.verdict.startswith("It discards 0 % of the responses")
    assert "no clip range to judge" in refusal(clip_ranges, read_study(study(tmp_path / "none", {"sapo": None}, 0.0)))
