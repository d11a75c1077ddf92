"""Parts of a model whose attentions can be replaced: the backbone, and the encoder of SMCA."""

from typing import Any, Dict, List, NamedTuple, Optional, Type, Union

from mmengine.config import ConfigDict
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor

from ..models.backbones.base import Backbone
from ..models.detectors.smca_encoder import SMCAEncoder

Part = Union[Backbone, SMCAEncoder]
# Classes of the parts by their name in the model, in the order in which they run.
KINDS: Dict[str, Type[Part]] = dict(backbone=Backbone, encoder=SMCAEncoder)


class Output(NamedTuple):
    """Tensor that the unchanged rest of a model reads."""

    values: Tensor  # [B, ...]; [B, N, C] of an encoder
    padding: Optional[Tensor] = None  # [B, N] bool, True = padding, whose values are not read


def parts_of(model: BaseModel) -> Dict[str, Part]:
    """Return the parts of a model that are of this package, by name."""
    found = {name: getattr(model, name, None) for name in KINDS}
    return {name: part for name, part in found.items() if isinstance(part, KINDS[name])}


def options_of(model_cfg: ConfigDict, part: str) -> ConfigDict:
    """Return the place in the config of a model that has ``attn_cfg`` of a part."""
    return model_cfg.encoder.layer_cfg if part == 'encoder' else model_cfg.backbone


def inputs_of(
    model: BaseModel, part: str, images: Tensor, data_samples: Optional[list] = None
) -> Dict[str, Any]:
    """Return the arguments of a part's ``forward`` for images (B, 3, H, W), by name.

    ``data_samples`` have the sizes of the images; without them the images have no padding.
    """
    if part == 'backbone':
        return dict(images=images)
    if data_samples is None:
        shape = tuple(images.shape[-2:])
        sizes = dict(img_shape=shape, batch_input_shape=shape)
        data_samples = [BaseDataElement(metainfo=sizes) for _ in images]
    return model.pre_transformer(model.extract_feat(images), data_samples)[0]


def outputs_of(model: BaseModel, part: str, inputs: Dict[str, Any]) -> List[Output]:
    """Return the outputs of a part for its arguments."""
    if part == 'backbone':
        return [Output(values) for values in model.backbone(inputs['images'])]
    return [Output(model.forward_encoder(**inputs)['memory'], inputs['feat_mask'])]
