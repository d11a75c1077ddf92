"""Web page of ``mmlinattn app``: predictions, and the attention of a clicked token."""

from .attention import attention_layers, attention_of
from .models import load_models, package_models

__all__ = ['attention_layers', 'attention_of', 'load_models', 'package_models']
