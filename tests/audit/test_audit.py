"""What configurations of other trainers compute: small ones, written here, whose facts are worked out in comments."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from program import Gspo, refusal

from gspo_cli.audit.frameworks import FRAMEWORKS
from gspo_cli.audit.judge import Verdict, judge, names_in
from gspo_cli.audit.read import read, read_path


def facts(folder: Path, name: str, text: str, version: str | None = None) -> tuple[dict[str, Any], Verdict]:
    """The findings on a file with this text, and the verdict."""
    path = folder / name
    path.write_text(text)
    (settings,) = read(text, path, version)
    framework = FRAMEWORKS[settings.framework]
    found = framework.read(settings)
    verdict = judge(found, settings, framework)
    values = {key: value.value if value.known else "unknown" for key, value in vars(found).items()}
    return values | {"algorithm": verdict.algorithm.value, "sources": vars(found), "notes": settings.notes}, verdict


VERL = """#!/bin/bash
# adv_estimator=rloo
loss={loss}
batch=$((64 * 2)); mini=32
lows=(actor_rollout_ref.actor.clip_ratio_low=3e-4
      actor_rollout_ref.actor.clip_ratio_high=4e-4)  # two words
if [ "$loss" = "gspo" ]; then extra="{extra}"; else extra=""; fi
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=$batch \\
    actor_rollout_ref.actor.ppo_mini_batch_size=${{mini:-64}} \\
    actor_rollout_ref.actor.policy_loss.loss_mode="$loss" \\
    actor_rollout_ref.actor.kl_loss_coef=0.1 \\
    "${{lows[@]}}" $extra $@
