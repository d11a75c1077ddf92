"""Web page of ``mmlinattn app``: predictions and attention maps."""

from .explain import Explanation, View, explain, views_of
from .workbench import Workbench, load_models, package_models

__all__ = [
    'Explanation',
    'View',
    'Workbench',
    'explain',
    'load_models',
    'package_models',
    'views_of',
]
