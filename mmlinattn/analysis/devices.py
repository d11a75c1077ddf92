"""Peak performance of devices, from the manufacturers' data sheets."""

from dataclasses import dataclass
from typing import Dict, Optional

GB, TB, TFLOP = 1e9, 1e12, 1e12


@dataclass(frozen=True)
class Device:
    """Peak performance of a training device.

    Args:
        flops: FLOP/s of matrix products by precision, without sparsity; a multiply-accumulate is
            two.
        bandwidth: memory bandwidth, bytes/s.
        memory: bytes.
        link: bandwidth to the other devices of the machine, bytes/s in one direction.
        network: its share of the bandwidth between machines, bytes/s in one direction; None if the
            data sheet gives none.
        source: data sheets.
        overlaps: True if transfers overlap with computation.
        per_machine: devices per machine.

    Raises:
        ValueError: a number is not positive.
    """

    flops: Dict[str, float]
    bandwidth: float
    memory: float
    link: float
    network: Optional[float]
    source: str
    overlaps: bool = True
    per_machine: int = 8

    def __post_init__(self) -> None:
        numbers = dict(vars(self), **self.flops)
        for name in ('bandwidth', 'memory', 'link', 'network', 'per_machine', *self.flops):
            if numbers[name] is not None and numbers[name] <= 0:
                raise ValueError(f'{name} must be positive, got {numbers[name]}')


DEVICES = {
    'v100': Device(
        dict(fp32=15.7 * TFLOP, fp16=125 * TFLOP),
        bandwidth=900 * GB, memory=32 * GB, link=150 * GB, network=6.25 * GB,
        source='NVIDIA V100 (SXM2 32 GB) and DGX-1 data sheets',
    ),
    'a100': Device(
        dict(fp32=19.5 * TFLOP, tf32=156 * TFLOP, bf16=312 * TFLOP, fp16=312 * TFLOP),
        bandwidth=2.039 * TB, memory=80 * GB, link=300 * GB, network=25 * GB,
        source='NVIDIA A100 (SXM4 80 GB) and DGX A100 data sheets',
    ),
    'h100': Device(
        dict(fp32=67 * TFLOP, tf32=494.5 * TFLOP, bf16=989.5 * TFLOP, fp16=989.5 * TFLOP),
        bandwidth=3.35 * TB, memory=80 * GB, link=450 * GB, network=50 * GB,
        source='NVIDIA H100 (SXM5) and DGX H100 data sheets',
    ),
    'h200': Device(
        dict(fp32=67 * TFLOP, tf32=494.5 * TFLOP, bf16=989.5 * TFLOP, fp16=989.5 * TFLOP),
        bandwidth=4.8 * TB, memory=141 * GB, link=450 * GB, network=50 * GB,
        source='NVIDIA H200 (SXM5) and DGX H200 data sheets',
    ),
    'rtx4090': Device(
        dict(fp32=82.6 * TFLOP, tf32=82.6 * TFLOP, bf16=165.2 * TFLOP, fp16=165.2 * TFLOP),
        bandwidth=1.008 * TB, memory=24 * GB, link=32 * GB, network=None,
        source='NVIDIA Ada GPU architecture white paper; its link is PCIe 4.0 x16',
    ),
}  # fmt: skip
