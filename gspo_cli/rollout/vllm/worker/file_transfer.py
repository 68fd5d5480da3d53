"""A weight transfer backend of vLLM's that reads a safetensors file: what NCCL does on GPUs, for a server on a CPU.

A server loads it by `--worker-extension-cls file_transfer.Known` with this folder in PYTHONPATH; docs/vllm.md has the
whole line. It works around the two faults of vLLM's reload on CPUs as `vllm_backend.py` says.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm_backend import drop_kernels, from_file, pack_heads  # type: ignore[import-not-found]


class Known:
    """What a server names so that this file is read before its backends are looked up; it has nothing of its own."""


@dataclass
class NoInit(WeightTransferInitInfo):  # type: ignore[misc]
    """There is nothing to connect."""


@dataclass
class File(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The whole model."""

    path: str


class FileTransfer(WeightTransferEngine[NoInit, File]):  # type: ignore[misc]
    """The workers' side; see vLLM's base class for what each method is for."""

    init_info_cls, update_info_cls = NoInit, File

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        """As for any checkpoint, after the experts' kernels are gone."""
        drop_kernels(self.model)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: File) -> None:
        """Tensor by tensor."""
        self.model.load_weights(from_file(update_info.path))

    def finish_weight_update(self) -> None:
        """As for any checkpoint, and heads packed anew."""
        finalize_layerwise_reload(self.model, self.model_config)
        pack_heads(self.model)

    def shutdown(self) -> None:
        """Nothing to free."""


WeightTransferEngineFactory.register_engine("file", FileTransfer)
