"""A page's command as it is run here: the same one, made small and quick.

A training or sampling command gets a tiny model, few rows and a batch or two; a range of seeds becomes its first two;
runs go one after the other, which saves a process each. Capital words that stand for something of the reader's are
replaced by what DOCS_STAND_INS (a JSON object) says. Everything else is passed on as it stands.
"""

import json
import os
import re

from gspo_cli import recipe

SMALL = (
    "model.threads=1", "model.tiny.hidden=16", "model.tiny.layers=1", "cold_start.steps=150", "cold_start.batch=32",
    "cold_start.lr=3e-2", "task.name=arithmetic", "rollout.prompts=4", "rollout.samples=64",
    "rollout.max_new_tokens=12", "train.lr=1e-3", "eval.every=0", "eval.limit=2", "eval.samples=1",
)  # fmt: skip


def planned(words: list[str]) -> int:
    """The rollout batches of the recipe that `gspo train` is given."""
    named = words[1] if len(words) > 1 and not words[1].startswith("-") else "quickstart"
    return recipe.load(named).train.steps


def shortened(words: list[str]) -> list[str]:
    """The command as it is run here."""
    stand_ins = json.loads(os.environ["DOCS_STAND_INS"])
    words = [stand_ins.get(word, word) for word in words]
    if words and words[0] in ("train", "rollout") and not {"--resume", "--dry-run"} & set(words):
        for index, word in enumerate(words):
            if word == "--seeds" and (span := re.fullmatch(r"(\d+)-\d+", words[index + 1])):
                words[index + 1] = f"{span[1]}-{int(span[1]) + 1}"
        if "--jobs" in words:
            del words[(at := words.index("--jobs")) : at + 2]
        asked = {words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--set"}
        if "--tuned" in words or any(word.startswith("algo.lr=") for word in words):
            asked.add("train.lr")  # every arm has a rate of its own
        whole_tables = {key for key in asked if "." not in key}
        keep = [s for s in SMALL if s.partition("=")[0] not in asked and s.partition(".")[0] not in whole_tables]
        words += [part for setting in keep for part in ("--set", setting)]
        if words[0] == "train":
            words += ["--steps", str(min(2, planned(words)))]
    if words[:2] == ["eval", "benchmarks"]:
        words += ["--limit", "2"]
    return words
