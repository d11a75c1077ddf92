"""Models of configs, with random weights and random training data."""

from importlib import import_module
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

import numpy as np
import torch

from ..machine import ROOT


def build(config: str, backbone: Optional[Dict[str, Any]] = None) -> Any:
    """Return the model of a config, with random weights.

    Args:
        config: path in ``configs/``, or ``'mmdet::'`` or ``'mmseg::'`` and a path in theirs.
        backbone: options of the backbone to replace.
    """
    from mmengine.config import Config
    from mmengine.registry import MODELS, init_default_scope
    from mmengine.utils import import_modules_from_strings

    import mmlinattn  # noqa: F401

    package, _, path = config.rpartition('::')
    folder = ROOT / 'configs'
    if package:
        folder = Path(str(import_module(package).__file__)).parent / '.mim' / 'configs'
    cfg = Config.fromfile(folder / path)
    init_default_scope(cfg.get('default_scope', 'mmdet'))
    if cfg.get('custom_imports'):
        import_modules_from_strings(**cfg.custom_imports)
    _remove_weights(cfg.model)
    cfg.model.backbone.update(backbone or {})
    torch.manual_seed(0)
    return MODELS.build(cfg.model)


def _remove_weights(node: object) -> None:
    """Remove the initial weights of a config, which would be downloaded."""
    if isinstance(node, dict):
        node.pop('init_cfg', None)
        node.pop('pretrained', None)
    if isinstance(node, (dict, list, tuple)):
        for part in node.values() if isinstance(node, dict) else node:
            _remove_weights(part)


def random_batch(model: Any, batch: int, hw_shape: Tuple[int, int], training: bool) -> dict:
    """Return preprocessed images with 20 objects each for a detector, else with a label map."""
    if not hasattr(model, 'decode_head'):
        from mmdet.testing import demo_mm_inputs

        np.random.seed(0)
        heads = getattr(model, 'roi_head', model)
        data = demo_mm_inputs(
            batch, [(3, *hw_shape)] * batch, num_items=[20] * batch,
            num_classes=heads.bbox_head.num_classes, with_mask=getattr(heads, 'with_mask', False),
        )  # fmt: skip
        return model.data_preprocessor(data, training)
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    sizes: Any = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), hw_shape)
    inputs, samples = [], []
    for _ in range(batch):
        inputs.append(torch.randint(0, 256, (3, *hw_shape), dtype=torch.uint8))
        labels = torch.randint(0, model.decode_head.num_classes, (1, *hw_shape))
        samples.append(SegDataSample(gt_sem_seg=PixelData(data=labels), metainfo=sizes))
    return model.data_preprocessor(dict(inputs=inputs, data_samples=samples), training)
