"""MMEngine's runner with safe checkpoints, resume inside an epoch and clear errors about data."""

from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Union

from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.logging import MMLogger
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ...checkpoints import CheckpointError
from ...datasets.file_backends import check_no_secrets
from ...models.layers import optimize_for_cpu
from ...utils.messages import known_messages_hidden, log_warning
from ...utils.pretrained import SAFE, initial_weights_read_safely
from ..config import is_subtype
from ..distributed.resume_world_size import replay, schedule_lengths, warn_on_world_size_change
from ..hooks.skip_corrupt_hook import SkippedImages, SkippedImagesHook
from ..model import unwrapped
from ..preflight.classes import check_heads, check_names
from ..preflight.data import (
    DataError,
    check_images,
    check_metrics,
    check_objects,
    empty_reason,
    labels_of,
    unusable_reason,
)
from ..preflight.dataset_audit import check_maps
from ..preflight.evaluators import check_evaluator, check_scored_file
from ..preflight.sample_loading import base_datasets, check_loading, limit_labels
from .allocator import keep_freed_memory
from .console import hide_start, show
from .data_workers import allow_open_files, report_unsent_batches
from .summary import summary
from .train_loop import ResumableEpochLoop

# Attribute of a data loader that skips corrupt images.
SKIPPED = 'skipped_images'


# The mixin takes the attributes of the runner beside it.
_Runner: Any = object


class PluginFeatures(_Runner):
    """Mixin of the features that this package adds to MMEngine's runners.

    - Checkpoints are read by :func:`mmlinattn.checkpoints.read_checkpoint`, which runs no code:
      ``load_from``, ``resume`` and each ``init_cfg``.
    - Training by epochs resumes inside an epoch.
    - A data set without usable images is an error, and errors name the file that cannot be loaded.
      With ``skip_corrupt`` in the training data loader such files are skipped
      (:class:`.skip_corrupt_hook.SkippedImages`).
    - SyncBN becomes BN where it cannot run.
    - Metrics are tried on a made-up sample when their loop is built
      (:func:`.evaluators.check_evaluator`).
    - On a CPU freed memory is kept for the next operations (:func:`keep_freed_memory`).
    - The console shows a summary before the first iteration; environment, config, hooks and the
      initialisation of weights are in the log file (:mod:`.console`, :mod:`.summary`).

    Raises:
        ValueError: see :func:`mmlinattn.datasets.file_backends.check_no_secrets`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # MMEngine logs the config, which may have changed since it was read.
        check_no_secrets(kwargs.get('cfg') or {})
        if get_device() == 'cpu':
            keep_freed_memory()
        allow_open_files()
        super().__init__(*args, **kwargs)

    def register_default_hooks(self, hooks: Optional[dict] = None) -> None:
        """Register the default hooks; ``report=None`` leaves the report out."""
        super().register_default_hooks(
            hooks and {k: v for k, v in hooks.items() if k != 'report' or v is not None}
        )

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict:
        return super().load_checkpoint(f'{SAFE}{filename}', *args, **kwargs)

    def _init_model_weights(self) -> None:
        with initial_weights_read_safely(unwrapped(self.model)):
            super()._init_model_weights()

    def load_or_resume(self) -> None:
        show(self.logger)
        if not self._has_loaded:
            self.logger.info(summary(self))
        with _resume_errors(self), known_messages_hidden():
            self._load_or_resume()

    def _load_or_resume(self) -> None:
        built = schedule_lengths(self.param_schedulers)
        super().load_or_resume()
        loop = self._train_loop
        other_images = isinstance(loop, BaseLoop) and warn_on_world_size_change(self)
        if isinstance(loop, ResumableEpochLoop):
            batches = loop.fit_epoch(other_images)
            if batches is not None:
                same_length = batches == len(loop.dataloader)
                replay(self.param_schedulers, built, self.iter, same_length)
        if getattr(self, '_resume', False):
            _check_optimizer(self.optim_wrapper)

    def build_train_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        if isinstance(loop, dict):
            loop = dict(loop)
            if loop.get('by_epoch') or is_subtype(loop, EpochBasedTrainLoop, LOOPS):
                loop.pop('by_epoch', None)
                loop['type'] = ResumableEpochLoop
        loop = super().build_train_loop(loop)
        limit_labels(loop.dataloader.dataset, labels_of(self.cfg.get('model') or {}))
        skipped = getattr(loop.dataloader, SKIPPED, None)
        if skipped is not None:
            self.register_hook(SkippedImagesHook(skipped))
        self._check_labels(loop.dataloader, 'train_dataloader')
        return loop

    def build_val_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        return self._scoring_loop('val', super().build_val_loop, loop)

    def build_test_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        return self._scoring_loop('test', super().build_test_loop, loop)

    def _scoring_loop(self, split: str, build: Callable, loop: Union[BaseLoop, dict]) -> BaseLoop:
        _refuse_skipping(getattr(self, f'_{split}_dataloader'), f'{split}_dataloader')
        check_scored_file(self.cfg, split)
        with known_messages_hidden():
            loop = build(loop)
        self._check_labels(loop.dataloader, f'{split}_dataloader')
        check_metrics(loop.evaluator)
        name = f'{split}_evaluator'
        check_evaluator(loop.evaluator, getattr(self, f'_{name}'), unwrapped(self.model), name)
        return loop

    def _check_labels(self, loader: DataLoader, name: str) -> None:
        check_heads(unwrapped(self.model), getattr(loader.dataset, 'metainfo', {}), name)
        if not hasattr(loader, SKIPPED):
            check_maps(loader.dataset, labels_of(self.cfg.get('model') or {}))

    @staticmethod
    def build_dataloader(
        dataloader: Union[DataLoader, dict],
        seed: Optional[int] = None,
        diff_rank_seed: bool = False,
    ) -> DataLoader:
        share = None
        if isinstance(dataloader, dict):
            dataloader = dict(dataloader)
            share = dataloader.pop('skip_corrupt', None)
        try:
            with known_messages_hidden():
                loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        except (DataError, CheckpointError):
            raise
        except Exception as error:
            if not isinstance(dataloader, dict):
                raise
            # MMEngine concatenates the records of all images and fails if there are none.
            if 'need at least one array to concatenate' in str(error):
                raise DataError(empty_reason(dataloader)) from error
            why = unusable_reason(dataloader)
            if not why:
                raise
            raise DataError(why) from error
        for part in base_datasets(loader.dataset):
            check_names(part)
            check_objects(part)
        check_images(loader.dataset)
        check_loading(loader.dataset)
        report_unsent_batches(loader)
        if share is not None:
            setattr(loader, SKIPPED, SkippedImages(loader.dataset, share))
        return loader


class PluginRunner(PluginFeatures, Runner):
    """MMEngine's Runner with :class:`PluginFeatures`, used by the command lines."""

    optim_wrapper: Any  # a config until prepare_training()

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        return hide_start(super().build_logger(*args, **kwargs))

    def prepare_training(self) -> None:
        """Build loops and optimizer, so that errors in a config come before any work."""
        self.train_loop, self.val_loop  # noqa: B018  built on first access
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)

    def wrap_model(self, model_wrapper_cfg: Optional[dict], model: nn.Module) -> nn.Module:
        model = plain_batch_norm(model)
        on_cpu = get_device() == 'cpu'
        if on_cpu:
            optimize_for_cpu(model)
        on_cpu = on_cpu and is_distributed()
        if on_cpu and model_wrapper_cfg is None:
            # The default wrapper selects a GPU by its number.
            model_wrapper_cfg = dict(
                type='MMDistributedDataParallel',
                device_ids=None,
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters', False),
            )
        model = super().wrap_model(model_wrapper_cfg, model)
        if on_cpu and isinstance(model, DistributedDataParallel):
            # Without this the first step of each start sums gradients in another order, and a
            # resumed training differs from an uninterrupted one.
            model.reducer._push_all_rebuilt_params()
        return model


