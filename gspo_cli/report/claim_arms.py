"""Which arms of a study a claim is about, and what about them differs from the paper's setting."""

from __future__ import annotations

from typing import Any

from gspo_cli.report.claim_list import Claim, Side
from gspo_cli.report.pairs import Member, Pair

Members = dict[str, dict[int, Member]]
PAPER = {"grpo": (0.2, 0.27), "gspo": (3e-4, 4e-4)}
"""Clip ranges of the paper's experiments (§5.1)."""


def is_moe(member: Member) -> bool:
    """Whether the run trained a mixture of experts, as far as its configuration tells."""
    config = member.facts.config_flat
    return config.get("model.tiny.kind") == "qwen3_moe" or "A3B" in str(config.get("model.path"))


def pair_of(claim: Claim, members: Members) -> Pair | None:
    """The two arms of a claim in a study; None if it lacks one."""
    sides = [find_arm(side, members) for side in (claim.baseline, claim.treatment)]
    if sides[0] is None or sides[1] is None:
        return None
    return Pair(sides[0], sides[1], members[sides[0]], members[sides[1]])


def find_arm(side: Side, members: Members) -> str | None:
    """The label of an arm: the plain one of its algorithm first, then the shortest."""
    if side.replay == "paper":
        moe = any(is_moe(m) for by_seed in members.values() for m in by_seed.values())
        replayed = find_arm(Side(side.algorithm, "r2", side.old_log_probs), members) if moe else None
        return replayed or find_arm(Side(side.algorithm, "none", side.old_log_probs), members)
    found = [arm for arm in members if _is(_config(members, arm), side)]
    return min(found, key=lambda arm: (arm != side.algorithm, len(arm), arm), default=None)


def arms_by_range(side: Side, members: Members) -> dict[tuple[float, float], str]:
    """Clip range -> arm, of all arms that differ from `side` in the range alone; narrowest first."""
    found: dict[tuple[float, float], str] = {}
    for arm in sorted(members):
        config = _config(members, arm)
        low, high = config.get("algo.clip.low"), config.get("algo.clip.high")
        if _is(config, side) and isinstance(low, float) and isinstance(high, float):
            found.setdefault((low, high), arm)
    return dict(sorted(found.items()))


def differs(pair: Pair) -> list[str]:
    """In what the runs differ from the paper's setting, as far as their configuration tells."""
    one = pair.members[0]
    config, path = one.facts.config_flat, one.facts.config_flat.get("model.path")
    notes = []
    if path and "Qwen3-30B-A3B" in str(path):
        pass
    elif config.get("model.tiny.layers"):
        experts = f", top-{config['model.tiny.top_k']}" if is_moe(one) else ", no experts"
        notes.append(f"tiny model of {config['model.tiny.layers']} layers{experts} (paper: 48 layers, top-8)")
    else:
        notes.append(f"model {path} (paper: Qwen3-30B-A3B)")
    if (parts := config.get("algo.minibatches") or config.get("train.minibatches")) != 4:
        notes.append(f"{parts} mini-batches (paper: 4)")
    for arm, side in ((pair.baseline, pair.left), (pair.treatment, pair.right)):
        table = next(iter(side.values())).facts.config_flat
        name, band = str(table.get("algo.name")), (table.get("algo.clip.low"), table.get("algo.clip.high"))
        if name in PAPER and band != PAPER[name]:
            notes.append(f"{arm}: clip range {band[0]}/{band[1]} (paper: {PAPER[name][0]}/{PAPER[name][1]})")
        if name == "grpo" and is_moe(one) and table.get("algo.replay", "none") == "none":
            notes.append(f"{arm}: no Routing Replay (the paper's baseline has it)")
    return list(dict.fromkeys(notes))


def _config(members: Members, arm: str) -> dict[str, Any]:
    return next(iter(members[arm].values())).facts.config_flat


def _is(config: dict[str, Any], side: Side) -> bool:
    return (
        config.get("algo.name") == side.algorithm
        and config.get("algo.replay", "none") == side.replay
        and config.get("algo.old_log_probs", "trainer") == side.old_log_probs
    )
