"""A recipe as typed tables. Defaults are the vetted settings; an unknown key is an error.

`recipe.py` reads and merges the files.
"""

from __future__ import annotations

from functools import reduce
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator

from gspo_cli.model_config import ColdStart as ColdStart
from gspo_cli.model_config import Lora as Lora
from gspo_cli.model_config import ModelConfig as ModelConfig
from gspo_cli.model_config import TinyModel as TinyModel
from gspo_cli.rollout_config import ENGINES as ENGINES
from gspo_cli.rollout_config import RolloutConfig as RolloutConfig
from gspo_cli.rollout_config import VllmConfig as VllmConfig
from gspo_cli.tables import Name, PositiveFloat, PositiveInt, Seed, Table
from gspo_cli.task_config import TaskConfig as TaskConfig
from gspo_cli.task_config import WeightedReward as WeightedReward


class Optimizer(Table):
    """AdamW."""

    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class TrainConfig(Table):
    """The training loop."""

    steps: PositiveInt = 60
    """Rollout batches."""
    minibatches: PositiveInt = 4
    """Optimizer steps per rollout batch."""
    lr: PositiveFloat = 1e-4
    """Constant after warm-up; an arm's `algo.lr` overrides it."""
    warmup: Annotated[int, Field(ge=0)] = 5
    """Rollout batches over which the learning rate rises from 0."""
    grad_clip: PositiveFloat = 1.0
    stop_on_collapse: bool = False
    """Stop a run (exit code 4) whose reward collapses by `report.collapse`; it counts as collapsed either way."""
    micro_batch_tokens: PositiveInt = 8192
    """Maximum padded tokens in one forward and backward pass."""
    recompute: bool = False
    """Activation checkpointing: recompute each layer in the backward pass. Saves memory, costs a third more compute."""
    divide: Literal["all", "machine"] = "all"
    """Shard weights over all processes, or over those of each machine, so that only gradients travel between
    machines."""
    optimizer: Optimizer = Optimizer()


class Kl(Table):
    """The KL penalty against the start model."""

    coef: Annotated[float, Field(ge=0)] = 0.0
    estimator: Literal["k1", "k3"] = "k3"


class Correction(Table):
    """Detached weights that correct for the mismatch between engine and trainer, or drop what is too far off."""

    kind: Literal["none", "tis", "icepop", "seq_mask", "seq_mask_tis", "seq_tis", "opsm"] = "none"
    low: Annotated[float, Field(ge=0)] | None = None
    high: PositiveFloat | None = None
    """Default bounds: the published ones of the kind."""


class AlgoConfig(Table):
    """The keys in which arms of a study may differ. Other keys belong to the algorithm and are checked by its
    `Params`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str = "gspo"
    lr: PositiveFloat | None = None
    """Overrides `train.lr`."""
    minibatches: PositiveInt | None = None
    """Overrides `train.minibatches`."""
    kl: Kl = Kl()
    correction: Correction = Correction()
    old_log_probs: Literal["trainer", "sampler"] = "trainer"
    """Whose log-probabilities represent the old policy."""
    replay: Literal["none", "r2", "r3"] = "none"
    """Routing Replay for mixture-of-experts models: `r2` replays the trainer's routes under the old policy in every
    training pass; `r3` replays the engine's, in the old policy's pass too."""
    accept_mismatch_floor: bool = False
    """Accept the sampler's log-probabilities even if they differ from the trainer's by more than the clip range."""
    truncation: Literal["keep", "mask"] = "keep"
    """`mask` excludes truncated responses from the loss and its denominators."""
    overlong_cache_frac: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Final share of the length limit over which the reward drops by up to 1 (arXiv 2503.14476, Eq. 13)."""
    dynamic_sampling: bool = False
    """Drop groups whose rewards are all equal and keep sampling (arXiv 2503.14476, Eq. 11)."""

    @model_validator(mode="before")
    @classmethod
    def _one_reduction(cls, table: Any) -> Any:
        """Runs of earlier versions say that they set no reduction; each algorithm has its own."""
        if isinstance(table, dict) and table.get("reduction", "") is None:
            return {key: value for key, value in table.items() if key != "reduction"}
        return table

    @property
    def params(self) -> dict[str, Any]:
        """The algorithm's own keys."""
        return dict(self.model_extra or {})


class NoiseConfig(Table):
    """Synthetic noise on the old policy's recorded log-probabilities, the same in every arm."""

    token: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation in nats of what each token's gets."""
    response: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviation in nats of what all tokens of a response share."""
    tail: Literal["normal", "student_t"] = "normal"
    """Its distribution; `student_t` has 3 degrees of freedom and the same standard deviation."""
    experts: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the old policy's expert slots that noise on the routers' logits exchanges; 0.1 = 10 %."""


