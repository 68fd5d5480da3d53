"""`gspo report batch`: every algorithm on the rows of one stored rollout batch."""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from gspo_cli import __version__
from gspo_cli.algorithms import ALGORITHMS
from gspo_cli.algorithms.contract import Summary
from gspo_cli.instruments.batch import length_figure, ratio_figure, weight_figure
from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.instruments.batch.gradients import DRAWS, MIN_GROUPS, SKETCH, noise
from gspo_cli.instruments.batch.lengths import tails
from gspo_cli.instruments.batch.losses import kish, weight_quantiles
from gspo_cli.instruments.batch.measure import BatchMeasurements, measure
from gspo_cli.instruments.batch.policy import load_later_policy, load_sampling_policy
from gspo_cli.report.figures.save import save
from gspo_cli.report.figures.style import USUAL, Image
from gspo_cli.runlog.folder import make_writable
from gspo_cli.runlog.fs import write_text

FAR = 0.05
"""Nats (root mean square over tokens) by which sampler and trainer may differ before it is said."""


def notes(measured: BatchMeasurements) -> list[str]:
    """One sentence or two each."""
    batch, lines = measured.batch, []
    if measured.later is None:
        lines.append(
            "On policy: without --against, l and o are of the same model, so every ratio is 1 and no clip can act."
        )
    if measured.mismatch > FAR:
        lines.append(
            f"The sampler's log-probabilities differ from the model's by {measured.mismatch:.3g} nat (root mean square "
            "over tokens): was it really this policy that sampled?"
        )
    limit, known = batch.max_length
    others = defaultdict(list)
    for name, algorithm in ALGORITHMS.items():
        if algorithm.token_advantages is None:
            others[algorithm.SUMMARY.advantage].append(name)
    del others[Summary().advantage]
    apart = "; ".join(f"{advantage}: {', '.join(names)}" for advantage, names in others.items())
    lines += [
        f"Published settings; the advantage is (r - mean) / std of the group, or {apart}.",
        "ppo has no critic here and takes the group advantage. dapo is its loss alone, without dynamic sampling and "
        "without the rules for overlong responses.",
        f"dr_grpo divides by the generation limit, {limit} tokens "
        + ("(known from responses that it ended)." if known else "(at least: the longest response; none was cut off)."),
        "The whole batch is one mini-batch.",
    ]
    scored = [r.reward for r in batch.responses if r.reward is not None]
    if len(scored) < len(batch.responses):
        lines.append(f"{len(batch.responses) - len(scored)} responses are unscored and left out of every mean.")
    advantages_B = measured.losses["reinforce"].advantages_B
    if flat := sum(not advantages_B[rows].any() for rows in batch.groups):
        lines.append(f"{flat} of {len(batch.groups)} groups have equal rewards: advantage 0, counted in means.")
    lines.append(
        "|w| = |dJ/dl| of tokens with an advantage over its mean; cv = its spread within a response; n_eff = "
        "(sum |w|)^2 / sum w^2; noise = variance of the gradient over its squared norm; noise scale = groups at which "
        "both are equal, n/a where the batch does not tell the gradient from noise."
    )
    lines.append(
        f"Gradient noise: {DRAWS} bootstrap draws of whole groups, gradients of groups as random sketches of {SKETCH} "
        "numbers; norms and cosines are exact."
        + (f" No noise scale below {MIN_GROUPS} groups." if len(batch.groups) < MIN_GROUPS else "")
    )
    return lines


FIGURES = {"batch-ratios": ratio_figure, "batch-weights": weight_figure, "batch-lengths": length_figure}
"""Name -> module with `title`, `table(measured)`, `draw(measured, table, notes)` and `notes(measured)`."""


def draw_all(
    measured: BatchMeasurements, remarks: list[str], folder: Path, images: Collection[Image] = USUAL
) -> dict[str, list[Path]]:
    """Draws every figure into a folder; `remarks` go into the side files. Returns each figure's files."""
    files = {}
    for name, module in FIGURES.items():
        table, lines = module.table(measured), [*module.notes(measured), about(measured)]
        side = _side_file(measured, name, [*lines, *remarks])
        draw = partial(module.draw, measured, table, lines)
        files[name] = save(folder, name, module.title, table, side, draw, images).paths
    return files


