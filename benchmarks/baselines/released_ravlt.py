"""Baseline RAVLT by its authors: the released detection backbone, run from its file.

The file belongs to another project (qhfan/RALA) and is not part of this repository. It needs timm.
"""

import importlib
import sys
from pathlib import Path
from types import ModuleType

from torch import nn

# Lines that need OpenMMLab 1.x or several processes, and what stands in for them.
REPLACED = {
    'from ..builder import BACKBONES': 'from mmengine.registry import Registry; '
    'BACKBONES = Registry("released")',
    'from mmcv_custom import load_checkpoint': '',
    'from mmdet.utils import get_root_logger': '',
    'nn.SyncBatchNorm': 'nn.BatchNorm2d',
}


def released_ravlt(file: Path) -> nn.Module:
    """Return RAVLT-S of detection, built by the code of ``file``."""
    layers = importlib.import_module('timm.layers')
    names = ('DropPath', 'to_2tuple', 'trunc_normal_')
    _stub_if_missing('timm.models.layers', **{name: getattr(layers, name) for name in names})
    _stub_if_missing('timm.models.registry', register_model=lambda function: function)
    _stub_if_missing('fvcore')
    _stub_if_missing('fvcore.nn', FlopCountAnalysis=None, flop_count_table=None)
    source = file.read_text()
    for old, new in REPLACED.items():
        source = source.replace(old, new)
    module = ModuleType('released_ravlt_file')
    sys.modules[module.__name__] = module
    exec(compile(source, str(file), 'exec'), vars(module))
    return module.GLTA(
        embed_dims=[64, 128, 320, 512], depths=[3, 5, 9, 3], num_heads=[1, 2, 5, 8],
        mlp_ratios=[3.5] * 4, layerscales=[True] * 4, layer_init_values=[1.0] * 4,
    )  # fmt: skip


def _stub_if_missing(name: str, **values: object) -> None:
    """Provide a module that is not installed."""
    try:
        importlib.import_module(name)
    except ImportError:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)
