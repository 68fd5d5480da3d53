"""One benchmark with one model: draw what is missing, grade, summarise."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gspo_cli.evals.answers import Answer, Key
from gspo_cli.evals.benchmark import Benchmark, Grade, GraderChoice, ProblemSet
from gspo_cli.evals.generate import generate, portions
from gspo_cli.evals.grading import Grading
from gspo_cli.evals.identity import generation_identity
from gspo_cli.evals.settings import Overrides, Settings, fit_context, settle
from gspo_cli.evals.store import Mode, Store, open_store
from gspo_cli.evals.subject import Subject
from gspo_cli.evals.summary import score, summarise
from gspo_cli.ranks import ALONE, Ranks, in_turn
from gspo_cli.rollout.collect import encode
from gspo_cli.types import Prompt

THINK = "<think>"
Progress = Callable[[int, int, int], None]
"""Called with answers there are, answers wanted, and tokens drawn since the last call."""


@dataclass(frozen=True)
class Plan:
    """A benchmark made ready for a model."""

    benchmark: Benchmark
    problems: ProblemSet
    prompts: dict[str, Prompt]
    settings: Settings
    subject: Subject
    portions: list[list[Key]]
    grading: GraderChoice

    @property
    def opening(self) -> str:
        """`<think>` where the chat template opens the thinking part itself; the grader must see it open."""
        last = next(reversed(self.prompts.values()))
        return THINK if str(self.subject.tokenizer.decode(list(last.token_ids))).rstrip().endswith(THINK) else ""

    @property
    def identity(self) -> dict[str, Any]:
        """See `generation_identity`."""
        return generation_identity(self.benchmark, self.problems, self.subject, self.settings, len(self.portions))

    def in_order(self, answers: list[Answer], grades: list[Grade]) -> tuple[list[Answer], list[Grade]]:
        """The answers of all portions in the order of the problems, each with its grade."""
        place = {problem_id: i for i, problem_id in enumerate(self.prompts)}
        pairs = sorted(zip(answers, grades, strict=True), key=lambda pair: (place[pair[0].problem_id], pair[0].sample))
        return [answer for answer, _ in pairs], [grade for _, grade in pairs]


def make_plan(
    benchmark: Benchmark, problems: ProblemSet, subject: Subject, given: Overrides, seed: int, grading: GraderChoice
) -> Plan:
    """Settles what will be sampled; nothing is written or sampled yet.

    Errors: GspoError for settings that make no sense, or prompts that leave no room for a response.
    """
    settings = settle(benchmark, given, seed)
    problems = problems.limited(settings.limit)
    prompts = {p.id: encode(subject.tokenizer, p) for p in problems.problems}
    settings = fit_context(settings, given, list(prompts.values()), subject.context)
    cut = portions(prompts, settings.samples, settings.sampling.max_new_tokens, subject.engine.info.name)
    return Plan(benchmark, problems, prompts, settings, subject, cut, grading)


def evaluate(plan: Plan, folder: Path, mode: Mode, progress: Progress, warn: Callable[[str], None]) -> dict[str, Any]:
    """The summary of one evaluation, with its answers stored in `folder`; a finished one there is used again.

    Errors: GspoError for a folder in use or with other settings, and when the engine fails.
    """
    with open_store(folder, plan.identity, plan.portions, mode, warn) as store:
        grader = plan.benchmark.grader(plan.problems, plan.grading)
        if store.finished and same_grader(store.summary()["grader"], grader.about):
            grader.close()
            warn(f"{folder} is finished and has these settings: its answers and figures are used again")
            return store.summary()
        store.event("start", mode=mode, stored=len(store.parts), portions=len(plan.portions))
        started = time.monotonic()
        with Grading(grader, plan.problems, plan.opening) as grading:
            tokens = fill(plan, store, grading, progress)
            generated = time.monotonic() - started
            drawn = [answer for index in range(len(plan.portions)) for answer in store.parts[index]]
            answers, grades = plan.in_order(drawn, grading.result())
            about = grader.about
        summary = summarise(plan.benchmark, plan.problems, plan.settings, plan.subject, about, answers, grades)
        times = {
            "generate_s": round(generated, 3),
            "total_s": round(time.monotonic() - started, 3),
            "new_tokens": tokens,
        }
        summary["times"] = times
        store.finish(answers, grades, summary)
        return summary


def fill(plan: Plan, store: Store, grading: Grading, progress: Progress) -> int:
    """Draws and stores the portions that are missing, and submits all of them for grading; the tokens drawn."""
    for index, answers in sorted(store.parts.items()):
        grading.submit(index, answers)
    missing = [index for index in range(len(store.portions)) if index not in store.parts]
    total, tokens = sum(map(len, store.portions)), 0
    progress(sum(map(len, store.parts.values())), total, 0)
    wanted = (store.portions[index] for index in missing)
    drawn = generate(plan.subject, plan.benchmark.name, plan.prompts, plan.settings, wanted)
    for index, answers in zip(missing, drawn, strict=True):
        store.add(index, answers)
        grading.submit(index, answers)
        new = sum(a.n_tokens or 0 for a in answers)
        tokens += new
        progress(sum(map(len, store.parts.values())), total, new)
    return tokens


def measure(plan: Plan, ranks: Ranks = ALONE) -> dict[str, Any]:
    """The figures of `score` without storing anything: evaluation during training. Each answer is graded by one of the
    ranks, all of which must call it."""
    answers: list[Answer] = []
    with Grading(plan.benchmark.grader(plan.problems, plan.grading), plan.problems, plan.opening) as grading:
        for index, drawn in enumerate(
            generate(plan.subject, plan.benchmark.name, plan.prompts, plan.settings, plan.portions)
        ):
            grading.submit(index, [a for i, a in enumerate(drawn, len(answers)) if i % ranks.size == ranks.rank])
            answers += drawn
        # told here: what ranks say to each other must be said by one thread
        given = ranks.everywhere(lambda: [asdict(grade) for grade in grading.result()])
    return score(answers, [Grade(**table) for table in in_turn(given)])


def same_grader(stored: dict[str, Any], current: dict[str, Any]) -> bool:
    """Whether stored grades are those that this grader would give."""
    return (stored.get("name"), stored.get("version")) == (current.get("name"), current.get("version"))