def about(measured: BatchMeasurements) -> str:
    """The batch and the policies in one sentence."""
    batch = measured.batch
    where = (
        "on policy (no --against): every ratio is 1"
        if measured.later is None
        else f"ratios of policy {measured.later.sha256[:12]}"
    )
    return (
        f"{len(batch.responses)} responses in {len(batch.groups)} groups, {measured.spread.tokens} tokens, sampled by "
        f"policy {batch.model_sha256[:12]}; {where}."
    )


def _side_file(measured: BatchMeasurements, name: str, lines: list[str]) -> dict[str, Any]:
    """What the figure was made of; no time and no path, so that the same inputs give the same bytes anywhere."""
    batch = measured.batch
    return {
        "figure": name,
        "gspo": __version__,
        "batch": {"file": batch.path.name, "sha256": batch.sha256, "groups": len(batch.groups)},
        "model_sha256": measured.sampling.sha256,
        "against_sha256": measured.later.sha256 if measured.later else None,
        "tokenizer_sha256": batch.tokenizer_sha256,
        "temperature": batch.temperature,
        "algorithms": list(ALGORITHMS),
        "notes": lines,
    }


def text_table(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Title, headings and rows, as wide as they are; the first column on the left, numbers on the right."""
    grid = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*grid, strict=True)]
    head, *body = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in grid
    ]
    return "\n".join([title, head, "-" * len(head), *body, ""])


def tables(found: dict[str, Any]) -> list[str]:
    """Algorithms, ratio spread by length, cosines; of what `report_batch` returns."""
    return [_algorithms(found), _lengths(found), _cosine_table(found)]


def _algorithms(found: dict[str, Any]) -> str:
    policy = f"against {found['against']}" if found["against"] else "on policy (no --against: l = o, every ratio is 1)"
    ratio = {name: number(value) for name, value in found["ratios"].items()}
    title = (
        f"{found['responses']} responses in {found['groups']} groups, {found['tokens']} tokens, {policy}\n"
        f"log w: sd {ratio['token_log_std']} nat, log s: sd {ratio['seq_log_std']} nat, "
        f"o - m: {number(found['mismatch_token_rms'])} nat (root mean square)\n"
        f"mean of (log w)^2: {ratio['token_log_square']} nat^2, Pareto k of w: {ratio['token_pareto_k']}, of s: "
        f"{ratio['seq_pareto_k']} (above 0.7 a mean of such ratios is not to be trusted)"
    )
    columns = (
        "algorithm", "J", "clip or gate", "|w| p5 p50 p95", "cv", "n_eff tok", "n_eff resp", "|grad|", "noise",
        "noise scale",
    )  # fmt: skip
    rows = [
        (
            name, number(a["objective"], sign=True), _gate(a["metrics"]), _quantiles(a["weight_quantiles"]),
            number(a["metrics"]["weight/within_seq_cv"]), _count(a["effective_tokens"]),
            _count(a["effective_responses"]), number(a["gradient_norm"]), share(a["noise_share"]),
            number(a["noise_scale"]),
        )
        for name, a in found["algorithms"].items()
    ]  # fmt: skip
    return text_table(title, columns, rows)


def _lengths(found: dict[str, Any]) -> str:
    slope = "n/a" if found["ratios"]["slope"] is None else f"{found['ratios']['slope']:.2f}"
    title = (
        "Ratio spread by response length (standard deviations in nats)\n"
        f"sd(log s) falls as length^b, b = {slope}; independent tokens: -0.50"
    )
    columns = ("length", "responses", "tokens", "log w", "log s", "log w/sqrt(L)", "grpo clip", "gspo clip")
    rows = []
    for part in found["lengths"]:
        spread, clips = part["spread"], part["algorithms"]
        rows.append(
            (
                f"{part['low']}-{part['high']}" if part["high"] > part["low"] else str(part["low"]),
                str(spread["responses"]), str(spread["tokens"]), number(spread["token_log_std"]),
                number(spread["seq_log_std"]), number(spread["independent_seq_log_std"]),
                share(clips["grpo"]["clip_token_frac"]), share(clips["gspo"]["clip_token_frac"]),
            )
        )  # fmt: skip
    return text_table(title, columns, rows)


def _cosine_table(found: dict[str, Any]) -> str:
    names = list(found["cosine"])
    rows = [
        (f"{index} {name}", *("n/a" if value is None else f"{value:.3f}" for value in row.values()))
        for index, (name, row) in enumerate(found["cosine"].items(), start=1)
    ]
    return text_table("Cosine between gradients", ("", *(str(i + 1) for i in range(len(names)))), rows)


def _gate(metrics: dict[str, float | None]) -> str:
    """The share of clipped tokens, a soft gate's mean, or the share of capped weights: whatever the algorithm has."""
    for name, prefix in (("clip/token_frac", ""), ("gate/mean", "gate "), ("weight/capped_frac", "cap ")):
        if name in metrics:
            return prefix + (number(metrics[name]) if name == "gate/mean" else share(metrics[name]))
    return "n/a"


def _quantiles(values: dict[str, float] | None) -> str:
    return "n/a" if values is None else " ".join(f"{values[q]:.2f}" for q in ("p05", "p50", "p95"))


def number(value: float | None, sign: bool = False) -> str:
    """Three digits; what is only rounding is 0."""
    return "n/a" if value is None else f"{value if abs(value) > 1e-12 else 0.0:{'+' if sign else ''}.3g}"


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0f}"


