"""Two steps of every family in each of two processes; a line a family when it is through."""

import copy
import functools
import sys
from pathlib import Path

import torch
from mmengine.config import utils as config_utils
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS
from torch import distributed as dist

import mmlinattn  # noqa: F401  registers everything
from mmlinattn.engine.launch import leave_process_group
from mmlinattn.engine.runner.runner import plain_batch_norm
from tests.families import FAMILIES, batch_of, shrunk, without_objects


def main() -> None:
    dist.init_process_group('gloo')
    torch.set_num_threads(1)
    # Reads the hundred files of MMDetection's index for each `mmdet::` of each config.
    config_utils.load = functools.cache(config_utils.load)
    for family in FAMILIES:
        cfg = shrunk(family, Path(sys.argv[1]))
        torch.manual_seed(0)
        model = plain_batch_norm(MODELS.build(cfg.model))
        model.init_weights()
        before = {name: value.clone() for name, value in model.named_parameters()}
        ddp = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False)
        wrapper = OptimWrapper(torch.optim.SGD(ddp.parameters(), lr=1e-4))
        batch = batch_of(cfg) if dist.get_rank() == 0 else without_objects(batch_of(cfg))
        for _ in range(2):  # the second finds what took no part in the first
            loss = ddp.train_step(copy.deepcopy(batch), wrapper)['loss']
            if not torch.isfinite(loss):
                raise AssertionError(f'{family}: loss {loss}')
        changed = [n for n, value in model.named_parameters() if not value.equal(before[n])]
        if len(changed) < len(before) / 2:
            raise AssertionError(f'{family}: {len(changed)} of {len(before)} parameters changed')
        if dist.get_rank() == 0:
            print('through', family, f'{float(loss):.3f}', flush=True)
    leave_process_group()


if __name__ == '__main__':
    main()
