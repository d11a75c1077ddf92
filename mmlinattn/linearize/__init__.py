"""Linear-cost models from trained softmax models, by distillation without labels."""

from .distiller import Distiller, distilled_attentions
from .options import Options
from .run import Linearizer
from .student import plan_student
from .swap import swap_weights

__all__ = [
    'Distiller', 'Linearizer', 'Options', 'distilled_attentions', 'plan_student', 'swap_weights',
]  # fmt: skip
