"""Compilation and ONNX export of every backbone."""

import pytest
import torch

from mmlinattn.models.backbones import MLLA, RAVLT, CvT, HViTTT, MixTransformer, Swin, ViL, ViT

PLAIN = dict(embed_dims=16, num_heads=2, depth=2, patch_size=8)
STAGES = dict(embed_dims=(8, 16, 24, 32), depths=(2, 1, 1, 1), num_heads=(1, 2, 2, 4))
THREE = {name: value[:3] for name, value in STAGES.items()}
MODELS = {
    'ravlt': lambda: RAVLT(STAGES, norm_cfg=dict(type='BN')),
    'ravlt-rala': lambda: RAVLT(STAGES, 'RALA', norm_cfg=dict(type='BN')),
    'mit': lambda: MixTransformer(STAGES),
    'mit-rwgka': lambda: MixTransformer(STAGES, dict(type='RWGKA', num_anchors=8)),
    'mit-rwgkp': lambda: MixTransformer(STAGES, dict(type='RWGKP', num_anchors=8)),
    'vit': lambda: ViT(PLAIN, img_size=64, out_type='cls_token'),
    'vit-rala': lambda: ViT(PLAIN, 'RALA', img_size=64, out_type='cls_token'),
    'vit-core': lambda: ViT(PLAIN, dict(type='CoreAttention', num_cores=8), img_size=64),
    'vit-registers': lambda: ViT(
        dict(PLAIN, rotary=dict(), num_registers=2, key_bias=False),
        img_size=64,
        ffn='swiglu',
        pos_resize='antialias',
    ),
    'swin': lambda: Swin(STAGES, window_size=3),
    'swin-rala': lambda: Swin(STAGES, dict(type='RALA', gate='identity'), window_size=3),
    'cvt': lambda: CvT(THREE, out_indices=(2,), out_type='cls_token'),
    'mlla': lambda: MLLA(STAGES),
    'hvittt': lambda: HViTTT(STAGES),
    'vil': lambda: ViL(STAGES, img_size=64, window_size=3),
    'vil-relative': lambda: ViL(STAGES, position='relative', img_size=64, window_size=3),
}


@pytest.mark.parametrize('name', MODELS)
def test_onnx_export_runs_the_same(name, tmp_path):
    onnx = pytest.importorskip('onnx', reason='onnx comes with the extra "test"')
    from onnx.reference import ReferenceEvaluator

    model, image = MODELS[name]().eval(), torch.randn(1, 3, 64, 64)
    path = tmp_path / 'model.onnx'
    torch.onnx.export(model, (image,), path, opset_version=17, input_names=['image'], dynamo=False)
    outs = ReferenceEvaluator(onnx.load(path)).run(None, {'image': image.numpy()})
    for a, b in zip(outs, model(image)):
        torch.testing.assert_close(torch.from_numpy(a), b.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('name', MODELS)
def test_compiles_without_graph_breaks(name):
    torch.compiler.reset()
    model, image = MODELS[name]().eval(), torch.randn(1, 3, 40, 56)
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    with torch.no_grad():
        torch.testing.assert_close(compiled(image), model(image), rtol=1e-4, atol=1e-5)
