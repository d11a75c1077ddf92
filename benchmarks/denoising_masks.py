"""Time of LinearCrossAttention with DINO's denoising masks, beside softmax attention.

    python -m benchmarks.denoising_masks

One layer of 256 channels and 8 heads on 900 queries and 200 denoising queries in 100 groups, the
most of DINO, forward and backward for two images. Times are processor seconds of one thread, the
least of ``--rounds``.
"""

import argparse
import time
from typing import Callable, Dict, Optional

import torch
from mmcv.cnn.bricks.transformer import MultiheadAttention
from torch import Tensor, nn

from benchmarks.machine import commit, machine, version
from mmlinattn.models.layers import LinearCrossAttention

QUERIES, GROUPS, DIMS, HEADS, BATCH = 900, 100, 256, 8, 2


def denoising_mask() -> Tensor:
    """Return the mask (N, N) of DINO: groups of two queries are hidden from all others."""
    groups = torch.arange(2 * GROUPS) // 2
    mask = torch.zeros(2 * GROUPS + QUERIES, 2 * GROUPS + QUERIES, dtype=torch.bool)
    mask[: 2 * GROUPS, : 2 * GROUPS] = groups[:, None] != groups
    mask[2 * GROUPS :, : 2 * GROUPS] = True
    return mask


def step(module: nn.Module, x: Tensor, mask: Optional[Tensor]) -> Callable[[], None]:
    return lambda: module(x, attn_mask=mask).sum().backward()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    mask = denoising_mask()
    x = torch.randn(BATCH, len(mask), DIMS)
    linear = LinearCrossAttention(DIMS, HEADS, attn_cfg='RALA')
    softmax = MultiheadAttention(DIMS, HEADS, batch_first=True)
    calls: Dict[str, Callable[[], None]] = {
        f'RALA, {GROUPS} groups': step(linear, x, mask),
        f"mmcv's MultiheadAttention, {GROUPS} groups": step(softmax, x, mask),
        'RALA without a mask': step(linear, x, None),
    }
    print(f'{machine(torch.device("cpu"))}, torch {version("torch")}, commit {commit()}')
    for name, call in calls.items():
        seconds = []
        for _ in range(args.rounds):
            start = time.process_time()
            call()
            seconds.append(time.process_time() - start)
        print(f'| {name} | {min(seconds):.2f} |', flush=True)


if __name__ == '__main__':
    main()