@contextmanager
def _resume_errors(runner: Runner) -> Iterator[None]:
    """Turn errors about the state in a checkpoint into a CheckpointError that names the file."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError) or not getattr(runner, '_resume', False):
            raise
        raise CheckpointError(
            f'{runner._load_from} cannot be resumed from ({type(error).__name__}: {error}). Its '
            'training had another optimizer or schedule, or another version of this package; '
            'load_from takes its weights alone'
        ) from error


def _check_optimizer(wrapper: Any) -> None:
    """Raise ValueError if the loaded state is of another optimizer.

    torch loads such a state without an error and fails on missing options later.
    """
    for each in getattr(wrapper, 'optim_wrappers', dict(one=wrapper)).values():
        optimizer = each.optimizer
        for group in optimizer.param_groups:
            missing = sorted(set(optimizer.defaults).difference(group))
            if missing:
                raise ValueError(f'{type(optimizer).__name__} misses {", ".join(missing)}')


def _refuse_skipping(dataloader: Any, name: str) -> None:
    if isinstance(dataloader, dict) and dataloader.get('skip_corrupt') is not None:
        raise DataError(
            f'{name}.skip_corrupt={dataloader["skip_corrupt"]!r}: only train_dataloader can pass '
            'over images; a metric without some of them would be another metric'
        )


def plain_batch_norm(model: nn.Module) -> nn.Module:
    """Replace SyncBN by BN, with a warning, in a single process and on the CPU."""
    if is_distributed() and get_device() != 'cpu':
        return model
    if not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return model
    why = 'the CPU cannot synchronise' if is_distributed() else 'there is only one process'
    log_warning(f'SyncBN becomes BN: {why}.')
    return revert_sync_batchnorm(model)
