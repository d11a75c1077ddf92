"""Argument parsers of the commands, importable without torch and the frameworks.

``mmlinattn COMMAND --help`` and errors in arguments are answered before the module of the command,
and with it torch, is imported. So these modules repeat a few names that the package defines
elsewhere; a test compares them.
"""

from .analysis import complexity, doctor, estimate, print_config, rank, throughput
from .checkpoints import convert, publish
from .data import check_data, coco_crops, moving_shapes, shapes, to_shards
from .linearize import linearize
from .prediction import app, export, latency, predict
from .runs import test, train
from .visualize import visualize_attention, visualize_key_weights, visualize_patch_embedding

__all__ = [
    'app', 'check_data', 'coco_crops', 'complexity', 'convert', 'doctor',
    'estimate', 'export', 'latency', 'linearize', 'moving_shapes', 'predict', 'print_config',
    'publish', 'rank', 'shapes', 'test', 'throughput', 'to_shards', 'train', 'visualize_attention',
    'visualize_key_weights', 'visualize_patch_embedding',
]  # fmt: skip
