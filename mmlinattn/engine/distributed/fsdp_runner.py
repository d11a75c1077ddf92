"""MMEngine's FlexibleRunner for FSDP training."""

from typing import Any, Optional, Type, Union

from mmengine.config import Config
from mmengine.hooks import EMAHook
from mmengine.registry import RUNNERS, STRATEGIES
from mmengine.runner import FlexibleRunner, Runner
from mmengine.runner.utils import _get_batch_size
from torch import nn

from ..config import is_subtype
from ..hooks.checkpoint_hook import AtomicCheckpointHook
from ..runner.runner import PluginFeatures, PluginRunner, plain_batch_norm
from .fsdp_strategy import FSDP2Strategy


class FSDPRunner(PluginFeatures, FlexibleRunner):
    """MMEngine's FlexibleRunner with :class:`PluginFeatures`, for :class:`FSDP2Strategy`.

    Options that it does not support are an error at construction.

    Raises:
        ValueError: ``compile``, ``model_wrapper_cfg``, ``sync_bn`` or ``find_unused_parameters``
            is set, there is an EMAHook, or checkpoints are not saved to this machine.
    """

    model: nn.Module

    def __init__(self, *args: Any, env_cfg: Optional[dict] = None, **kwargs: Any) -> None:
        super().__init__(*args, env_cfg=env_cfg or {}, **kwargs)
        self.model = plain_batch_norm(self.strategy.build_model(self.model))
        self.strategy.read = self.checkpoints.outline
        # MMEngine's from_cfg does not pass it on.
        self.strategy.compile_model(self.model, self.cfg.get('compile', False))
        for name in ('model_wrapper_cfg', 'sync_bn'):
            if self.cfg.get(name) is not None:
                raise ValueError(f'{name}: FSDP2Strategy does not use it; see its own arguments')
        if self.cfg.get('find_unused_parameters', False):
            raise ValueError(
                'find_unused_parameters=True: with FSDP2Strategy a parameter must have a gradient '
                'in every process or in none'
            )
        for hook in self.hooks:
            if isinstance(hook, EMAHook):
                raise ValueError('custom_hooks: FSDP2Strategy does not go with an EMAHook')
            if isinstance(hook, AtomicCheckpointHook) and '://' in str(hook.out_dir):
                raise ValueError(
                    f'default_hooks.checkpoint.out_dir is {hook.out_dir!r}: FSDP2Strategy writes '
                    'to a folder of the file system'
                )

    def prepare_training(self) -> None:
        """Build loops and strategy, so that errors in a config come before any work."""
        loop, _ = self.train_loop, self.val_loop  # built on first access
        self.strategy.prepare(
            self.model,
            optim_wrapper=self.optim_wrapper,
            param_scheduler=self.param_schedulers,
            dispatch_kwargs=dict(
                epoch_length=len(loop.dataloader),
                max_epochs=loop.max_epochs,
                max_iters=loop.max_iters,
                train_micro_batch_size_per_gpu=_get_batch_size(loop.dataloader),
            ),
        )

    def save_checkpoint(self, *args: Any, meta: Optional[dict] = None, **kwargs: Any) -> None:
        """Save a checkpoint whose epoch and iteration are those of ``meta``, as Runner does."""
        self._progress = {k: v for k, v in (meta or {}).items() if k in ('epoch', 'iter')}
        super().save_checkpoint(*args, meta=dict(meta or {}), **kwargs)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        if fn_name == 'before_save_checkpoint':
            kwargs['checkpoint']['meta'].update(self._progress)
        super().call_hook(fn_name, **kwargs)


def runner_class(cfg: Config) -> Type[Union[PluginRunner, FSDPRunner]]:
    """Return the runner class for training with the ``runner_type`` of a config.

    Raises:
        ValueError: a runner or strategy without the guarantees of ``mmlinattn train``, above all
            safe checkpoints.
    """
    kind, strategy = cfg.get('runner_type', 'Runner'), cfg.get('strategy')
    if is_subtype(dict(type=kind), Runner, RUNNERS):
        if strategy is not None:
            raise ValueError("strategy: MMEngine uses it with runner_type='FlexibleRunner' only")
        return PluginRunner
    if not is_subtype(dict(type=kind), FlexibleRunner, RUNNERS):
        raise ValueError(f"runner_type must be 'Runner' or 'FlexibleRunner', got {kind!r}")
    if not (isinstance(strategy, dict) and is_subtype(strategy, FSDP2Strategy, STRATEGIES)):
        raise ValueError(
            "runner_type='FlexibleRunner' goes with strategy=dict(type='FSDP2Strategy', ...) "
            f'here, got {strategy!r}: with another one a kill may lose checkpoints'
        )
    return FSDPRunner
