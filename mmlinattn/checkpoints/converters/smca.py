"""Key mapping for released SMCA weights."""

from torch import Tensor

from .key_mapping import KeyMap, Rule

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

SMCA = KeyMap(
    [
        Rule(r'backbone\.0\.body\.', 'backbone.'),
        Rule(r'input_proj\.', 'neck.convs.0.conv.'),
        Rule(r'query_embed\.', 'query_embedding.'),
        Rule(LAYER + r'self_attn\.in_proj_', OURS + 'self_attn.in_proj.'),
        Rule(LAYER + r'self_attn\.out_proj\.', OURS + 'self_attn.proj.'),
        Rule(LAYER + r'multihead_attn\.in_proj_', OURS + 'cross_attn.in_proj.'),
        Rule(LAYER + r'multihead_attn\.out_proj\.', OURS + 'cross_attn.proj.'),
        Rule(LAYER + r'linear1\.', OURS + 'ffn.layers.0.0.'),
        Rule(LAYER + r'linear2\.', OURS + 'ffn.layers.1.'),
        Rule(
            LAYER + r'norm([123])\.',
            lambda match: f'{match[1]}.layers.{match[2]}.norms.{int(match[3]) - 1}.',
        ),
        Rule(LAYER + r'norm4\.', OURS + 'point_norm.'),
        Rule(LAYER + r'point2\.', OURS + 'offset.'),
        Rule(LAYER + r'point3\.', OURS + 'scale.'),
        Rule(r'transformer\.decoder\.layers\.0\.point1\.', 'decoder.point.'),
        Rule(r'transformer\.decoder\.norm\.', 'decoder.post_norm.'),
        Rule(r'class_embed\.', 'bbox_head.fc_cls.', _classes),
        Rule(r'bbox_embed\.layers\.0\.', 'bbox_head.reg_ffn.layers.0.0.'),
        Rule(r'bbox_embed\.layers\.1\.', 'bbox_head.reg_ffn.layers.1.'),
        Rule(r'bbox_embed\.layers\.2\.', 'bbox_head.fc_reg.'),
    ]
)
