"""gspo: train language models with GRPO, GSPO and their relatives under equal conditions, and compare them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from gspo_cli.report.runs.study_data import StudyData

__version__ = "0.1.0"
__all__ = ["load_study"]


def load_study(study: str | Path | None = None, out: str | Path = "results") -> StudyData:
    """A study's runs, metrics, stored responses and configurations as pandas frames (docs/other-trainers.md).

    `study` is the folder of a study or run, or its name under `out`; None = the newest study there.
    Errors: GspoError if there is none, or if a file that describes a run is corrupt.
    """
    # deferred, so that `import gspo_cli` stays instant: pandas takes a third of a second
    from pathlib import Path

    from gspo_cli.report.runs.study_data import read_study_data

    return read_study_data(study, Path(out))
