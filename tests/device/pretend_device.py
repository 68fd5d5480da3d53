"""A CUDA device that is not there: tensors stay in host memory, and carry a mark as long as they would be on it.

Within `PretendDevice`, `device="cuda"` works, tensors say that they are there, an operation that mixes devices fails
as on a GPU, and every time the host waits for the device is noted with the place in the code that made it wait:
`.item()`, `.tolist()`, `.cpu()`, `bool(tensor)`, shapes that depend on data (a mask as an index), plain copies. Numbers
are the CPU's, so a run has the same log.

What torch exempts is exempt here: a CPU tensor without dimensions in elementwise operations, CPU indices, a number
assigned through a mask. What else differs on a GPU fails here: host memory that is read or written while a copy that
nobody waited for may still run (`HostRace`), an index out of range, which no program survives there (`DeviceAssert`),
and products of integers.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gspo_cli

PACKAGE = str(Path(gspo_cli.__file__).parent)  # where it is installed
DEVICE, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten
SCALARS_MAY_BE_ELSEWHERE = {"masked_fill", "masked_fill_", "fill_", "where", "index_put", "index_put_", "lerp", "lerp_"}
PUTS = {"index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}
INDEXING = PUTS | {"index", "_unsafe_index"}
PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot"}
"""Operations that a GPU has for floating-point numbers only."""
CPU_ONLY = {"histogram", "histogramdd"}
MASKS = (torch.bool, torch.uint8)


class MixedDevices(RuntimeError):
    """An operation that fails on a GPU: its tensors are on different devices."""


class HostRace(RuntimeError):
    """Host memory was used while a copy from or to it may still run: on a GPU, numbers would be wrong now and then."""


class DeviceAssert(BaseException):
    """An index out of range. On a GPU every later call of the process fails, so nothing may catch it and go on."""


@dataclass(frozen=True)
class Transfer:
    """Data that crossed between host and device."""

    waits: bool
    """Whether the host waits for the device; not for a copy from pinned memory."""
    what: str
    place: str
    """File, line and function of the package that asked for it."""
    within: frozenset[str]
    """Functions of the package that were running."""


class Marks:
    """A set of storages. A weak reference keeps a storage's address from being used again."""

    def __init__(self) -> None:
        self._known: dict[int, StorageWeakRef] = {}
        self._limit = 10_000

    def __contains__(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._known

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self._known[storage._cdata] = StorageWeakRef(storage)
        if len(self._known) > self._limit:
            self._known = {key: ref for key, ref in self._known.items() if not ref.expired()}
            self._limit = 2 * len(self._known) + 10_000

    def discard(self, tensor: Tensor) -> None:
        self._known.pop(tensor.untyped_storage()._cdata, None)


class Generator(torch.Generator):
    """A random generator; it is known where each was asked for."""

    on_device: ClassVar[set[int]] = set()
    """Their addresses: an operation gets another Python object for the same generator."""

    def __new__(cls, device: Any = "cpu") -> Self:
        made = super().__new__(cls, device="cpu")
        (cls.on_device.add if as_device(device).type == "cuda" else cls.on_device.discard)(made._cdata)
        return made


class PretendDevice(TorchFunctionMode):
    """See the module. `transfers` holds what crossed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers: list[Transfer] = []
        self.marked, self.pinned = Marks(), Marks()
        self.leaving, self.arriving = Marks(), Marks()  # host memory of copies that nobody has waited for
        self.patch = pytest.MonkeyPatch()
        self.below = _Operations(self)

    def __enter__(self) -> Self:
        for name, value in {
            "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
            "get_device_name": lambda *_: "pretended", "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
            "set_rng_state": lambda *_: None, "device": lambda *_: nullcontext(),
            "synchronize": lambda *_: self.note(True, "synchronize"), "set_device": lambda *_: None,
            "is_initialized": lambda: True, "max_memory_allocated": lambda *_: 2 * 10**9,
            "max_memory_reserved": lambda *_: 3 * 10**9, "mem_get_info": lambda *_: (2 * 10**9, 4 * 10**9),
            "reset_peak_memory_stats": lambda *_: None,
            "empty_cache": lambda: None, "get_device_capability": lambda *_: (9, 0),
            "is_bf16_supported": lambda *_, **__: True, "is_current_stream_capturing": lambda: False,
        }.items():  # fmt: skip
            self.patch.setattr(torch.cuda, name, value)
        # a CUDA build without a driver has an accelerator once `is_available` says so, a CPU build has none
        self.patch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: None)
        self.patch.setattr(torch, "Generator", Generator)
        real = torch._C._group_tensors_by_device_and_dtype  # written in C++: it sees through the mask

        def grouped(lists: Any, *rest: Any) -> Any:
            for (_, kind), group in real(lists, *rest).items():
                found = [t for part in group[0] for t in part if t is not None]
                yield (self.device_of(found[0]) if found else CPU, kind), group

        backward = torch.autograd._engine_run_backward

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            """Python that runs within it, such as a recomputed layer, must see the device, too; what a derivative
            written in C++ makes of nothing (zeros to scatter into) is where its gradient is. On a GPU it runs in a
            thread of its own, which knows no context variables."""
            on_device = any(t in self.marked for t in args[0])
            run = Context().run if on_device else lambda function, *args, **kwargs: function(*args, **kwargs)
            with self.below.making(on_device):
                if torch._C._len_torch_function_stack():
                    return run(backward, *args, **kwargs)
                TorchFunctionMode.__enter__(self)
                try:
                    return run(backward, *args, **kwargs)
                finally:
                    TorchFunctionMode.__exit__(self, None, None, None)

        # the comparison of a recomputed layer with the first pass would see the devices through two kinds of eyes
        compare = checkpoint._allowed_determinism_checks_to_fns
        self.patch.setitem(compare, "default", lambda t: {"shape": t.shape, "dtype": t.dtype})
        self.patch.setattr(torch.autograd, "_engine_run_backward", run_backward)
        self.patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", lambda *args: dict(grouped(*args)))
        self.below.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.below.__exit__(*exception)
        self.patch.undo()

    def device_of(self, tensor: Tensor) -> torch.device:
        with torch._C.DisableTorchFunction():
            return tensor.device if tensor.device.type != "cpu" or tensor not in self.marked else DEVICE

    def note(self, waits: bool, what: str) -> None:
        """Records a transfer at the innermost line of the package. A wait ends all copies that were under way."""
        if waits:
            self.leaving, self.arriving = Marks(), Marks()
        frame, place, within = sys._getframe(1), "", set()
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE):
                place = place or f"{code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno} {code.co_name}"
                within.add(code.co_name)
            frame = frame.f_back  # type: ignore[assignment]
        self.transfers.append(Transfer(waits, what, place or "elsewhere", frozenset(within)))

    @contextmanager
    def counting(self) -> Iterator[list[Transfer]]:
        """Gives the transfers of the context's body, once it has ended."""
        start, found = len(self.transfers), list[Transfer]()
        yield found
        found += self.transfers[start:]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        special = _SPECIAL.get(func)
        if special is not None:
            return special(self, *args, **kwargs)
        wanted, pin = kwargs.get("device"), kwargs.pop("pin_memory", False)
        name = getattr(func, "__name__", "")
        if name == "new_tensor" and wanted is None:
            wanted = self.device_of(args[0])
        if name in ("tensor", "new_tensor"):  # numbers that are read one by one, below what a mode sees
            for leaf in tree_leaves(args[-1]):
                if isinstance(leaf, Tensor) and leaf is not args[-1] and leaf in self.marked:
                    self.note(True, f"torch.{name}([..., a number on the device, ...])")
        if wanted is None:
            with self.below.making(self.makes_on_device(func, args)):
                made = func(*args, **kwargs)
            return self.with_pin(made) if pin else made
        wanted = as_device(wanted)
        if wanted.type not in ("cuda", "cpu"):
            return func(*args, **kwargs)
        on_device = wanted.type == "cuda"
        if on_device and pin:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        kwargs["device"] = CPU
        if name in ("as_tensor", "asarray") and isinstance(args[0], Tensor):
            return self.move(args[0], wanted, kwargs.get("dtype"))
        with self.below.making(on_device):
            made = func(*args, **kwargs)
        if isinstance(made, Tensor):
            if on_device:
                if name in ("tensor", "as_tensor", "asarray", "new_tensor"):
                    self.note(True, f"torch.{name}(..., device='cuda')")
                self.marked.add(made)
            else:
                self.marked.discard(made)
        return self.with_pin(made) if pin else made

    def makes_on_device(self, func: Any, args: Any) -> bool:
        """Whether what a function written in C++ makes of nothing on its way is on the device: where its tensors are.
        An assigned number and a list of indices are made on the CPU."""
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            return False
        asked = args if func in (torch.where, torch.Tensor.where) else args[:1]
        return any(isinstance(t, Tensor) and t in self.marked for t in asked)

    def with_pin(self, tensor: Tensor) -> Tensor:
        self.pinned.add(tensor)
        return tensor

    def move(
        self, tensor: Tensor, device: Any = None, dtype: torch.dtype | None = None, non_blocking: bool = False,
        copy: bool = False, memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        """`tensor.to(...)`; what leaves pinned memory without blocking is a copy that nobody waits for."""
        device = self.device_of(tensor) if device is None else as_device(device)
        here, there = tensor in self.marked, device.type == "cuda"
        kwargs = {} if memory_format is None else {"memory_format": memory_format}
        if device.type == "meta" or tensor.device.type == "meta":
            return tensor.to(device=device, dtype=dtype or tensor.dtype, copy=copy, **kwargs)
        if here == there:
            return tensor.to(dtype=dtype or tensor.dtype, copy=copy, **kwargs)
        # of another type or with gaps, it is first copied on the CPU, to memory that is not pinned
        as_it_is = dtype in (None, tensor.dtype) and torch.empty_like(tensor).stride() == tensor.stride()
        waits = not (non_blocking and (here or (tensor in self.pinned and as_it_is)))
        self.note(waits, f"to({device.type})")
        moved = tensor.to(dtype=dtype or tensor.dtype, copy=True, **kwargs)
        (self.marked.add if there else self.marked.discard)(moved)
        if here and non_blocking:
            self.pinned.add(moved)
        if not waits:
            (self.arriving if here else self.leaving).add(moved if here else tensor)
        return moved

    def check_race(self, tensors: list[Tensor], written: list[Tensor]) -> None:
        """Errors: HostRace."""
        if any(t in self.arriving for t in tensors):
            raise HostRace("host memory is used before a copy to it, which nobody waited for, has arrived")
        if any(t in self.leaving for t in written):
            raise HostRace("pinned memory is written to before a copy from it, which nobody waited for, has left")


def as_device(device: Any) -> torch.device:
    """A device by any of its names; there is one GPU."""
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type == "cuda" and found.index:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return found


def _to(self: PretendDevice, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    names = ["non_blocking", "copy"]
    for arg in args:
        if isinstance(arg, Tensor):
            kwargs |= {"device": self.device_of(arg), "dtype": arg.dtype}
        elif isinstance(arg, torch.dtype):
            kwargs["dtype"] = arg
        elif isinstance(arg, bool):
            kwargs[names.pop(0)] = arg
        elif arg is not None:
            kwargs["device"] = arg
    return self.move(tensor, **kwargs)


def _read(what: str) -> Callable[..., Any]:
    def read(self: PretendDevice, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor in self.marked:
            self.note(True, what)
        return getattr(tensor, what)(*args, **kwargs)

    return read


def _numpy(what: str) -> Callable[..., Any]:
    def numpy(self: PretendDevice, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor in self.marked:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first")
        self.check_race([tensor], [])
        return getattr(tensor, what)(*args, **kwargs)

    return numpy


def _pin(self: PretendDevice, tensor: Tensor, *_: Any) -> Tensor:
    if tensor in self.marked:
        raise RuntimeError("cannot pin 'torch.cuda.Tensor': only dense CPU tensors can be pinned")
    if tensor in self.pinned:
        return tensor
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise RuntimeError("more than one element of the written-to tensor refers to a single memory location")
    # pinned memory keeps the strides, gaps included
    room = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    copied = tensor.new_empty(room if tensor.numel() else 0).as_strided(tensor.shape, tensor.stride())
    return self.with_pin(copied.copy_(tensor))


def _is_pinned(self: PretendDevice, tensor: Tensor, *_: Any) -> bool:
    return tensor in self.pinned


def _type_as(self: PretendDevice, tensor: Tensor, other: Tensor) -> Tensor:
    return self.move(tensor, self.device_of(other), other.dtype)


def _one_hot(self: PretendDevice, tensor: Tensor, num_classes: int = -1) -> Tensor:
    """On a CPU the classes are checked, which a GPU leaves to its kernels."""
    noted = len(self.transfers)
    with self.below.making(tensor in self.marked):
        made = torch.nn.functional.one_hot(tensor, num_classes)
    del self.transfers[noted:]
    if tensor in self.marked and num_classes < 0:
        self.note(True, "one_hot without num_classes")
    return made


def _deepcopy(self: PretendDevice, tensor: Tensor, memo: Any) -> Tensor:
    copied = tensor.__deepcopy__(memo)
    if tensor in self.marked:
        self.marked.add(copied)
    return copied


_SPECIAL: dict[Any, Callable[..., Any]] = {
    torch.Tensor.device.__get__: lambda self, tensor: self.device_of(tensor),
    torch.Tensor.is_cuda.__get__: lambda self, tensor: tensor in self.marked,
    torch.Tensor.is_cpu.__get__: lambda self, tensor: tensor not in self.marked,
    torch.Tensor.get_device: lambda self, tensor: 0 if tensor in self.marked else -1,
    torch.Tensor.to: _to,
    torch.Tensor.cuda: lambda self, tensor, *_, **kwargs: self.move(tensor, DEVICE, **kwargs),
    torch.Tensor.cpu: lambda self, tensor, **kwargs: self.move(tensor, CPU, **kwargs),
    torch.Tensor.tolist: _read("tolist"),
    torch.Tensor.numpy: _numpy("numpy"),
    torch.Tensor.__array__: _numpy("__array__"),
    torch.Tensor.type_as: _type_as,
    torch.Tensor.pin_memory: _pin,
    torch.Tensor.is_pinned: _is_pinned,
    torch.nn.functional.one_hot: _one_hot,
    torch.Tensor.__deepcopy__: _deepcopy,
}


class _Operations(TorchDispatchMode):
    """Sees every operation below autograd: checks devices, hands marks on, notes what makes the host wait."""

    def __init__(self, owner: PretendDevice) -> None:
        super().__init__()
        self.owner, self.on_device = owner, False

    @contextmanager
    def making(self, on_device: bool) -> Iterator[None]:
        """Within the context, tensors made of nothing are on the device, or not."""
        before, self.on_device = self.on_device, on_device
        try:
            yield
        finally:
            self.on_device = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.device.type != "meta"]
            marked = [t in self.owner.marked for t in tensors]
            name = func._schema.name.removeprefix("aten::")
            written = _written(func, args, kwargs)
            if not func.is_view:
                self.owner.check_race(tensors, written)
            self._check_generator(kwargs.get("generator"), any(marked) or (not tensors and self.on_device))
            if name == "copy_":
                if len(set(marked)) == 2:  # tensors of the meta device are not among them
                    host = args[1] if marked[0] else args[0]
                    waits = not (len(args) > 2 and args[2] and host in self.owner.pinned)
                    self.owner.note(waits, "copy_")
                    if not waits:
                        (self.owner.leaving if marked[0] else self.owner.arriving).add(host)
            elif any(marked):
                self._check(func, name, args, kwargs, tensors, marked, written)
            try:
                if name == "histc" and any(marked) and not args[0].is_floating_point():  # a GPU counts integers, too
                    out = func(args[0].double(), *args[1:], **kwargs).to(args[0].dtype)
                else:
                    out = func(*args, **kwargs)
            except (IndexError, RuntimeError) as error:
                if any(marked) and len(tensors) > 1 and ("out of bounds" in str(error) or "out of range" in str(error)):
                    raise DeviceAssert(f"{func}: {error}") from error
                raise
            if (any(marked) and not written) or (not tensors and self.on_device):
                for tensor in tree_leaves(out):
                    if isinstance(tensor, Tensor) and tensor.device.type == "cpu":
                        self.owner.marked.add(tensor)
            return out

    def _check_generator(self, generator: Any, on_device: bool) -> None:
        if generator is not None and (generator._cdata in Generator.on_device) != on_device:
            expected, found = ("cuda", "cpu") if on_device else ("cpu", "cuda")
            raise MixedDevices(f"Expected a '{expected}' device type for generator but found '{found}'")

    def _check(
        self, func: Any, name: str, args: Any, kwargs: Any, tensors: list[Tensor], marked: list[bool],
        written: list[Tensor],
    ) -> None:  # fmt: skip
        there = self.owner.marked
        elsewhere = [t for t, here in zip(tensors, marked, strict=True) if not here]
        if name in CPU_ONLY or (name in PRODUCTS and not (args[0].is_floating_point() or args[0].is_complex())):
            raise NotImplementedError(f"{func} of {args[0].dtype} is not implemented on a GPU")
        if name in INDEXING:
            indices = [t for t in args[1] if t is not None]
            number = name in PUTS and args[2].numel() == 1 and args[2] not in there
            fills = number and len(indices) == 1 and indices[0].dtype in MASKS and indices[0] in there
            if any(t.dtype in MASKS for t in indices):
                if not fills or (len(args) > 3 and args[3]):
                    self.owner.note(True, f"{name} with a mask")
            elif any(t not in there for t in indices):
                self.owner.note(True, f"{name} with CPU indices")
            elif number and args[2].dim() == 0:
                self.owner.note(True, f"{name} of a number on the CPU")
            elsewhere = [t for t in elsewhere if all(t is not i for i in indices)]
            if args[0] not in there:
                elsewhere = [args[0]]
        elif name == "repeat_interleave" and kwargs.get("output_size") is not None:
            pass
        elif torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
            self.owner.note(True, name)
        elif name == "where" and elsewhere:  # it is copied there; elementwise operations read it as they start
            self.owner.note(True, "where of a number on the CPU")
        elif name in ("masked_fill", "masked_fill_") and isinstance(args[2], Tensor) and args[2] in there:
            self.owner.note(True, f"{name} with a number on the device")
        elif name == "fill_" and args[0] not in there and args[1].dim() == 0:
            self.owner.note(True, "fill_ of CPU memory with a number on the device")
            return
        if torch.Tag.pointwise in func.tags or name in SCALARS_MAY_BE_ELSEWHERE:
            elsewhere = [t for t in elsewhere if t.dim() or any(t is w for w in written)]
        if elsewhere:
            shapes = ", ".join(str(list(t.shape)) for t in elsewhere)
            raise MixedDevices(f"{func}: tensors of shape {shapes} are on the CPU, others on cuda:0")


def _written(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation writes to."""
    writes = [(i, a.name) for i, a in enumerate(func._schema.arguments) if a.alias_info and a.alias_info.is_write]
    mutated = [args[i] if i < len(args) else kwargs.get(name) for i, name in writes]
    return [t for t in tree_leaves(mutated) if isinstance(t, Tensor)]
