"""From findings to a verdict: the algorithm by its own definition, and whether the name says so. Pure functions."""

import re
from dataclasses import dataclass
from typing import Any

from gspo_cli.audit.findings import UNKNOWN, Findings, Settings, Value, derive, implied
from gspo_cli.audit.frameworks.framework import Framework

NAMES = {
    "dr_grpo": r"dr[._-]?grpo",
    "gspo": r"gspo([_-]?token)?",
    "dapo": "dapo",
    "cispo": "cispo",
    "sapo": "sapo",
    "gmpo": r"gmpo|geo_?mean",
    "luspo": "luspo",
    "rloo": "rloo",
    "reinforce_pp": r"reinforce[_-]?(pp|\+\+|plus[_-]?plus|baseline)([_-]?baseline)?|rf|prorl(v\d)?",
    "reinforce": "reinforce",
    "other:kl_cov": r"kl[_-]?cov",
    "other:clip_cov": r"clip[_-]?cov",
    "other:lite_ppo": r"lite[_-]?ppo",
    "other:topr": "topr",
    "other:max_rl": r"max[_-]?rl",
    "other:gpg": "gpg",
    "other:vespo": "vespo",
    "other:remax": "remax",
    "other:opo": "opo",
    "other:dppo": "dppo",
    "grpo": "grpo",
    "ppo": "ppo",
}
"""Algorithm -> how names spell it; longer spellings first."""
ALSO = {
    "reinforce_pp": {"reinforce"},
    "reinforce": {"reinforce_pp"},
    "other:dppo_tv": {"other:dppo"},
    "other:dppo_kl": {"other:dppo"},
}
"""Algorithm -> names that fit it, too."""
BY_ADVANTAGE = {name: name for name in ("rloo", "reinforce_pp", "reinforce")} | {"gae": "ppo", "lite": "other:lite_ppo"}
DATA = re.compile(r"dapo[-_]?math[-_]?(train[-_]?)?17k|[\w-]*sapo[\w-]*\.git")
SHOWN = {
    "gspo": "GSPO",
    "grpo": "GRPO",
    "dapo": "DAPO",
    "dr_grpo": "Dr. GRPO",
    "reinforce_pp": "REINFORCE++",
    "reinforce": "REINFORCE",
}
MEANS = {
    "token_mean": "one mean over all tokens",
    "per_response_mean": "a per-response mean",
    "constant": "a constant divisor",
    "response_sum": "a sum over each response",
    "prompt_mean": "a mean per prompt",
}
RATIOS = {"token": "ratios per token", "sequence": "one ratio per response", "none": "no ratio"}
BY_RATIO = ("gspo", "gmpo", "cispo", "sapo")
"""Algorithms that differ from GRPO by what they do to the ratio alone."""


@dataclass(frozen=True)
class Verdict:
    """What a configuration is."""

    sentence: str
    algorithm: Value
    named: tuple[tuple[str, str], ...]
    """(algorithm, where the name stands)."""
    name_matches: bool | None
    differs: bool
    """Whether the name and what is computed differ: by algorithm, or because its ratio is always 1."""
    ratio_is_one: bool | None
    changes: tuple[str, ...]


def show(name: str) -> str:
    """An algorithm's name in prose."""
    return SHOWN.get(name, name.removeprefix("other:").upper())


def judge(f: Findings, settings: Settings, framework: Framework) -> Verdict:
    """The verdict on a configuration."""
    algorithm = label(f)
    named = tuple((name, where) for where, text in settings.names for name in names_in(text))
    by_file = [name for name, where in named if where == "file name"]
    claimed = list(dict.fromkeys(by_file or [name for name, _ in named]))
    one = ratio_is_one(f)
    matches = None
    if claimed and algorithm.known:
        matches = bool({algorithm.value, *ALSO.get(algorithm.value, ())} & set(claimed))
    differs = matches is False or bool(one and algorithm.value in BY_RATIO and algorithm.value in claimed)
    target = claimed[0] if matches is False else algorithm.value if algorithm.known else None
    said, to_change = sentence(f, algorithm, claimed, one), tuple(changes(f, target, framework))
    return Verdict(said, algorithm, named, matches, differs, one, to_change)


def names_in(text: str) -> list[str]:
    """The algorithms that a name of a file or run names."""
    rest, found = DATA.sub(" ", text.lower()), []
    for name, pattern in NAMES.items():
        whole = re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])")
        if hit := whole.search(rest):
            found.append((hit.start(), name))
            rest = whole.sub(lambda match: " " * len(match[0]), rest)
    return [name for _, name in sorted(found)]


def label(f: Findings) -> Value:
    """The algorithm by its definition: a named loss first, then the advantage estimator, then ratio, mean and clip."""
    first = derive(_by_loss, f.loss, f.advantage)
    if not first.known or first.value:
        return first
    unit = derive(lambda u: {"sequence": "gspo", "token": ""}[u], f.unit)
    if not unit.known or unit.value:
        return unit
    std = derive(lambda on, a: bool(on) and a != "mean", f.std, f.advantage)
    if f.mean.value == "constant":
        return derive(lambda on, _: "grpo" if on else "dr_grpo", std, f.mean)
    if f.mean.value != "token_mean":
        return implied("grpo", f.mean)
    wider = derive(lambda low, high: high > low, f.clip_low, f.clip_high)
    if wider.value is not True:
        return implied("grpo", f.mean, wider)
    free = f.dynamic_sampling if f.dynamic_sampling.value is True else derive(lambda kl: kl == "none", f.kl)
    return derive(lambda ok, *_: "dapo" if ok else "grpo", free, f.mean, wider)


