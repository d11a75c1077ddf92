"""Names of architectures, which every backbone spells alike."""

import pytest
import torch

from mmlinattn.models import backbones
from mmlinattn.models.backbones import TransformerBlock

KINDS = [backbones.RAVLT, backbones.Swin, backbones.MixTransformer, backbones.CvT,
         backbones.ViL, backbones.ViT]  # fmt: skip
# Widths of the last stage, of the papers' tables.
WIDTHS = {
    'RAVLT': dict(tiny=512, small=512, base=512, large=640),
    'Swin': dict(tiny=768, small=768, base=1024, t=768, s=768, b=1024),
    'MixTransformer': dict(nano=256, tiny=512, small=512, b0=256, b2=512),
    'CvT': {'small': 384, 'base': 384, 'large': 1024, '13': 384, 'w24': 1024},
    'ViL': {'tiny': 384, 'small': 768, 'medium': 768, 'base': 768, 'base-wide': 1024},
    'ViT': {'tiny': 192, 'small': 384, 'base': 768, 'large': 1024, 'huge': 1280, 'deit-t': 192},
}


@pytest.mark.parametrize('kind', KINDS)
def test_sizes_and_names_of_the_paper(kind):
    for name, width in WIDTHS[kind.__name__].items():
        with torch.device('meta'):
            dims = kind(arch=name).arch['embed_dims']
        assert (dims if isinstance(dims, int) else dims[-1]) == width, name


@pytest.mark.parametrize('kind', KINDS)
def test_every_backbone_has_the_common_sizes(kind):
    assert {'small', 'base'} <= {*kind.architectures, *kind.arch_sizes}
    assert {*kind.arch_sizes.values()} <= {*kind.architectures}


def test_an_unknown_name_lists_both_spellings():
    with pytest.raises(ValueError) as error:
        backbones.MixTransformer(arch='b6')
    assert str(error.value) == (
        "MixTransformer: arch must be one of 'b0', 'b1', 'b2', 'b3', 'b4', 'b5', by size 'nano' "
        "(b0), 'tiny' (b1), 'small' (b2), 'base' (b3), 'large' (b4), 'huge' (b5), or a dict, got "
        "'b6'"
    )
    with pytest.raises(ValueError, match=r"RAVLT: arch must be one of 'tiny', .* or a dict, got"):
        backbones.RAVLT(arch='t')


def test_a_misspelt_option_of_a_block():
    """It is not passed on to the attention, which would ignore it."""
    with pytest.raises(TypeError, match="TransformerBlock has no option 'fn'; did you mean ffn"):
        TransformerBlock(16, 2, 4, 'RALA', fn='mix')
    assert TransformerBlock(16, 2, 4, 'RALA', sr_ratio=2).attn.num_heads == 2
