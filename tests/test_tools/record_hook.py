"""A hook for the distributed test: writes the loss of every iteration and process to a file."""

import os
from pathlib import Path

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class RecordLossHook(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        path = Path(os.environ['RECORD_LOSS'])
        with (path.parent / f'{path.name}.{get_rank()}').open('a') as file:
            file.write(f'{float(outputs["loss"])!r}\n')
