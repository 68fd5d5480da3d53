"""`gspo report`: results on stdout, the rest on stderr, JSON alone with --json, exit codes."""

import json
from pathlib import Path

import pandas as pd
import pytest
from report_runs import write_study
from typer.testing import CliRunner, Result

from gspo_cli.cli.report import app
from gspo_cli.report.figures import plots
from gspo_cli.report.figures.plots import FIGURES

SUFFIXES = ("csv", "json", "svg", "png")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_several_studies_are_drawn_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"reward": FIGURES["reward"]})
    for name, arms in (("one", ("gspo",)), ("two", ("grpo", "gspo"))):
        write_study(tmp_path / name, arms=arms, seeds=2, steps=3)
    result = run("plots", "one", str(tmp_path / "two"), "--out", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    figures = tmp_path / "one+two" / "figures"
    assert result.stdout == f"{figures}: 1 figure (reward)\n"
    assert run("plots", str(tmp_path / "one")).exit_code == 0
    table, alone = (pd.read_csv(folder / "reward.csv") for folder in (figures, tmp_path / "one" / "figures"))
    assert set(table["arm"]) == {"one/gspo", "two/grpo", "two/gspo"} and set(table["panel"]) == {"steps", "tokens"}
    assert table.loc[table["arm"] == "one/gspo", "y"].tolist() == alone["y"].tolist()
    twice = run("plots", str(tmp_path / "one"), str(tmp_path / "one"))
    assert twice.exit_code == 2


def test_nothing_is_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {"reward": FIGURES["reward"]})
    study = write_study(tmp_path / "demo", seeds=2, steps=2)
    names = ["sealed.json", "compare.json", "compare.sources.json", "figures/reward.csv", "figures/reward.svg"]
    victims = [tmp_path / f"victim-{number}" for number in range(2 * len(names))]
    (study / "figures").mkdir()
    for name, one, other in zip(names, victims[::2], victims[1::2], strict=True):
        (study / name).symlink_to(one)
        (study / name).with_name(f".tmp-{Path(name).name}").symlink_to(other)
    for victim in victims:
        victim.write_text("precious")
    assert run("plots", str(study)).exit_code == 0
    run("compare", str(study))  # refuses such small runs, and writes why
    assert {victim.read_text() for victim in victims} == {"precious"}
    assert not any((study / name).is_symlink() for name in names)
    (study / "figures").rename(elsewhere := tmp_path / "elsewhere")
    (study / "figures").symlink_to(elsewhere)
    result = run("plots", str(study))
    assert result.exit_code == 6 and "figures is a symbolic link" in result.stderr


def test_plots_json_is_one_object_and_a_run_is_drawn_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "FIGURES", {name: FIGURES[name] for name in ("reward", "volatility", "replay")})
    study = write_study(tmp_path / "demo", arms=("gspo",), seeds=2, steps=2)
    result = run("plots", "demo/gspo-s1", "--out", str(tmp_path), "--json")
    found = json.loads(result.stdout)
    assert found["study"] == str(study / "gspo-s1")
    assert found["figures"]["reward"] == [
        str(study / "gspo-s1" / "figures" / f"reward.{suffix}") for suffix in SUFFIXES
    ]
    assert list(found["left_out"]) == ["replay"]
    assert result.stderr == ""
    side = json.loads((study / "gspo-s1" / "figures" / "reward.json").read_text())
    assert [item["run"] for item in side["runs"]] == ["gspo-s1"]
    assert not (study / "figures").exists()


def test_explain_an_algorithm() -> None:
    entry = json.loads(run("explain", "gspo", "--json").stdout)
    assert "2507.18071, Eq. 5" in entry["what"]
    assert entry["defaults"]["clip"] == {"low": 3e-4, "high": 4e-4}
    assert json.loads(run("explain", "dapo", "--json").stdout)["switches on"]["dynamic_sampling"] is True
    unknown = run("explain", "gsppo")
    assert unknown.exit_code == 2 and "did you mean 'gspo'?" in unknown.stderr


def test_seeds_that_no_run_has_are_bad_input(tmp_path: Path) -> None:
    study = write_study(tmp_path / "demo", seeds=2, steps=3)
    (study / "compare.json").write_text("stored")
    for seeds in ("0-7", "5"):
        result = run("compare", str(study), "--seeds", seeds)
        assert result.exit_code == 2 and "the study has seeds 0, 1" in result.stderr
    assert (study / "compare.json").read_text() == "stored"


def test_a_score_that_was_not_logged_says_how_it_is(tmp_path: Path) -> None:
    study = write_study(tmp_path / "demo", seeds=2, steps=20)
    result = run("compare", str(study), "--metric", "held_out/avg@4")
    said = " ".join(result.stdout.split())
    assert result.exit_code == 3 and "complete it" not in said
    assert f"gspo eval benchmarks {study} --bench held_out --samples 4" in said
