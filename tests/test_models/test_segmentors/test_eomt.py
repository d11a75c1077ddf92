"""EoMT: queries as tokens of a ViT, masks by dot products, losses of Mask2Former."""

import pytest
import torch
from torch import nn

pytest.importorskip('mmseg', reason='MMSegmentation comes with the extra "seg"')
pytest.importorskip('mmdet', reason='MMDetection comes with the extra "det"')
from mmengine.config import ConfigDict
from mmengine.optim import OptimWrapper
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmlinattn.engine import CPUAmpOptimWrapper
from mmlinattn.models.backbones import ViT
from mmlinattn.models.segmentors import EoMT, EoMTHead

ARCH = dict(embed_dims=32, num_heads=2, depth=4, patch_size=8)
SIZE = (48, 64)


def build(num_query_layers=2, num_queries=5, test_cfg=None, **backbone):
    vit = dict(type='ViT', arch=ARCH, img_size=SIZE, with_cls_token=False)
    head = dict(
        type='mmlinattn.models.segmentors.EoMTHead', in_channels=32, num_classes=3,
        num_queries=num_queries, num_upscales=1, num_points=64,
    )  # fmt: skip
    options = dict(train_cfg=dict(), test_cfg=ConfigDict(test_cfg or dict(mode='whole')))
    return EoMT(dict(vit, **backbone), head, num_query_layers, **options)


def test_queries_of_all_layers_are_registers_of_the_vit():
    model, image = build(num_query_layers=4).eval(), torch.randn(2, 3, *SIZE)
    vit = ViT(ARCH, img_size=SIZE, with_cls_token=False, num_registers=5, out_indices=(1, 3)).eval()
    state = dict(model.backbone.state_dict())
    vit.load_state_dict({**state, 'embed.registers': model.queries.detach()})
    outs = model.extract_feat(image)
    second, last = vit(image)
    assert len(outs) == 4
    torch.testing.assert_close(outs[3][1], last)
    torch.testing.assert_close(outs[1][1], vit.norm(second.movedim(1, -1)).movedim(-1, 1))


def test_a_query_of_the_last_layers_is_a_late_class_token():
    model, image = build(num_queries=1).eval(), torch.randn(2, 3, *SIZE)
    options = dict(img_size=SIZE, cls_token_from=2, out_indices=(3,))
    for out_type, found in zip(('cls_token', 'featmap'), model.extract_feat(image)[-1]):
        vit = ViT(ARCH, out_type=out_type, **options).eval()
        vit.load_state_dict({**model.backbone.state_dict(), 'cls_token': model.queries.detach()})
        (expected,) = vit(image)
        torch.testing.assert_close(found.flatten(1) if found.dim() == 3 else found, expected)


def test_masks_are_products_of_queries_and_pixels():
    head = EoMTHead(in_channels=8, num_classes=3, num_queries=2, num_upscales=1).double().eval()
    queries, found = torch.randn(1, 2, 8).double(), torch.randn(1, 8, 2, 3).double()
    transposed, _, depthwise, norm = head.upscale[0]
    nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
    # Each pixel becomes 2x2; then a filter of 3x3 for each channel, then a norm over the channels.
    blocks = torch.einsum('bchw,cdij->bdhiwj', found, transposed.weight)
    large = blocks.flatten(2, 3).flatten(3) + transposed.bias[:, None, None]
    padded = nn.functional.pad(nn.functional.gelu(large), (1, 1, 1, 1))
    filtered = sum(
        depthwise.weight[:, 0, i, j][:, None, None] * padded[:, :, i : i + 4, j : j + 6]
        for i in range(3) for j in range(3)
    )  # fmt: skip
    centred = filtered - filtered.mean(1, keepdim=True)
    pixels = centred / (centred.square().mean(1, keepdim=True) + 1e-6).sqrt()
    pixels = pixels * norm.weight[:, None, None] + norm.bias[:, None, None]
    first, _, second, _, third = head.mask_embed
    (classes,), (masks,) = head([(queries, found)])
    for q in range(2):
        hidden = nn.functional.gelu(second(nn.functional.gelu(first(queries[0, q]))))
        expected = (third(hidden)[:, None, None] * pixels[0]).sum(0)
        torch.testing.assert_close(masks[0, q], expected)
    assert classes.shape == (1, 2, 4)


