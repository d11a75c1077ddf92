"""MMEngine's runner with safe checkpoints and clear errors about data."""

import importlib
import logging
import re
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import AbstractSet, Any, Callable, Iterator, Optional, Union

from mmengine.dataset import InfiniteSampler
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_distributed
from mmengine.hooks import CheckpointHook, EarlyStoppingHook
from mmengine.logging import MMLogger
from mmengine.model import BaseTTAModel, revert_sync_batchnorm
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ...checkpoints import CheckpointError
from ...models.layers import optimize_for_cpu
from ...utils.errors import InputError
from ...utils.messages import hide_on_console, known_messages_hidden, log_warning
from ...utils.pretrained import SAFE, initial_weights_read_safely
from ...utils.suggest import shorten
from ..config import check_no_passwords
from ..hooks.ema_hook import ModelEMAHook
from ..hooks.exact_resume_hook import ExactResumeHook
from ..model import build_model, optim_wrappers, quiet, unwrapped
from ..preflight.data import DataError, dataset_reason, labels_of
from ..preflight.evaluators import check_evaluator, check_monitor, check_rule
from ..preflight.model import check_single_images
from ..preflight.sample_loading import check_samples
from ..preflight.validation import try_validation
from .param_groups import merge_groups_in_steps
from .schedule import check_schedule, schedule_of_config

# Preprocessors that pad the images of a batch, which changes scores, or cannot stack them.
STACKS = ('SegDataPreProcessor', 'ClsDataPreprocessor', 'ImgDataPreprocessor')