"""


def test_verl_gspo_through_variables_arrays_arithmetic_and_a_condition(tmp_path: Path) -> None:
    found, verdict = facts(tmp_path, "run_gspo.sh", VERL.format(loss="gspo", extra=""))
    # 128 / 32 updates; the mean whatever loss_agg_mode says; the dual clip is vanilla's alone; the KL needs its switch
    expected = {"algorithm": "gspo", "unit": "sequence", "updates": 4, "mean": "per_response_mean", "clip_low": 3e-4,
                "clip_high": 4e-4, "dual_clip": None, "kl": "none", "std": True,
                "old_log_probs": "recomputed"}  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert found["sources"]["clip_high"].source == f"{tmp_path}/run_gspo.sh:6"
    assert found["sources"]["std"].source == "default of algorithm.norm_adv_by_std_in_grpo, verl 0.8"
    assert verdict.name_matches and not verdict.differs
    assert any("$@" in note for note in found["notes"])


def test_verl_vanilla_has_a_dual_clip_and_means_over_tokens_by_default(tmp_path: Path) -> None:
    found, verdict = facts(tmp_path, "run_gspo.sh", VERL.format(loss="vanilla", extra=""))
    assert (found["algorithm"], found["mean"], found["dual_clip"]) == ("dapo", "token_mean", 3.0)
    assert verdict.differs
    assert "actor_rollout_ref.actor.policy_loss.loss_mode=gspo" in verdict.changes


def test_one_update_makes_every_ratio_one(tmp_path: Path) -> None:
    extra = "data.train_batch_size=32"  # 32 / 32; later words win
    _, verdict = facts(tmp_path, "run_gspo.sh", VERL.format(loss="gspo", extra=extra))
    assert verdict.ratio_is_one and verdict.differs and verdict.name_matches
    assert verdict.sentence.startswith("named GSPO; with 1 update a batch and clip 0.0003/0.0004")
    assert verdict.sentence.endswith("it computes GRPO with a per-response mean")
    assert verdict.changes == ("actor_rollout_ref.actor.ppo_mini_batch_size = data.train_batch_size / 4",)


def test_what_the_environment_decides_is_unknown(tmp_path: Path) -> None:
    text = VERL.format(loss="gspo", extra="").replace("loss=gspo", "loss=$LOSS")
    found, verdict = facts(tmp_path, "run_gspo.sh", text)
    assert (found["algorithm"], found["unit"], found["updates"]) == (verdict.algorithm.value, "unknown", 4)
    assert not verdict.algorithm.known and "$LOSS" in verdict.algorithm.source
    assert verdict.name_matches is None and not verdict.differs


def verl(clip: str, loss: str = "gspo") -> str:
    """One command of verl."""
    actor = "actor_rollout_ref.actor"
    keys = f"{actor}.policy_loss.loss_mode={loss} {actor}.clip_ratio_low={clip} {actor}.clip_ratio_high={clip}"
    batch = f"data.train_batch_size=128 {actor}.ppo_mini_batch_size=32"
    return f"python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo {batch} {keys}"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("C=0.3\nf() {\n    local C=0.2\n}\n" + verl("$C"), {"clip_low": 0.3}),
        ("C=0.3\nf() {\n    local C=0.2\n}\nf\n" + verl("$C"), {"clip_low": 0.3}),
        ("C=0.3\nfunction f {\n    C=0.2\n}\nf\n" + verl("$C"), {"clip_low": 0.2}),
        ("C=0.3\nf () (\n    C=0.2\n)\nf\n" + verl("$C"), {"clip_low": 0.3}),
        ("M=gspo\nb() { M=vanilla; }\nif [ $1 = base ]; then b; fi\n" + verl("0.2", "$M"), {"unit": "unknown"}),
        ("main() {\n    " + verl("0.2") + "\n}\nmain \"$@\"\n", {"algorithm": "gspo", "clip_low": 0.2}),
        ("go() { " + verl("0.2") + "; }\n\"$@\"\n", {"algorithm": "gspo"}),
        ("f() { f; }\nf\n" + verl("0.2"), {"clip_low": 0.2}),
        ("C=0.3\nif ! [ a = a ]; then C=0.2; fi\n" + verl("$C"), {"clip_low": 0.3}),
        ("echo " + verl("0.3", "vanilla") + "\n" + verl("0.2"), {"clip_low": 0.2, "algorithm": "gspo"}),
        ("C=0.3\nunset C\n" + verl("${C:-0.2}"), {"clip_low": 0.2}),
        ("C=0.3\n( C=0.2 )\n" + verl("$C"), {"clip_low": 0.3}),
        ("C=0.3\nC=0.2 echo x\n" + verl("$C"), {"clip_low": 0.3}),
        ("C=1\n(( C = C * 2 ))\n" + verl("$C"), {"clip_low": "unknown"}),
        ("C=0.3\nread C\n" + verl("$C"), {"clip_low": "unknown"}),
        ("C=0.3\neval \"C=0.2\"\n" + verl("$C"), {"clip_low": "unknown"}),
        ("C=0.3\nwhile [ $i -lt 3 ]; do\n    C=0.2\ndone\n" + verl("$C"), {"clip_low": "unknown"}),
        ("C=3\nfor i in 1 2; do\n    C=$((C + 1))\n    " + verl("$C") + "\ndone\n", {"clip_low": "unknown"}),
        ("for i in 1; do\n    C=0.2\ndone\n" + verl("$C"), {"clip_low": 0.2}),
        (verl("0.2") + "\nexit 0\n" + verl("0.3", "vanilla"), {"algorithm": "gspo"}),
        ("[ -n \"$X\" ] || exit 1\nif [ -z \"$Y\" ]; then exit 1; fi\n" + verl("0.2"), {"clip_low": 0.2}),
        (verl("0.2") + " ~actor_rollout_ref.actor.clip_ratio_low", {"clip_low": "unknown", "clip_high": 0.2}),
    ],
)  # fmt: skip
def test_what_a_shell_would_do(tmp_path: Path, script: str, expected: dict[str, Any]) -> None:
    found, _ = facts(tmp_path, "a.sh", script)
    assert {key: found[key] for key in expected} == expected


TRL = """from trl import GRPOConfig
steps = 8
config = GRPOConfig(output_dir="x", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4,
    loss_type="grpo", steps_per_generation=steps, gradient_accumulation_steps=2, beta=0.0)
