"""Building, training and testing of models: runner, loops, hooks and command-line support."""

from .. import datasets, models  # noqa: F401  registers what configs name
from .hooks.checkpoint_hook import AtomicCheckpointHook
from .hooks.ema_hook import ModelEMAHook
from .hooks.exact_resume_hook import ExactResumeHook, seed_everything
from .hooks.preemption_hook import PreemptionHook
from .hooks.report_hook import ReportHook
from .hooks.ripple_weights_hook import RippleWeightsHook
from .layer_decay import LayerDecayOptimWrapperConstructor
from .model import build_model, load_model
from .runner.cpu_amp import CPUAmpOptimWrapper

__all__ = [
    'AtomicCheckpointHook', 'CPUAmpOptimWrapper', 'ExactResumeHook',
    'LayerDecayOptimWrapperConstructor', 'ModelEMAHook', 'PreemptionHook', 'ReportHook',
    'RippleWeightsHook', 'build_model', 'load_model', 'seed_everything',
]  # fmt: skip
