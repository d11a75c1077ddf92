"""Rounds of training and leaving the group in one of two processes: FILE RANK as arguments."""

import sys
import time

import torch
from torch import distributed as dist
from torch import nn

from mmlinattn.engine.launch import leave_process_group

ROUNDS = 30


def round_of(number: int) -> None:
    rank = sys.argv[2]
    file = f'file://{sys.argv[1]}.{number}'
    dist.init_process_group('gloo', init_method=file, rank=int(rank), world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    model(torch.randn(2, 4)).sum().backward()
    dist.all_gather_object([None, None], number)
    if rank == '0':
        time.sleep(0.05)  # the other waits in the barrier
    leave_process_group()


if __name__ == '__main__':
    torch.set_num_threads(1)
    for number in range(ROUNDS):
        round_of(number)
    print('through')