class PluginRunner(Runner):
    """MMEngine's Runner with checks before work, used by the command lines.

    It trains as MMEngine's Runner does, but for ``--auto-scale-lr`` (:meth:`scale_lr`). A step of
    the optimizer merges parameter groups of equal options (:mod:`.param_groups`).

    - Checkpoints are read by :func:`mmlinattn.checkpoints.read_checkpoint`, which runs no code:
      ``load_from``, ``resume`` and each ``init_cfg``.
    - A data set without usable images is an error, and errors name the file that cannot be loaded.
    - SyncBN becomes BN where it cannot run.
    - Images of several sizes in a batch are scored apart, so scores need no certain batch size
      (all preprocessors of :data:`STACKS`).
    - Metrics are tried on a made-up sample when their loop is built
      (:func:`.evaluators.check_evaluator`), the validation on its first images before a training.
    """

    optim_wrapper: Any  # a config until prepare_training()
    scores: AbstractSet[str] = frozenset()  # names of the scores of the validation
    starts_training = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # A command may have added an address since the file was read.
        check_no_passwords(kwargs.get('cfg') or {})
        _import_formatter()
        super().__init__(*args, **kwargs)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """Print warnings alone until the weights are loaded; the log file has all messages."""
        logger = super().build_logger(*args, **kwargs)
        hide_on_console(logger)
        handlers = [h for h in logger.handlers if not isinstance(h, logging.FileHandler)]
        self._console = {handler: handler.level for handler in handlers}
        for handler, level in self._console.items():
            handler.setLevel(max(level, logging.WARNING))
        return logger

    def dump_config(self) -> None:
        """Write the config to the work directory, but not over the file that it was read from."""
        path = self.cfg.filename
        files = [Path(path), Path(self.work_dir, Path(path).name)] if path else []
        if files and all(file.exists() for file in files) and files[0].samefile(files[1]):
            self.logger.info(f'{path} is kept; the config of this run is {self._log_dir}/vis_data')
        else:
            super().dump_config()

    def register_default_hooks(self, hooks: Optional[dict] = None) -> None:
        """Register the default hooks; ``report=None`` leaves the report out."""
        super().register_default_hooks(
            hooks and {k: v for k, v in hooks.items() if k != 'report' or v is not None}
        )

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: Optional[dict] = None) -> None:
        """Scale the learning rate by the images of all iterations of a step, not of one."""
        for wrapper in optim_wrappers(optim_wrapper).values():
            steps = getattr(wrapper, '_accumulative_counts', 1)
            scaled = auto_scale_lr or {}
            if scaled.get('enable') and 'base_batch_size' in scaled and steps > 1:
                self.logger.info(
                    f'accumulative_counts: a step has the images of {steps} iterations.'
                )
                scaled = dict(scaled, base_batch_size=scaled['base_batch_size'] / steps)
            super().scale_lr(wrapper, scaled)

    def load_checkpoint(self, filename: str, *args: Any, **kwargs: Any) -> dict:
        return super().load_checkpoint(f'{SAFE}{filename}', *args, **kwargs)

    def _init_model_weights(self) -> None:
        with initial_weights_read_safely(unwrapped(self.model)):
            super()._init_model_weights()

    def train(self) -> nn.Module:
        self.starts_training = True
        try:
            return super().train()
        except AssertionError as error:
            last = traceback.extract_tb(error.__traceback__)[-1].filename
            if not last.endswith('checkloss_hook.py'):  # MMDetection's, without a text
                raise
            raise InputError(
                f'the loss of iteration {self.iter + 1} is infinite or NaN: set a lower learning '
                'rate or optim_wrapper.clip_grad, or train without --amp'
            ) from error
        except RuntimeError as error:
            text = str(error)
            if 'Expected to have finished reduction' not in text:
                raise
            names = [n for n, p in unwrapped(self.model).named_parameters() if p.requires_grad]
            numbers = re.findall(r'\d+', text.rpartition('did not receive grad for rank')[2])
            raise InputError(
                'find_unused_parameters of the config is False, but the loss does not depend on '
                f'{shorten([names[int(number)] for number in numbers[1:]])}: set '
                'find_unused_parameters=True (a batch without objects may need it), or let a head '
                'read all outputs (out_indices, start_level, in_index)'
            ) from error

    def _maybe_compile(self, target: str) -> None:
        try:
            super()._maybe_compile(target)
        except (AssertionError, RuntimeError, TypeError) as error:
            reason = str(error).partition('\n')[0]
            raise InputError(f'compile={self.cfg.compile} of the config: {reason}') from error

    def load_or_resume(self) -> None:
        for handler, level in self._console.items():
            handler.setLevel(level)
        with _resume_errors(self), known_messages_hidden():
            super().load_or_resume()
        if self.starts_training and self._val_loop is not None:
            self.starts_training = False
            with known_messages_hidden():
                try_validation(self)

    def resume(self, *args: Any, **kwargs: Any) -> None:
        """Resume with the schedule and optimizer options of the config (see schedule.py)."""
        with schedule_of_config(self):
            super().resume(*args, **kwargs)
            _check_optimizers(self)
        _relocate_best_checkpoints(self)

    def build_train_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        if isinstance(loop, BaseLoop):
            return loop
        loop = super().build_train_loop(loop)
        if len(loop.dataloader) == 0:
            batches = loop.dataloader.batch_sampler
            raise DataError(
                f'train_dataloader: an epoch has {len(batches.sampler)} images for a process, '
                f'fewer than batch_size={batches.batch_size}, and drop_last=True drops them; '
                'lower batch_size or set drop_last=False'
            )
        sampler = getattr(loop.dataloader.batch_sampler, 'sampler', None)
        if isinstance(sampler, InfiniteSampler) and isinstance(loop, EpochBasedTrainLoop):
            raise DataError(
                f'train_dataloader.sampler is {type(sampler).__name__}, which never ends, and the '
                "training counts epochs: set train_cfg=dict(type='IterBasedTrainLoop', "
                'max_iters=...) or another sampler'
            )
        check_samples(loop.dataloader.dataset, labels_of(self.cfg))
        self._check_smallest_batch(loop.dataloader)
        config = self._train_dataloader
        restarts = loop.dataloader.num_workers and not loop.dataloader.persistent_workers
        is_own = not isinstance(config, dict) or 'worker_init_fn' in config
        is_own = is_own or any(isinstance(hook, ExactResumeHook) for hook in self.hooks)
        if isinstance(loop, EpochBasedTrainLoop) and restarts and not is_own:
            log_warning(
                'The workers of train_dataloader draw the same random numbers for augmentation in '
                'each epoch. Set train_dataloader.persistent_workers=True.'
            )
        differ = loop.dataloader.num_workers or self._randomness_cfg.get('diff_rank_seed')
        if get_world_size() > 1 and not differ and not is_own:
            log_warning(
                'All processes draw the same random numbers for augmentation. Set '
                'randomness.diff_rank_seed=True.'
            )
        return loop

    def _check_smallest_batch(self, loader: DataLoader) -> None:
        """Raise ValueError if a batch has one image, on which the model cannot be trained."""
        batches: Any = loader.batch_sampler
        size = smallest = getattr(batches, 'batch_size', None)
        if not isinstance(size, int):  # several sizes, or a sampler of the user's
            return
        if size > 1 and not batches.drop_last and not isinstance(batches.sampler, InfiniteSampler):
            smallest = len(batches.sampler) % size
        if smallest != 1 or 'model' not in self.cfg:
            return
        with quiet():
            model = plain_batch_norm(build_model(self.cfg))
        try:
            check_single_images(model)
        except ValueError as error:
            cure = 'drop_last=True' if size > 1 else 'batch_size=2, or another norm_cfg than BN'
            raise ValueError(
                f'train_dataloader has a batch of one image: {error}; set {cure}'
            ) from error

    def build_optim_wrapper(
        self, optim_wrapper: Union[dict, OptimWrapper, OptimWrapperDict]
    ) -> Union[OptimWrapper, OptimWrapperDict]:
        try:
            built = super().build_optim_wrapper(optim_wrapper)
        except NotImplementedError as error:  # of the frameworks' layer decay
            kind = type(getattr(unwrapped(self.model), 'backbone', None))
            name = optim_wrapper.get('constructor') if isinstance(optim_wrapper, dict) else None
            if name is None or not kind.__module__.startswith('mmlinattn.'):
                raise
            raise ValueError(
                f'optim_wrapper.constructor {name!r} does not know the '
                f"layers of {kind.__name__}: set constructor='LayerDecayOptimWrapperConstructor' "
                'and paramwise_cfg=dict(_delete_=True, layer_decay_rate=...)'
            ) from error
        # A compiled train_step (``compile`` of a config) cannot change the groups.
        for wrapper in () if self.cfg.get('compile') else optim_wrappers(built).values():
            merge_groups_in_steps(wrapper.optimizer)
        return built

    def build_val_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        return self._scoring_loop('val', super().build_val_loop, loop)

    def build_test_loop(self, loop: Union[BaseLoop, dict]) -> BaseLoop:
        return self._scoring_loop('test', super().build_test_loop, loop)

    def _scoring_loop(self, split: str, build: Callable, loop: Union[BaseLoop, dict]) -> BaseLoop:
        if isinstance(loop, BaseLoop):
            return loop
        with known_messages_hidden():
            loop = build(loop)
        check_samples(loop.dataloader.dataset, labels_of(self.cfg, split), trained=False)
        name = f'{split}_evaluator'
        configs = getattr(self, f'_{name}')
        model, step = unwrapped(self.model), f'{split}_step'
        self.scores = check_evaluator(loop.evaluator, configs, model, name)
        if isinstance(model, BaseTTAModel):
            model = model.module
        if type(getattr(model, 'data_preprocessor', None)).__name__ in STACKS:
            setattr(model, step, _by_size(getattr(model, step)))
        return loop

    @staticmethod
    def build_dataloader(dataloader: Any, *args: Any, **kwargs: Any) -> DataLoader:
        try:
            with known_messages_hidden():
                return Runner.build_dataloader(dataloader, *args, **kwargs)
        except (AssertionError, ValueError) as error:
            if reason := dataset_reason(error, dataloader):
                raise DataError(reason) from error
            raise

    def prepare_training(self) -> None:
        """Build loops and optimizer, so that errors in a config come before any work."""
        self.train_loop, self.val_loop  # noqa: B018  built on first access
        backbone = getattr(unwrapped(self.model), 'backbone', None)
        is_own = type(backbone).__module__.startswith('mmlinattn.')
        if is_own and 'backbone' in (self.cfg.get('efficient_conv_bn_eval') or ()):
            raise ValueError(
                "efficient_conv_bn_eval names 'backbone', but torch.fx cannot trace "
                f'{type(backbone).__name__}: leave it out'
            )
        for hook in self.hooks:
            if not isinstance(hook, (CheckpointHook, EarlyStoppingHook, ModelEMAHook)):
                continue
            for option in ('save_best', 'monitor', 'score'):
                value = getattr(hook, option, None)
                check_monitor(f'{type(hook).__name__}.{option}', value, self.scores)
            if isinstance(hook, CheckpointHook):
                check_rule(hook, self.scores)
                by_iteration = isinstance(self.train_loop, IterBasedTrainLoop)
                if by_iteration and hook.by_epoch and hook.interval > 0:
                    log_warning(
                        f'{type(hook).__name__} counts epochs, the training iterations: but for '
                        'the best no checkpoint is written before the end. Set its options '
                        'by_epoch=False and interval'
                    )
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        check_schedule(self)

    def wrap_model(self, model_wrapper_cfg: Optional[dict], model: nn.Module) -> nn.Module:
        model = plain_batch_norm(model)
        on_cpu = get_device() == 'cpu'
        if on_cpu:
            optimize_for_cpu(model)
        if on_cpu and is_distributed():
            unused = self.cfg.get('find_unused_parameters', False)
            default = dict(broadcast_buffers=False, find_unused_parameters=unused)
            model_wrapper_cfg = dict(model_wrapper_cfg or default)
            kind = model_wrapper_cfg.setdefault('type', 'MMDistributedDataParallel')
            kind = MODEL_WRAPPERS.get(kind) if isinstance(kind, str) else kind
            if isinstance(kind, type) and issubclass(kind, DistributedDataParallel):
                model_wrapper_cfg.setdefault('device_ids', None)  # else it selects a GPU
        return super().wrap_model(model_wrapper_cfg, model)