class EvalConfig(Table):
    """Evaluation during training."""

    every: Annotated[int, Field(ge=0)] = 0
    """Rollout batches between evaluations, starting before the first update; 0 = only at the end."""
    bench: tuple[str, ...] = ("arithmetic",)
    """Default with the tasks `data` and `verifiers`: `held_out`, if it holds out rows."""
    samples: PositiveInt | None = None
    """Answers per problem; default: the benchmark's."""
    limit: PositiveInt | None = None
    """Use only the first problems of each benchmark."""
    max_new_tokens: PositiveInt | None = None
    """Longest answer in tokens; default: the benchmark's, or what fits the model's context."""
    data: dict[str, str] = Field(default={})
    """Benchmark -> file of problems that replaces the published data set."""


class CollapseRule(Table):
    """A reward has collapsed if the mean of its last tenth lies this far below that of its best tenth."""

    below: Annotated[float, Field(ge=0)] = 0.5
    """In standard deviations of the rewards of single responses."""
    least: Annotated[float, Field(ge=0)] = 0.1
    """In the reward's own unit."""
    noise: Annotated[float, Field(ge=0)] = 3.5
    """In standard errors of the fall, from the spread within the batches."""


class Tuning(Table):
    """What one arm's tuning cost before the study."""

    trials: Annotated[int, Field(ge=0)]
    seeds: tuple[int, ...] = ()
    """Separate from the study's seeds."""
    chosen: dict[str, Any] = Field(default={})
    """The `[algo]` keys that the trials chose, by dotted name."""
    grid: dict[str, list[Any]] | None = None
    """The values that were tried, by the same names; shows whether a choice lies at the edge."""
    gen_tokens: Annotated[float, Field(ge=0)] | None = None
    """Tokens sampled in all trials."""
    seconds: Annotated[float, Field(ge=0)] | None = None
    """Training time of all trials."""
    study: str | None = None
    """Folder name of the study of the trials."""
    conditions: dict[str, Any] | None = None
    """What the trials had in common, by dotted recipe key: see `report.runs.facts.conditions_of`."""


class CheckpointConfig(Table):
    """When to save a run's complete state; always after the last rollout batch."""

    every: Annotated[int, Field(ge=0)] = 20
    """Rollout batches between checkpoints; 0 = no regular checkpoints."""
    start: bool = True
    """Save before the first rollout batch; without it, a run that is cut off early starts anew."""
    minutes: PositiveFloat | None = None
    """Also save when this much time has passed since the last checkpoint."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Newest checkpoints to keep; at least two, because one may turn out damaged."""
    best: str | None = None
    """A rollout metric; the best checkpoint by it is kept too."""
    keep_optimizer: bool = False
    """Keep the optimizer's state of a complete run, twice the size of its weights, to train it for further steps."""
    max_missed: PositiveInt = 3
    """Consecutive failed saves that stop the run."""
    grace_s: PositiveFloat | None = None
    """Seconds between a signal and the kill that follows it. Default: what Slurm announces, or 25 under Slurm, torchrun
    and Kubernetes; else no kill is expected."""


class GuardConfig(Table):
    """When to stop a failing run."""

    nonfinite_limit: Annotated[int, Field(ge=1, le=10)] = 1
    """Number of non-finite updates, over the whole run, that stops it."""
    no_signal_batches: PositiveInt = 10
    """Consecutive rollout batches without an update that stop the run."""
    unscored_frac: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Maximum share of a rollout batch whose reward may be missing because the task failed."""
    hang_s: PositiveFloat = 600.0
    """With several processes: one that has been in a phase for this long, and for ten times the longest such phase so
    far, ends the run."""
    spike_z: PositiveFloat = 6.0
    """Log an event for a gradient norm this many standard deviations above the recent ones."""


class ReportConfig(Table):
    """How the study is judged, fixed before it runs."""

    metric: Annotated[str, Field(pattern=r"^[^\s:]+(:(last10|last@[1-9][0-9]{0,8}|area@(steps|tokens|seconds)))?$")] = (
        "reward/mean:area@steps"
    )
    """`<metric>:last10` (the last tenth of the plan), `<metric>:last@N` (its last N rollout batches),
    `<metric>:area@steps|tokens|seconds`, `<bench>/avg@K` or `<bench>/pass@K`."""
    baseline: str = "grpo"
    treatment: str = "gspo"
    margin: PositiveFloat | None = None
    """Difference below which two arms count as equal: in points (default: 2) for shares and rewards in points, else in
    the metric's unit."""
    unit: Literal["points", "reward"] | None = None
    """Unit of reward differences: `points` (x 100, for rewards from 0 to 1) or `reward`. Default: `points` for a
    built-in task; with a task or reward of one's own nothing counts as equal until this is set."""
    looks: tuple[Annotated[int, Field(ge=4)], ...] = ()
    """Numbers of seeds at which the study may be compared before all are trained; each look tests at 5 % / looks."""
    collapse: CollapseRule = CollapseRule()
    tuned: tuple[str, ...] = ()
    """Keys outside `[algo]` that were tuned per arm and may differ, such as `train.grad_clip`."""
    tuning: dict[Name, Tuning] = Field(default={})
    """Arm -> the cost of its tuning, shown beside every comparison."""

    @model_validator(mode="before")
    @classmethod
    def _last_checkpoint(cls, table: Any) -> Any:
        """Runs and recipes of earlier versions say that the last checkpoint is compared, as it always is."""
        if isinstance(table, dict) and table.get("checkpoint") == "last":
            return {key: value for key, value in table.items() if key != "checkpoint"}
        return table

    @field_validator("looks")
    @classmethod
    def _ascending(cls, looks: tuple[int, ...]) -> tuple[int, ...]:
        if list(looks) != sorted(set(looks)):
            raise ValueError("looks are numbers of seeds in ascending order")
        return looks


