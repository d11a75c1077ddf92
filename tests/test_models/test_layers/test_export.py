"""Export of every attention with dynamic sizes, or the error of those that need a static size."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from mmlinattn.models.backbones import MLLA, RAVLT, HViTTT, MixTransformer, ViT
from mmlinattn.models.layers import build_attention, map_to_tokens, tokens_to_map
from mmlinattn.models.layers.base import TokenLayout
from mmlinattn.models.layers.pooling import (
    cell_masks,
    pool_tokens,
    pool_tokens_dynamic,
    pooling_grid,
)
from mmlinattn.ops import BackendError
from mmlinattn.testing import check_attention
from tests.sizes import some

from .test_attention_contract import ATTENTIONS

dynamic = pytest.mark.skipif(
    not hasattr(torch.compiler, 'is_exporting'), reason='dynamic sizes need torch.export of 2.7'
)
EXPORTED = (3, 12, 20)  # images, rows, columns
OTHERS = ((1, 9, 14), (2, 5, 31))
FIXED = {
    'rala-learnable': "RALA with kv_augmentation='learnable'",
    'linear-permuted': 'position PermutationPosition',
    'linear-sine': 'position SineSPE',
    'linear-conv': 'position ConvSPE',
    'longformer': 'VisionLongformerAttention',
    'longformer-relative': 'VisionLongformerAttention',
    'window': 'WindowAttention',
    'window-shifted': 'WindowAttention',
}
# Options that do not affect export.
ALIKE = (
    'softmax-ravlt', 'rala-identity-relu', 'rala-no-aug', 'rala-tanh-softmax', 'rwgka-two-sets',
    'rwgka-one-step', 'slinear-unlimited', 'additive-lepe', 'linear-dpfp', 'linear-efficient',
    'linear-rfa', 'linear-t2r', 'ripple-fixed', 'ripple-sat', 'ripple-softmax',
    'ripple-truncated', 'angular-paper', 'inline-exp', 'vssd-groups', 'mlla-plain',
)  # fmt: skip
DYNAMIC = [name for name in ATTENTIONS if name not in FIXED and name not in ALIKE]
# Attentions that handle padding differently during export.
PADDED = ['ripple-sat', 'rwgkp', 'nystrom', 'inline']
BY_TRACING = [
    'linear', 'rala', 'rwgkp', 'longformer', 'longformer-relative', 'relative', 'ripple',
    'ripple-sat', 'ripple-log', 'inline', 'polaformer', 'agent-grid', 'vssd', 'core',
]  # fmt: skip


class OnMap(nn.Module):
    """Attention on a map (B, C, H, W), with padding (B, H, W) and a class token."""

    def __init__(self, name, dtype=torch.float64):
        super().__init__()
        attn = build_attention(ATTENTIONS[name], embed_dims=16, num_heads=2)
        self.attn = attn.to(dtype).eval().requires_grad_(False)

    def forward(self, x, mask=None):
        tokens, hw_shape = map_to_tokens(x), tuple(x.shape[-2:])
        if mask is None:
            return tokens_to_map(self.attn(tokens, hw_shape), hw_shape)
        extra = int(self.attn.supports_extra_tokens)
        tokens = torch.cat([tokens[:, :extra] + 1, tokens], 1)
        mask = torch.cat([torch.zeros_like(mask[:, 0, :extra]), mask.flatten(1)], 1)
        return self.attn(tokens, hw_shape, key_padding_mask=mask, num_extra_tokens=extra)


def inputs(size, padded=False, dtype=torch.float64):
    batch, height, width = size
    x = torch.randn(batch, 16, height, width, dtype=dtype)
    mask = torch.zeros(batch, height, width, dtype=torch.bool)
    mask[0, height // 2 :] = True
    mask[-1, :, width // 3 :] = True
    return (x, mask) if padded else (x,)


def exported(model, args):
    batch, height, width = (Dim(name, min=low, max=4096) for name, low in zip('bhw', (1, 4, 4)))
    shapes = ({0: batch, 2: height, 3: width}, {0: batch, 1: height, 2: width})
    return export(model, args, dynamic_shapes=shapes[: len(args)])


@pytest.mark.slow
@dynamic
@pytest.mark.long
@pytest.mark.parametrize('name', some(DYNAMIC, every=2))
def test_dynamic_sizes(name):
    options = dict(ATTENTIONS[name])
    check_attention(options.pop('type'), rules=['registered', 'exports'], **options)


@pytest.mark.slow
@dynamic
@pytest.mark.parametrize('name', PADDED)
def test_dynamic_sizes_with_padding_and_class_token(name):
    model = OnMap(name)
    program = exported(model, inputs(EXPORTED, padded=True)).module()
    for size in OTHERS:
        args = inputs(size, padded=True)
        torch.testing.assert_close(program(*args), model(*args), rtol=1e-9, atol=1e-11)


@dynamic
@pytest.mark.parametrize('name', FIXED)
def test_static_size_required(name):
    model = OnMap(name)
    with pytest.raises(ValueError, match=f'{FIXED[name]} cannot be exported with dynamic height'):
        exported(model, inputs(EXPORTED))
    args = inputs((2, 5, 6))
    torch.testing.assert_close(export(model, args).module()(*args), model(*args))


@dynamic
def test_too_large_rings_raise():
    model = OnMap('ripple-log')
    model.attn.max_distance = 9  # 511 rows
    model.attn.units = nn.Parameter(torch.randn(2, 9, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match='reach over 511 rows; .* at most 127'):
        exported(model, inputs(EXPORTED))
    args = inputs((1, 5, 6))
    torch.testing.assert_close(export(model, args).module()(*args), model(*args))


@pytest.mark.parametrize('name', BY_TRACING)
def test_onnx_by_tracing(name, tmp_path):
    runtime = pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    model, (x,) = OnMap(name, torch.float32).eval(), inputs((2, 6, 11), dtype=torch.float32)
    path, other = tmp_path / 'model.onnx', torch.randn_like(x)
    torch.onnx.export(model, (x,), path, opset_version=18, input_names=['x'], dynamo=False)
    session = runtime.InferenceSession(path, providers=['CPUExecutionProvider'])
    (out,) = session.run(None, {'x': other.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), model(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['linear-permuted', 'linear-sine', 'linear-conv'])
def test_random_positions_are_not_exported_to_onnx(name, tmp_path):
    model = OnMap(name, torch.float32)
    with pytest.raises(ValueError, match=f'{FIXED[name]} cannot be exported to ONNX'):
        torch.onnx.export(
            model, inputs((1, 4, 5), dtype=torch.float32), tmp_path / 'm.onnx', dynamo=False
        )


@pytest.mark.slow
@dynamic
@pytest.mark.parametrize('name', ['window', 'linear-sine', 'rala-learnable'])
def test_onnx_raises_instead_of_fixing_sizes(name, tmp_path):
    """Test torch's second export strategy, tried after an error, which would fix the sizes."""
    pytest.importorskip('onnxscript', reason='it comes with the extra "export"')
    model, (x,) = OnMap(name, torch.float32), inputs(EXPORTED, dtype=torch.float32)
    shapes = ({2: Dim('h', min=4, max=4096), 3: Dim('w', min=4, max=4096)},)
    with pytest.raises(Exception, match=f'{FIXED[name]} cannot be exported with dynamic height'):
        torch.onnx.export(
            model, (x,), tmp_path / 'm.onnx', dynamo=True, verbose=False, dynamic_shapes=shapes
        )