"""


@pytest.mark.parametrize(
    ("text", "version", "expected"),
    [
        (TRL, None, {"algorithm": "gspo", "updates": 4, "mean": "per_response_mean", "kl": "none"}),
        (TRL.replace(", beta=0.0", ""), None, {"kl": "none"}),  # the level came with 0.20
        ("class GRPOConfig: 1\nGRPOConfig(epsilon=0.1)\n", None, {"kl": "unknown", "algorithm": "grpo"}),
        (TRL.replace(", beta=0.0", ""), "0.20", {"algorithm": "gspo", "kl": "none"}),
        (TRL.replace('loss_type="grpo", ', ""), "1.0", {"algorithm": "gspo", "mean": "token_mean"}),  # dapo's
        (TRL.replace("steps_per", "generation_batch_size=64, steps_per"), None, {"updates": "unknown"}),
        (TRL + "config.num_iterations = 3\n", None, {"updates": 12}),
        (TRL.replace('"grpo"', '"cispo"'), None, {"algorithm": "cispo", "clip_low": None}),
        (TRL.replace("=3e-4", "=+3e-4").replace("=4e-4", "=-(-4e-4)"), None, {"clip_low": 3e-4, "clip_high": 4e-4}),
        (TRL.replace("epsilon=3e-4", "epsilon=~3"), None, {"clip_low": "unknown"}),
        (TRL.replace("beta=0.0", 'scale_rewards="none"'), None, {"std": False}),
        (TRL.replace("beta=0.0", 'scale_rewards="batch"'), None, {"std": True}),
    ],
)
def test_trl(tmp_path: Path, text: str, version: str | None, expected: dict[str, Any]) -> None:
    found, _ = facts(tmp_path, "train.py", text, version)
    assert {key: found[key] for key in expected} == expected


def test_a_dictionary_or_list_that_changes_is_read_as_it_is_in_the_end(tmp_path: Path) -> None:
    begin = "from trl import GRPOConfig\nkeys = dict(epsilon=0.1, num_iterations=4)\n"
    end = "GRPOConfig(loss_type='grpo', gradient_accumulation_steps=1, **keys)\n"
    change = "keys['num_iterations'] = 2\nkeys.update({'epsilon': 0.3}, epsilon_high=0.28)\n"
    found, _ = facts(tmp_path, "a.py", begin + change + end)
    assert (found["clip_low"], found["clip_high"], found["updates"]) == (0.3, 0.28, 2)
    for change in ("keys.pop('epsilon')\n", "keys.update(load())\n", "keys[name] = 1\n"):
        found, _ = facts(tmp_path, "a.py", begin + change + end)
        assert (found["clip_low"], found["updates"]) == ("unknown", "unknown"), change
    command = """command = ["python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=512"]
command += ["algorithm.adv_estimator=grpo"]
command.append("actor_rollout_ref.actor.ppo_mini_batch_size=512")
command.extend(["actor_rollout_ref.actor.ppo_mini_batch_size=128", "actor_rollout_ref.actor.clip_ratio_high=4e-4"])
run(command)
"""
    found, _ = facts(tmp_path, "b.py", command)
    assert (found["updates"], found["clip_high"]) == (4, 4e-4)
    assert "cannot read" in refusal(facts, tmp_path, "c.py", end.replace("**keys", "loss_type='bnpo'"))


def test_parameters_and_loops_hide_what_has_their_name(tmp_path: Path) -> None:
    text = """from trl import GRPOConfig
rounds, eps = 4, 0.1
def train(rounds, lr=1e-5):
    return GRPOConfig(loss_type="grpo", num_iterations=rounds, gradient_accumulation_steps=1)