class OtherGpu(Table):
    """A GPU by its data sheet, for the plan: peaks without sparsity, rates one way."""

    memory_gib: PositiveFloat
    bf16_tflops: PositiveFloat
    fp32_tflops: PositiveFloat | None = None
    """Without tensor cores; default: as in bfloat16."""
    memory_tb_s: PositiveFloat
    link_gb_s: PositiveFloat = 32.0
    """To the other GPUs of its machine; default: PCIe 4."""


class Cluster(Table):
    """The machine that `gspo train --dry-run` plans for. The number of processes is set by torchrun."""

    gpu: Literal["a100", "h100", "h200", "b200", "rtx4090"] | OtherGpu
    nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 1
    network_gbps: PositiveFloat = 400.0
    """Of a GPU's share of the network between machines, in gigabits per second."""


class Recipe(Table):
    """A complete recipe; a run's `config.json` is one with a single arm and seed."""

    name: Name
    seed: Seed = 0
    model: ModelConfig
    cold_start: ColdStart | None = None
    task: TaskConfig = TaskConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    algo: AlgoConfig = AlgoConfig()
    noise: NoiseConfig | None = None
    """If absent, no noise."""
    arms: dict[Name, dict[str, Any]] = Field(default={})
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardConfig = GuardConfig()
    report: ReportConfig = ReportConfig()
    cluster: Cluster | None = None
    """If absent, `--dry-run` estimates no times."""
    _sources: tuple[Any, ...] = PrivateAttr(())
    """The layers it was merged from, so that later errors can name the file."""
    _command_line: dict[str, Any] = PrivateAttr(default_factory=dict)
    """What the command line set, which holds for every arm that can take it (`training.study.arms`)."""

    def seeded(self, seed: int) -> Recipe:
        """The recipe of a run with this seed: its cold start too, if each seed has its own."""
        cold = self.cold_start
        if cold is not None and cold.varies:
            offset = seed % cold.starts if cold.starts else seed
            cold = cold.model_copy(update={"seed": cold.seed + offset, "per_seed": False, "starts": None})
        return self.model_copy(update={"seed": seed, "cold_start": cold})

    @property
    def minibatches(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.algo.minibatches or self.train.minibatches

    @property
    def replays(self) -> str | None:
        """The setting under which passes use recorded experts, for messages; None if there is none."""
        if self.algo.replay != "none":
            return f"algo.replay = {self.algo.replay!r}"
        return f"noise.experts = {self.noise.experts:g}" if self.noise is not None and self.noise.experts else None

    @property
    def records_routes(self) -> bool:
        """Whether the engine must record its expert choices."""
        return self.rollout.routes or self.algo.replay == "r3"

    @model_validator(mode="before")
    @classmethod
    def _evaluates_held_out(cls, table: Any) -> Any:
        """Without `eval.bench`, one's own data are evaluated on the rows that they hold out."""
        task, evaluation = (table.get(key, {}) for key in ("task", "eval")) if isinstance(table, dict) else ({}, None)
        own = isinstance(task, dict) and task.get("name") in ("data", "verifiers")
        if not own or not isinstance(evaluation, dict):
            return table
        return table | {"eval": {"bench": [] if task.get("held_out") is None else ["held_out"]} | evaluation}

    @model_validator(mode="after")
    def _fits(self) -> Self:
        prompts, needed = self.rollout.prompts, self.task.longest_working if self.task.terms else 0
        if needed > self.rollout.max_new_tokens:
            raise ValueError(
                f"the longest rows of task.terms take up to {needed} tokens to work out, and rollout.max_new_tokens = "
                f"{self.rollout.max_new_tokens} would cut such answers; set it to {needed}"
            )
        if self.minibatches > prompts:
            raise ValueError(
                f"{'algo' if self.algo.minibatches else 'train'}.minibatches = {self.minibatches} is more than "
                f"rollout.prompts = {prompts}; a mini-batch holds whole groups"
            )
        return self


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top, merged table by table."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; an empty table is a value."""
    flattened: dict[str, Any] = {}
    for key, value in table.items():
        nested = isinstance(value, dict) and value
        flattened |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flattened


def nest(key: str, value: Any) -> Any:
    """A value under a dotted key: `nest("a.b", 1)` is `{"a": {"b": 1}}`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `flat`."""
    return reduce(merge, (nest(key, value) for key, value in values.items()), {})
