"""The cold start: a short supervised stage on demonstrations, built once and cached.

Reinforcement learning needs a start model that sometimes succeeds; the GSPO paper starts from one (arXiv 2507.18071,
§5.1). The cached folder's name hashes everything the result depends on.

B = responses, T = token positions, H = width of the model
"""

import fcntl
import hashlib
import inspect
import json
import math
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import ColdStart, Recipe
from gspo_cli.errors import GspoError
from gspo_cli.models import tiny
from gspo_cli.models.adapters import refuse_adapter
from gspo_cli.models.admission import position_limit
from gspo_cli.models.device import pick_device
from gspo_cli.models.load import load_policy
from gspo_cli.models.remote_code import allowed_code
from gspo_cli.models.trunk import head_logits, last_hidden, trunk_of
from gspo_cli.rollout.prompts import encode, encode_response
from gspo_cli.runlog.folder import cache_root
from gspo_cli.seeds import derive_seed
from gspo_cli.tasks import Demonstrated, make_task
from gspo_cli.tasks.data import fill, load_rows
from gspo_cli.types import Problem

WARMUP = 0.05
"""Share of the steps over which the learning rate rises; afterwards it falls along a cosine."""
NOT_LEARNT = {"reward", "rewards", "grader", "too_long", "deadline_s"}
"""Keys of `[task]` that demonstrations do not depend on."""
Progress = Callable[[int, int, float], None]
"""Called with steps done, steps planned and the loss."""


def start_model(recipe: Recipe, progress: Progress) -> Path:
    """The folder of the model that training starts from: the recipe's own, or its cached cold start.

    A cold start is built under a lock, so that two processes build it once, in a temporary folder that is then renamed.
    Errors: GspoError when the cache cannot be written.
    """
    if recipe.model.path is not None and recipe.cold_start is None:
        return Path(recipe.model.path)
    cache = cache_root() / "cold-start"
    target = cache / cache_key(recipe)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache / f"{target.name}.lock"):
            if not target.exists():
                temporary = cache / f".tmp-{target.name}"
                shutil.rmtree(temporary, ignore_errors=True)
                build(recipe, temporary, progress)
                temporary.replace(target)
    except OSError as error:
        raise GspoError(
            f"cannot write the cold start to {cache}", str(error), "set GSPO_CACHE to a folder with space"
        ) from error
    return target


