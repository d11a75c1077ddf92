"""Key mapping for released SMCA weights."""

from torch import Tensor

from .key_mapping import KeyRule

# COCO's 80 categories have ids in 1..90, with gaps.
GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
COCO_IDS = [i for i in range(1, 91) if i not in GAPS]
# Columns 0..90 of the release are category ids, 91 is "no object".
COCO_COLUMNS = 92


def _classes(value: Tensor) -> Tensor:
    """Select the rows of COCO's 80 classes if the rows are COCO category ids."""
    return value[COCO_IDS] if len(value) == COCO_COLUMNS else value


LAYER = r'transformer\.(encoder|decoder)\.layers\.(\d+)\.'
OURS = r'\1.layers.\2.'

SMCA = (
    KeyRule(r'backbone\.0\.body\.', 'backbone.'),
    KeyRule(r'input_proj\.', 'neck.convs.0.conv.'),
    KeyRule(r'query_embed\.', 'query_embedding.'),
    KeyRule(LAYER + r'self_attn\.in_proj_', OURS + 'self_attn.in_proj.'),
    KeyRule(LAYER + r'self_attn\.out_proj\.', OURS + 'self_attn.proj.'),
    KeyRule(LAYER + r'multihead_attn\.in_proj_', OURS + 'cross_attn.in_proj.'),
    KeyRule(LAYER + r'multihead_attn\.out_proj\.', OURS + 'cross_attn.proj.'),
    KeyRule(LAYER + r'linear1\.', OURS + 'ffn.layers.0.0.'),
    KeyRule(LAYER + r'linear2\.', OURS + 'ffn.layers.1.'),
    KeyRule(
        LAYER + r'norm([123])\.',
        lambda match: f'{match[1]}.layers.{match[2]}.norms.{int(match[3]) - 1}.',
    ),
    KeyRule(LAYER + r'norm4\.', OURS + 'point_norm.'),
    KeyRule(LAYER + r'point2\.', OURS + 'offset.'),
    KeyRule(LAYER + r'point3\.', OURS + 'scale.'),
    KeyRule(r'transformer\.decoder\.layers\.0\.point1\.', 'decoder.point.'),
    KeyRule(r'transformer\.decoder\.norm\.', 'decoder.post_norm.'),
    KeyRule(r'class_embed\.', 'bbox_head.fc_cls.', _classes),
    KeyRule(r'bbox_embed\.layers\.0\.', 'bbox_head.reg_ffn.layers.0.0.'),
    KeyRule(r'bbox_embed\.layers\.1\.', 'bbox_head.reg_ffn.layers.1.'),
    KeyRule(r'bbox_embed\.layers\.2\.', 'bbox_head.fc_reg.'),
)
