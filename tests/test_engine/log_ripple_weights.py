"""RippleWeightsHook in one of two processes: python log_ripple_weights.py FILE.

Each process has half of the batch. The first then compares with the definition of all of it.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from mmengine.logging import MessageHub
from mmengine.model import MMDistributedDataParallel
from torch import distributed as dist

from mmlinattn.engine import RippleWeightsHook
from mmlinattn.engine.distributed.launch import leave_process_group
from tests.test_engine.ripple_net import RippleNet, definition


def main() -> None:
    dist.init_process_group('gloo')
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, rank = RippleNet(), dist.get_rank()
    # The second process has one image more, and other padding.
    batches = torch.randn(2, 13, 8), torch.randn(3, 13, 8)
    logged: dict = {}
    runner = SimpleNamespace(
        model=MMDistributedDataParallel(model), iter=0, message_hub=MessageHub(f'rank{rank}'),
        visualizer=SimpleNamespace(add_scalars=lambda values, step: logged.update(values)),
    )  # fmt: skip
    hook = RippleWeightsHook()
    hook.before_train(runner)
    hook.before_train_iter(runner, 0)
    runner.model(batches[rank], mode='loss')['loss'].backward()
    hook.after_train_iter(runner, 0)
    if rank == 0:
        # Dropout of the middle layer changes no ring weights.
        expected = definition(model, torch.cat(batches))
        assert logged.pop('iter') == 1 and logged.keys() == expected.keys(), logged
        for name, value in expected.items():
            assert abs(logged[name] - value) < 1e-5, (name, logged[name], value)
        Path(sys.argv[1]).write_text('equal')
    leave_process_group()


if __name__ == '__main__':
    main()
