"""Evaluations made by others, as scores by problem: Inspect's `.eval` logs and lighteval's details.

An `.eval` log is a zip of JSON files, of which the header and the samples' summaries are read; lighteval's details are
a parquet file with a row for each problem. Neither needs its library.
"""

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gspo_cli.config import flat
from gspo_cli.errors import GspoError
from gspo_cli.report.compare.score_file import ScoreFile
from gspo_cli.rows import read_rows
from gspo_cli.runlog.checksums import sha256_of
from gspo_cli.runlog.fs import require_regular
from gspo_cli.runlog.strict_json import unique_keys

SUFFIXES = (".eval", ".parquet")
MOST_BYTES = 1 << 26
"""Of a part of an `.eval` log, packed and unpacked."""
ZSTANDARD = 93
"""The compression of Inspect's logs, which `zipfile` reads from Python 3.14 on."""
LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's correct, partial, incorrect and no answer, as its own accuracy counts them."""
FIX = "evaluate all models on the same problems with the same settings"

Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EvalLog:
    """One model's evaluation."""

    model: str
    metric: str
    scores: dict[str, float]
    """Problem -> the mean over its samples."""
    protocol: Table
    """What must agree between evaluations, by dotted key."""


def read_evaluations(paths: list[Path], metric: str | None = None) -> ScoreFile:
    """Evaluations as a table of scores: the files of one run, each named `FILE` or `RUN=FILE`, are its seeds, in order.

    A file without a name counts for its model; if that is one model in all files, each file is a run. `metric` = a
    scorer of Inspect or a metric of lighteval; by default the log's first.
    Errors: GspoError for a file that cannot be read, is no finished evaluation or too large, and for two evaluations of
    other problems or with other settings.
    """
    named = [_named(path) for path in paths]
    logs = [read_evaluation(path, metric) for _, path in named]
    first = logs[0]
    for (_, path), log in zip(named, logs, strict=True):
        for key in dict.fromkeys([*first.protocol, *log.protocol]):
            one, other = first.protocol.get(key), log.protocol.get(key)
            if one != other:
                raise GspoError(
                    f"{named[0][1]} and {path} are not the same evaluation",
                    f"{key}: {str(one)[:80]} in one, {str(other)[:80]} in the other",
                    FIX,
                )
    digests = [sha256_of(path) for _, path in named]
    for (_, path), digest in zip(named, digests, strict=True):
        if digests.count(digest) > 1:
            raise GspoError(f"{path} is given twice", "a seed counts once", "give each evaluation once")
    models = {log.model for log in logs}
    own = [path.stem for _, path in named] if len(models) == 1 < len(logs) else [log.model for log in logs]
    joined = sha256("".join(digests).encode()).hexdigest()
    found = ScoreFile(named[0][1], joined, sorted(first.scores), {}, {}, None, {}, number=first.metric, each="problem")
    for (name, _), default, log in zip(named, own, logs, strict=True):
        by_seed = found.scores.setdefault(name or default, {})
        found.last_steps.setdefault(name or default, {})[len(by_seed)] = 0
        by_seed[len(by_seed)] = np.array([log.scores[problem] for problem in found.tasks])
    return found


def _named(path: Path) -> tuple[str, Path]:
    name, equals, file = str(path).partition("=")
    return (name, Path(file)) if equals and not path.exists() else ("", path)


def read_evaluation(path: Path, metric: str | None = None) -> EvalLog:
    """One file. Errors: GspoError."""
    try:
        require_regular(path)
        found = _inspect(path, metric) if path.suffix == ".eval" else _lighteval(path, metric)
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, struct.error,
        zlib.error, zipfile.BadZipFile, pa.ArrowException,
    ) as error:  # fmt: skip
        why = f"{type(error).__name__}: {error}" if isinstance(error, LookupError | AttributeError) else str(error)
        raise GspoError(
            f"cannot read the evaluation {path}",
            " ".join(why.split())[:300] or type(error).__name__,
            "give a finished .eval log of Inspect, or a details_*.parquet of lighteval",
        ) from error
    return found


