"""The recipe of this tool that is equal to a configuration of another trainer."""

import json
import re

from gspo_cli.audit.findings import Findings, Settings, Value
from gspo_cli.audit.judge import Verdict, show
from gspo_cli.errors import GspoError

HERE = ("gspo", "grpo", "dapo", "dr_grpo", "cispo", "gmpo", "sapo", "luspo", "ppo", "reinforce", "rloo", "reinforce_pp")
ELSEWHERE = {
    "other:vespo": "vespo",
    "other:max_rl": "maxrl",
    "other:dppo_tv": "dppo_tv",
    "other:dppo_kl": "dppo_kl",
    "other:dppo": "dppo_tv",
    "other:ipo": "ipo",
}
"""Algorithms whose settings are not read, by their name here."""
PROMPTS = 32
"""The default of rollout.prompts."""
MEAN = {
    "gspo": "per_response_mean",
    "grpo": "per_response_mean",
    "dapo": "token_mean",
    "dr_grpo": "constant",
    "cispo": "token_mean",
    "sapo": "per_response_mean",
    "gmpo": "per_response_mean",
    "ppo": "token_mean",
} | dict.fromkeys(("rloo", "reinforce_pp", *ELSEWHERE.values()), "token_mean")


def recipe(f: Findings, verdict: Verdict, settings: Settings) -> str:
    """A recipe as TOML; what has no counterpart, or is unknown, stands in a comment. Errors: GspoError."""
    algorithm = verdict.algorithm.value
    if algorithm not in (*HERE, *ELSEWHERE):
        what = show(algorithm) if verdict.algorithm.known else f"unknown ({verdict.algorithm.source})"
        raise GspoError(
            f"no recipe for {settings.file}",
            f"its algorithm is {what}",
            f"recipes are written for {', '.join(dict.fromkeys((*HERE, *ELSEWHERE.values())))}",
        )
    name = "dapo" if algorithm == "grpo" and f.mean.value == "token_mean" else ELSEWHERE.get(algorithm, algorithm)
    comments = [f"From {settings.file}: {verdict.sentence}."]
    if algorithm in ELSEWHERE:
        comments.append(f"the settings of {name} are those of its paper: compare them with the file")
    if algorithm == "other:dppo":
        comments.append("DPPO bounds a total variation here; where it bounds the KL divergence, take dppo_kl")

    def line(key: str, value: Value) -> str:
        if not value.known:
            comments.append(f"{key} is unknown: {value.source}")
        number = value.value
        usable = isinstance(number, int | float) and not isinstance(number, bool) and number > 0
        return f"{key} = {json.dumps(number)}\n" if usable else ""

    algo = f'name = "{name}"\n'
    low, high, clips = f.clip_low.value, f.clip_high.value, f.clip_low.known and f.clip_high.known
    if name == "cispo" and f.clip_high.known and high is not None:
        algo += f"cap = {1 + high:g}\n"
    elif name == "gmpo" and clips:
        algo += f"log_clip_low = {low:g}\nlog_clip_high = {high:g}\n"
    elif algorithm not in ELSEWHERE and clips and low is not None and 0 < low < 1 and high:
        algo += f"clip = {{ low = {low:g}, high = {high:g} }}\n"
    if f.dual_clip.known and f.dual_clip.value and name not in ("cispo", "sapo", "gmpo", *ELSEWHERE.values()):
        algo += f"dual_clip = {float(f.dual_clip.value):g}\n"
    if f.kl.value == "loss" and f.kl_coef.known:
        algo += f'kl = {{ coef = {float(f.kl_coef.value):g}, estimator = "k3" }}\n'
    elif f.kl.value not in ("loss", "none"):
        comments.append(f"KL penalty: {f.kl.value}; there is none in the reward here")
    if f.old_log_probs.value == "sampler":
        algo += 'old_log_probs = "sampler"\n'
    if name == "dapo":
        algo += f"dynamic_sampling = {json.dumps(f.dynamic_sampling.value is True)}\n"
        algo += 'truncation = "keep"\n' if algorithm == "grpo" else ""
        comments.append("dapo here also lowers the reward of overlong responses (algo.overlong_cache_frac)")
    if str(f.replay.value).lower() in ("r2", "r3"):
        algo += f'replay = "{str(f.replay.value).lower()}"\n'
    if f.correction.value != "none":
        comments.append(f"correction: {f.correction.value}; set algo.correction")
    if f.mean.known and f.mean.value != MEAN.get(name, f.mean.value):
        comments.append(f"its mean ({f.mean.value}) has no counterpart for {name} here")
    if f.std.known and bool(f.std.value) is (name == "dr_grpo"):
        comments.append(f"standard deviation of the advantage: {f.std.value} there")
    updates, prompts = f.updates, f.prompts.value if isinstance(f.prompts.value, int) else PROMPTS
    if updates.known and updates.value > prompts:
        comments.append(f"{updates.value} updates would split groups: a mini-batch holds at least one of {prompts}")
        updates = Value(prompts, updates.source)
    model = f.model.value if f.model.known and re.fullmatch(r"[\w.-]+/[\w.-]+", str(f.model.value)) else None
    if model is None:
        comments.append("the model is not known: set model.path")
    rollout = line("prompts", f.prompts) + (line("samples", f.samples) if f.samples.value != 1 else "")
    rollout += line("temperature", f.temperature) + line("max_new_tokens", f.length)
    title = settings.names[0][1] if settings.names else "audited"
    name_ = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "audited"
    tables = (
        f'name = "{name_}"\n',
        f"[model]\npath = {json.dumps(model or 'MODEL')}\n",
        '[task]\nname = "math" # the problems and the reward are yours to set\n',
        f"[rollout]\n{rollout}",
        f"[train]\n{line('minibatches', updates)}{line('lr', f.lr)}",
        f"[algo]\n{algo}",
    )
    return "".join(f"# {text}\n" for text in "\n".join(comments).splitlines()) + "\n".join(tables)
