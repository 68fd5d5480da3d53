"""One benchmark with one model: sample the missing answers, grade them meanwhile, summarise."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gspo_cli.distributed import Ranks, interleave
from gspo_cli.errors import ExitCode, GspoError
from gspo_cli.evals.benchmark import VERDICTS, Benchmark, Grade, Grader, GraderChoice, ProblemSet, sha256
from gspo_cli.evals.settings import Overrides, Settings, Subject, first_difference, fit_context, resolve_settings
from gspo_cli.evals.store import Answer, Mode, Store, open_store
from gspo_cli.evals.summary import data_facts, score, summarise
from gspo_cli.rollout.engine import SampleKey, generate_checked
from gspo_cli.rollout.prompts import cut_at_stop, decode, encode, opened_thinking
from gspo_cli.seeds import derive_seed
from gspo_cli.types import Problem, Prompt, Response

PORTION = 256
"""Most answers in one engine call and one part file: what a kill can cost."""
PORTION_TOKENS = 2**16
"""Most tokens, padding included, in a call to the built-in engine, about a minute's work; vLLM needs many answers at a
time."""
DECISIVE = ("name", "version", "math_verify", "python", "numpy", "headline")
"""What a grader's verdicts depend on, of what it says about itself."""
Progress = Callable[[int, int, int], None]
"""Called with answers stored, answers wanted, and tokens drawn since the last call."""


@dataclass(frozen=True)
class EvalPlan:
    """A benchmark made ready for a model."""

    benchmark: Benchmark
    problems: ProblemSet
    prompts: dict[str, Prompt]
    settings: Settings
    subject: Subject
    portions: list[list[SampleKey]]
    grader_choice: GraderChoice

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the answers' tokens, as plain JSON values."""
        problems = self.problems.problems
        identity = {
            "benchmark": self.benchmark.name,
            "problems": {
                "n": len(problems),
                "ids_sha256": self.problems.ids_sha256,
                "prompts_sha256": sha256(json.dumps([[p.id, p.prompt] for p in problems])),
            },
            "prompt_template": self.benchmark.template,
            "samples": self.settings.samples,
            "sampling": asdict(self.settings.sampling),
            "seed": self.settings.seed,
            "portions": len(self.portions),
        }
        written = {"system", "chat", "chat_template_kwargs"}
        prompting = self.subject.prompting.model_dump(exclude_defaults=True, include=written)
        identity |= {"prompting": prompting} if prompting else {}
        plain: dict[str, Any] = json.loads(json.dumps(identity | self.subject.identity))
        return plain


def make_plan(
    benchmark: Benchmark,
    problems: ProblemSet,
    subject: Subject,
    overrides: Overrides,
    seed: int,
    grader_choice: GraderChoice,
) -> EvalPlan:
    """Decide what to sample; nothing is written or sampled yet.

    Errors: GspoError for invalid settings, or prompts that leave no room for a response.
    """
    settings = resolve_settings(benchmark, overrides, seed)
    problems = replace(problems, problems=problems.problems[: settings.limit])
    prompting = benchmark.recipe.task if benchmark.recipe else subject.prompting
    prompts = {p.id: encode(subject.tokenizer, p, prompting) for p in problems.problems}
    settings = fit_context(settings, overrides, list(prompts.values()), subject.context)
    keys = portions(prompts, settings.samples, settings.sampling.max_new_tokens, subject.engine.info.name)
    return EvalPlan(benchmark, problems, prompts, settings, subject, keys, grader_choice)


