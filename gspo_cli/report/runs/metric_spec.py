"""The number by which runs are compared: what `reward/mean:area@steps` or `aime24/avg@32` means."""

import re
from dataclasses import dataclass
from typing import Literal, cast

from gspo_cli.errors import GspoError
from gspo_cli.runlog.schema import is_known, metric

Axis = Literal["steps", "tokens", "seconds"]
CURVE = re.compile(r"(?P<metric>[^\s:]+):(?:last10|last@(?P<batches>[1-9]\d{0,8})|area@(?P<axis>steps|tokens|seconds))")
BENCHMARK = re.compile(r"(?P<bench>[^\s:/@]+)/(?P<kind>avg|pass)@(?P<k>[1-9]\d*)")
ELO = "codeforces/elo"
REWARD = "reward/mean"
FORMS = f"METRIC:last10, METRIC:last@N, METRIC:area@steps|tokens|seconds, BENCH/avg@K, BENCH/pass@K or {ELO}"


@dataclass(frozen=True, slots=True)
class CurveMetric:
    """A number taken from a logged curve."""

    text: str
    metric: str
    lines: str
    """The kind of log line that holds it."""
    axis: Axis | None
    """Of the area; None = the mean of the last rollout batches of the plan."""
    batches: int | None = None
    """How many those are; None = a tenth of the plan."""

    @property
    def budget(self) -> Axis:
        """What is equal on both sides when two runs are compared by this number."""
        return self.axis or "steps"


@dataclass(frozen=True, slots=True)
class BenchmarkMetric:
    """A benchmark's score at the last checkpoint."""

    text: str
    bench: str
    kind: Literal["avg", "pass", "elo"]
    k: int
    """Samples; 0 for a rating, which uses all."""
    budget: Axis = "steps"

    @property
    def metric(self) -> str:
        """The name under which training logs it."""
        return ELO if self.kind == "elo" else f"{self.bench}/avg@{self.k}"


MetricSpec = CurveMetric | BenchmarkMetric


def parse_metric(text: str) -> MetricSpec:
    """What a recipe's `report.metric` or `--metric` means.

    Errors: GspoError for another form, an unknown metric, or one that is logged per mini-batch only.
    """
    if text == ELO:
        return BenchmarkMetric(text, "codeforces", "elo", 0)
    if found := BENCHMARK.fullmatch(text):
        return BenchmarkMetric(text, found["bench"], cast('Literal["avg", "pass"]', found["kind"]), int(found["k"]))
    curve = CURVE.fullmatch(text)
    if curve is None:
        hint = f"e.g. {text}:area@steps or {text}:last10" if is_known(text) else "e.g. reward/mean:area@steps"
        raise GspoError(f"runs cannot be compared by {text!r}", f"the forms are {FORMS}", hint)
    lines = metric(curve["metric"]).lines.split(", ")
    kind_of_line = next((kind for kind in ("rollout", "step", "eval") if kind in lines), None)
    if kind_of_line is None:
        raise GspoError(
            f"{curve['metric']} has no value per rollout batch",
            "it is logged for each mini-batch only",
            "`gspo report explain` lists the lines that hold a metric",
        )
    axis, batches = cast("Axis | None", curve["axis"]), curve["batches"]
    return CurveMetric(text, curve["metric"], kind_of_line, axis, int(batches) if batches else None)


def unit_of(spec: MetricSpec) -> str:
    """The schema's unit; a benchmark's share of right answers is a `frac`."""
    if isinstance(spec, BenchmarkMetric):
        return "Elo" if spec.kind == "elo" else "frac"
    return metric(spec.metric).unit


def better_of(spec: MetricSpec) -> str:
    """The direction that counts as better: `higher`, `lower` or `neither`."""
    return "higher" if isinstance(spec, BenchmarkMetric) else metric(spec.metric).better
