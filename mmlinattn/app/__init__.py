"""Web page of ``mmlinattn app``: predictions and attention maps."""

from .explain import Explanation, View, explain, views_of
from .workbench import Workbench, demo_models, load_models

__all__ = [
    'Explanation',
    'View',
    'Workbench',
    'demo_models',
    'explain',
    'load_models',
    'views_of',
]
