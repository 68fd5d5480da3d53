"""What must hold before two arms are compared. All checks are made, and every one that fails is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gspo_cli.report import equal_facts
from gspo_cli.report.answers import problems_hash
from gspo_cli.report.judged_by import BenchNumber, Number
from gspo_cli.report.pairs import Member, Pair
from gspo_cli.report.run_facts import command_for

WAIVABLE = ("code", "hardware", "versions")
"""What `--allow` accepts: differences that a reader may judge for himself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One precondition that does not hold."""

    check: str
    what: str
    baseline: str
    """What is found on one side, and where."""
    treatment: str
    """What is found on the other."""
    do: str


Check = Callable[[Pair, Number], Iterable[Failure]]


def failures(pair: Pair, number: Number) -> list[Failure]:
    """Every precondition that fails, in the order of `CHECKS`; none if the two arms may be compared."""
    return [failure for check in CHECKS for failure in check(pair, number)]


def unknown_seeds(pair: Pair, wanted: Iterable[int]) -> list[Failure]:
    """The seeds asked for that neither arm has."""
    gone = sorted(set(wanted) - pair.left.keys() - pair.right.keys())
    text = ", ".join(map(str, gone))
    return [Failure("pairs", f"seed {text}", "no run", "no run", "take seeds that the study has")] if gone else []


def _pairs(pair: Pair, _: Number) -> Iterable[Failure]:
    if not pair.left and not pair.right:
        yield Failure("pairs", "runs that count", "none", "none", "train the study, or take other --seeds")
    for arm, side, other in (
        (pair.baseline, pair.left, pair.right),
        (pair.treatment, pair.right, pair.left),
    ):
        if missing := sorted(other.keys() - side.keys()):
            runs = ", ".join(f"{arm}-s{seed}" for seed in missing)
            found = {arm: f"no {runs}"}
            do = f"train what is missing: {command_for(next(iter(other.values())).facts, arm, missing)}"
            sides = (found.get(pair.baseline, "present"), found.get(pair.treatment, "present"))
            yield Failure("pairs", f"seed {', '.join(map(str, missing))}", *sides, do)


def _equal(check: str) -> Check:
    """The check that recorded facts are equal: all runs' to the first one's, or (if waivable) each pair's."""

    def run(pair: Pair, number: Number) -> Iterable[Failure]:
        facts, do = equal_facts.FACTS[check]
        by_seed = [[pair.left[seed], pair.right[seed]] for seed in pair.seeds]
        groups = by_seed if check in WAIVABLE else [pair.members]
        for what, left, right in equal_facts.differences(groups, lambda member: facts(member, number)):
            yield Failure(check, what, left, right, do)

    return run


def _queries(pair: Pair, number: Number) -> Iterable[Failure]:
    """Dynamic sampling consumes more prompts a step than the recipe says: equal steps are then not equal queries."""
    if number.budget != "steps":
        return
    for seed in pair.seeds:
        one, other = pair.left[seed].curves, pair.right[seed].curves
        if one is None or other is None:
            continue
        found = [c.values["compute/queries"] for c in (one, other)]
        common = found[0].index.intersection(found[1].index)
        if len(common) and found[0][common[-1]] != found[1][common[-1]]:
            sides = [f"{q[common[-1]]:.0f} in {m.name}" for q, m in
                     zip(found, (pair.left[seed], pair.right[seed]), strict=True)]  # fmt: skip
            do = "compare at equal tokens: --metric METRIC:area@tokens"
            yield Failure("budget", f"prompts consumed by step {common[-1]}", sides[0], sides[1], do)


def _status(pair: Pair, _: Number) -> Iterable[Failure]:
    for member in pair.members:
        facts = member.facts
        if facts.status not in ("completed", "failed"):
            found = f"{member.name}: {facts.status} ({facts.reason})"
            sides = (found, "") if facts.run.arm == pair.baseline else ("", found)
            do = f"let it finish, or train it again: {command_for(facts, facts.run.arm, [facts.run.seed], True)}"
            yield Failure("status", "how the run ended", *sides, do)


def _cells(pair: Pair, number: Number) -> Iterable[Failure]:
    stored = any(m.answers for m in pair.members)
    for member in pair.members:
        if complaint := _gap(member, number, stored):
            sides = (complaint, "") if member.facts.run.arm == pair.baseline else ("", complaint)
            do = "complete it; a part of a run is not compared"
            if isinstance(number, BenchNumber) and stored:
                do = f"gspo eval benchmarks {member.facts.run.folder} --bench {number.bench}"
                if member.answers and member.answers.num_ungraded:
                    do = "grade them again, or --grader-errors wrong counts them in both arms"
            yield Failure("cells", f"{number.text} of {member.name}", *sides, do)


def _gap(member: Member, number: Number, stored: bool) -> str | None:
    """What is missing of a run's number."""
    if isinstance(number, BenchNumber) and stored:
        if member.answers is None:
            return "not evaluated"
        last = f"step-{member.facts.planned:06d}"
        if member.facts.status == "completed" and member.answers.step != last:
            return f"evaluated at {member.answers.step}, not at its last checkpoint {last}"
        return member.answers.complaint(number)
    if member.curves is None:
        return "no metrics.jsonl"
    if member.facts.status == "completed" and member.curves.num_steps != member.facts.planned:
        return f"the log ends at step {member.curves.num_steps} of {member.facts.planned}"
    if isinstance(number, BenchNumber):
        values = member.curves.values[number.metric]
        if number.kind != "avg" or not len(values):
            return "neither stored answers nor a value in the log"
        if member.facts.status == "completed" and values.index[-1] != member.facts.planned:
            return f"last evaluated at step {values.index[-1]} of {member.facts.planned}"
        return None
    return None if member.curves.xy(number.metric, number.budget) else "no value: it does not apply or was not logged"


def _copies(pair: Pair, _: Number) -> Iterable[Failure]:
    for what, digests in (
        ("the same metrics.jsonl", [(m, m.curves.sha256) for m in pair.members if m.curves]),
        ("the same answers", [(m, m.answers.sha256) for m in pair.members if m.answers]),
    ):
        first: dict[str, Member] = {}
        for member, digest in digests:
            twin = first.setdefault(digest, member)
            if twin is not member:
                yield Failure("copies", what, twin.name, member.name, "remove the copy; train that seed instead")


def _problems(pair: Pair, _: Number) -> Iterable[Failure]:
    known = [(m, problems_hash(m.answers)) for m in pair.members if m.answers]
    for member, digest in known:
        if digest != known[0][1]:
            sides = (f"{known[0][1]} in {known[0][0].name}", f"{digest} in {member.name}")
            yield Failure("eval", "the problems' ids", *sides, "evaluate both on the same problems")


CHECKS: tuple[Check, ...] = (
    _pairs, _equal("start"), _equal("data"), _equal("budget"), _queries, _equal("eval"), _problems, _equal("config"),
    _equal("checkpoint"), _status, _cells, _copies, _equal("code"), _equal("hardware"), _equal("versions"),
)  # fmt: skip
"""To add a check, write a function that yields what fails and name it here."""
