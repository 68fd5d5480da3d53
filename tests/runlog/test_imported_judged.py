"""Imported runs with their trainers' configurations: which are judged, what the sentence takes for granted, and that
the numbers are those of the study that was made of the same runs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from program import Gspo, check_refused, ok, results_program
from scipy import stats

from gspo_cli.errors import GspoError
from gspo_cli.runlog.trainer_config import MAX_BYTES, kind_of_key, read_config

ROOT = Path(__file__).parents[2]
CURVES = ROOT / "results" / "published" / "trl_curves"
LEVEL = {"grpo": ("token", 0.2), "gspo": ("sequence", 3e-4)}


def put(gspo: Gspo, log: Path, config: Path | None, algo: str, *more: str) -> None:
    given = () if config is None else ("--config", str(config))
    ok(gspo("runs", "import", str(log), *given, "--algo", algo, "--name", "t", "--out", str(log.parent), *more))


def judged(gspo: Gspo, folder: Path, *more: str) -> dict[str, Any]:
    done = gspo("report", "compare", "t", "--out", str(folder), "--json", *more)
    assert done.code in (0, 3), done.err
    return json.loads(done.out)  # type: ignore[no-any-return]


def published(gspo: Gspo, folder: Path, name: str, arm: str) -> None:
    """One run of the published study as TRL logs it, with its configuration in TRL's own terms."""
    peer_settings = results_program("peer_curves").peer_settings
    run = json.loads((CURVES / "runs" / f"{name}.json").read_text())
    every = run["settings"]["minibatches"]  # a reward at the first update of each batch
    history = [{"step": 1 + every * i, "reward": reward} for i, reward in enumerate(run["series"]["reward/mean"])]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (folder / "config.yaml").write_text(yaml.safe_dump(peer_settings(run["settings"], f"out/{name}")))
    put(gspo, folder / "trainer_state.json", folder / "config.yaml", run["settings"]["algo"], "--arm", arm)


@pytest.mark.parametrize("algo", ["grpo", "gspo"])
def test_the_numbers_are_those_of_the_published_study(tmp_path: Path, gspo_here: Gspo, algo: str) -> None:
    for seed in range(6):
        published(gspo_here, tmp_path, f"{algo}-s{seed}-peer", "trl")
        published(gspo_here, tmp_path, f"{algo}-s{seed}-ours", "ours")
    found = judged(gspo_here, tmp_path, "--baseline", "trl", "--margin", "0.02", "--assume", "start,data")
    study = json.loads((CURVES / "same_curves.json").read_text())["algorithms"][algo]
    expected = study["reward_points"]
    assert found["seeds"] == study["seeds"] == [0, 1, 2, 3, 4, 5]  # from the configurations
    assert [100 * row["difference"] for row in found["per_seed"]] == pytest.approx(expected["differences"])
    for side, theirs in (("treatment", "ours"), ("baseline", "peer")):
        mean = sum(100 * row[side] for row in found["per_seed"]) / 6
        assert mean == pytest.approx(expected[theirs])
    assert 100 * found["effect"] == pytest.approx(expected["mean"])
    half = stats.t.isf(0.05, 5) * found["sd"] / 6**0.5
    assert [100 * (found["effect"] + side * half) for side in (-1, 1)] == pytest.approx(expected["interval_90"])
    assert found["p_equal"] >= study["p_tost"]  # also corrected for skewness


def test_trl_s_grpo_and_gspo(tmp_path: Path, gspo_here: Gspo) -> None:
    for algo in ("grpo", "gspo"):
        for seed in range(6):
            published(gspo_here, tmp_path, f"{algo}-s{seed}-peer", algo)
    found = judged(gspo_here, tmp_path)
    study = json.loads((CURVES / "same_curves.json").read_text())["algorithms"]
    means = [study[algo]["reward_points"]["peer"] for algo in ("grpo", "gspo")]
    assert 100 * found["effect"] == pytest.approx(means[1] - means[0])
    assert found["verdict"] == "suggestive" and found["unit"] == "reward" and not found["points"]
    assert "No recorded setting" not in found["sentence"]
    half = judged(gspo_here, tmp_path, "--assume", "start,data")
    assert half["verdict"] == "suggestive" and "not recorded: equal tuning." in half["sentence"]
    whole = judged(gspo_here, tmp_path, "--assume", "start,data,tuning")
    assert whole["verdict"] == "better" and "GRPO better than GSPO" in whole["sentence"]
    assert "Stated by the user, not recorded: one start model, one order" in whole["sentence"]
    assert whole["effect"] == found["effect"] and whole["ci"] == found["ci"]
    assert gspo_here("report", "claims", str(tmp_path / "t")).out.count("supported") == 0
    assert gspo_here("runs", "verify", str(tmp_path / "t")).code == 0
    assert gspo_here("runs", "doctor", "t/gspo-s0", "--out", str(tmp_path)).code == 0


