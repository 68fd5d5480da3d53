"""Another trainer's configuration, as it recorded it: its own YAML or JSON file, or what it wrote to TensorBoard or
wandb. And which keys of such a configuration say what the algorithm is, whatever the trainer.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gspo_cli.errors import GspoError
from gspo_cli.runlog.fs import require_regular
from gspo_cli.runlog.import_logs import events_of, find_tracker_file, read_files, records_of
from gspo_cli.runlog.strict_json import parse_object, unique_keys

Config = dict[str, Any]

MAX_BYTES = 1 << 19
"""Of a configuration file, and of its content once YAML's aliases are written out."""
ALGORITHM = re.compile(
    "algo|algorithm|policy_loss|loss_fn|clip|adv_estimator|advantage_estimator|importance_sampling_level|loss_type|"
    "loss_mode|loss_agg_mode|epsilon_high|scale_rewards|mask_truncated_completions|use_bias_correction_kl|"
    "sapo_temperature_(pos|neg)|top_entropy_quantile|off_policy_mask_threshold|clip_ratio(_low|_high|_c)?|"
    "eps_clip(_high|_c)?|dual_clip|use_kl_loss|kl_coef|kl_loss_coef|kl_loss_type|init_kl_coef|kl_estimator|"
    "use_kl_in_reward|entropy_coeff?|sequence_level_importance_ratios|token_level_loss|use_leave_one_out_baseline|"
    "normalize_rewards"
)
"""Parts of dotted keys: TRL's and ms-swift's, verl's and SkyRL's, slime's, OpenRLHF's and AReaL's, NeMo-RL's. Not the
learning rate or the updates a batch: whoever changes them with the algorithm compares both changes at once."""
ALONE = re.compile("epsilon|delta|beta")
"""TRL's, which mean the algorithm only where they are the whole key: an optimizer has an epsilon too."""
OF_ONE_RUN = re.compile(
    "seed|data_seed|(run|exp|experiment|project)_name|output_dir|log(ging)?_dir|default_local_dir|"
    "checkpoint_dir|(rollout|validation)_data_dir|save_path|hub_model_id|resume_from_checkpoint"
)
"""Last parts: what numbers a run, names it or says where it lies."""


def kind_of_key(key: str) -> str:
    """`algorithm`, `run` or `setting`, for a dotted key of any trainer's configuration."""
    parts = key.replace("/", ".").split(".")
    if OF_ONE_RUN.fullmatch(parts[-1]):
        return "run"
    return "algorithm" if ALONE.fullmatch(key) or any(map(ALGORITHM.fullmatch, parts)) else "setting"


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Plain values only; no merged keys, which double with every level."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            raise yaml.YAMLError("it merges keys (<<): give the configuration as the trainer resolved it")
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        unique_keys([(key, None) for key in keys])


def read_config(path: Path) -> Config:
    """A trainer's own file: one table in YAML or JSON, wandb's `config.yaml` included.

    Errors: GspoError for a file that is missing, too large, or no such table.
    """
    try:
        require_regular(path)
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ValueError(f"it has {size:,} bytes, and a configuration at most {MAX_BYTES:,}")
        text = path.read_text(encoding="utf-8")
        is_json = path.suffix == ".json"
        found = json.loads(text, object_pairs_hook=unique_keys) if is_json else yaml.load(text, Loader=_Loader)
        return _plain(found)
    except (
        OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, yaml.YAMLError
    ) as error:  # fmt: skip
        raise GspoError(
            f"cannot read the configuration {path}",
            " ".join(str(error).split()) or type(error).__name__,
            "give the trainer's own file: one table of keys in YAML or JSON",
        ) from error


def recorded_config(log: Path) -> Config | None:
    """What the trainer wrote about itself into a tracker's files; None if it wrote none, or into TRL's and verl's logs,
    which hold none.

    Errors: GspoError as for the log itself.
    """
    if (found := find_tracker_file(log)) is None:
        return None
    kind, files = found
    config: Config = {}
    for part in read_files(kind, files, _in_events if kind == "tensorboard" else _in_wandb):
        config |= part
    return _plain(config) if config else None


def _plain(found: Any) -> Config:
    """A table as strict JSON holds it. Errors: ValueError or TypeError for anything else, and for what is too large
    once aliases are written out."""
    if not isinstance(found, dict) or not found:
        raise ValueError("it is no table of keys")
    parts, size = [], 0
    for part in json.JSONEncoder(allow_nan=False, default=str).iterencode(found):  # lazily: aliases can explode
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise ValueError(f"it expands to more than {MAX_BYTES:,} bytes")
    config = parse_object("".join(parts))
    if "_wandb" in config:  # {"key": {"value": ...}}
        config = {key: one.get("value") if isinstance(one, dict) else one for key, one in config.items()}
        del config["_wandb"]
    return config


def _in_events(file: Path) -> Iterator[Config]:
    """The text `args` of the Hugging Face trainers, and the hyperparameters of TensorBoard's own plugin."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from tensorboard.util.tensor_util import make_ndarray

    for value in (value for event in events_of(file) for value in event.summary.value):
        if value.tag == "args/text_summary":
            yield parse_object(make_ndarray(value.tensor).item().decode())
        elif value.metadata.plugin_data.plugin_name == "hparams":
            hparams = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info.hparams
            yield {
                name: getattr(hparam, hparam.WhichOneof("kind") or "string_value") for name, hparam in hparams.items()
            }


def _in_wandb(file: Path) -> Iterator[Config]:
    """The run's `config`, with every later change."""
    for record in records_of(file):
        about = record.config if record.WhichOneof("record_type") == "config" else record.run.config
        for item in about.update:
            if (name := item.key or ".".join(item.nested_key)) != "_wandb":
                yield {name: json.loads(item.value_json)}
