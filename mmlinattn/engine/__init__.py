"""How trainings and tests run: hooks, loops and the runner, and what the command lines share."""

from .amp import CPUAmpOptimWrapper
from .checkpoint_hook import AtomicCheckpointHook
from .exact_resume import ExactResumeHook, seed_everything
from .loops import ResumableEpochLoop
from .preemption import PreemptionHook

__all__ = [
    'AtomicCheckpointHook',
    'CPUAmpOptimWrapper',
    'ExactResumeHook',
    'PreemptionHook',
    'ResumableEpochLoop',
    'seed_everything',
]
