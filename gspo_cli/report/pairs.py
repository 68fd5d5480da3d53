"""The runs of two arms, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gspo_cli.report.answers import Answers, load_answers
from gspo_cli.report.folders import Study
from gspo_cli.report.judged_by import BenchNumber, Number
from gspo_cli.report.run_curves import Curves, load_curves
from gspo_cli.report.run_facts import Facts, read_facts

ByKind = Mapping[str, Iterable[str]]


@dataclass(frozen=True, slots=True)
class Member:
    """One run with everything that a comparison reads of it."""

    facts: Facts
    curves: Curves | None
    """None without a `metrics.jsonl`."""
    answers: Answers | None
    """To the benchmark in question, where it was evaluated and stored."""

    @property
    def name(self) -> str:
        """The run folder's name."""
        return self.facts.name


@dataclass(frozen=True, slots=True)
class Pair:
    """Two arms; after `drop_invalid` and `narrow` only what takes part in the statistics."""

    baseline: str
    treatment: str
    left: dict[int, Member]
    """The baseline's runs by seed."""
    right: dict[int, Member]
    """The treatment's."""

    @property
    def seeds(self) -> list[int]:
        """Those that both arms have."""
        return sorted(self.left.keys() & self.right.keys())

    @property
    def unpaired(self) -> list[int]:
        """Those that one arm lacks."""
        return sorted(self.left.keys() ^ self.right.keys())

    @property
    def members(self) -> list[Member]:
        """All runs, the baseline's first, each arm by seed."""
        return [side[seed] for side in (self.left, self.right) for seed in sorted(side)]

    def narrow(self, seeds: Iterable[int]) -> Pair:
        """With these seeds only."""
        kept = set(seeds)
        left, right = ({s: m for s, m in side.items() if s in kept} for side in (self.left, self.right))
        return replace(self, left=left, right=right)

    def ungraded_as_wrong(self) -> Pair:
        """With a score of 0 for every answer whose grader failed, in both arms."""

        def graded(member: Member) -> Member:
            answers = member.answers and member.answers.ungraded_as_wrong()
            return replace(member, answers=answers)

        left, right = ({s: graded(m) for s, m in side.items()} for side in (self.left, self.right))
        return replace(self, left=left, right=right)

    def drop_invalid(self) -> tuple[Pair, list[Member]]:
        """Without the seeds of runs marked as invalid, and these runs: the partner leaves with them."""
        invalid = [m for m in self.members if m.facts.invalid is not None]
        gone = {m.facts.run.seed for m in invalid}
        return self.narrow({*self.left, *self.right} - gone), invalid


def load_members(study: Study, number: Number | None, also: ByKind | None = None) -> dict[str, dict[int, Member]]:
    """Arm -> seed -> run, with the log and the answers that `number` needs and the metrics in `also`.

    Errors: GspoError (exit code STORAGE) for a file that is corrupt.
    """
    wanted: dict[str, set[str]] = {kind: set(names) for kind, names in (also or {}).items()}
    if number is not None:
        kind = "eval" if isinstance(number, BenchNumber) else number.lines
        wanted.setdefault(kind, set()).add(number.metric)
    logged = [run for run in study.runs if (run.folder / "metrics.jsonl").is_file()]
    curves: dict[Path, Curves] = {run.folder: c for run, c in zip(logged, load_curves(logged, wanted), strict=True)}
    members: dict[str, dict[int, Member]] = {}
    for run in study.runs:
        answers = load_answers(run.folder, number.bench) if isinstance(number, BenchNumber) else None
        member = Member(read_facts(run), curves.get(run.folder), answers)
        members.setdefault(run.arm, {})[run.seed] = member
    return members