@pytest.mark.slow
@dynamic
@pytest.mark.long
@pytest.mark.parametrize('name', some(['rwgkp', 'ripple-sat'], every=2))
def test_onnx_with_dynamic_sizes(name, tmp_path):
    runtime = pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    pytest.importorskip('onnxscript', reason='it comes with the extra "export"')
    model, path = OnMap(name, torch.float32), tmp_path / 'model.onnx'
    program = exported(model, inputs(EXPORTED, dtype=torch.float32))
    torch.onnx.export(
        program, (), path, opset_version=18, dynamo=True, verbose=False, external_data=False
    )
    session = runtime.InferenceSession(path, providers=['CPUExecutionProvider'])
    for size in OTHERS:
        (x,) = inputs(size, dtype=torch.float32)
        (out,) = session.run(None, {'x': x.numpy()})
        torch.testing.assert_close(torch.from_numpy(out), model(x), rtol=1e-4, atol=1e-5)


@dynamic
def test_triton_kernels_are_not_exported():
    model = OnMap('rala', torch.float32)
    model.attn.backend = 'triton'
    with pytest.raises(BackendError, match='cannot serve this call'):
        export(model, inputs((1, 4, 4), dtype=torch.float32))


@pytest.mark.parametrize('cells', [1, 6, 9, 64])
def test_dynamic_pooling_equals_static_pooling(cells):
    device = torch.device('cpu')
    for hw in [(1, 1), (1, 4), (4, 1), (3, 9), (7, 7), (16, 9), (5, 40), (33, 12), (9, 64)]:
        x, tokens = torch.randn(1, 2, hw[0] * hw[1], 3, dtype=torch.float64), TokenLayout(hw)
        rows, columns = pooling_grid(cells, hw)
        places = (cell_masks(count, size, device) for count, size in zip((rows, columns), hw))
        pooled, exists = pool_tokens_dynamic(cells, x, tokens)
        assert exists.tolist() == [True] * (rows * columns) + [False] * (cells - rows * columns)
        torch.testing.assert_close(pooled[:, :, exists], pool_tokens(x, tokens, *places))


@pytest.mark.slow
@dynamic
@pytest.mark.long
@pytest.mark.parametrize(
    'backbone, options',
    some(
        [
            (MixTransformer, dict(attn_cfg=dict(type='RWGKP', num_anchors=6))),
            (RAVLT, dict(attn_cfg='RALA', norm_cfg=dict(type='BN'))),
            (MLLA, {}),
            (HViTTT, {}),
        ],
        every=2,
    ),
)
def test_backbones_with_dynamic_sizes(backbone, options):
    arch = dict(embed_dims=(8, 16, 24, 32), depths=1, num_heads=(1, 2, 2, 4))
    check_backbone(backbone(arch, out_indices=(1,), **options))


@dynamic
@pytest.mark.parametrize('attn_cfg', ['RALA', dict(type='CoreAttention', num_cores=8)])
def test_vit_with_dynamic_sizes(attn_cfg):
    """Export a class token, resized positions and patches that do not divide the image."""
    arch = dict(embed_dims=16, num_heads=2, depth=2, patch_size=8)
    check_backbone(ViT(arch, attn_cfg, img_size=64))


def check_backbone(model):
    model.double().eval().requires_grad_(False)
    shapes = ({0: Dim('b', max=64), 2: Dim('h', min=64, max=4096), 3: Dim('w', min=64, max=4096)},)
    images = torch.randn(2, 3, 96, 128, dtype=torch.float64)
    program = export(model, (images,), dynamic_shapes=shapes).module()
    for size in ((1, 3, 77, 125), (3, 3, 64, 90)):
        images = torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(program(images), model(images), rtol=1e-9, atol=1e-11)