"""
    assert facts(tmp_path, "a.py", text)[0]["updates"] == "unknown"
    after = "GRPOConfig(loss_type='grpo', num_iterations=rounds, gradient_accumulation_steps=1, epsilon=eps)\n"
    for loop, clip in (("", 0.1), ("for eps in (0.2, 0.3):\n    ", "unknown")):
        found, _ = facts(tmp_path, "b.py", text.split("def")[0] + "def other(rounds): pass\n" + loop + after)
        assert (found["clip_low"], found["updates"]) == (clip, 4)


CONFIG = "config = GRPOConfig(loss_type='grpo', epsilon=0.2, beta=0.0, gradient_accumulation_steps=1)\n"
LEVEL = "config.importance_sampling_level = 'sequence'\n"
TWO = "class A:\n    x: float = 0.2\nclass B:\n    x: float = 0.3\n"
MAKE = "GRPOConfig(loss_type='grpo', beta=0.0, gradient_accumulation_steps=1, epsilon={})\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CONFIG + LEVEL, {"unit": "sequence"}),
        (CONFIG + "if os.environ.get('GSPO'):\n    " + LEVEL, {"unit": "unknown"}),
        (CONFIG + "for x in y:\n    " + LEVEL, {"unit": "unknown"}),
        (CONFIG + "try:\n    x()\nexcept OSError:\n    " + LEVEL, {"unit": "unknown"}),
        (CONFIG + "def never():\n    " + LEVEL, {"unit": "unknown"}),
        ("if g():\n    " + CONFIG + "    " + LEVEL, {"unit": "sequence"}),
        (CONFIG + "setattr(config, 'epsilon', 3e-4)\n", {"clip_low": 3e-4}),
        (CONFIG + "setattr(config, name, 3e-4)\n", {"clip_low": "unknown", "unit": "unknown"}),
        (CONFIG + "config = dataclasses.replace(config, epsilon=3e-4)\n", {"clip_low": 3e-4}),
        (CONFIG + "config.epsilon *= 0.5\n", {"clip_low": 0.1}),
        (CONFIG + "config.num_iterations *= 2\n", {"updates": "unknown"}),
        (CONFIG + "config.update(options)\n", {"clip_low": "unknown"}),
        ("x = 0.2\ndef other():\n    x = 3e-4\n" + MAKE.format("x"), {"clip_low": 0.2}),
        ("x = 0.2\ndef f():\n    global x\n    x = 3e-4\ndef g():\n    " + MAKE.format("x"), {"clip_low": "unknown"}),
        ("def main():\n    " + MAKE.format("x") + "x = 0.3\nmain()\n", {"clip_low": 0.3}),
        ("x = None\n" + MAKE.format("x or 3e-4"), {"clip_low": 3e-4}),
        ("x = 0.1\n" + MAKE.format("x and 3e-4"), {"clip_low": 3e-4}),
        ("y = 0.2\nx = y = 3e-4\n" + MAKE.format("y"), {"clip_low": 3e-4}),
        ("x = 0.2\nfor i in range(3):\n    x = x * 0.1\n" + MAKE.format("x"), {"clip_low": "unknown"}),
        ("x = 0.2\nwhile True:\n    x = x / 2\n    " + MAKE.format("x"), {"clip_low": "unknown"}),
        ("x = 0.2\n[" + MAKE.format("x").strip() + " for x in (0.1, 0.3)]\n", {"clip_low": "unknown"}),
        ("if (x := 0.3):\n    " + MAKE.format("x"), {"clip_low": 0.3}),
        (TWO + "a = A()\n" + MAKE.format("a.x"), {"clip_low": 0.2}),
        (TWO + "a = B(x=0.1)\n" + MAKE.format("a.x"), {"clip_low": 0.1}),
        (TWO + MAKE.format("a.x"), {"clip_low": "unknown"}),
        ("class A:\n    x: float = 0.2\n    def f(self):\n        self.x = 3e-4\n    def g(self):\n        "
         + MAKE.format("self.x"), {"clip_low": "unknown"}),
    ],
)  # fmt: skip
def test_what_python_would_do(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    found, _ = facts(tmp_path, "a.py", "import os, dataclasses\nfrom trl import GRPOConfig\n" + text)
    assert {key: found[key] for key in expected} == expected


def test_a_name_that_is_made_again_is_another_configuration(tmp_path: Path, gspo_here: Gspo) -> None:
    again = CONFIG.replace("'grpo'", "'sapo'")
    path = tmp_path / "a.py"
    path.write_text("from trl import GRPOConfig\n" + CONFIG + "config.loss_type = 'dapo'\n" + again)
    out = gspo_here("audit", path).out
    assert "  sapo  " in out and out.count("it computes") == 2, out
    path.write_text(CONFIG + "if g():\n    config = replace(config, epsilon=3e-4)\nconfig.beta = 0.1\n")
    lines = gspo_here("audit", path).out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  KL ")] == ["unknown", "unknown"]


def test_trl_version_is_read_from_a_pin_above_the_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("trl==0.18.0\n")
    found, _ = facts(tmp_path, "c.yaml", "num_generations: 8\nuse_vllm: true\n")
    assert (found["kl"], found["correction"], found["algorithm"]) == ("loss", "none", "grpo")


def test_trl_settings_in_the_docstring_of_a_parser(tmp_path: Path) -> None:
    text = (
        '"""\npython grpo.py \\\n    --loss_type dr_grpo \\\n    --scale_rewards false --beta 0\n"""\n'
        "from trl import GRPOConfig, TrlParser\nTrlParser((GRPOConfig,)).parse_args_and_config()\n"
    )
    found, verdict = facts(tmp_path, "grpo.py", text)
    assert (found["algorithm"], found["mean"], verdict.name_matches) == ("dr_grpo", "constant", False)
    assert found["sources"]["mean"].source == f"{tmp_path}/grpo.py:3"
    rloo, _ = facts(tmp_path, "rloo.py", text.replace("GRPOConfig", "RLOOConfig").replace("dr_grpo", "x"))
    assert (rloo["algorithm"], rloo["kl"], rloo["unit"]) == ("rloo", "none", "sequence")
    bare, _ = facts(tmp_path, "bare.py", text.replace("--", "").replace("loss_type", "x"))
    assert bare["loss"] == bare["updates"] == "unknown"


def test_a_method_that_is_not_known_is_refused(tmp_path: Path) -> None:
    dpo = "swift rlhf --rlhf_type dpo --beta 0.1\n"
    assert "no configuration that is known" in refusal(facts, tmp_path, "c.sh", dpo)


def test_slime_in_python_strings(tmp_path: Path) -> None:
    text = (
        "import miles.utils as U\n"
        "class Args:\n    many: bool = False\n"
        "def run(args: Args):\n"
        '    grpo_args = (\n        "--advantage-estimator gspo "\n        # "--use-kl-loss "\n'
        '        "--eps-clip 4e-4 "\n    )\n'
        '    if args.many:\n        grpo_args += "--use-tis "\n'
        '    batch = "--rollout-batch-size 8 --n-samples-per-prompt 8 --global-batch-size 32"\n'
        '    U.go(train_args=f"{grpo_args} {batch} {args.x}")\n'
    )
    found, _ = facts(tmp_path, "run.py", text)
    expected = {"algorithm": "gspo", "updates": 2, "clip_high": 4e-4, "correction": "none", "kl": "none"}
    assert {key: found[key] for key in expected} == expected
    assert found["sources"]["clip_low"].source == f"{tmp_path}/run.py:8"


def test_nemo_rl_inherits(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("grpo:\n  num_prompts_per_step: 64\nloss_fn:\n  ratio_clip_max: 0.28\n")
    text = (
        "defaults: base.yaml\nloss_fn: {reference_policy_kl_penalty: 0}\n"
        "policy:\n  train_global_batch_size: ${mul:${grpo.num_prompts_per_step}, 2}\n"
    )
    found, _ = facts(tmp_path, "dapo.yaml", text)
    # 64 prompts x 16 samples / 128
    assert (found["algorithm"], found["updates"], found["clip_high"]) == ("dapo", 8, 0.28)
    assert found["sources"]["clip_high"].source == f"{tmp_path}/base.yaml:4"
    missing, verdict = facts(tmp_path, "x.yaml", "defaults: gone.yaml\nloss_fn: {ratio_clip_max: 0.3}\n")
    assert missing["updates"] == "unknown" and "gone.yaml" in verdict.algorithm.source
    own, _ = facts(tmp_path, "y.yaml", "defaults: ../grpo_math_1B.yaml\nloss_fn: {ratio_clip_max: 0.3}\n")
    assert (own["updates"], own["kl"]) == (1, "loss")  # 32 x 16 / 512; 0.01 in the loss


ROLL = "rollout_batch_size: 64\nnum_return_sequences_in_group: 8\nadv_estimator: {adv}\nimportance_sampling: seq\n"
ROLL += "pg_clip_low: 3e-4\nactor_train:\n"
ROLL += "  training_args: {{per_device_train_batch_size: 2, gradient_accumulation_steps: 8}}\n"
ROLL += "  device_mapping: list(range(0,16))\n  strategy_args: {{strategy_config: {{tensor_model_parallel_size: 2}}}}\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("r.yaml", ROLL.format(adv="grpo"),  # 512 / (2 8 16/2) updates
         {"algorithm": "gspo", "updates": 4, "clip_low": 0.2, "old_log_probs": "recomputed"}),
        ("r.yaml", ROLL.format(adv="gae"), {"algorithm": "ppo"}),
        ("a.yaml",
         "gconfig: {n_samples: 4}\nactor:\n  eps_clip: 0.3\n  reward_norm: {mean_level: group, std_level: group}\n",
         {"algorithm": "grpo", "updates": 4, "kl": "reward", "mean": "token_mean", "clip_high": 0.3}),
        ("c.yaml",  # a table's mean_level is batch
         "gconfig: {n_samples: 4}\nactor: {eps_clip: 0.3, kl_ctl: 0, reward_norm: {std_level: null}}\n",
         {"algorithm": "reinforce_pp", "std": False, "kl": "none"}),
        ("p.toml", "[orchestrator]\ngroup_size = 8\n[orchestrator.algo]\ntype = 'grpo'\n",
         {"algorithm": "other:dppo", "clip_low": None, "old_log_probs": "sampler", "std": False}),
        ("s.sh", "uv run -m skyrl.train.entrypoints.main_base trainer.algorithm.policy_loss_type=gspo "
         "trainer.train_batch_size=256\n", {"algorithm": "gspo", "mean": "token_mean", "updates": 1, "kl": "loss"}),
        ("o.sh", "python -m openrlhf.cli.train_ppo_ray --actor.eps_clip_low_high 0.2 0.27 --rollout.batch_size 128 "
         "--rollout.n_samples_per_prompt 8 --algo.advantage.estimator group_norm --algo.kl.init_coef 0\n",
         {"algorithm": "dapo", "updates": 8, "clip_low": 0.2, "clip_high": 0.27, "kl": "none"}),
        ("i.sh", "python open_instruct/grpo_fast.py --beta 0 --num_mini_batches 2\n",
         {"algorithm": None, "clip_high": "unknown", "updates": 2, "mean": "token_mean"}),
        ("i.sh", "python open_instruct/grpo_fast.py --clip_higher 0.28 --beta 0\n", {"algorithm": "dapo"}),
        ("w.sh", "swift rlhf --rlhf_type grpo\n", {"std": True}),
        ("w.sh", "swift rlhf --rlhf_type grpo --scale_rewards none\n", {"std": False}),
        ("w.sh", "swift rlhf --rlhf_type grpo --advantage_estimator rloo\n", {"std": False}),
        # optimizer steps count with megatron only
        ("w.sh", "swift rlhf --rlhf_type grpo --steps_per_generation 8 --gradient_accumulation_steps 4\n",
         {"updates": 2}),
        ("w.sh", "megatron rlhf --rlhf_type grpo --steps_per_generation 8 --global_batch_size 4\n", {"updates": 8}),
        ("b.sh", 'EXTRA=()\nif [ "$(hostname)" = a ]; then EXTRA=(--use-tis --eps-clip 0.3); fi\n'  # one branch
         "python3 train.py --advantage-estimator grpo --rollout-batch-size 8 --num-steps-per-rollout 2 ${EXTRA[@]}\n",
         {"clip_low": "unknown", "correction": "unknown", "updates": 2}),
        ("j.yaml", "run: |\n  set -e\n  python -m verl.trainer.main_ppo data.train_batch_size=512\n",
         {"algorithm": "ppo", "updates": 2}),  # the default estimator is gae; 512 / 256
    ],
)  # fmt: skip
def test_other_frameworks(tmp_path: Path, name: str, text: str, expected: dict[str, Any]) -> None:
    found, verdict = facts(tmp_path, name, text)
    if not verdict.algorithm.known:
        found["algorithm"] = None
    assert {key: found[key] for key in expected} == expected


def test_a_script_that_calls_another_adds_to_its_options(tmp_path: Path) -> None:
    base = (
        "uv run -m skyrl.train.entrypoints.main trainer.train_batch_size=1024 trainer.algorithm.use_kl_loss=false $@\n"
    )
    (tmp_path / "base.sh").write_text(base)
    found, _ = facts(tmp_path, "run.sh", 'bash base.sh trainer.algorithm.policy_loss_type="sapo" "$@"\n')
    assert (found["algorithm"], found["updates"], found["kl"], found["clip_low"]) == ("sapo", 4, "none", None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen3-gspo-grpo", ["gspo", "grpo"]),
        ("dapo-math-17k", []),
        ("Dr-GRPO_7b", ["dr_grpo"]),
        ("reinforce++_baseline", ["reinforce_pp"]),
    ],
)
def test_names(name: str, expected: list[str]) -> None:
    assert names_in(name) == expected


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} {{{', '.join(f'k{j}: *{chr(97 + i)}' for j in range(10))}}}\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", BOMB.encode()),
        ("b.yaml", b"a: " + b"[" * 5000),
        ("d.sh", b"\0\1\2"),
        ("e.py", b"(" * 9000),
        ("g.sh", b"\xff\xfe"),
        ("h.yaml", b"x: " + b"y" * 500_000),
        ("i.sh", b"a=(x y z)\n" + b'a+=("${a[@]}" "${a[@]}")\n' * 40),
        ("k.sh", b"$((" * 3000),
        ("l.py", b"x = " + b"-" * 50_000 + b"1"),
    ],
)
def test_hostile_files_are_refused_in_three_parts(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refusal(lambda: list(read_path(str(tmp_path / name), None)))


def test_circles_links_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("defaults: b.yaml\ngrpo: {x: 1}\n")
    (tmp_path / "b.yaml").write_text("defaults: a.yaml\n")
    said = refusal(lambda: list(read_path(str(tmp_path / "a.yaml"), None)))
    assert "cannot read" in said and "circle" in said
    os.mkfifo(tmp_path / "pipe.sh")
    assert "pipe" in refusal(lambda: list(read_path(str(tmp_path / "pipe.sh"), None)))
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir(), outside.mkdir()
    (outside / "x.sh").write_text(VERL.format(loss="gspo", extra=""))
    (inside / "y.sh").symlink_to(outside / "x.sh")
    os.mkfifo(inside / "pipe.sh")
    assert list(read_path(str(inside), None)) == []


def test_the_command(tmp_path: Path, gspo_here: Any) -> None:
    script = tmp_path / "run_gspo.sh"
    script.write_text(VERL.format(loss="gspo", extra=""))
    (tmp_path / "notes.yaml").write_text("a: 1\n")
    done = gspo_here("audit", script, "--length", "1000")
    assert done.code == 0 and done.out.startswith(f"{script}: named GSPO; it computes GSPO")
    # 0.034 nat a token, /sqrt(1000): sd 0.00107; (Q(0.28) + Q(0.37)) / 2 = 37 %
    assert "37." in next(line for line in done.out.splitlines() if "clip discards" in line)
    as_json = json.loads(gspo_here("audit", script, "--json").out)
    assert as_json["facts"]["updates"]["value"] == 4 and as_json["name_matches"] is True
    script.write_text(VERL.format(loss="vanilla", extra=""))
    assert gspo_here("audit", tmp_path).code == 3
    assert gspo_here("audit", tmp_path / "notes.yaml").code == 2


def test_an_unreadable_file_is_reported_in_its_place(tmp_path: Path, gspo_here: Any) -> None:
    (tmp_path / "a.sh").write_bytes(b"\xff\xfe")
    (tmp_path / "b_gspo.sh").write_text(VERL.format(loss="gspo", extra=""))
    (tmp_path / "c.yaml").write_text("a: 1\n")
    for named in ([tmp_path], [tmp_path / "a.sh", tmp_path / "b_gspo.sh"]):
        done = gspo_here("audit", *named, "--json")
        bad, good = map(json.loads, done.out.splitlines())
        assert done.code == 2 and good["differs"] is False and bad["file"] == str(tmp_path / "a.sh")
        assert bad["why"] == "it is not UTF-8" and bad.keys() == {"file", "error", "why", "do"}
    done = gspo_here("audit", tmp_path / "none.sh", tmp_path / "c.yaml", "--json")
    missing, other = map(json.loads, done.out.splitlines())
    assert done.code == 2 and missing["why"] == "it does not exist" and other["error"].endswith("that is known")


@pytest.mark.parametrize(
    ("loss", "estimator", "name"),
    [("gspo", "grpo", "gspo"), ("vanilla", "grpo", "dapo"), ("geo_mean", "grpo", "gmpo"), ("sapo", "grpo", "sapo"),
     ("cispo", "grpo", "cispo"), ("vanilla", "rloo", "rloo"), ("vanilla", "reinforce_plus_plus", "reinforce_pp"),
     ("dppo_kl", "grpo", "dppo_kl")],
)  # fmt: skip
def test_its_recipe_is_valid(tmp_path: Path, gspo_here: Any, loss: str, estimator: str, name: str) -> None:
    script = tmp_path / "run.sh"
    script.write_text(VERL.format(loss=loss, extra="").replace("estimator=grpo", f"estimator={estimator}"))
    written = gspo_here("audit", script, "--recipe").out
    assert f'[algo]\nname = "{name}"\n' in written
    (tmp_path / "equal.toml").write_text(written)
    done = gspo_here("recipes", "validate", tmp_path / "equal.toml")
    assert done.code == 0, done.out


def test_it_runs_nothing(tmp_path: Path, gspo_here: Any) -> None:
    (tmp_path / "grpo.py").write_text(TRL + f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert gspo_here("audit", tmp_path / "grpo.py").code == 3  # named grpo, is gspo
    assert not (tmp_path / "ran").exists()
