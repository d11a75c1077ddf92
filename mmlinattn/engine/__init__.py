"""How models are built, trained and tested: runner, loops, hooks, and what command lines share."""

from .amp import CPUAmpOptimWrapper
from .checkpoint_hook import AtomicCheckpointHook
from .divergence import DivergenceHook
from .exact_resume import ExactResumeHook, seed_everything
from .fsdp2 import FSDP2Strategy
from .fusion import FuseConvBNHook
from .hang import HangHook
from .loops import ResumableEpochLoop
from .model import build_model, load_model
from .preemption import PreemptionHook

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
