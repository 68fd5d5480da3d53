"""What GPUs can do, by their makers' data sheets (dense arithmetic), and what a plan assumes of them."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_gib: float
    """That a program can have of it."""
    bf16_flops: float
    """Operations a second on tensor cores."""
    fp32_flops: float
    """Without tensor cores: torch's default for float32 matrices."""
    bandwidth: float
    """Of its memory, bytes a second."""
    link: float
    """To its neighbours in the node, one way, bytes a second."""

    def flops(self, itemsize: int) -> float:
        """Peak in arithmetic of 2 or 4 bytes a number."""
        return self.bf16_flops if itemsize == 2 else self.fp32_flops


GPUS = {
    "a100": Gpu("A100 80 GB", 79, 312e12, 19.5e12, 2.039e12, 300e9),
    "h100": Gpu("H100 80 GB", 79, 989e12, 67e12, 3.35e12, 450e9),
    "h200": Gpu("H200 141 GB", 139, 989e12, 67e12, 4.8e12, 450e9),
    "rtx4090": Gpu("RTX 4090", 23.5, 165e12, 82.6e12, 1.008e12, 32e9),
}