def made(gspo: Gspo, folder: Path, algo: str, seed: int, last: float = 0.6, steps: int = 40,
         nan_from: int = 10**9, **changes: Any) -> None:  # fmt: skip
    """A run whose reward rises from 0.3 + seed/100 to `last`, or is NaN, then imported."""
    rewards = [0.3 + seed / 100 + (last - 0.3) * i / (steps - 1) + 0.001 * (-1) ** i for i in range(steps)]
    rewards[nan_from:] = [math.nan] * len(rewards[nan_from:])
    log = folder / "log.json"
    log.write_text(json.dumps({"log_history": [{"step": i + 1, "reward": r} for i, r in enumerate(rewards)]}))
    level, epsilon = LEVEL[algo]
    config = {
        "importance_sampling_level": level, "epsilon": epsilon, "learning_rate": 1e-6, "seed": seed,
        "model": {"name": "base"}, "output_dir": f"out/{algo}-{seed}",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | changes))
    put(gspo, log, folder / "config.json", algo)


def test_only_the_algorithm_may_differ(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in range(4):
        made(gspo_here, tmp_path, "grpo", seed)
        made(gspo_here, tmp_path, "gspo", seed, last=0.7, learning_rate=2e-6, model={"name": "other"})
    found = judged(gspo_here, tmp_path, "--assume", "start,data,tuning")
    assert found["verdict"] == "refused"
    assert {one["what"] for one in found["reasons"]} == {"trainer.learning_rate", "trainer.model.name"}
    shown = json.loads(gspo_here("runs", "show", "t/gspo-s2", "--out", str(tmp_path), "--json").out)["config"]
    assert shown["trainer.epsilon"] == 3e-4 and shown["trainer.output_dir"] == "out/gspo-2"


def test_arms_that_differ_by_their_label_alone_are_named(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in range(4):
        made(gspo_here, tmp_path, "grpo", seed)
        made(gspo_here, tmp_path, "gspo", seed, last=0.7, importance_sampling_level="token", epsilon=0.2)
    said = "No recorded setting of the algorithm differs between the arms."
    assert said in judged(gspo_here, tmp_path)["sentence"]


def test_a_run_without_its_configuration_is_only_described(tmp_path: Path, gspo_here: Gspo) -> None:
    made(gspo_here, tmp_path, "grpo", 0)
    put(gspo_here, tmp_path / "log.json", None, "gspo")
    found = judged(gspo_here, tmp_path)
    assert found["verdict"] == "descriptive" and "the configuration of gspo-s0 is not recorded" in found["sentence"]


def test_a_run_whose_reward_is_no_number_has_collapsed_and_shortens_no_other(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in range(7):
        made(gspo_here, tmp_path, "grpo", seed, last=0.6 + 0.01 * (seed % 3))
        made(gspo_here, tmp_path, "gspo", seed, last=0.7, nan_from=10 if seed == 6 else 10**9)
    found = judged(gspo_here, tmp_path, "--assume", "start,data,tuning")
    assert found["collapses"]["treatment"] == [6] and found["n"] == 6
    assert [row["baseline"] for row in found["per_seed"][:2]] == pytest.approx([0.45, 0.465], abs=1e-3)
    assert "GSPO better than GRPO" in found["sentence"]
    made(gspo_here, tmp_path, "gspo", 7, last=1.7)  # rewards of any size: who collapsed is not known
    made(gspo_here, tmp_path, "grpo", 7)
    refused = judged(gspo_here, tmp_path)
    assert [(r["check"], r["treatment"]) for r in refused["reasons"]] == [("cells", "a value is not finite")]


def test_one_log_is_not_two_seeds(tmp_path: Path, gspo_here: Gspo) -> None:
    for algo in LEVEL:
        made(gspo_here, tmp_path, algo, 0)
        where = (tmp_path / "log.json", "--config", tmp_path / "config.json", "--algo", algo, "--name", "t")
        other = gspo_here("runs", "import", *where, "--out", tmp_path, "--seed", "1")
        check_refused(other, "--seed 1: the configuration says seed 0")
        (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace('"seed": 0', '"seed": 1'))
        put(gspo_here, tmp_path / "log.json", tmp_path / "config.json", algo)
    reasons = judged(gspo_here, tmp_path)["reasons"]
    assert {(one["check"], one["what"]) for one in reasons} == {("copies", "the same imported log")}


def test_unpaired_runs_and_collapsed_ones(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in range(6):
        made(gspo_here, tmp_path, "grpo", seed, last=0.6 + 0.01 * (seed % 3))
        made(gspo_here, tmp_path, "gspo", seed + 10, last=0.8 if seed else 0.0)
    refused = judged(gspo_here, tmp_path)
    assert refused["verdict"] == "refused" and "--unpaired" in refused["reasons"][0]["do"]
    found = judged(gspo_here, tmp_path, "--unpaired", "--assume", "start")
    assert found["collapses"]["treatment"] == [0] and found["collapses"]["baseline"] == []
    assert found["n"] == 5 and "N=5 of 6 seeds" in found["sentence"]
    assert "one order of the data" not in found["sentence"]
    assert "Unpaired: runs are matched in the order of their seeds." in found["sentence"]
    assert not (tmp_path / "t" / "compare.json").exists() or "Unpaired" not in (tmp_path / "t/compare.json").read_text()
    made(gspo_here, tmp_path, "grpo", 7)
    uneven = gspo_here("report", "compare", "t", "--out", tmp_path, "--unpaired")
    check_refused(uneven, "grpo has 7 runs and gspo 6")


def test_rewards_beyond_one_leave_collapses_unknown(tmp_path: Path, gspo_here: Gspo) -> None:
    for seed in range(6):
        made(gspo_here, tmp_path, "grpo", seed, last=2.0 + 0.01 * (seed % 3))
        made(gspo_here, tmp_path, "gspo", seed, last=3.0)
    found = judged(gspo_here, tmp_path, "--assume", "start,data,tuning")
    assert found["collapses"] is None and found["verdict"] == "suggestive"
    assert "mean over runs if none collapses" in found["sentence"]
    stated = judged(gspo_here, tmp_path, "--assume", "start,data,tuning,collapse")
    assert stated["verdict"] == "better" and "no collapsed run" in stated["sentence"]


def test_what_may_be_assumed(tmp_path: Path, gspo_here: Gspo) -> None:
    made(gspo_here, tmp_path, "grpo", 0)
    made(gspo_here, tmp_path, "gspo", 0)
    for words in ("--assume luck", "--assume start --scores x.csv", "--unpaired --scores x.csv"):
        check_refused(gspo_here("report", "compare", "t", "--out", str(tmp_path), *words.split()))


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("algorithm", "epsilon actor_rollout_ref.actor.clip_ratio_low algorithm.adv_estimator loss_fn.kl eps_clip"),
        ("run", "seed trainer.experiment_name output_dir data.seed"),
        ("setting", "learning_rate optim.epsilon model.name steps_per_generation max_completion_length"),
    ],
)
def test_kinds_of_keys(kind: str, keys: str) -> None:
    assert {key: kind_of_key(key) for key in keys.split()} == dict.fromkeys(keys.split(), kind)


def test_files_of_others_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("lr: 1.0e-6\nnames: &a [x, y]\nagain: *a\nsince: 2026-01-01\n1: one\n")
    assert read_config(path) == {
        "lr": 1e-6, "names": ["x", "y"], "again": ["x", "y"], "since": "2026-01-01", "1": "one",
    }  # fmt: skip
    path.write_text("_wandb: {value: {cli_version: 1}}\nlr: {value: 0.1, desc: null}\n")
    assert read_config(path) == {"lr": 0.1}


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(12)
)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "a: 1\na: 2", "a: !!python/object/apply:os.system [id]", "a: .nan", "a: &x {b: *x}", BOMB, "a: [",
     f"a: {'x' * MAX_BYTES}", "a: 1e400\nb: " + "9" * 30, "{" * 3000, "a: \ud800", "a: !!int ''"],
)  # fmt: skip
def test_what_is_no_configuration(tmp_path: Path, text: str) -> None:
    for name in ("c.yaml", "c.json"):
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(GspoError, match="cannot read the configuration") as error:
            read_config(tmp_path / name)
        assert error.value.code == 2 and len(error.value.why) < 2000


def test_a_configuration_that_is_not_there_writes_nothing(tmp_path: Path, gspo_here: Gspo) -> None:
    (tmp_path / "log.json").write_text('{"log_history": [{"step": 1, "reward": 0.5}]}')
    where = ("--config", "absent.yaml", "--algo", "grpo", "--name", "t", "--out", tmp_path)
    check_refused(gspo_here("runs", "import", tmp_path / "log.json", *where))
    assert not (tmp_path / "t").exists()
