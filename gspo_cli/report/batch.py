"""`gspo report batch`: every algorithm on the rows of one stored rollout batch.

Importance ratios, clips, weights, gradients and their noise at the same parameters, so that differences are the
algorithms' own. It needs no study.
Not covered: Adam's scaling and gradient clipping, KL penalties and sampler corrections, expert replay; a second reading
of the noise by length on copies of the same responses cut to other lengths, which would keep difficulty apart from it.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gspo_cli.report.batch_data import read_batch
from gspo_cli.report.batch_figures import draw_all
from gspo_cli.report.batch_losses import kish, metrics, weight_quantiles
from gspo_cli.report.batch_measure import Measured, measure
from gspo_cli.report.batch_noise import noise
from gspo_cli.report.batch_notes import notes
from gspo_cli.report.batch_policy import load_later_policy, load_sampling_policy
from gspo_cli.report.paper import USUAL, Image
from gspo_cli.runlog.folder import make_writable
from gspo_cli.runlog.fs import write_text

FILE = "batch.json"
"""The numbers, in the folder of the figures; `gspo report claims` reads those of a study's runs."""


def report_batch(
    rollout: Path, model: str, against: str | None, out: Path | None, images: Collection[Image] = USUAL
) -> dict[str, Any]:
    """Measures a stored batch; numbers and figures go into `out` (default: `batch-report` beside the batch).

    Returns everything as one object that JSON can hold: numbers are finite, or None where they have no meaning.
    Errors: GspoError for a file that is no usable batch, and for a model that did not sample it.
    """
    batch = read_batch(rollout)
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


def summary(measured: Measured) -> dict[str, Any]:
    """The numbers."""
    batch, (limit, known) = measured.batch, measured.batch.max_length
    return {
        "rollout": str(batch.path),
        "rollout_sha256": batch.sha256,
        "model": measured.sampling.name,
        "model_sha256": measured.sampling.sha256,
        "against": measured.later.name if measured.later else None,
        "against_sha256": measured.later.sha256 if measured.later else None,
        "groups": batch.num_groups,
        "responses": len(batch.responses),
        "tokens": measured.spread.tokens,
        "temperature": batch.temperature,
        "max_length": {"tokens": limit, "known": known},
        "mismatch_token_rms": measured.mismatch,
        "ratios": {**asdict(measured.spread), "slope": measured.slope},
        "algorithms": {name: _algorithm(measured, name) for name in measured.losses},
        "cosine": _cosines(measured),
        "lengths": [asdict(part) for part in measured.buckets],
        "length_noise": measured.length_noise and asdict(measured.length_noise),
        "token_form": asdict(measured.token_form),
    }


def _algorithm(measured: Measured, name: str) -> dict[str, Any]:
    loss, mask_BT = measured.losses[name], measured.scores.mask_BT
    weight_BT, norm = loss.weight_BT, measured.norm(name)
    index = list(measured.losses).index(name)
    noisy = noise(measured.gradients.sketch_AGK[index], loss.shares_G, norm**2)
    return {
        "objective": loss.objective,
        "metrics": metrics(loss, mask_BT),
        "weight_abs_mean": float(weight_BT[mask_BT].abs().mean()),
        "weight_quantiles": weight_quantiles(loss, mask_BT, mask_BT),
        "effective_tokens": kish(weight_BT),
        "effective_responses": kish(weight_BT.sum(-1)),
        "gradient_norm": norm,
        "gradient_variance": noisy.variance,
        "noise_share": noisy.share,
        "noise_scale": noisy.scale,
    }


def _cosines(measured: Measured) -> dict[str, dict[str, float | None]]:
    """Between every two algorithms' gradients; None where one is 0."""
    products_AA = measured.gradients.products_AA
    length_A = products_AA.diagonal().sqrt()
    cosine_AA = (products_AA / (length_A[:, None] * length_A)).tolist()
    names = list(measured.losses)
    return {
        name: {other: cosine_AA[a][b] if length_A[a] > 0 and length_A[b] > 0 else None for b, other in enumerate(names)}
        for a, name in enumerate(names)
    }
