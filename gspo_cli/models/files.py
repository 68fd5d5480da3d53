"""The files of a model folder, checked before a library opens any of them: nothing is missing, cut off or damaged, no
link leads out of the folder, and weights are data, not code. Python code is another matter (`remote_code.py`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo_cli.errors import GspoError
from gspo_cli.hub import may_be_read
from gspo_cli.models.adapters import is_adapter
from gspo_cli.models.growth import most_growth
from gspo_cli.models.remote_code import code_arguments, code_hint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

INDEX = "model.safetensors.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
MAX_TOKEN_ID = 1 << 24
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
MOST = dict.fromkeys(LAYERS, 10_000)
MOST |= {"vocab_size": MAX_TOKEN_ID, "hidden_size": 1 << 20, "num_experts_per_tok": 10_000}
MOST |= {"max_position_embeddings": 1 << 40}
"""Sizes in a config.json, and more than any model has of each."""
MAX_HEADER = 100_000_000
"""Bytes; the library refuses a longer one too."""
MAX_GROWTH = 1 << 12
"""Times as many characters: two Unicode normalizations, and bytes as characters, give 18 * 18 * 4."""
NOT_AS_EXPECTED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading JSON of another form raises."""


def check_source(source: str, revision: str | None = None) -> None:
    """Errors: GspoError for a path with neither a model nor adapters in it; for a damaged weight file; and for a hub
    name that is not in the hub's cache while the hub cannot be reached."""
    folder = Path(source)
    if is_adapter(folder):
        return check_model_folder(folder)
    if (looks_local(source) or folder.is_dir()) and not (folder / "config.json").is_file():
        absent = "it is a file" if folder.is_file() else "the folder does not exist"
        raise GspoError(
            f"no model in {source or 'an empty name'}",
            absent if source == "" or not folder.is_dir() else "it has no config.json",
            "give a Hugging Face model folder, or a hub name such as Qwen/Qwen3-0.6B",
        )
    if folder.is_dir():
        check_model_folder(folder)
        check_sizes(folder)
        return
    with loading(f"the model {source}", source):
        available = may_be_read(source, revision)
    if not available:
        raise GspoError(
            f"cannot read the model {source}",
            "it is not in the hub's cache, and the hub cannot be reached",
            "check the name and the network, or give a local folder",
        )


def read_config(source: str, revision: str | None) -> PreTrainedConfig:
    """The model's configuration. Errors: GspoError when it cannot be read."""
    from transformers import AutoConfig  # loads torch

    with loading(f"the model {source}", source):
        return AutoConfig.from_pretrained(source, revision=revision, **code_arguments(source))  # type: ignore[no-any-return]


def check_model_folder(folder: Path) -> None:
    """Errors: GspoError when a file is a link that leads out of the folder, when an index names a file elsewhere or one
    that is missing, when a safetensors file is damaged, or when the only weights are pickled."""
    files = sorted(_files(folder))
    for path in files:
        if path.is_symlink() and not _may_link_to(path.resolve(), folder):
            raise GspoError(
                f"{path} is a symbolic link to {path.resolve()}",
                "a model folder whose files lie elsewhere could have any file of this machine read, and copied into "
                "checkpoints",
                "copy the file into the folder if it belongs there, or name the folder that holds it",
            )
        if path.exists() and not path.is_file() and not path.is_dir():
            raise GspoError(f"{path} is no ordinary file", "a pipe or device may never end", "remove it")
        if path.name.endswith(".safetensors.index.json"):
            _check_index(path, own=path == folder / INDEX)
        if path.suffix == ".safetensors" and path.is_file():
            _check_safetensors(path)
    weights = [path for path in files if path.suffix == ".safetensors"]
    pickled = [path for path in files if path.suffix in PICKLED and path.parent == folder]
    if pickled and not weights:
        raise GspoError(
            f"the weights in {folder} are pickled",
            f"{pickled[0].name} could run code as it is read",
            "give a folder with model.safetensors; transformers' save_pretrained(FOLDER) writes it",
        )


