"""The cold start: a short supervised stage on demonstrations, built once and cached.

Reinforcement learning needs a start model that sometimes succeeds; the GSPO paper starts from one (arXiv 2507.18071,
§5.1). The cached folder's name hashes everything the result depends on.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gspo_cli.config import ColdStart, Recipe
from gspo_cli.errors import GspoError
from gspo_cli.models import tiny
from gspo_cli.models.adapter_folder import refuse_adapter
from gspo_cli.models.foreign_code import allowed_code
from gspo_cli.models.load import load_policy, pick_device
from gspo_cli.seeds import derive_seed
from gspo_cli.tasks import make_task
from gspo_cli.tasks.contract import Demonstrated
from gspo_cli.tasks.data import load_rows

WARMUP = 0.05  # share of the steps over which the learning rate rises; afterwards it falls along a cosine
Progress = Callable[[int, int, float], None]
"""Called with steps done, steps planned and the loss."""


def start_model(recipe: Recipe, progress: Progress) -> Path:
    """The folder of the model that training starts from: the recipe's own, or the cached cold start of it.

    The build happens in a temporary folder that is renamed when it is whole, under a lock, so that two processes
    build it once.
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


def cache_root() -> Path:
    """Where start models are kept between studies."""
    return Path(os.environ.get("GSPO_CACHE") or Path.home() / ".cache" / "gspo")


def build(recipe: Recipe, folder: Path, progress: Progress) -> None:
    """Trains the cold start and saves it as a Hugging Face folder."""
    model, tokenizer = base_model(recipe)
    if recipe.cold_start is not None:
        supervise(model, demonstrations(recipe, tokenizer), recipe.cold_start, progress)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def base_model(recipe: Recipe) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model before its cold start."""
    if recipe.model.tiny is None:
        assert recipe.model.path is not None
        refuse_adapter(recipe.model.path, "a cold start")
        return load_policy(recipe.model, recipe.model.path)
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
        columns = {"prompt": "prompt", "response": "response"} | {str(k): v for k, v in cold.columns.items()}
        rows = load_rows(cold.path, hub=None, split="train", columns=columns)
        rng = random.Random(derive_seed(cold.seed, "demonstrations"))
        pairs = [(r["prompt"], r["response"]) for r in rng.choices(rows, k=size)]
    else:
        task = make_task(recipe.task)
        if not isinstance(task, Demonstrated):
            raise GspoError(
                f"task {recipe.task.name!r} has no demonstrations of its own",
                "a cold start needs pairs of prompt and response to learn from",
                "give them in a file: --set cold_start.path=FILE, or remove [cold_start]",
            )
        pairs = task.demonstrations(cold.seed, size)
    known: dict[str, list[int]] = {}
    for text in {t for pair in pairs for t in pair}:
        known[text] = tokenizer(text)["input_ids"]
    return [(known[p], [*known[r], tokenizer.eos_token_id]) for p, r in pairs]


def supervise(
    model: PreTrainedModel, rows: list[tuple[list[int], list[int]]], cold: ColdStart, progress: Progress
) -> None:
    """Cross-entropy on the responses, AdamW, warm-up and cosine."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=cold.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    model.train()
    for step in range(cold.steps):
        ids_BT, mask_BT = (t.to(model.device) for t in pad_pairs(rows[step * cold.batch : (step + 1) * cold.batch]))
        hidden_BTH = model.base_model(input_ids=ids_BT, attention_mask=None, use_cache=False).last_hidden_state
        predicts_BT = mask_BT[:, 1:]
        logits = F.linear(hidden_BTH[:, :-1][predicts_BT], model.get_output_embeddings().weight)
        loss = F.cross_entropy(logits.float(), ids_BT[:, 1:][predicts_BT])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = cold.lr * schedule(step / cold.steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 9 or step + 1 == cold.steps:
            progress(step + 1, cold.steps, loss.item())
    model.eval()


def schedule(done: float) -> float:
    """The learning rate's factor after a share of the steps."""
    return min(1.0, done / WARMUP + 1e-3) * 0.5 * (1 + math.cos(math.pi * done))


def pad_pairs(pairs: list[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor]:
    """Token ids and response mask of prompt + response rows, padded on the right: [B, T] each."""
    width = max(len(p) + len(r) for p, r in pairs)
    ids_BT, mask_BT = torch.zeros(len(pairs), width, dtype=torch.long), torch.zeros(len(pairs), width, dtype=torch.bool)
    for i, (prompt, response) in enumerate(pairs):
        end = len(prompt) + len(response)
        ids_BT[i, :end] = torch.tensor(prompt + response)
        mask_BT[i, len(prompt) : end] = True
    return ids_BT, mask_BT


def cache_key(recipe: Recipe) -> str:
    """A hash of the configuration, the code and data of the demonstrations, and the libraries that compute it."""
    task, cold, code = make_task(recipe.task), recipe.cold_start, allowed_code()
    sources = [Path(__file__), Path(tiny.__file__), Path(inspect.getfile(type(task)))]
    data = [Path(cold.path)] if cold and cold.path and Path(cold.path).is_file() else []
    parts = {
        "model": recipe.model.model_dump(mode="json", exclude={"lora"}) | ({"code": code} if code else {}),
        "cold_start": cold.model_dump(mode="json") if cold else None,
        "task": recipe.task.model_dump(mode="json"),
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
