"""`gspo report batch --precision`: how far each precision alone moves the log-probabilities of a stored batch, and how
far the engine's are from each.

B = responses, T = token positions, N = response tokens, C = tokens of a chunk, H = hidden width, V = vocabulary,
L = MoE layers, R = tokens fed, K = experts per token
"""

import json
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gspo_cli.algorithms.gspo import Params as GspoParams
from gspo_cli.errors import GspoError
from gspo_cli.instruments.batch.data import StoredBatch
from gspo_cli.instruments.batch.lengths import spread
from gspo_cli.instruments.batch.losses import TokenScores
from gspo_cli.instruments.batch.policy import (
    Policy,
    as_rows,
    chunks,
    load_sampling_policy,
    padded,
    response_mask,
    sampler_log_probs,
)
from gspo_cli.instruments.batch.report import number, share, text_table
from gspo_cli.models.precision import compute_in, computing
from gspo_cli.models.trunk import head_logits, head_of, last_hidden, trunk_of
from gspo_cli.moe.hooks import tapped
from gspo_cli.moe.routers import Routing, find_routing, gating_of
from gspo_cli.moe.volatility import slot_churn
from gspo_cli.runlog.folder import make_writable
from gspo_cli.runlog.fs import write_text

EXACT = "float32"
PRECISIONS = {
    EXACT: (torch.float32, False, False),
    "bfloat16": (torch.bfloat16, False, False),
    "bfloat16, float32 head": (torch.bfloat16, True, False),
    "bfloat16, float32's experts": (torch.bfloat16, False, True),
    "float16": (torch.float16, False, False),
    "float16, float32 head": (torch.float16, True, False),
    "float16, float32's experts": (torch.float16, False, True),
}
"""Type of the passes; whether the head is float32; whether float32's choice of experts is replayed (mixtures only)."""
TOKEN_CLIP = 0.2
HEAD_TOKENS = 1024  # of one pass of the head
EXPLAINED = 2
"""An engine this many times as far from float32 as a precision alone may have another order of sums in the same one."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One precision's passes over the batch."""

    log_probs_BT: Tensor
    best_N: Tensor
    """The most probable token in each response token's place."""
    routes: list[Tensor]
    """The routers' own choices [L, R, K] of each pass; nothing for a dense model."""
    predicts: list[Tensor]
    """Which of the tokens fed predict a response token."""


@torch.no_grad()
def scored(policy: Policy, batch: StoredBatch, routing: Routing | None, replayed: list[Tensor] | None) -> Scored:
    """The model's passes in the precision that it is set to, with the experts of `replayed` if given."""
    log_probs, best, routes, predicts = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    for rows in (rows for group in batch.groups for rows in chunks(batch, group)):
        ids_BT, mask_BT = padded(policy.model, batch, rows)
        predicts.append(mask_BT.roll(-1, 1).flatten())  # a prompt begins each row
        with computing(policy.model), tapped(routing) as tap:
            record = tap.replaying(replayed[len(routes)]) if tap and replayed else nullcontext()
            with record:
                hidden_NH = last_hidden(trunk_of(policy.model), ids_BT, None)[predicts[-1]]
            routes += [tap.natural_LRK] if tap else []
            for hidden_CH, target_C in zip(
                hidden_NH.split(HEAD_TOKENS), ids_BT[mask_BT].split(HEAD_TOKENS), strict=True
            ):
                scores_CV = (head_logits(policy.model, hidden_CH).float() / batch.temperature).log_softmax(-1)
                log_probs.append(scores_CV.gather(-1, target_C[:, None])[:, 0].cpu().double())
                best.append(scores_CV.argmax(-1).cpu())
    return Scored(as_rows(batch, torch.cat(log_probs)), torch.cat(best), routes, predicts)


def against(scores: TokenScores) -> dict[str, float | None]:
    """Spread of l - o over tokens and of its mean over responses, its largest size, and what clips cut of it."""
    found, log_w_N = spread(scores, torch.ones(len(scores.mask_BT), dtype=torch.bool)), scores.log_w_BT[scores.mask_BT]
    w_N, s_B, clip = log_w_N.exp(), scores.log_s_B.exp(), GspoParams().clip
    return {
        "token_std": found.token_log_std,
        "response_std": found.seq_log_std,
        "token_max": float(log_w_N.abs().max()),
        "token_outside_frac": float(((w_N < 1 - TOKEN_CLIP) | (w_N > 1 + TOKEN_CLIP)).double().mean()),
        "response_outside_frac": float(((s_B < 1 - clip.low) | (s_B > 1 + clip.high)).double().mean()),
    }


