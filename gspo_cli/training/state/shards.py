"""A checkpoint of several ranks: each writes the rows that it holds of every tensor, and whole weights of some layers.

A tensor's rows are saved under its name and the number of the first one, `NAME@ROW`; a whole tensor under its name.
"""

import hashlib
import json
import re
from collections import ChainMap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from gspo_cli.distributed import Ranks, all_gather_bytes, lost_rank_error
from gspo_cli.models.sharding import full_tensor
from gspo_cli.runlog import fs
from gspo_cli.runlog.checksums import Entries, sha256_of
from gspo_cli.training.state.checkpoint_folder import REFUSED, Damaged

TYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
TYPES |= {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}  # a model's buffers
LAYER = re.compile(r".*?\.\d+\.|.*")
"""The part of a weight's name that a decoder layer's weights share."""

Pieces = dict[str, list[tuple[int, Any]]]
"""Name -> the saved parts of a tensor, each with the number of its first row, in order."""
Written = tuple[Entries, list[dict[str, str]], dict[str, str]]
"""What all ranks have written: their files, the hashes of their weights, and which file holds which weight."""


@dataclass(frozen=True)
class CheckpointState:
    """The tensors that this rank writes into a checkpoint."""

    weights: dict[str, Tensor]
    """Whole ones, on rank 0: all, or with several ranks the adapters of LoRA."""
    rows: dict[str, tuple[torch.Size, Tensor]]
    """With several ranks: of each other weight its shape, and the rows that this rank holds."""
    buffers: dict[str, Tensor]
    """With several ranks, on rank 0: what a model saves beside its weights, such as the bias of its routers."""
    files: dict[str, dict[str, Tensor]]
    weights_sha256: str
    """With several ranks: empty, as it is known once they have been gathered."""


def share_name(kind: str, rank: int, size: int) -> str:
    """The file for a rank's share of the weights, the moments or the critic."""
    return f"{kind}.safetensors" if size == 1 else f"{kind}-{rank + 1:05d}-of-{size:05d}.safetensors"


def held_rows(tensor: Tensor) -> tuple[int, int]:
    """The first of the rows of a tensor that this rank holds, and the one behind the last."""
    if not isinstance(tensor, DTensor):
        return 0, tensor.shape[0]
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return offset[0], offset[0] + shape[0]


def own_part(tensor: Tensor) -> Tensor:
    """The rows of a tensor that this rank holds: the same memory."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def named_rows(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """What this rank saves of a tensor."""
    if not isinstance(tensor, DTensor):
        return {name: own_part(tensor)}
    first, end = held_rows(tensor)
    return {f"{name}@{first}": own_part(tensor)} if end > first else {}


def load_pieces(folder: Path, kind: str) -> Pieces:
    """Everything of a kind that any number of ranks saved; nothing is read yet. Errors: OSError when there is none."""
    pieces: Pieces = {}
    for file in sorted(folder.glob(f"{kind}*.safetensors")) or [folder / f"{kind}.safetensors"]:
        saved: Any = safe_open(file, "pt")
        for key in saved.keys():  # noqa: SIM118  (it is no dictionary)
            name, _, first = key.partition("@")
            pieces.setdefault(name, []).append((int(first or 0), saved.get_slice(key)))
    return {name: sorted(parts, key=lambda part: part[0]) for name, parts in pieces.items()}


@torch.no_grad()
def read_into(tensor: Tensor, pieces: list[tuple[int, Any]], name: str) -> None:
    """Fills this rank's part of a tensor with the rows that were saved of it, and reads no others.

    Errors: ValueError for a tensor of another shape or type.
    """
    own = own_part(tensor)
    if tensor.ndim:
        (first, end), parts, total = held_rows(tensor), list[Tensor](), 0
        for start, saved in pieces:
            size = saved.get_shape()[0]
            parts.append(saved[min(max(first - start, 0), size) : min(max(end - start, 0), size)])
            total = start + size
        rows = torch.cat(parts)
    else:
        rows, total = pieces[0][1][...], 0
    if rows.shape != own.shape or rows.dtype != own.dtype or total != (tensor.shape[0] if tensor.ndim else 0):
        raise ValueError(f"the saved state of {name} has another shape or type")
    own.copy_(rows)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Writes a safetensors file and reads it back; returns its size and sha256. Other threads go on meanwhile: the
    library would hold Python's lock until the file is written.

    Errors: OSError; Damaged when it reads back differently.
    """
    header, end, digest = dict[str, Any]({"__metadata__": {"format": "pt"}}), 0, hashlib.sha256()
    aligned = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    for name in aligned:
        header[name] = {"dtype": TYPES[tensors[name].dtype], "shape": list(tensors[name].shape)}
        header[name]["data_offsets"] = [end, end := end + tensors[name].nbytes]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for data in (len(text).to_bytes(8, "little"), text, *(bytes_of(tensors[name]) for name in aligned)):
            digest.update(data)
            file.write(data)
    fs.fsync(path)
    if sha256_of(path) != digest.hexdigest():
        raise Damaged(f"{path.name} reads back differently from what was written")
    return {"bytes": 8 + len(text) + end, "sha256": digest.hexdigest()}