def check_sizes(folder: Path) -> None:
    """Errors: GspoError for a config.json with a size that no model has: transformers would begin to build it."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        sizes = {name: config[name] for name in MOST if type(config.get(name)) is int}
    except (OSError, *NOT_AS_EXPECTED):
        return  # transformers says what is wrong with it
    if wrong := [f"{name} = {size:.3g}" for name, size in sizes.items() if not 0 < size <= MOST[name]]:
        raise GspoError(
            f"cannot load the model {folder}", f"its config.json has {wrong[0]}", "copy or download config.json again"
        )


def check_tokenizer(folder: Path) -> None:
    """Errors: GspoError when tokenizer.json numbers a token beyond any vocabulary: the tokenizer would reserve memory
    for every number below it; or when it makes a text many times as long. A file of another form is left to the
    tokenizer's own reader."""
    path = folder / "tokenizer.json"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = table["model"]["vocab"]
        ids = [
            *(vocabulary.values() if isinstance(vocabulary, dict) else ()),
            *(t["id"] for t in table.get("added_tokens") or ()),
        ]
        largest = max((i for i in ids if isinstance(i, int)), default=0)
    except (OSError, *NOT_AS_EXPECTED):
        return
    if largest > MAX_TOKEN_ID:
        raise GspoError(
            f"{path} numbers a token {largest:,}",
            f"a vocabulary has at most {MAX_TOKEN_ID:,} tokens",
            "download the tokenizer again, or save it again with save_pretrained",
        )
    try:
        text, *others = (most_growth(table.get(part)) for part in ("normalizer", "post_processor", "decoder"))
        most = max(text * most_growth(table.get("pre_tokenizer")), *others)
    except NOT_AS_EXPECTED as error:
        raise _damaged(path, f"its steps have another form than any tokenizer's: {error!r:.80}") from error
    if most > MAX_GROWTH:
        raise GspoError(
            f"{path} can make a text {most:.2g} times as long", f"no tokenizer needs more than {MAX_GROWTH:,} times",
            "download the tokenizer again, or save it again with save_pretrained",
        )  # fmt: skip


def _files(folder: Path) -> Iterator[Path]:
    """Every file, and every link, of the folder; links are not followed."""
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        yield from (here / name for name in names)
        yield from (here / name for name in folders if (here / name).is_symlink())


def _may_link_to(target: Path, folder: Path) -> bool:
    """Within the folder; or, in the hub's cache (`models--x/snapshots/COMMIT`), in the blobs of the same model."""
    real = folder.resolve()
    allowed = [real, real.parents[1] / "blobs"] if real.parent.name == "snapshots" else [real]
    return any(target.is_relative_to(place) for place in allowed)


def _check_index(path: Path, own: bool) -> None:
    """Errors: GspoError for an index that names a file elsewhere; for the model's `own` also where it is damaged, or a
    file that it names is missing."""
    try:
        names = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
        elsewhere = [name for name in names if Path(name).name != name or "\\" in name]
    except NOT_AS_EXPECTED as error:
        if own:
            raise _damaged(path, f"it is not an index of weights: {error}") from error
        return
    if elsewhere:
        message = f"{path} names weights that are not in its folder"
        raise GspoError(message, f"the file {elsewhere[0]!r}", "copy them into the folder")
    if own and (missing := [name for name in names if not (path.parent / name).is_file()]):
        raise GspoError(
            f"cannot load the model {path.parent}: no file {missing[0]}",
            f"{INDEX} says that some of the weights are in it",
            "copy or download it again",
        )


def not_floating(folder: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a folder's weights that are not of floating-point numbers."""
    headers = [_check_safetensors(path) for path in sorted(folder.glob("*.safetensors"))]
    entries = {name: entry for header in headers for name, entry in header.items() if name != "__metadata__"}
    return {name: entry["shape"] for name, entry in entries.items() if not entry["dtype"].startswith(("F", "BF"))}


def _check_safetensors(path: Path) -> dict[str, Any]:
    """The header. Errors: GspoError for a file whose length is not the one that its header gives, or without one."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise _damaged(path, f"it has {size} bytes, too few for its own header, or it is not a safetensors file")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
            end = 8 + length + max((v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"), default=0)
        except NOT_AS_EXPECTED as error:
            raise _damaged(path, f"its header cannot be read: {error}") from error
    if size != end:
        raise _damaged(path, f"it has {size} bytes, and by its header {end}")
    return header


def _damaged(path: Path, why: str) -> GspoError:
    return GspoError(f"{path} is damaged", why, "copy or download it again")


def looks_local(source: str) -> bool:
    """Whether a name can only be a path: a hub name is `owner/name`, with no local folder `owner`."""
    return source.startswith((".", "/", "~")) or source.count("/") != 1 or Path(Path(source).parts[0]).is_dir()


@contextmanager
def loading(what: str, source: str) -> Iterator[None]:
    """Within the context, every error of a library is a user error: libraries raise almost anything over a broken file.

    Errors: GspoError that names what cannot be loaded.
    """
    try:
        yield
    except GspoError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of a library in Rust
            raise
        raise _load_error(f"cannot load {what}", source, error) from error


def _load_error(message: str, source: str, error: BaseException) -> GspoError:
    """The error for a model or tokenizer that cannot be loaded, or that needs code which was not allowed."""
    if hint := code_hint(source, error):
        return GspoError(message, "it comes with its own Python code, which runs only if allowed; none was run", hint)
    local = Path(source).is_dir()
    hint = "check the files in the folder" if local else "check the name and the network, or give a local folder"
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [type(error).__name__]
    why = " ".join(lines[: 2 if lines[0].endswith(":") else 1])  # a heading alone says nothing
    return GspoError(message, why, hint)