def test_every_parameter_learns_and_every_pixel_has_a_class():
    torch.manual_seed(0)
    model = build(attn_cfg=dict(default='MALA', softmax=['last1']), num_registers=2).train()
    model.init_weights()
    samples = []
    for _ in range(2):
        sample = SegDataSample(metainfo=dict(img_shape=SIZE, ori_shape=SIZE, pad_shape=SIZE))
        labels = torch.randint(0, 3, (1, 6, 8)).repeat_interleave(8, 1).repeat_interleave(8, 2)
        labels[:, :4] = 255
        samples.append(sample.set_field(PixelData(data=labels), 'gt_sem_seg') or sample)
    before = {name: value.clone() for name, value in model.named_parameters()}
    images = torch.randn(2, 3, *SIZE)
    losses = model.loss(images, samples)
    # Classes, masks and overlap after each of the two layers.
    assert len(losses) == 6 and all(value.isfinite() for value in losses.values())
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    wrapper.update_params(sum(losses.values()))
    assert [name for name, value in model.named_parameters() if value.equal(before[name])] == []
    results = model.eval().predict(images, samples)
    assert results[0].pred_sem_seg.shape == SIZE and results[0].seg_logits.data.shape == (3, *SIZE)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_mixed_precision_on_a_cpu(dtype):
    """The layers of the backbone run in it, though its forward is not called."""
    model, types = build(), []
    wrapper = CPUAmpOptimWrapper(dtype, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for layer in model.backbone.layers:
        layer.ffn.register_forward_hook(lambda module, args, out: types.append(out.dtype))
    with wrapper.optim_context(model):
        outs = model.extract_feat(torch.randn(2, 3, *SIZE))
    assert types == [getattr(torch, dtype)] * 4
    assert {x.dtype for pair in outs for x in pair} == {torch.float32}  # for the head


def test_a_loss_of_confident_masks_in_float16():
    """AmpOptimWrapper has the whole loss in float16, which sums over 12,544 points exceed."""
    head = EoMTHead(in_channels=32, num_classes=5, num_queries=10, num_upscales=1).train()
    sample = SegDataSample(metainfo=dict.fromkeys(('img_shape', 'batch_input_shape'), (64, 64)))
    sample.gt_sem_seg = PixelData(data=torch.zeros(1, 64, 64, dtype=torch.long))
    outputs = [torch.zeros(1, 10, 6)], [torch.full((1, 10, 16, 16), -8.0)]
    head.forward = lambda *args: outputs
    losses = []
    for enabled in (False, True):
        torch.manual_seed(0)
        with torch.autocast('cpu', torch.float16, enabled=enabled):
            losses.append(head.loss(None, [sample], None))
    torch.testing.assert_close(losses[1], losses[0])


@pytest.mark.parametrize('mode', ['whole', 'slide'])
def test_masks_lie_on_their_pixels_where_an_image_ends_within_a_patch(mode):
    """The same logits as of the image that is padded by hand, cut to the image."""
    size, covered = (43, 61), (48, 64)
    test_cfg = dict(mode=mode, crop_size=(32, 40), stride=(20, 20))
    model = build(test_cfg=test_cfg).eval()
    images = torch.randn(1, 3, *size)
    padded = nn.functional.pad(images, (0, covered[1] - size[1], 0, covered[0] - size[0]))
    meta = dict(img_shape=size, ori_shape=size, pad_shape=size)
    with torch.no_grad():
        found = model.encode_decode(images, [dict(meta)])
        whole = model.encode_decode(padded, [dict(img_shape=covered)])
        classes, masks = model.decode_head(model.extract_feat(padded))
        masks = nn.functional.interpolate(masks[-1], size=covered, mode='bilinear').sigmoid()
        expected = torch.einsum('bqc,bqhw->bchw', classes[-1].softmax(-1)[..., :-1], masks)
        torch.testing.assert_close(whole, expected)
        torch.testing.assert_close(found, expected[:, :, : size[0], : size[1]])
        assert model.inference(images, [dict(meta)]).shape == (1, 3, *size)
    with pytest.raises(ValueError, match=r'whole patches of 8 pixels, got \(43, 61\)'):
        model.loss(images, [])


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_query_layers=5), 'num_query_layers must be 1 to 4, got 5'),
        (dict(num_query_layers=0), 'num_query_layers must be 1 to 4, got 0'),
        (
            dict(out_indices=(2,)),
            r'EoMT needs the maps of the last layer .* got out_indices=\(2,\)',
        ),
        (dict(out_type='avg_featmap'), "EoMT needs the maps of the last layer .*'avg_featmap'"),
        (dict(arch=dict(ARCH, final_norm=False)), 'leave out_indices, final_norm'),
        (dict(with_cls_token=True, cls_token_from=1), 'cls_token_from must be 0 in EoMT, got 1'),
        (dict(attn_cfg='WindowAttention'), 'WindowAttention does not support extra tokens'),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def test_other_backbones_and_negative_upscales_are_refused():
    head = dict(type='mmlinattn.models.segmentors.EoMTHead', in_channels=512, num_classes=3)
    with pytest.raises(TypeError, match='EoMT needs a ViT of mmlinattn, but backbone is RAVLT'):
        EoMT(dict(type='RAVLT', arch='tiny'), head)
    with pytest.raises(ValueError, match='num_upscales must be at least 0, got -1'):
        EoMTHead(in_channels=8, num_classes=3, num_upscales=-1)
