"""Where the problems come from, as the command line says it. Light: wrong data are an error before torch is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gspo_cli.errors import GspoError
from gspo_cli.evals.benchmark import Benchmark, DataChoice, ProblemSet


class Loading:
    """Problem sets, each read once."""

    def __init__(self, data: Mapping[str, DataChoice], warn: Callable[[str], None]) -> None:
        self.data, self.warn = data, warn
        self.sets: dict[str, ProblemSet] = {}

    def problems(self, benchmark: Benchmark) -> ProblemSet:
        """Those of a benchmark; its warnings are given once."""
        if benchmark.name not in self.sets:
            found = self.sets[benchmark.name] = benchmark.load(self.data.get(benchmark.name, DataChoice()))
            for warning in found.warnings:
                self.warn(f"warning: {warning}")
        return self.sets[benchmark.name]


def parse_data(options: Mapping[str, list[str]], benchmarks: list[Benchmark]) -> dict[str, DataChoice]:
    """From the texts `NAME=VALUE` of `--data`, `--revision`, `--release`, `--window`, `--contests`, `--ratings`.

    Several files for one name are joined.
    Errors: GspoError for another form, or a name that is not evaluated.
    """
    given: dict[str, dict[str, list[str]]] = {}
    for option, texts in options.items():
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not value:
                raise GspoError(f"--{option} {text} has no name and value", "the form is NAME=VALUE", "mend it")
            if name not in {b.name for b in benchmarks}:
                chosen = ", ".join(b.name for b in benchmarks)
                raise GspoError(f"--{option} {text}", f"{name!r} is not among --bench {chosen}", "mend the name")
            if option not in ("data", "revision", *next(b.takes for b in benchmarks if b.name == name)):
                raise GspoError(f"--{option} {text}", f"{name} has nothing of that kind", "leave it out")
            given.setdefault(name, {}).setdefault(option, []).append(value)
    return {name: _choice(name, values) for name, values in given.items()}


def _choice(name: str, values: dict[str, list[str]]) -> DataChoice:
    twice = next((option for option, texts in values.items() if option != "data" and len(texts) > 1), None)
    if twice:
        raise GspoError(f"--{twice} for {name} stands twice", "it has one value", "leave out the others")
    if "data" in values and "revision" in values:
        raise GspoError(f"--data and --revision for {name}", "a local file has no revision", "use one of them")
    one = {option: texts[0] for option, texts in values.items() if option != "data"}
    contests, ratings = (Path(one.pop(k)) if k in one else None for k in ("contests", "ratings"))
    return DataChoice(tuple(map(Path, values.get("data", ()))), contests=contests, ratings=ratings, **one)