def measure_precisions(policy: Policy, batch: StoredBatch) -> dict[str, dict[str, Any]]:
    """By precision: `float32` (its log-probabilities against float32's), `engine` (the engine's recorded ones against
    its), the share of tokens whose most probable token changes and of expert slots that change; or `impossible`, why
    it cannot be measured: this device does not compute so, or the model overflows."""
    model, routing, mask_BT = policy.model, find_routing(policy.model), response_mask(batch)
    if routing is not None:
        with suppress(GspoError):  # else the choice of experts can be read, not replayed
            routing = replace(routing, rule=gating_of(routing.gates))
    engine_BT, found, exact = sampler_log_probs(batch), dict[str, dict[str, Any]](), None
    for name, (dtype, float32_head, replays) in PRECISIONS.items():
        if replays and (routing is None or routing.rule is None):
            continue
        compute_in(model, dtype, head_of(model) if float32_head else ())
        try:
            now = scored(policy, batch, routing, exact.routes if exact and replays else None)
        except RuntimeError as error:
            if exact is None:  # without it there is nothing to compare with
                raise
            found[name] = {"impossible": f"torch says {str(error).splitlines()[0]}"}
            continue
        if not bool(now.log_probs_BT.isfinite().all()):
            found[name] = {
                "impossible": "log-probabilities are not finite; an activation may exceed the largest number"
            }
            continue
        exact = exact or now
        found[name] = {
            "float32": against(TokenScores(now.log_probs_BT, exact.log_probs_BT, engine_BT, mask_BT)),
            "engine": against(TokenScores(engine_BT, now.log_probs_BT, engine_BT, mask_BT)),
            "best_changed_frac": float((now.best_N != exact.best_N).double().mean()),
        }
        if routing is not None:
            before, after = (
                torch.cat([r[:, p] for r, p in zip(x.routes, x.predicts, strict=True)], 1) for x in (exact, now)
            )
            churn = slot_churn(before, after).total()
            found[name]["slots_changed_frac"] = float(churn.numerator / churn.denominator)
    return found


def verdict(found: dict[str, dict[str, Any]]) -> str:
    """Whether a precision alone makes as much as lies between engine and trainer."""
    made = {name: row for name, row in found.items() if "float32" in row}
    engine = {name: row["engine"]["token_std"] for name, row in made.items()}
    nearest = min(engine, key=lambda name: engine[name])
    widest = max(made, key=lambda name: made[name]["float32"]["token_std"])
    alone = made[widest]["float32"]["token_std"]
    said = (
        f"The engine's log-probabilities have a sigma of {engine[EXACT]:.2g} nat per token against float32, and are "
        f"nearest to {nearest} ({engine[nearest]:.2g})."
    )
    if nearest == EXACT and engine[EXACT] <= alone:
        return f"{said} That is rounding in float32; {widest} alone makes {alone:.2g}."
    if engine[EXACT] <= EXPLAINED * alone:
        return f"{said} Precision can explain that: {widest} alone makes {alone:.2g}."
    return (
        f"{said} That is {engine[EXACT] / alone:.2g} times what {widest} alone makes ({alone:.2g}): something else "
        "differs, such as weights, temperature or code."
    )


def report_precision(batch: StoredBatch, model: str, out: Path | None) -> dict[str, Any]:
    """Measures, and writes `precision.json` into `out` (default: `batch-report` beside the batch).

    Errors: GspoError for a model that did not sample the batch.
    """
    policy = load_sampling_policy(model, batch)
    folder = batch.path.parent / "batch-report" if out is None else out
    make_writable(folder)
    found = measure_precisions(policy, batch)
    numbers = {
        "rollout": str(batch.path), "rollout_sha256": batch.sha256, "model": policy.name, "model_sha256": policy.sha256,
        "responses": len(batch.responses), "tokens": int(response_mask(batch).sum()),
        "temperature": batch.temperature, "device": str(policy.model.device), "torch": torch.__version__,
        "precisions": found, "verdict": verdict(found),
    }  # fmt: skip
    write_text(folder / "precision.json", json.dumps(numbers, indent=1, allow_nan=False) + "\n")
    return numbers


def precision_table(numbers: dict[str, Any]) -> str:
    """The same for readers in two tables of at most 80 columns, without the verdict."""
    mixture = any("slots_changed_frac" in row for row in numbers["precisions"].values())
    ratios, choices, missing = list[tuple[str, ...]](), list[tuple[str, ...]](), list[str]()
    for name, row in numbers["precisions"].items():
        if "impossible" in row:
            missing.append(f"{name}: not measured on {numbers['device']}: {row['impossible']}\n")
            continue
        moved, engine = row["float32"], row["engine"]
        ratios.append((
            name, number(moved["token_std"]), number(moved["response_std"]), number(moved["token_max"]),
            share(moved["token_outside_frac"]), share(moved["response_outside_frac"]),
        ))  # fmt: skip
        slots = (share(row["slots_changed_frac"]),) if mixture else ()
        choices.append(
            (name, number(engine["token_std"]), number(engine["response_std"]), share(row["best_changed_frac"]), *slots)
        )
    clip = GspoParams().clip
    title = (
        f"{numbers['responses']} responses, {numbers['tokens']} tokens; each precision against float32\n"
        "token, response: sigma (standard deviation, nat) of the log-ratio, and of its\n"
        f"mean over a response; tokens out: ratios beyond {1 - TOKEN_CLIP:g} to {1 + TOKEN_CLIP:g}; responses\n"
        f"out: beyond GSPO's 1 - {clip.low:g} to 1 + {clip.high:g}"
    )
    columns = ("precision", "token", "response", "largest", "tokens out", "resp. out")
    engine_title = (
        "engine: sigma of its recorded log-probabilities against these; argmax: tokens\n"
        "whose most probable token is not float32's" + ("; experts: slots likewise" if mixture else "")
    )
    engine_columns = ("precision", "engine token", "engine response", "argmax", *(("experts",) if mixture else ()))
    found = [text_table(title, columns, ratios), text_table(engine_title, engine_columns, choices)]
    return "\n".join(found) + "".join(missing)
