"""Hooks and optimiser wrappers for MMEngine, and what the command lines share."""

from .amp import CPUAmpOptimWrapper
from .exact_resume import ExactResumeHook, seed_everything

__all__ = ['CPUAmpOptimWrapper', 'ExactResumeHook', 'seed_everything']