def _inspect(path: Path, metric: str | None) -> EvalLog:
    with zipfile.ZipFile(path) as archive:
        header, samples = (_part(path, archive.getinfo(name)) for name in ("header.json", "summaries.json"))
    if header["status"] != "success":
        raise ValueError(f"its status is {header['status']!r:.40}, not 'success'")
    about = header["eval"]
    scorer = _chosen(metric, [str(one["name"]) for one in header["results"]["scores"]])
    values: dict[str, dict[int, float]] = {}
    for sample in samples:
        problem, epoch = str(sample["id"]), int(sample["epoch"])
        value = _value((sample.get("scores") or {}).get(scorer, {}).get("value"), f"{problem}, epoch {epoch}", scorer)
        if values.setdefault(problem, {}).setdefault(epoch, value) is not value:
            raise ValueError(f"problem {problem}, epoch {epoch} is there twice")
    counts = {len(by_epoch) for by_epoch in values.values()}
    if len(counts) != 1:
        raise ValueError(
            f"its problems have {' or '.join(map(str, sorted(counts)))} samples" if counts else "no sample"
        )
    settings = {key: value for key, value in about["model_generate_config"].items() if key != "seed"}
    protocol = {
        "format": "Inspect", "task": about["task"], "version": about["task_version"], "arguments": about["task_args"],
        "scorer": scorer, "samples of a problem": counts.pop(), "generation": settings,
        "problems": _hash((str(sample["id"]), sample["target"]) for sample in samples),
    }  # fmt: skip
    scores = {problem: math.fsum(of.values()) / len(of) for problem, of in values.items()}
    return EvalLog(str(about["model"]), scorer, scores, flat(protocol))


def _part(path: Path, info: zipfile.ZipInfo) -> Any:
    """A JSON file of the archive. Errors: ValueError if it is damaged, too large or packed in another way."""
    if max(info.file_size, info.compress_size) > MOST_BYTES:
        raise ValueError(f"{info.filename} has {info.file_size:,} bytes, and may have {MOST_BYTES:,}")
    with path.open("rb") as file:
        file.seek(info.header_offset + 26)
        file.seek(sum(struct.unpack("<HH", file.read(4))), 1)  # the lengths of name and extra field, which follow
        packed = file.read(info.compress_size)
    if info.compress_type == ZSTANDARD:
        content = pa.CompressedInputStream(pa.BufferReader(packed), "zstd").read(info.file_size + 1)
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, info.file_size + 1)
    else:
        raise ValueError(f"{info.filename} is packed by method {info.compress_type}, not Deflate or Zstandard")
    if zlib.crc32(content) != info.CRC:
        raise ValueError(f"{info.filename} is damaged: its checksum differs")
    return json.loads(content, object_pairs_hook=unique_keys)


def _lighteval(path: Path, metric: str | None) -> EvalLog:
    scores: dict[str, float] = {}
    texts, name, tasks = [], "", set()
    for number, (_, row) in enumerate(read_rows(path)):
        doc = row.get("doc") or {"id": number, "query": row.get("example")}  # the latter until 0.9
        values = row["metric"] if "metric" in row else row["metrics"]
        name = name or _chosen(metric, list(values))
        problem = str(doc["id"])
        if problem in scores:
            raise ValueError(f"problem {problem} is there twice")
        scores[problem] = _value(values[name], problem, name)
        texts.append((problem, doc["query"]))
        tasks.add(str(doc.get("task_name")))
    protocol = {"format": "lighteval", "task": sorted(tasks), "metric": name, "problems": _hash(texts)}
    model = path.resolve().parent.parent.name  # details/MODEL/TIME/details_TASK_TIME.parquet
    return EvalLog(model or path.stem, name, scores, protocol)


def _chosen(metric: str | None, names: list[str]) -> str:
    if not names or (metric is not None and metric not in names):
        raise ValueError(f"it has no metric {metric or ''}; it has {', '.join(names) or 'none'}")
    return metric or names[0]


def _value(value: Any, problem: str, metric: str) -> float:
    """A score as a number. Errors: ValueError for one that is missing or no number."""
    found = LETTERS.get(value) if isinstance(value, str) else value
    if not isinstance(found, int | float) or not math.isfinite(found):
        raise ValueError(f"problem {problem} has no number as {metric}, but {value!r:.40}")
    return float(found)


def _hash(problems: Iterable[tuple[str, Any]]) -> str:
    """Of the problems with what they ask or expect, whatever their order."""
    lines = sorted({json.dumps(problem, sort_keys=True, default=str) for problem in problems})
    return sha256("\n".join(lines).encode()).hexdigest()[:16]