def _relocate_best_checkpoints(runner: Runner) -> None:
    """Set the recorded paths of the best checkpoints to files of this work directory, or drop them.

    In a copy of a work directory MMEngine would remove the file of the original.
    """
    moved = any(isinstance(h, CheckpointHook) and h.out_dir is not None for h in runner.hooks)
    info = runner.message_hub.runtime_info
    for key in [] if moved else [key for key in info if key.startswith('best_ckpt')]:
        if info[key] is None:
            continue
        own = Path(runner.work_dir, Path(info[key]).name)
        if own.is_file():
            info[key] = str(own)
        elif Path(info[key]).parent != own.parent:
            info.pop(key)


def _import_formatter() -> None:
    """Import yapf, whose cache may be empty while another process writes it, for MMEngine."""
    for _ in range(20):
        try:
            importlib.import_module('yapf.yapflib.yapf_api')
            return
        except (EOFError, UnpicklingError):
            time.sleep(0.1)
    from platformdirs import user_cache_dir

    raise InputError(f"yapf's cache is damaged: remove the folder {user_cache_dir('YAPF')}")


def _by_size(step: Callable) -> Callable:
    """Return a step that runs images of each size apart."""

    def step_by_size(batch: dict) -> list:
        shapes = [getattr(image, 'shape', None) for image in batch['inputs']]
        if len({*shapes}) == 1:
            return step(batch)
        found: dict = {}
        for shape in dict.fromkeys(shapes):
            chosen = [i for i, other in enumerate(shapes) if other == shape]
            part = {key: [values[i] for i in chosen] for key, values in batch.items()}
            found.update(zip(chosen, step(part)))
        return [found[i] for i in range(len(shapes))]

    return step_by_size


