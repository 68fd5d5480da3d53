"""Sweeps: what `--sweep` accepts, and the cells that it becomes."""

import re
from pathlib import Path

import pytest

from gspo_cli.errors import GspoError
from gspo_cli.training.study.sweep import SweepCell, parse_sweep, studies_of, sweep_cells


def test_commas_within_values_do_not_divide() -> None:
    axes = parse_sweep(["task.terms=[3,5], [8,11]", 'train.optimizer={ betas = [0.9, 0.95] },"a,b"'])
    assert axes == {"task.terms": ["[3,5]", "[8,11]"], "train.optimizer": ["{ betas = [0.9, 0.95] }", '"a,b"']}
    nested = parse_sweep(["arms.grpo={clip={low=0.1,high=0.2}},{dual_clip=3}"])
    assert nested == {"arms.grpo": ["{clip={low=0.1,high=0.2}}", "{dual_clip=3}"]}


def test_two_axes_are_crossed() -> None:
    assert sweep_cells(parse_sweep(["noise.token=0,0.3", "rollout.max_lag=0,4"])) == [
        SweepCell("token-0_max_lag-0", ("noise.token=0", "rollout.max_lag=0")),
        SweepCell("token-0_max_lag-4", ("noise.token=0", "rollout.max_lag=4")),
        SweepCell("token-0.3_max_lag-0", ("noise.token=0.3", "rollout.max_lag=0")),
        SweepCell("token-0.3_max_lag-4", ("noise.token=0.3", "rollout.max_lag=4")),
    ]
    names = [cell.name for cell in sweep_cells(parse_sweep(["task.terms=[3,5],[8,11]"]))]
    assert names == ["terms-3-5", "terms-8-11"]


def test_axes_of_the_same_last_name_have_their_whole_names() -> None:
    cells = sweep_cells({"a.x": ["1", "2"], "b.x": ["3", "-3"]})
    assert [cell.name for cell in cells] == ["a.x-1_b.x-3", "a.x-1_b.x-m3", "a.x-2_b.x-3", "a.x-2_b.x-m3"]


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["train.lr"], "2 to 100"), (["train.lr=1e-4"], "2 to 100"),
        ([f"train.steps={','.join(map(str, range(1, 102)))}"], "2 to 100"), (["noise.token=0.1,0.10"], "different"),
        (["train.lr=1e-4,1e-4"], "different"), (["=1,2"], "a recipe key"), (["seed=0,1"], "--seeds"),
        (["algo.name=grpo,gspo"], "--algo"), (["train.lr=1,2", "train.lr=3,4"], "one place"),
        (["algo.clip.low=0.1,0.2", "algo.clip={low=0.3},{low=0.4}"], "one place"),
        (["a.x=1,2", "b.x=1,2", "c.x=1,2"], "one or two axes"),
    ],
)  # fmt: skip
def test_what_is_no_sweep(texts: list[str], why: str) -> None:
    with pytest.raises(GspoError) as caught:
        parse_sweep(texts)
    assert why in caught.value.why


def test_cells_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(GspoError, match=re.escape("path-a-b")):
        sweep_cells({"task.path": ["a/b", "a-b"]})


def test_the_studies_of_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").touch()
    (tmp_path / "notes").mkdir()
    assert studies_of(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert studies_of(tmp_path / "a") == [tmp_path / "a"]
    assert studies_of(tmp_path / "missing") == [tmp_path / "missing"]
