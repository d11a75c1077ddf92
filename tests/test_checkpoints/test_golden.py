"""RAVLT and MAViT with converted weights against tensors recorded from the released code."""

import json
from ast import literal_eval

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from mmlinattn.checkpoints.converters import convert
from tests.recordings import assert_near, below

LAYOUTS = {
    'ravlt_released': ('RALA', 'RALA', 'SoftmaxAttention', 'SoftmaxAttention'),
    'ravlt_all_linear': 'RALA',
    'mavit_small': ('MALA', 'MALA', 'SoftmaxAttention', 'SoftmaxAttention'),
}


@pytest.fixture(params=sorted(LAYOUTS))
def case(request, golden):
    """(tensors under the names of the RAVLT files, config of the backbone, release)"""
    tensors, metadata = golden(request.param)
    if request.param == 'mavit_small':
        sizes = json.loads(metadata['cases'])['released']['kwargs']
        tensors, old = {}, below(tensors, 'released.')
        for theirs, ours in (
            ('state.', 'det.param.'), ('out.', 'det.out.'), ('in.x', 'in.image'),
            ('grad.x', 'det.grad.image'), ('aux.logits', 'cls.out.logits'),
            ('grad.state.', 'det.grad.param.'), ('state.', 'cls.param.'),
            ('aux.head.', 'cls.param.'),
        ):  # fmt: skip
            tensors.update({ours + k: v for k, v in below(old, theirs).items()})
        source, kind, out_channels = 'mala', 'MAViT', 40
    else:
        names = dict(embed_dims='dims', depths='depths', num_heads='heads', mlp_ratios='mlp')
        sizes = {name: literal_eval(metadata[theirs]) for name, theirs in names.items()}
        source, kind, out_channels = 'rala', 'RAVLT', 24
    arch = {k: tuple(sizes[k]) for k in ('embed_dims', 'depths', 'num_heads', 'mlp_ratios')}
    attn_cfg = LAYOUTS[request.param]
    cfg = dict(type=kind, arch=arch, attn_cfg=attn_cfg, norm_cfg=dict(type='BN'))
    return tensors, cfg, source, out_channels


def backbone_of(tensors, source):
    return below(convert(tensors, source, any_attention=True), 'backbone.')


def test_dense_backbone_outputs_and_gradients(case):
    tensors, cfg, source, _ = case
    model = MODELS.build(cfg).eval()
    model.load_state_dict(backbone_of(below(tensors, 'det.param.'), source))
    image = tensors['in.image'].clone().requires_grad_()
    outs = model(image)
    assert_near(outs, [tensors[f'det.out.{i}'] for i in range(4)])
    sum(out.square().mean() for out in outs).backward()
    assert_near(image.grad, tensors['det.grad.image'])
    grads = backbone_of(below(tensors, 'det.grad.param.'), source)
    parameters = dict(model.named_parameters())
    assert not grads or len(parameters) == len(set(parameters) & set(grads))
    for name in set(parameters) & set(grads):
        largest = max(grad.abs().max() for grad in grads.values())
        assert (parameters[name].grad - grads[name]).abs().max() < 1e-5 * largest, name
    if 'attn.in' in tensors:  # the first attention alone
        x = tensors['attn.in']
        out = model.stages[0][0].attn(x.flatten(2).transpose(1, 2), tuple(x.shape[2:]))
        assert_near(out.transpose(1, 2).unflatten(2, x.shape[2:]), tensors['attn.out'])


def test_classifier_logits(case):
    pytest.importorskip('mmpretrain', reason='the classifier needs MMPretrain')
    tensors, backbone, source, channels = case
    logits = tensors['cls.out.logits']
    cfg = dict(
        type='ImageClassifier',
        backbone=dict(backbone, out_indices=(3,), out_norm=False),
        neck=dict(
            type='RAVLTNeck', in_channels=backbone['arch']['embed_dims'][-1],
            out_channels=channels, norm_cfg=dict(type='BN'),
        ),
        head=dict(type='LinearClsHead', in_channels=channels, num_classes=logits.shape[1]),
    )  # fmt: skip
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg).eval()
    state = below(tensors, 'cls.param.')
    state = {k: v for k, v in state.items() if not k.startswith('extra_norms')}
    model.load_state_dict(convert(state, source, any_attention=True))
    with torch.no_grad():
        assert_near(model.head(model.extract_feat(tensors['in.image'])), logits)
