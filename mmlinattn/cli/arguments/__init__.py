"""Argument parsers of the commands, importable without torch and the frameworks.

``mmlinattn COMMAND --help`` and errors in arguments are answered before the module of the command,
and with it torch, is imported. So these modules repeat a few names that the package defines
elsewhere; a test compares them.
"""

from .analysis import complexity, doctor, rank, throughput
from .checkpoints import convert
from .data import check_data, shapes
from .linearize import linearize
from .prediction import app, export, predict
from .runs import test, train
from .visualize import visualize_attention, visualize_key_weights

__all__ = [
    'app', 'check_data', 'complexity', 'convert', 'doctor', 'export', 'linearize',
    'predict', 'rank', 'shapes', 'test', 'throughput', 'train', 'visualize_attention',
    'visualize_key_weights',
]  # fmt: skip
