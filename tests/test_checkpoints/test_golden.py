"""RAVLT with converted weights against tensors recorded from the released code."""

from ast import literal_eval

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from mmlinattn.checkpoints import convert
from mmlinattn.models.backbones import RAVLT

LAYOUTS = {
    'ravlt_released': ('RALA', 'RALA', 'SoftmaxAttention', 'SoftmaxAttention'),
    'ravlt_all_linear': 'RALA',
}


@pytest.fixture(params=sorted(LAYOUTS))
def case(request, golden):
    """(tensors, arguments of RAVLT)"""
    tensors, metadata = golden(request.param)
    names = dict(embed_dims='dims', depths='depths', num_heads='heads', mlp_ratios='mlp')
    arch = {name: literal_eval(metadata[theirs]) for name, theirs in names.items()}
    kwargs = dict(arch=arch, attn_cfg=LAYOUTS[request.param], norm_cfg=dict(type='BN'))
    return tensors, kwargs


def below(tensors, prefix):
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    assert (ours - theirs).norm() / theirs.norm() < 1e-5


def dense_backbone(tensors, kwargs):
    model = RAVLT(**kwargs).eval()
    model.load_state_dict(
        below(convert(below(tensors, 'det.param.'), 'rala', any_attention=True), 'backbone.')
    )
    return model


def test_dense_backbone_outputs_and_gradient(case):
    tensors, kwargs = case
    image = tensors['in.image'].clone().requires_grad_()
    outs = dense_backbone(tensors, kwargs)(image)
    assert len(outs) == 4
    for i, out in enumerate(outs):
        assert_close(out, tensors[f'det.out.{i}'])
    sum(out.square().mean() for out in outs).backward()
    assert_close(image.grad, tensors['det.grad.image'])


def test_first_attention_layer_alone(case):
    tensors, kwargs = case
    attn = dense_backbone(tensors, kwargs).stages[0][0].attn
    x = tensors['attn.in']
    hw_shape = tuple(x.shape[2:])
    out = attn(x.flatten(2).transpose(1, 2), hw_shape)
    assert_close(out.transpose(1, 2).unflatten(2, hw_shape), tensors['attn.out'])


def test_classifier_logits(case):
    pytest.importorskip('mmpretrain', reason='the classifier needs MMPretrain')
    import mmlinattn.models.necks  # noqa: F401

    tensors, kwargs = case
    cfg = dict(
        type='ImageClassifier',
        backbone=dict(type='RAVLT', out_indices=(3,), out_norm=False, **kwargs),
        neck=dict(type='RAVLTNeck', in_channels=64, out_channels=24, norm_cfg=dict(type='BN')),
        head=dict(
            type='LinearClsHead',
            in_channels=24,
            num_classes=tensors['cls.out.logits'].shape[1],
        ),
    )
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg).eval()
    model.load_state_dict(convert(below(tensors, 'cls.param.'), 'rala', any_attention=True))
    with torch.no_grad():
        logits = model.head(model.extract_feat(tensors['in.image']))
    assert_close(logits, tensors['cls.out.logits'])