def build(recipe: Recipe, folder: Path, progress: Progress) -> None:
    """Trains the cold start and saves it as a Hugging Face folder."""
    model, tokenizer = base_model(recipe)
    if recipe.cold_start is not None:
        rows, limit = demonstrations(recipe, tokenizer), position_limit(model.config)
        if limit is not None and (longest := max(len(prompt + response) for prompt, response in rows)) > limit:
            raise GspoError(
                f"a demonstration of the cold start has {longest} tokens",
                f"the model has {limit} positions",
                "leave out demonstrations that are too long, or take another model",
            )
        supervise(model, rows, recipe.cold_start, progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def base_model(recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model before its cold start."""
    if recipe.model.tiny is None:
        assert recipe.model.path is not None
        refuse_adapter(recipe.model.path, "a cold start")
        exact = recipe.model.model_copy(update={"compute": None, "float32_head": False})
        return load_policy(exact, recipe.model.path)
    seed = recipe.cold_start.seed if recipe.cold_start else 0
    model, tokenizer = tiny.build_tiny(recipe.model.tiny, derive_seed(seed, "weights"))
    if recipe.model.tiny.kind == "qwen3_moe" and pick_device(recipe.model.device).type == "cpu":
        model.set_experts_implementation("eager")
    return model.to(pick_device(recipe.model.device)), tokenizer


def demonstrations(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> list[tuple[list[int], list[int]]]:
    """Token ids of prompt and response (EOS included) for every row of every step."""
    assert recipe.cold_start is not None
    cold, size = recipe.cold_start, recipe.cold_start.steps * recipe.cold_start.batch
    if cold.path is not None:
        rows = demonstration_rows(cold, cold.path)
        rng = random.Random(derive_seed(cold.seed, "demonstrations"))
        pairs = [(r["prompt"], r["response"]) for r in rng.choices(rows, k=size)]
    else:
        task = make_task(recipe.task)
        if not isinstance(task, Demonstrated):
            raise GspoError(
                f"task {recipe.task.name!r} has no demonstrations",
                "a cold start needs pairs of prompt and response to learn from",
                "give them in a file (--set cold_start.path=FILE), or remove [cold_start]",
            )
        pairs, template = task.demonstrations(cold.seed, size), recipe.task.template
        if template is not None:
            pairs = [(fill(template, prompt), response) for prompt, response in pairs]
    prompts = {
        text: list(encode(tokenizer, Problem(text[:40], text, ""), recipe.task).token_ids) for text, _ in set(pairs)
    }
    responses = {text: encode_response(tokenizer, text) for _, text in set(pairs)}
    return [(prompts[prompt], responses[response]) for prompt, response in pairs]


def demonstration_rows(cold: ColdStart, path: str) -> list[dict[str, str]]:
    """The rows of one's own demonstrations, with `prompt` and `response`. Errors: as `load_rows`."""
    columns = {"prompt": "prompt", "response": "response"} | {str(k): v for k, v in cold.columns.items()}
    return load_rows(path, hub=None, split="train", columns=columns, key="cold_start")


def supervise(
    model: PreTrainedModel, rows: list[tuple[list[int], list[int]]], cold: ColdStart, progress: Progress
) -> None:
    """Trains on the responses by cross-entropy: AdamW with warm-up and cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=cold.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    model.train()
    for step in range(cold.steps):
        ids_BT, mask_BT = (t.to(model.device) for t in pad_pairs(rows[step * cold.batch : (step + 1) * cold.batch]))
        hidden_BTH = last_hidden(trunk_of(model), ids_BT, None).unflatten(0, ids_BT.shape)
        predicts_BT = mask_BT[:, 1:]
        logits = head_logits(model, hidden_BTH[:, :-1][predicts_BT])
        loss = F.cross_entropy(logits.float(), ids_BT[:, 1:][predicts_BT])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done = step / cold.steps
        factor = min(1.0, done / WARMUP + 1e-3) * 0.5 * (1 + math.cos(math.pi * done))
        for group in optimizer.param_groups:
            group["lr"] = cold.lr * factor
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9 or step + 1 == cold.steps:
            if not math.isfinite(loss.item()):
                raise GspoError(
                    f"the cold start diverged by step {step + 1}", f"its loss is {loss.item()}", "lower cold_start.lr"
                )
            progress(step + 1, cold.steps, loss.item())
    model.eval()


def pad_pairs(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Token ids and response mask of rows of prompt and response, padded on the right: [B, T] each."""
    ids = [torch.tensor(prompt + response) for prompt, response in pairs]
    masks = [torch.arange(len(prompt + response)) >= len(prompt) for prompt, response in pairs]
    return pad_sequence(ids, batch_first=True), pad_sequence(masks, batch_first=True)


def cache_key(recipe: Recipe) -> str:
    """A hash of everything that the cold start depends on: configuration, code and data, libraries, device."""
    task, cold, code = make_task(recipe.task), recipe.cold_start, allowed_code()
    sources = [Path(inspect.getfile(part)) for part in (supervise, encode, tiny, type(task))]
    data = [Path(cold.path)] if cold and cold.path and Path(cold.path).is_file() else []
    parts = {
        "model": recipe.model.model_dump(mode="json", exclude={"lora", "compute", "float32_head"})
        | ({"code": code} if code else {}),
        "cold_start": cold.model_dump(mode="json") if cold else None,
        "task": recipe.task.model_dump(mode="json", exclude=NOT_LEARNT),
        "files": [hashlib.sha256(p.read_bytes()).hexdigest() for p in sources + data],
        "libraries": [torch.__version__, transformers.__version__],
        "threads": torch.get_num_threads(),
        "device": pick_device(recipe.model.device).type,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file; the kernel frees it if the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