def _by_loss(loss: str, advantage: str) -> str:
    """The algorithm, if loss or advantage names one."""
    if advantage.startswith("other:"):
        return advantage
    if loss not in ("clip", "reinforce"):
        return loss
    return BY_ADVANTAGE.get(advantage, "reinforce" if loss == "reinforce" else "")


def ratio_is_one(f: Findings) -> bool | None:
    """Whether every ratio is 1: one update a batch, and old log-probabilities from the weights that it updates."""
    if f.updates.known and f.updates.value > 1:
        return False
    alike = derive(lambda n, old: n == 1 and old != "sampler", f.updates, f.old_log_probs)
    return alike.value if alike.known else None


def sentence(f: Findings, algorithm: Value, claimed: list[str], one: bool | None) -> str:
    """The verdict in one sentence."""
    start = f"named {' and '.join(map(show, claimed))}" if claimed else "names no algorithm"
    if not algorithm.known:
        return f"{start}; what it computes is unknown: {algorithm.source}"
    clip = "" if f.clip_low.value is None or not f.clip_low.known else f"{f.clip_low.value:g}"
    clip += f"/{f.clip_high.value:g}" if clip and f.clip_high.known and f.clip_high.value != f.clip_low.value else ""
    mean = MEANS.get(f.mean.value, "an unknown mean")
    std = "" if f.std.value is not False or algorithm.value in ("dr_grpo", "rloo") else ", without a standard deviation"
    if one and algorithm.value in (*BY_RATIO, "grpo", "dapo", "dr_grpo"):
        same = algorithm.value if algorithm.value not in (*BY_RATIO, "dapo") else "grpo"
        bound = f" and clip {clip}" if clip else ""
        never = ", where all ratios are 1 and no clip ever acts," if clip else ", where all ratios are 1,"
        return f"{start}; with 1 update a batch{bound}{never} it computes {show(same)} with {mean}{std}"
    updates = f.updates.value if f.updates.known else "an unknown number of"
    count = f"{updates} update{'' if updates == 1 else 's'} a batch"
    parts = filter(None, (RATIOS.get(f.unit.value), f"clip {clip}" if clip else "", mean + std, count))
    return f"{start}; it computes {show(algorithm.value)}: {', '.join(parts)}"


WANTED: dict[str, dict[str, Any]] = {
    "gspo": {"unit": "sequence", "mean": "per_response_mean", "advantage": "grpo"},
    "grpo": {"unit": "token", "mean": "per_response_mean", "advantage": "grpo", "std": True},
    "dapo": {"unit": "token", "mean": "token_mean", "advantage": "grpo", "kl": "none"},
    "dr_grpo": {"unit": "token", "mean": "constant", "std": False},
    "ppo": {"advantage": "gae"},
    "rloo": {"advantage": "rloo"},
    "cispo": {"loss": "cispo"},
    "sapo": {"loss": "sapo"},
}
RANGES = {"gspo": (3e-4, 4e-4), "grpo": (0.2, 0.2), "dapo": (0.2, 0.28), "dr_grpo": (0.2, 0.2)}


def changes(f: Findings, target: str | None, framework: Framework) -> list[str]:
    """The keys to change so that the configuration computes `target`, in the framework's own syntax."""
    wanted = WANTED.get(target or "", {})
    found = [
        (name, value) for name, value in wanted.items() if getattr(f, name).known and getattr(f, name).value != value
    ]
    bounds = RANGES.get(target or "")
    low, high = f.clip_low.value, f.clip_high.value
    if bounds and f.clip_low.known and f.clip_high.known:
        far = low is None or high is None or not 0.1 < low / bounds[0] < 10 or (target == "dapo" and not high > low)
        found += [("clip_low", bounds[0]), ("clip_high", bounds[1])] if far else []
    if target in (*BY_RATIO, "dapo") and f.updates.value == 1 and f.old_log_probs.value != "sampler":
        found.append(("updates", 4))
    lines, write = [], framework.table["write"]
    for name, value in found:
        no_key = f"({name} = {value}: {framework.name} has no key for it)"
        template = write.get(f"{name}:{value}") or write.get(name, no_key)
        lines.append(template.replace("{}", str(value)))
    return list(dict.fromkeys(lines))


def distribution(f: Findings) -> Value:
    """Whether the trainer scores the distribution that was sampled from: temperature and top-p."""
    if f.top_p.known and f.top_p.value not in (None, 1, 1.0):
        return derive(lambda p: f"no: sampled with top-p {p}, scored over all tokens", f.top_p)
    if f.trainer_temperature.known:
        return derive(
            lambda a, b: "yes" if a == b else f"no: sampled at {a}, scored at {b}", f.temperature, f.trainer_temperature
        )
    if f.temperature.known and f.temperature.value == 1:
        return implied("yes", f.temperature)
    return Value(UNKNOWN, f"{f.temperature.source}; the temperature at which the trainer scores is not known")
