"""Prediction of several images of different sizes at once, without padding."""

import copy
from typing import Any, List, Optional, Sequence, Tuple

from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn


def packed_unsupported_reason(model: nn.Module) -> Optional[str]:
    """Return why a model predicts images of different sizes one by one, or None if at once.

    A detector that sets ``predicts_packed``, as :class:`mmlinattn.models.detectors.SMCA`, takes
    them itself. Otherwise the backbone must take a list of images, as
    :class:`mmlinattn.models.backbones.ViT`; neck and heads run image by image.
    """
    if getattr(model, 'predicts_packed', False):
        return None
    if hasattr(model, 'quantizer'):
        return 'the decoder of ViTVQGAN takes images of one size'
    backbone = getattr(model, 'backbone', None)
    unsupported = getattr(backbone, 'packed_unsupported_reason', None)
    if unsupported is None:
        return f'{type(backbone or model).__name__} does not take images of different sizes'
    mode = (getattr(model, 'test_cfg', None) or {}).get('mode')
    if mode == 'slide':
        return "test_cfg.mode='slide' cuts each image into windows of one size"
    return unsupported()


def predict_packed(model: BaseModel, batches: Sequence[dict]) -> List[BaseDataElement]:
    """Predict images of different sizes at once, each with the result that it has alone.

    Args:
        model: in evaluation mode, without :func:`packed_unsupported_reason`.
        batches: inputs of ``model.test_step``, each of one image.

    Returns:
        the data sample of each image.
    """
    if getattr(model, 'predicts_packed', False):
        images = [{name: value[0] for name, value in batch.items()} for batch in batches]
        return list(model.test_step(pseudo_collate(images)))
    data = [model.data_preprocessor(batch, False) for batch in batches]
    outs = model.backbone([one['inputs'][0] for one in data])
    samples = []
    for i, one in enumerate(data):
        features = tuple([out[i] if isinstance(out, list) else out[i : i + 1] for out in outs])
        # A shallow copy: threads that predict with the same model do not see it.
        rest = copy.copy(model)
        given = _Features(model.backbone, one['inputs'], features)
        rest._modules = dict(model._modules, backbone=given)
        samples += rest._run_forward(one, mode='predict')
    return samples


class _Features(nn.Module):
    """Backbone that returns features computed before, of one image."""

    def __init__(self, backbone: nn.Module, image: Tensor, features: Tuple[Tensor, ...]) -> None:
        super().__init__()
        self.backbone, self.image, self.features = backbone, image, features

    def forward(self, x: Tensor) -> Any:
        return self.features if x is self.image else self.backbone(x)
