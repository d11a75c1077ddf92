"""How models are built, trained and tested: runner, loops, hooks, and what command lines share."""

from .runner.cpu_amp import CPUAmpOptimWrapper
from .hooks.checkpoint_hook import AtomicCheckpointHook
from .hooks.divergence_hook import DivergenceHook
from .runner.exact_resume import ExactResumeHook, seed_everything
from .distributed.fsdp_strategy import FSDP2Strategy
from .hooks.fuse_conv_bn_hook import FuseConvBNHook
from .hooks.watchdog_hook import HangHook
from .runner.train_loop import ResumableEpochLoop
from .model import build_model, load_model
from .hooks.preemption_hook import PreemptionHook

__all__ = [
    'AtomicCheckpointHook',
    'CPUAmpOptimWrapper',
    'DivergenceHook',
    'ExactResumeHook',
    'FSDP2Strategy',
    'FuseConvBNHook',
    'HangHook',
    'PreemptionHook',
    'ResumableEpochLoop',
    'build_model',
    'load_model',
    'seed_everything',
]
