"""The figures of `gspo report batch`: their csv holds what was measured."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from batch_files import SAMPLES, Stored, measured, with_scores

from gspo_cli.instruments.batch.measure import BatchMeasurements
from gspo_cli.instruments.batch.report import FIGURES, draw_all
from gspo_cli.report.figures.style import requested_images


@pytest.fixture(scope="module")
def drawn(off_policy: BatchMeasurements, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    draw_all(off_policy, ["a remark"], folder)
    return folder


def test_each_figure_proves_its_files(drawn: Path) -> None:
    for name in FIGURES:
        side = json.loads((drawn / f"{name}.json").read_text())
        csv = (drawn / f"{name}.csv").read_bytes()
        assert side["csv"] == {"bytes": len(csv), "sha256": hashlib.sha256(csv).hexdigest()}
        assert side["notes"][-1] == "a remark" and (drawn / f"{name}.png").is_file()
        assert hashlib.sha256((drawn / f"{name}.json").read_bytes()).hexdigest() in (drawn / f"{name}.svg").read_text()


def test_histograms_count_everything_once(off_policy: BatchMeasurements, drawn: Path) -> None:
    table = pd.read_csv(drawn / "batch-ratios.csv")
    counts = table.groupby(["panel", "series"])["n"].sum()
    assert counts["tokens", "all"] == off_policy.spread.tokens
    assert counts["responses", "all"] == len(off_policy.batch.responses)
    grpo, gspo = (off_policy.losses[name].output.clipped_BT for name in ("grpo", "gspo"))
    assert grpo is not None and gspo is not None
    assert counts["tokens", "clipped"] == int(grpo.sum()) > 0
    assert counts["responses", "clipped"] == int(gspo.any(-1).sum()) > 0
    for (panel, _), part in table.groupby(["panel", "series"]):
        assert (part["low"].to_numpy()[1:] == part["high"].to_numpy()[:-1]).all()
        low, high = (np.log(0.8), np.log(1.27)) if panel == "tokens" else (np.log(1 - 3e-4), np.log(1 + 4e-4))
        assert part["low"].iloc[0] < low and part["high"].iloc[-1] > high  # the band is on the axis
    clipped = table[(table["panel"] == "tokens") & (table["series"] == "clipped") & (table["n"] > 0)]
    assert not ((clipped["low"] > np.log(0.8)) & (clipped["high"] < np.log(1.27))).any()


def test_weights_are_those_of_the_widest_response(off_policy: BatchMeasurements, drawn: Path) -> None:
    table = pd.read_csv(drawn / "batch-weights.csv").pivot(index="x", columns=["algorithm", "series"], values="y")
    scores = off_policy.scores
    log_w_BT = np.where(scores.mask_BT, scores.now_BT - scores.old_BT, np.nan)
    row = int(np.nanargmax(np.nanvar(log_w_BT, axis=1)))
    log_w_T = log_w_BT[row][scores.mask_BT[row].numpy()]
    advantage = float(off_policy.losses["grpo"].advantages_B[row])
    keep = log_w_T <= np.log(1.27) if advantage > 0 else log_w_T >= np.log(0.8)
    assert list(table.index) == list(range(1, len(log_w_T) + 1))
    np.testing.assert_allclose(table["grpo", "ratio"], np.exp(log_w_T), rtol=1e-9)
    np.testing.assert_allclose(table["grpo", "weight"], np.where(keep, np.exp(log_w_T), 0), rtol=1e-9)
    s = float(np.exp(log_w_T.mean()))
    np.testing.assert_allclose(table["gspo", "ratio"], s, rtol=1e-9)
    clipped = s > 1 + 4e-4 if advantage > 0 else s < 1 - 3e-4
    np.testing.assert_allclose(table["gspo", "weight"], 0 if clipped else s, rtol=1e-9)


def test_a_batch_without_ratios_and_advantages_is_drawn_too(stored: Stored, tmp_path: Path) -> None:
    file = stored.rewrite(tmp_path, with_scores(stored.batch, [1.0] * SAMPLES))
    draw_all(measured(stored, file), [], tmp_path / "figures", requested_images("svg", None))
    assert (tmp_path / "figures" / "batch-weights.csv").read_text() == '"algorithm","series","x","y"\n'
    table = pd.read_csv(tmp_path / "figures" / "batch-ratios.csv")
    assert table.loc[table["n"] > 0, "low"].le(0).all() and table.loc[table["n"] > 0, "high"].ge(0).all()
    assert "every ratio is 1" in json.loads((tmp_path / "figures" / "batch-ratios.json").read_text())["notes"][-1]
