"""The arms that a claim is about, how they differ from the paper's setting, and their special numbers. S = seeds."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from gspo_cli.report.claims.claims import TOKEN_FORM, ArmSpec, Claim
from gspo_cli.report.compare.scores import Scores
from gspo_cli.report.runs.folders import Study
from gspo_cli.report.runs.pairs import Pair, Records, RunRecord
from gspo_cli.report.runs.reader import corrupt
from gspo_cli.runlog.checksums import sha256_of
from gspo_cli.runlog.strict_json import read_object
from gspo_cli.stats.problems import Array

PAPER_CLIP_RANGES = {"grpo": (0.2, 0.27), "gspo": (3e-4, 4e-4)}
"""Of the paper's experiments (§5.1)."""
CLIP, CHURN = "clip/token_frac", "moe/slot_churn_step"
FEWEST_CLIPPED = 100
"""Clipped tokens of the baseline over all runs below which their number is noise."""


def is_moe(record: RunRecord) -> bool:
    """Whether the run trained a mixture of experts, as far as its configuration shows."""
    config = record.facts.config_flat
    return config.get("model.tiny.kind") == "qwen3_moe" or "A3B" in str(config.get("model.path"))


def pair_of(claim: Claim, records: Records) -> Pair | None:
    """The two arms of a claim in a study; None if the study lacks one."""
    baseline, treatment = (find_arm(spec, records) for spec in (claim.baseline, claim.treatment))
    return _pair(baseline, treatment, records) if baseline and treatment else None


def _pair(baseline: str, treatment: str, records: Records) -> Pair:
    return Pair(baseline, treatment, records[baseline], records[treatment])


def find_arm(spec: ArmSpec, records: Records) -> str | None:
    """The label of an arm: the plain one of its algorithm first, then the shortest."""
    if spec.replay == "paper":
        moe = any(is_moe(r) for by_seed in records.values() for r in by_seed.values())
        replayed = find_arm(ArmSpec(spec.algorithm, "r2", spec.old_log_probs), records) if moe else None
        return replayed or find_arm(ArmSpec(spec.algorithm, "none", spec.old_log_probs), records)
    found = [arm for arm in records if _matches(_config(records, arm), spec)]
    return min(found, key=lambda arm: (arm != spec.algorithm, len(arm), arm), default=None)


def _config(records: Records, arm: str) -> dict[str, Any]:
    return next(iter(records[arm].values())).facts.config_flat


def _matches(config: dict[str, Any], spec: ArmSpec) -> bool:
    return (
        config.get("algo.name") == spec.algorithm
        and config.get("algo.replay", "none") == spec.replay
        and config.get("algo.old_log_probs", "trainer") == spec.old_log_probs
    )


def range_pairs(claim: Claim, records: Records) -> tuple[Pair, Pair] | None:
    """(both algorithms at their narrowest clip ranges, both at their widest); None unless each has two."""
    left, right = _arms_by_range(claim.baseline_plain, records), _arms_by_range(claim.treatment, records)
    if len(left) < 2 or len(right) < 2:
        return None
    return _pair(left[0], right[0], records), _pair(left[-1], right[-1], records)


def _arms_by_range(spec: ArmSpec, records: Records) -> list[str]:
    """One arm per clip range, of all arms that differ from `spec` only in the range; narrowest first."""
    by_range: dict[tuple[float, float], str] = {}
    for arm in sorted(records):
        config = _config(records, arm)
        low, high = config.get("algo.clip.low"), config.get("algo.clip.high")
        if _matches(config, spec) and isinstance(low, float) and isinstance(high, float):
            by_range.setdefault((low, high), arm)
    return [by_range[ends] for ends in sorted(by_range)]


def differences_from_paper(pair: Pair) -> list[str]:
    """How the runs differ from the paper's setting, as far as their configuration shows."""
    first = pair.records[0]
    config, path = first.facts.config_flat, first.facts.config_flat.get("model.path")
    notes = []
    if config.get("model.tiny.layers") and "Qwen3-30B-A3B" not in str(path):
        experts = f", top-{config['model.tiny.top_k']}" if is_moe(first) else ", no experts"
        notes.append(f"tiny model of {config['model.tiny.layers']} layers{experts} (paper: 48 layers, top-8)")
    elif "Qwen3-30B-A3B" not in str(path):
        notes.append(f"model {path} (paper: Qwen3-30B-A3B)")
    if (parts := config.get("algo.minibatches") or config.get("train.minibatches")) != 4:
        notes.append(f"{parts} mini-batches (paper: 4)")
    for arm, side in ((pair.baseline, pair.left), (pair.treatment, pair.right)):
        table = next(iter(side.values())).facts.config_flat
        name, clip = str(table.get("algo.name")), (table.get("algo.clip.low"), table.get("algo.clip.high"))
        paper = PAPER_CLIP_RANGES.get(name, clip)
        if clip != paper:
            notes.append(f"{arm}: clip range {clip[0]}/{clip[1]} (paper: {paper[0]}/{paper[1]})")
        if name == "grpo" and is_moe(first) and table.get("algo.replay", "none") == "none":
            notes.append(f"{arm}: no Routing Replay (the paper's baseline has it)")
    return list(dict.fromkeys(notes))