@contextmanager
def _resume_errors(runner: Runner) -> Iterator[None]:
    """Turn errors about the state in a checkpoint into a CheckpointError that names the file."""
    try:
        yield
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError) or not runner._resume:
            raise
        raise CheckpointError(
            f'{runner._load_from} cannot be resumed from ({type(error).__name__}: {error}). Its '
            'training had another model, optimizer, schedule, or version of this package; '
            'load_from takes its weights alone'
        ) from error


def _check_optimizers(runner: Runner) -> None:
    """Raise ValueError if the loaded state is of another optimizer, on which torch fails later."""
    for wrapper in optim_wrappers(runner.optim_wrapper).values():
        optimizer = wrapper.optimizer
        for group in optimizer.param_groups:
            # torch adds one to the defaults of every optimizer that it loads.
            missing = sorted(set(optimizer.defaults) - {'differentiable'} - {*group})
            if missing:
                raise ValueError(f'{type(optimizer).__name__} misses {", ".join(missing)}')
        for parameter, state in optimizer.state.items():
            for name in ('exp_avg', 'momentum_buffer', 'square_avg'):
                # ZeroRedundancyOptimizer has None for the parameters of other processes.
                average = state.get(name) if isinstance(state, dict) else None
                if isinstance(average, Tensor) and average.shape != parameter.shape:
                    shapes = f'{tuple(average.shape)}, the parameter has {tuple(parameter.shape)}'
                    raise ValueError(f'{name} of a parameter has the shape {shapes}')


def plain_batch_norm(model: nn.Module) -> nn.Module:
    """Replace SyncBN by BN, with a warning, in a single process and on the CPU."""
    if is_distributed() and get_device() != 'cpu':
        return model
    if not any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
        return model
    why = 'the CPU cannot synchronise' if is_distributed() else 'there is only one process'
    log_warning(f'SyncBN becomes BN: {why}.')
    return revert_sync_batchnorm(model)
