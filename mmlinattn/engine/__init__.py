"""Building, training and testing of models: runner, loops, hooks and command-line support."""

from .. import datasets, models  # noqa: F401  registers what configs name
from .distributed.fsdp_strategy import FSDP2Strategy
from .hooks.checkpoint_hook import AtomicCheckpointHook
from .hooks.divergence_hook import DivergenceHook
from .hooks.ema_hook import ModelEMAHook
from .hooks.fuse_conv_bn_hook import FuseConvBNHook
from .hooks.preemption_hook import PreemptionHook
from .hooks.report_hook import ReportHook
from .hooks.ripple_weights_hook import RippleWeightsHook
from .hooks.watchdog_hook import WatchdogHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .model import build_model, load_model
from .runner.cpu_amp import CPUAmpOptimWrapper
from .runner.exact_resume import ExactResumeHook, seed_everything
from .runner.train_loop import ResumableEpochLoop

__all__ = [
    'AtomicCheckpointHook',
    'CPUAmpOptimWrapper',
    'DivergenceHook',
    'ExactResumeHook',
    'FSDP2Strategy',
    'FuseConvBNHook',
    'LayerDecayOptimWrapperConstructor',
    'ModelEMAHook',
    'PreemptionHook',
    'ReportHook',
    'ResumableEpochLoop',
    'RippleWeightsHook',
    'WatchdogHook',
    'build_model',
    'load_model',
    'seed_everything',
]