def share(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:.2f} %"


FILE = "batch.json"
"""The numbers, in the folder of the figures; `gspo report claims` reads those of a study's runs."""


def report_batch(
    batch: StoredBatch, model: str, against: str | None, out: Path | None, images: Collection[Image] = USUAL
) -> dict[str, Any]:
    """Measures a stored batch; numbers and figures go into `out` (default: `batch-report` beside the batch).

    Returns everything as one object that JSON can hold: numbers are finite, or None where they have no meaning.
    Errors: GspoError for a model that did not sample it.
    """
    sampling = load_sampling_policy(model, batch)
    later = None if against is None else load_later_policy(against, batch, sampling)
    folder = batch.path.parent / "batch-report" if out is None else out
    make_writable(folder)
    measured = measure(batch, sampling, later)
    remarks = notes(measured)
    files = draw_all(measured, remarks, folder, images)
    numbers = summary(measured) | {"notes": remarks}
    write_text(folder / FILE, json.dumps(numbers, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return numbers | {"figures": {name: [str(path) for path in paths] for name, paths in files.items()}}


def summary(measured: BatchMeasurements) -> dict[str, Any]:
    """The numbers."""
    batch, (limit, known) = measured.batch, measured.batch.max_length
    return {
        "rollout": str(batch.path),
        "rollout_sha256": batch.sha256,
        "model": measured.sampling.name,
        "model_sha256": measured.sampling.sha256,
        "against": measured.later.name if measured.later else None,
        "against_sha256": measured.later.sha256 if measured.later else None,
        "groups": len(batch.groups),
        "responses": len(batch.responses),
        "tokens": measured.spread.tokens,
        "temperature": batch.temperature,
        "max_length": {"tokens": limit, "known": known},
        "mismatch_token_rms": measured.mismatch,
        "ratios": {**asdict(measured.spread), "slope": measured.slope, **tails(measured.scores)},
        "algorithms": {name: _algorithm(measured, name) for name in measured.losses},
        "cosine": _cosines(measured),
        "lengths": [asdict(part) for part in measured.buckets],
        "length_noise": measured.length_noise and asdict(measured.length_noise),
        "token_form": asdict(measured.token_form),
    }


def _algorithm(measured: BatchMeasurements, name: str) -> dict[str, Any]:
    loss, mask_BT = measured.losses[name], measured.scores.mask_BT
    weight_BT, norm = loss.weight_BT, measured.norm(name)
    noisy = noise(measured.gradients.sketch_AGK[list(measured.losses).index(name)], loss.shares_G, norm**2)
    effective = "weight/effective_frac"
    return {
        "objective": loss.objective,
        "metrics": {metric: value for metric, value in loss.metrics.items() if metric != effective},
        "weight_abs_mean": float(weight_BT[mask_BT].abs().mean()),
        "weight_quantiles": weight_quantiles(loss, mask_BT, mask_BT),
        "effective_frac": loss.metrics[effective],
        "effective_tokens": kish(weight_BT),
        "effective_responses": kish(weight_BT.sum(-1)),
        "gradient_norm": norm,
        "gradient_variance": noisy.variance,
        "noise_share": noisy.share,
        "noise_scale": noisy.scale,
    }


def _cosines(measured: BatchMeasurements) -> dict[str, dict[str, float | None]]:
    """Between every two algorithms' gradients; None where one is 0."""
    products_AA = measured.gradients.products_AA
    length_A = products_AA.diagonal().sqrt()
    cosine_AA = (products_AA / (length_A[:, None] * length_A)).tolist()
    names = list(measured.losses)
    return {
        name: {other: cosine_AA[a][b] if length_A[a] > 0 and length_A[b] > 0 else None for b, other in enumerate(names)}
        for a, name in enumerate(names)
    }
