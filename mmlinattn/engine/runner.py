"""MMEngine's runner with safe checkpoints, resume inside an epoch, and clear errors about data."""

import logging
from contextlib import contextmanager
from typing import Any, Iterator, Optional, Union

from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.logging import print_log
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ..checkpoints import CheckpointError, CheckpointStore, serve_mmengine
from ..datasets.stores import check_no_secrets
from .config import is_of
from .data_checks import (
    DataError,
    check_categories,
    check_images,
    check_metrics,
    check_objects,
    labels_of,
    why_empty,
    why_unusable,
)
from .data_workers import allow_open_files, report_unsent_batches
from .evaluator_checks import check_evaluator
from .loading import base_datasets, guard_loading, limit_labels
from .loops import ResumableEpochLoop
from .memory import keep_freed_memory
from .regroup import lengths_of, replay, say_what_changed
from .skip_corrupt import SkippedImages, SkippedImagesHook

# Attribute of a data loader that passes over images.
SKIPPED = 'skipped_images'


class PluginFeatures:
    """What the command lines add to the runners of MMEngine.

    Checkpoints are read safely, and once: what was checked is what is loaded (see
    :class:`mmlinattn.checkpoints.CheckpointStore`). Training by epochs resumes inside an epoch.
    A data set without a usable image says so, and a file that cannot be loaded is named; with
    ``skip_corrupt`` in the training's data loader it is passed over
    (:class:`.skip_corrupt.SkippedImages`). Synchronised batch norm becomes plain where it cannot
    run. Metrics are tried on a made-up sample when their loop is built
    (:func:`.evaluator_checks.check_evaluator`). On a CPU memory is kept between operations
    (:func:`keep_freed_memory`).

    Raises:
        ValueError: see :func:`mmlinattn.datasets.stores.check_no_secrets`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before MMEngine logs the config: what came into it since it was read.
        check_no_secrets(kwargs.get('cfg') or {})
        if get_device() == 'cpu':
            keep_freed_memory()
        allow_open_files()
        self.checkpoints = CheckpointStore()
        serve_mmengine(self.checkpoints.read)
        super().__init__(*args, **kwargs)

    def load_or_resume(self) -> None:
        with _resume_errors(self):
            self._load_or_resume()

    def _load_or_resume(self) -> None:
        built = lengths_of(self.param_schedulers)
        super().load_or_resume()
        self.checkpoints.release()
        loop = self._train_loop
        other_images = isinstance(loop, BaseLoop) and say_what_changed(self)
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
            if loop.get('by_epoch') or is_of(loop, EpochBasedTrainLoop, LOOPS):
                loop.pop('by_epoch', None)
                loop['type'] = ResumableEpochLoop
        loop = super().build_train_loop(loop)
        limit_labels(loop.dataloader.dataset, labels_of(self.cfg.get('model') or {}))
        skipped = getattr(loop.dataloader, SKIPPED, None)
        if skipped is not None:
            self.register_hook(SkippedImagesHook(skipped))
        return loop

    def build_val_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        _refuse_skipping(self._val_dataloader, 'val_dataloader')
        loop = super().build_val_loop(loop)
        check_metrics(loop.evaluator)
        check_evaluator(loop.evaluator, self._val_evaluator, self._plain_model(), 'val_evaluator')
        return loop

    def build_test_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        _refuse_skipping(self._test_dataloader, 'test_dataloader')
        loop = super().build_test_loop(loop)
        check_metrics(loop.evaluator)
        check_evaluator(loop.evaluator, self._test_evaluator, self._plain_model(), 'test_evaluator')
        return loop

    def _plain_model(self) -> nn.Module:
        return self.model.module if is_model_wrapper(self.model) else self.model

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
            loader = Runner.build_dataloader(dataloader, seed, diff_rank_seed)
        except (DataError, CheckpointError):
            raise
        except Exception as error:
            # MMEngine joins the records of all images, of which there are none.
            if 'need at least one array to concatenate' in str(error):
                raise DataError(why_empty(dataloader)) from error
            why = why_unusable(dataloader)
            if not why:
                raise
            raise DataError(why) from error
        for part in base_datasets(loader.dataset):
            check_categories(part)
            check_objects(part)
        check_images(loader.dataset)
        guard_loading(loader.dataset)
        report_unsent_batches(loader)
        if share is not None:
            setattr(loader, SKIPPED, SkippedImages(loader.dataset, share))
        return loader


class PluginRunner(PluginFeatures, Runner):
    """MMEngine's runner as the command lines use it: see :class:`PluginFeatures`."""

    def prepare_training(self) -> None:
        """Builds what training needs, so that errors in a config come before any work."""
        self.train_loop, self.val_loop  # noqa: B018  built when first asked for
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)

    def wrap_model(self, model_wrapper_cfg: Optional[dict], model: nn.Module) -> nn.Module:
        on_cpu = is_distributed() and get_device() == 'cpu'
        if on_cpu and model_wrapper_cfg is None:
            # The default wrapper asks for a GPU by its number.
            model_wrapper_cfg = dict(
                type='MMDistributedDataParallel',
                device_ids=None,
                broadcast_buffers=False,
                find_unused_parameters=self.cfg.get('find_unused_parameters', False),
            )
        model = super().wrap_model(model_wrapper_cfg, plain_batch_norm(model))
        if on_cpu and isinstance(model, DistributedDataParallel):
            # Else after the first step of each start gradients are summed in another order, and a
            # resumed training parts from one that was not interrupted.
            model.reducer._push_all_rebuilt_params()
        return model


@contextmanager
def _resume_errors(runner: Runner) -> Iterator[None]:
    """Turn errors about the state of a checkpoint into one that names it."""
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
    """Refuse the state of another optimizer, which torch takes and misses options of later."""
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
    """SyncBN becomes BN, and says so, in one process and on the CPU."""
    if is_distributed() and get_device() != 'cpu':
        return model
    if not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return model
    why = 'the CPU cannot synchronise' if is_distributed() else 'there is only one process'
    print_log(f'SyncBN becomes BN: {why}.', 'current', level=logging.WARNING)
    return revert_sync_batchnorm(model)
