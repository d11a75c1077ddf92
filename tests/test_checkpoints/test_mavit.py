"""MALA against recorded tensors, and weights of MAViT kept apart from RAVLT's."""

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import load_checkpoint
from torch import nn

from mmlinattn.checkpoints import CheckpointError, check_fits, save_checkpoint
from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.layers import MALA
from tests.recordings import assert_equals_recording, below, load_case


@pytest.mark.parametrize('case', ['linear', 'linear_padded'])
def test_layer_outputs_and_gradients(golden, case):
    attn = MALA(24, 2)

    def ours(state):
        renamed = {k.replace('qkvo', 'in_proj'): v for k, v in state.items()}
        return {k: v.reshape(attn.get_parameter(k).shape) for k, v in renamed.items()}

    assert_equals_recording(attn, *load_case(golden, 'mala', case), ours)


def test_weights_of_the_other_release_are_an_error(dense, backbone_cfg, tmp_path):
    """By every way of loading: torch's, MMEngine's, this package's check, ``init_cfg``."""
    converted = convert(dense, 'mala')
    path = tmp_path / 'mavit.pth'
    save_checkpoint(path, converted, {})
    model = MODELS.build(dict(backbone_cfg, type='RAVLT'))
    message = 'trained with the attentions MALA, MALA, .* RAVLT has RALA, RALA, Soft.*set attn_cfg'
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(below(converted, 'backbone.'))
    with pytest.raises(CheckpointError, match=message):
        check_fits(path, model, prefix='backbone.')
    with pytest.raises(ValueError, match=message):
        load_checkpoint(nn.ModuleDict(dict(backbone=model)), str(path))
    pretrained = dict(type='Pretrained', checkpoint=str(path), prefix='backbone.')
    with pytest.raises(ValueError, match=message):
        MODELS.build(dict(backbone_cfg, type='RAVLT', init_cfg=pretrained)).init_weights()

    ours = MODELS.build(dict(backbone_cfg, type='MAViT'))
    assert not ours.load_state_dict(below(converted, 'backbone.')).missing_keys
    # What is saved again is an ordinary checkpoint.
    assert not any('trained_attention' in name for name in ours.state_dict())
    any_attention = convert(dense, 'mala', any_attention=True)
    model.load_state_dict(below(any_attention, 'backbone.'))


def test_the_release_is_told_by_its_classifier(dense, classifier):
    with pytest.raises(CheckpointError, match="say which release this is, 'rala' or 'mala'"):
        convert(dense)
    with pytest.raises(ValueError, match='say which release this is: source'):
        convert({'blocks.0.attn.qkv.weight': torch.zeros(3, 1)})
    for width, source, other in ((1024, 'RALA', 'mala'), (2048, 'MALA', 'rala')):
        widened = dict(classifier, **{'proj.weight': torch.zeros(width, 16, 1, 1)})
        record = convert(widened)['backbone.trained_attention']
        assert bytes(record.tolist()).decode().startswith(f'{source},{source},Softmax')
        with pytest.raises(CheckpointError, match=f'use source {source.lower()!r}'):
            convert(widened, other)