def bytes_of(tensor: Tensor) -> Any:
    """A tensor's bytes, on the host."""
    return tensor.cpu().contiguous().flatten().view(torch.uint8).numpy()


def tensor_hash(tensor: Tensor) -> str:
    """sha256 of a tensor's bytes."""
    return hashlib.sha256(bytes_of(tensor)).hexdigest()


def trained_hash(hashes: list[dict[str, str]]) -> str:
    """sha256 of the trained weights, from that of each of them by name, of all ranks."""
    return hashlib.sha256(json.dumps(dict(ChainMap(*hashes)), sort_keys=True).encode()).hexdigest()


def shared_hash(model: nn.Module, ranks: Ranks) -> str:
    """`trained_hash` of a model, in which each rank hashes its share."""
    trained = ((n, name, p) for n, (name, p) in enumerate(model.named_parameters()) if p.requires_grad)
    whole = ((n, name, full_tensor(p.detach())) for n, name, p in trained)
    own = {name: tensor_hash(tensor) for n, name, tensor in whole if n % ranks.size == ranks.rank}
    return trained_hash(ranks.all_gather(lambda: own))


def gather_layers(rows: dict[str, tuple[torch.Size, Tensor]], group: Any) -> dict[str, Tensor]:
    """The whole weights of the layers that fall to this rank; all of the group must call it. `rows` = for each weight
    its shape and this rank's rows; it is emptied.

    A layer goes to the rank that has least so far: what a file calls otherwise may take several of a layer's weights.
    """
    rank, size = group.rank(), group.size()
    owners, loads, found = dict[str, int](), [0] * size, dict[str, Tensor]()
    for name in list(rows):
        shape, own = rows.pop(name)
        owner = owners.setdefault(LAYER.match(name)[0], loads.index(min(loads)))  # type: ignore[index]
        loads[owner] += shape.numel()
        each = -(-shape[0] // size)  # as torch divides rows: the last ranks may have fewer, or none
        part = own.new_zeros(each, *shape[1:])
        part[: len(own)] = own
        whole = own.new_empty(each * size, *shape[1:]) if owner == rank else None
        parts = None if whole is None else list(whole.flatten().view(torch.uint8).chunk(size))
        dist.gather(part.flatten().view(torch.uint8), parts, dst=owner, group=group)
        if whole is not None:
            found[name] = whole[: shape[0]]
    return found


def write_share(state: CheckpointState, model: PreTrainedModel, part: Path, group: Any) -> Written:
    """Writes a rank's files and its whole layers of the weights into the folder `part`.

    Errors: OSError on all ranks when a disk refuses something to one; GspoError when a rank is lost.
    """
    entries, why = dict[str, dict[str, Any]](), list[str]()

    def put(name: str, tensors: dict[str, Tensor]) -> None:
        try:
            entries[name] = write_tensors(part / name, tensors)
        except REFUSED as error:
            why.append(str(error))
        tensors.clear()

    for name, tensors in state.files.items():
        put(name, tensors)
    try:
        whole = gather_layers(state.rows, group)
    except RuntimeError as error:
        raise lost_rank_error(error) from error
    hashes = {name: tensor_hash(tensor) for name, tensor in (state.weights | whole).items()}
    ignored = set(model._keys_to_ignore_on_save or ())
    saved = {name: t for name, t in (whole | state.buffers).items() if name not in ignored}
    saved = revert_weight_conversion(model, saved)
    whole.clear()
    index = dict.fromkeys(saved, share_name("model", group.rank(), group.size()))
    if saved:
        put(f"model/{next(iter(index.values()))}", saved)
    mine = json.dumps([entries, hashes, index, why])
    shares = [json.loads(text) for text in all_gather_bytes(mine.encode(), group)]
    if refusals := [text for *_, refused in shares for text in refused]:
        raise OSError(refusals[0])
    every, hashed, indices, _ = zip(*shares, strict=True)
    return dict(ChainMap(*every)), list(hashed), dict(ChainMap(*indices))