def portions(prompts: dict[str, Prompt], samples: int, max_new_tokens: int, engine: str) -> list[list[SampleKey]]:
    """All keys, the samples of a problem together, cut into portions.

    The built-in engine pads prompts to the longest of a call, so it gets prompts of similar length together. The cut is
    the same in every attempt: after a resume not even the last digit of a log-probability differs.
    """
    limit = PORTION_TOKENS
    if engine.startswith("vllm"):
        limit = sys.maxsize
    else:
        prompts = dict(sorted(prompts.items(), key=lambda item: len(item[1].token_ids)))
    result: list[list[SampleKey]] = [[]]
    for problem, prompt in prompts.items():
        size = max(1, min(PORTION, limit // (len(prompt.token_ids) + max_new_tokens)))
        for sample in range(samples):
            if len(result[-1]) >= size:
                result.append([])
            result[-1].append((problem, sample))
    return result


def evaluate(
    plan: EvalPlan, folder: Path, mode: Mode, progress: Progress, warn: Callable[[str], None]
) -> dict[str, Any]:
    """The summary of one evaluation, with its answers stored in `folder`. A finished evaluation there is reused.

    Errors: GspoError for a folder in use or with other settings, and when the engine fails.
    """
    with open_store(folder, plan.identity, plan.portions, mode, warn) as store:
        grader = plan.benchmark.grader(plan.problems, plan.grader_choice)
        if store.finished:
            stored, keys = store.summary(), [key for key in DECISIVE if key in grader.about]
            wanted = {
                "data": json.loads(json.dumps(data_facts(plan.problems, plan.settings))),
                "grader": {key: grader.about[key] for key in keys},
            }
            graded_by = {"data": stored["data"], "grader": {key: stored["grader"].get(key) for key in keys}}
            difference = first_difference(graded_by, wanted)
            if difference is None:
                grader.close()
                warn(f"{folder} is finished and has these settings: its answers and figures are used again")
                return stored
            warn(f"the answers in {folder} are graded again ({difference})")
        store.event("start", mode=mode, stored=len(store.parts), portions=len(plan.portions))
        started = time.monotonic()
        with closing(GradingQueue(grader, plan.problems)) as grading:
            new_tokens = _draw_missing(plan, store, grading, progress)
            generated = time.monotonic() - started
            drawn = [answer for index in range(len(plan.portions)) for answer in store.parts[index]]
            place = {problem_id: i for i, problem_id in enumerate(plan.prompts)}
            graded = zip(drawn, grading.result(), strict=True)
            pairs = sorted(graded, key=lambda pair: (place[pair[0].problem_id], pair[0].sample))
            answers, grades, about = [a for a, _ in pairs], [g for _, g in pairs], grader.about
        summary = summarise(plan.benchmark, plan.problems, plan.settings, plan.subject, about, answers, grades)
        summary["times"] = {
            "generate_s": round(generated, 3),
            "total_s": round(time.monotonic() - started, 3),
            "new_tokens": new_tokens,
        }
        store.finish(answers, grades, summary)
        return summary


def _draw_missing(plan: EvalPlan, store: Store, grading: GradingQueue, progress: Progress) -> int:
    """Draw and store the missing portions and submit all portions for grading; the number of tokens drawn."""
    for index, answers in sorted(store.parts.items()):
        grading.submit(index, answers)
    missing = [index for index in range(len(store.portions)) if index not in store.parts]
    total, tokens = sum(map(len, store.portions)), 0
    progress(sum(map(len, store.parts.values())), total, 0)
    drawn = generate(plan, (store.portions[index] for index in missing))
    for index, answers in zip(missing, drawn, strict=True):
        store.add(index, answers)
        grading.submit(index, answers)
        new = sum(a.n_tokens or 0 for a in answers)
        tokens += new
        progress(sum(map(len, store.parts.values())), total, new)
    return tokens


def measure(plan: EvalPlan, ranks: Ranks, progress: Progress) -> dict[str, Any]:
    """The figures of `score` without storing anything, for evaluation during training.

    All ranks must call it; each answer is graded by one of them.
    """
    answers: list[Answer] = []
    total = sum(map(len, plan.portions))
    progress(0, total, 0)
    grader = plan.benchmark.grader(plan.problems, plan.grader_choice)
    with closing(GradingQueue(grader, plan.problems)) as grading:
        for index, drawn in enumerate(generate(plan, plan.portions)):
            grading.submit(index, [a for i, a in enumerate(drawn, len(answers)) if i % ranks.size == ranks.rank])
            answers += drawn
            progress(len(answers), total, sum(a.n_tokens or 0 for a in drawn))
        # gathered on this thread: only one thread may talk to the other ranks
        grades = ranks.all_gather(lambda: [asdict(grade) for grade in grading.result()])
    return score(answers, [Grade(**values) for values in interleave(grades)])


def generate(plan: EvalPlan, portions: Iterable[list[SampleKey]]) -> Iterator[list[Answer]]:
    """The answers of each portion, in the order of its keys.

    Errors: GspoError (exit code 5) when the engine fails, or drew with another seed than it was given.
    """
    engine, settings = plan.subject.engine, plan.settings
    stops = plan.benchmark.recipe.rollout.stop if plan.benchmark.recipe else ()
    for keys in portions:
        seeds = {key: derive_seed(settings.seed, f"eval-{plan.benchmark.name}", 0, *key) for key in keys}
        batch = [plan.prompts[problem_id] for problem_id in dict.fromkeys(problem_id for problem_id, _ in keys)]
        drawn = generate_checked(engine, batch, settings.sampling, seeds, engine.weight_version)
        answers = []
        for key in keys:
            sample = drawn[key]
            if sample.seed != seeds[key]:
                raise GspoError(
                    f"the engine drew sample {key[1]} of {key[0]!r} with another seed",
                    f"{sample.seed} instead of {seeds[key]}: the answers could not be repeated",
                    "report this",
                    ExitCode.ENGINE,
                )
            if stops:
                sample = cut_at_stop(plan.subject.tokenizer, sample, stops, len(plan.prompts[key[0]].token_ids))
            answers.append(
                Answer(
                    problem_id=key[0], sample=key[1], seed=sample.seed,
                    prompt_sha256=sha256(json.dumps(plan.prompts[key[0]].token_ids)),
                    text=decode(plan.subject.tokenizer, sample), text_repaired=False,
                    n_tokens=len(sample.token_ids), finish_reason=sample.finish,
                    response_prefix=opened_thinking(plan.subject.tokenizer, plan.prompts[key[0]]),
                )
            )  # fmt: skip
        yield answers


class GradingQueue:
    """Grades portions one after the other while the next ones are drawn."""

    def __init__(self, grader: Grader, problems: ProblemSet) -> None:
        self.grader = grader
        self.problems = {p.id: p for p in problems.problems}
        self.pool = ThreadPoolExecutor(1, "grading")
        self.pending: dict[int, Future[list[Grade]]] = {}

    def close(self) -> None:
        """Wait for what is being graded, and close the grader."""
        self.pool.shutdown(wait=True, cancel_futures=True)
        self.grader.close()

    def submit(self, index: int, answers: list[Answer]) -> None:
        """Grade a portion when its turn comes."""
        pairs: list[tuple[Problem, str]] = [(self.problems[a.problem_id], self._text(a)) for a in answers]
        self.pending[index] = self.pool.submit(self._grade, pairs)

    def _grade(self, pairs: list[tuple[Problem, str]]) -> list[Grade]:
        """Errors: GspoError unless each answer gets a grade with one of the four verdicts."""
        grades = self.grader.grade(pairs)
        wrong = [grade for grade in grades if not isinstance(grade, Grade) or grade.verdict not in VERDICTS]
        if wrong or len(grades) != len(pairs):
            given = repr(wrong[0]) if wrong else f"{len(grades)} grades"
            raise GspoError(
                f"the grader {self.grader.about.get('name')!r} gave {given:.80}",
                f"it must give a Grade for each of {len(pairs)} answers: {', '.join(VERDICTS)}",
                "correct it; docs/extending.md has a complete example",
            )
        return grades

    def _text(self, answer: Answer) -> str:
        """The answer with what a reward may ask of it, unless it was sampled elsewhere."""
        text = answer.response_prefix + answer.text
        return text if answer.n_tokens is None else Response(text, answer.n_tokens, answer.finish_reason or "stop")

    def result(self) -> list[Grade]:
        """The grades of all portions, in the order of their indices. Errors: whatever the grader raised."""
        return [grade for index in sorted(self.pending) for grade in self.pending[index].result()]
