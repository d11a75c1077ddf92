"""Every registered attention in every backbone; new ones are tested without a new test."""

from typing import Dict, List

import pytest
import torch
from torch import Tensor, nn

from mmlinattn.models.backbones import Backbone, CvT, ViL, ViT
from mmlinattn.models.layers import BaseAttention, registered_subclasses
from mmlinattn.testing import check_backbone
from tests import more_rules
from tests.more_rules import SMALL, small_options
from tests.sizes import LONG


def ours(base: type) -> Dict[str, type]:
    found = registered_subclasses(base)
    models = 'mmlinattn.models.'
    return {name: cls for name, cls in found.items() if cls.__module__.startswith(models)}


class Encoder(nn.Module):
    """Encoder of SMCA with the interface of a backbone."""

    def __init__(self, attn_cfg: str) -> None:
        super().__init__()
        from mmlinattn.models.detectors.smca_encoder import SMCAEncoder

        layer_cfg = dict(attn_cfg=attn_cfg, embed_dims=16, num_heads=2, feedforward_channels=32)
        self.encoder = SMCAEncoder(2, dict(layer_cfg, dropout=0.0))

    def forward(self, image: Tensor) -> List[Tensor]:
        x = image.repeat(1, 6, 1, 1)[:, :16, ::8, ::8]  # [B, 16, 8, 10]
        tokens, pos = x.flatten(2).mT, x.flatten(2).mT.roll(1, -1)
        mask = torch.zeros(tokens.shape[:2], dtype=torch.bool)
        mask[0, -10:] = True  # below row 56 of the first image
        return [self.encoder(tokens, x.shape[-2:], pos, mask)]

    def init_weights(self) -> None:
        self.encoder.init_weights()


ATTENTIONS = ours(BaseAttention)
BACKBONES = ours(Backbone)


# Scores of all pairs, of one pass over the tokens, by anchors, in cells and in windows of the map.
KINDS = ('SoftmaxAttention', 'RALA', 'RWGKA', 'RWGKP', 'WindowAttention')


def pairs() -> list:
    """All attentions in one backbone, one of each kind in the others; all in the long version."""
    every = [(backbone, attention) for backbone in BACKBONES for attention in ATTENTIONS]
    return [case for case in every if LONG or case[0] == 'RAVLT' or case[1] in KINDS]


@pytest.mark.long
@pytest.mark.parametrize(('backbone', 'attention'), pairs())
def test_backbone(backbone, attention):
    cls = BACKBONES[backbone]
    check_backbone(cls, [attention], **small_options(cls))
    more_rules.check_backbone(cls, [attention], **small_options(cls))


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_encoder_of_smca(attention):
    pytest.importorskip('mmdet', reason='SMCA needs MMDetection, the extra "det"')
    check_backbone(Encoder, [attention])


CLS_TOKEN = dict(with_cls_token=True, out_type='cls_token')
EXTRA_TOKENS = {
    ViT: dict(CLS_TOKEN, out_indices=(3,)),
    CvT: dict(CLS_TOKEN, out_indices=(2,)),
    ViL: dict(arch=dict(SMALL, depths=2, global_tokens=(1, 2, 1, 0))),
}


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('backbone', EXTRA_TOKENS, ids=lambda cls: cls.__name__)
def test_extra_tokens(backbone, attention):
    options = {**small_options(backbone), **EXTRA_TOKENS[backbone]}
    check_backbone(backbone, [attention], rules=['parameters_learn'], **options)
