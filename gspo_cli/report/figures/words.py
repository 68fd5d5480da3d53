"""Names of axes and scores in plain words; the log's own names stand beside them in small type."""

from typing import Any

from matplotlib.axes import Axes

from gspo_cli.runlog import schema

WORDS = {
    "reward/mean": "mean reward",
    "clip/token_frac": "share of tokens clipped",
    "moe/slot_churn_step": "share of expert slots that change",
    "moe/slot_churn_probe": "share of expert slots that change",
    "replay/natural_agree_frac": "share of slots that agree",
    "compute/gen_tokens": "tokens sampled so far",
    "train.minibatches": "mini-batches of a rollout batch",
    "train.lr": "learning rate",
    "algo.lr": "learning rate",
    "noise.token": "synthetic noise [nat per token]",
    "noise.response": "synthetic noise [nat per response]",
    "noise.experts": "share of expert slots exchanged",
}
"""Metric, or recipe key -> what its axis says; see `words`."""
SMALL, ROOM = 5.6, 9.0
"""Points: the size of the log's name on an axis, and the distance of the words, which make room for it."""
SMALL_LETTER = 0.0465
"""Inches of a letter of that size."""


def score_title(metric: str) -> str:
    """`Score on aime24, average of 32 samples` of `aime24/avg@32`."""
    bench, _, samples = metric.partition("/avg@")
    average = "one sample a problem" if samples == "1" else f"average of {samples} samples"
    return f"Score on {bench}, {average}" if samples.isdigit() else f"Score: {metric}"


def words(metric: str) -> str:
    """A metric or a recipe key in plain words; one without an entry has its own name."""
    if metric.startswith(schema.PART):
        return "mean reward of this part"
    return "mean score" if "/avg@" in metric else WORDS.get(metric, metric)


def with_unit(metric: str) -> str:
    """A metric's name in the log, with its unit."""
    return f"{metric} [{schema.metric(metric).unit}]"


def label_x(ax: Axes, metric: str) -> None:
    """Names the x axis after a metric: words, and under them the log's name."""
    ax.set_xlabel(words(metric))
    _small(ax, "x", with_unit(metric))


def label_y(ax: Axes, metric: str, paired: bool = False) -> None:
    """Names the y axis likewise; `paired` = it shows differences of the metric."""
    ax.set_ylabel(f"difference in {words(metric)}" if paired else words(metric), labelpad=ROOM)
    _small(ax, "y", with_unit(metric))


def _small(ax: Axes, which: str, text: str) -> None:
    """Beside the label, towards the panel on the y axis and below on the x axis; smaller where it would not fit."""
    room = (ax.bbox.height if which == "y" else ax.bbox.width) / ax.figure.dpi
    look: dict[str, Any] = {"fontsize": min(SMALL, SMALL * room / (SMALL_LETTER * len(text))), "color": "#666666"}
    if which == "y":
        ax.annotate(text, (1, 0.5), xycoords=ax.yaxis.label, xytext=(0.6, 0), textcoords="offset points",
                    rotation=90, ha="left", va="center", **look)  # fmt: skip
    else:
        ax.annotate(text, (0.5, 0), xycoords=ax.xaxis.label, ha="center", va="top", **look)