def clip_ratio(pair: Pair) -> tuple[Array, Array]:
    """log10 clip fractions of both arms, each [S]; their difference is the ratio's logarithm."""
    left, right = ([_log_clip(side[seed]) for seed in pair.seeds] for side in (pair.left, pair.right))
    return np.array(left), np.array(right)


def too_few_clipped(pair: Pair) -> bool:
    """Whether the baseline clipped too few tokens for a ratio to mean anything."""
    return sum(_clipped(pair.left[seed])[0] for seed in pair.seeds) < FEWEST_CLIPPED


def _log_clip(record: RunRecord) -> float:
    """log10 of the run's clip fraction; finite even without a single clipped token."""
    clipped, tokens = _clipped(record)
    return float(np.log10((clipped + 0.5) / (tokens + 1)))


def _clipped(record: RunRecord) -> tuple[float, float]:
    """(clipped tokens, all trained tokens) of a run, over its whole length."""
    assert record.curves is not None
    shares, counts = record.curves.values[CLIP], record.curves.counts[CLIP]
    return float((shares * counts).sum()), float(counts.sum())


def mean_churn(pair: Pair) -> Array:
    """Each run's mean expert churn of one update [S]; runs without an update are left out."""
    churn = [r.curves.values[CHURN] for s in pair.seeds if (r := pair.left[s]).curves]
    return np.array([values.mean() for values in churn if len(values)])


PLACE = "rollouts/batch-report/batch.json"
COMMAND = (
    "gspo report batch RUN/rollouts/step_000001.parquet --model START --against RUN/checkpoints/step-000001/model, for "
    "every run (START: `start_model` in its run.json)"
)
EXACT = 1e-12
"""Largest difference at which two float64 numbers count as the same."""


BatchReport = tuple[int, dict[str, Any]]
"""A run's seed, and the numbers measured on its stored batch."""


def batch_reports(study: Study) -> list[BatchReport]:
    """The reports of the study's runs that have one.

    Errors: GspoError (exit code STORAGE) for a report that does not belong to the batch beside it.
    """
    reports = []
    for run in study.runs:
        path = run.folder / PLACE
        if path.is_file():
            numbers = read_object(path)
            batch = path.parent.parent / Path(str(numbers.get("rollout"))).name
            if not batch.is_file() or sha256_of(batch) != numbers.get("rollout_sha256"):
                raise corrupt(str(path), f"it was not made from {batch.name} as that file is now")
            reports.append((run.seed, numbers))
    return reports


def noise_slopes(reports: list[BatchReport]) -> tuple[list[int], Scores, Scores] | str:
    """(seeds, GRPO's slope against GSPO's, GRPO's against REINFORCE's), runs of a seed averaged; or why there is none.

    A slope is b of gradient noise ~ length^b. All three of a batch come from the same responses at the same
    parameters, so they are perfectly paired.
    """
    by_seed: dict[int, list[dict[str, float]]] = defaultdict(list)
    for seed, numbers in reports:
        slopes = (numbers.get("length_noise") or {}).get("slopes") or {}
        if slopes and None not in slopes.values():
            by_seed[seed].append(slopes)
    if not by_seed:
        return "no run has a stored batch measured against a later policy"
    if len({numbers["rollout_sha256"] for _, numbers in reports}) < len(reports):
        return "one batch was measured for two runs"
    if len({numbers["model_sha256"] for _, numbers in reports}) > 1:
        return "the batches were sampled by different policies"
    seeds = sorted(by_seed)
    grpo_S, gspo_S, reinforce_S = (
        np.array([np.mean([slopes[name] for slopes in by_seed[seed]]) for seed in seeds])
        for name in ("grpo", "gspo", "reinforce")
    )
    return seeds, Scores(gspo_S, grpo_S), Scores(reinforce_S, grpo_S)


def token_form(reports: list[BatchReport]) -> dict[str, Any]:
    """The row of the exact claim, ready for JSON."""
    name, text, place, recipe = TOKEN_FORM
    head = {"id": name, "claim": text, "place": place, "metric": "token_form", "recipe": recipe, "primary": False}
    forms = [numbers["token_form"] for _, numbers in reports if "token_form" in numbers]
    if not forms:
        why = "exact, but no run of the study has a measured batch"
        return head | {"verdict": "not_tested", "why": why, "decide": COMMAND}
    loss, gradient = (max(form[key] for form in forms) for key in ("loss", "gradient"))
    equal = all(form["masks_equal"] for form in forms)
    holds = equal and max(loss, gradient) <= EXACT
    why = (
        f"exact, no statistics: on {len(forms)} stored batches the largest difference of the loss is {loss:.2g}, "
        f"of the gradient {gradient:.2g} of its largest entry; clip masks {'equal' if equal else 'differ'}"
    )
    largest = {"loss": loss, "gradient": gradient, "masks_equal": equal, "batches": len(forms)}
    return head | {"verdict": "supported" if holds else "contradicted", "why": why, "decide": "", "largest": largest}
