"""Linear-cost models from trained softmax models, by distillation without labels."""

from .distiller import Distiller, distilled_attentions, relative_error
from .images import RandomCropFlip, UnlabelledImages
from .options import Options
from .run import Linearizer
from .student import StudentPlan, plan_student
from .swap import SwapReport, swap_weights

__all__ = [
    'Distiller',
    'Linearizer',
    'Options',
    'RandomCropFlip',
    'StudentPlan',
    'SwapReport',
    'UnlabelledImages',
    'distilled_attentions',
    'plan_student',
    'relative_error',
    'swap_weights',
]
