"""Images of different sizes predicted at once: the results of each alone, without padding."""

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

from mmlinattn.apis import load
from mmlinattn.engine.config import load_config
from mmlinattn.models.backbones import ViT
from mmlinattn.models.detectors.smca_encoder import SMCAEncoder
from mmlinattn.ops import PackedShapes
from tests.test_tools.conftest import CONFIGS

IMAGES = [
    np.random.default_rng(i).integers(0, 255, (*size, 3), np.uint8)
    for i, size in enumerate([(64, 96), (70, 64), (33, 120)])
]
ARCH = "type='ViT', arch=dict(embed_dims=32, num_heads=2, depth=2), attn_cfg='RALA', img_size=64"
# The test pipeline of the classifier crops to one size: native sizes here.
NATIVE = (
    "test_dataloader = dict(dataset=dict(_delete_=True, type='CustomDataset', "
    "pipeline=[dict(type='PackInputs')]))"
)
MODELS_OF = dict(
    cls=f"model = dict(backbone=dict(_delete_=True, {ARCH}, out_type='cls_token'), neck=None, "
    f'head=dict(in_channels=32))\n{NATIVE}\n',
    seg=f'model = dict(backbone=dict(_delete_=True, {ARCH}), neck=None, '
    "decode_head=dict(_delete_=True, type='FCNHead', in_channels=32, channels=8, num_convs=1, "
    "concat_input=False, num_classes=6, norm_cfg=dict(type='BN')))\n",
    det=f'model = dict(backbone=dict(_delete_=True, {ARCH}, with_cls_token=False), neck=dict('
    "_delete_=True, type='SimpleFeaturePyramid', in_channels=32, out_channels=64, num_outs=4))\n",
)


@pytest.fixture(scope='module')
def predictor(root, tmp_path_factory):
    """predictor(task): a small ViT with RALA and random weights in all three frameworks."""
    folder, made = tmp_path_factory.mktemp('packed'), {}

    def make(task):
        if task not in made:
            path, weights = folder / f'{task}.py', folder / f'{task}.pth'
            path.write_text(f"_base_ = '{root / CONFIGS[task]}'\n{MODELS_OF[task]}")
            torch.manual_seed(0)
            model = MODELS.build(load_config(str(path)).model)
            model.init_weights()
            torch.save(dict(state_dict=model.state_dict(), meta={}), weights)
            made[task] = load(str(path), str(weights))
        return made[task]

    return make


def arrays(prediction):
    """Return all arrays of the data sample by name."""
    found = {}

    def visit(name, value):
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif hasattr(value, 'items'):
            for key, item in value.items():
                visit(f'{name}.{key}', item)

    visit('', prediction.sample)
    return found


def compare(predictor, images):
    together, alone = predictor.predict_batch(images), [predictor.predict(x) for x in images]
    for one, other in zip(together, alone):
        a, b = arrays(one), arrays(other)
        assert a.keys() == b.keys() and a
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('task', MODELS_OF)
def test_vit_of_each_framework(task, predictor, monkeypatch):
    model, calls, forward = predictor(task), [], ViT.forward
    assert model.packed_unsupported_reason is None

    def counted(self, x):
        calls.append(type(x))
        return forward(self, x)

    monkeypatch.setattr(ViT, 'forward', counted)
    compare(model, IMAGES)
    assert calls == [list, *3 * [torch.Tensor]]  # one call for all, then each alone


def test_smca_packs_its_encoder(files, monkeypatch):
    model, shapes, forward = load(*files('smca')), [], SMCAEncoder.forward

    def counted(self, x, hw_shape, *args):
        shapes.append(hw_shape)
        return forward(self, x, hw_shape, *args)

    monkeypatch.setattr(SMCAEncoder, 'forward', counted)
    compare(model, IMAGES)
    packed, *others = shapes
    assert isinstance(packed, PackedShapes) and list(packed.hw_shapes) == others


def test_sources_in_batches(predictor, tmp_path):
    model, seen = predictor('cls'), []
    original = model.predict_batch
    model.predict_batch = lambda images, *args: seen.append(len(images)) or original(images, *args)
    try:
        found = model([*IMAGES, *IMAGES[:2]], batch_size=2)
    finally:
        del model.predict_batch
    assert seen == [2, 2, 1] and len(found) == 5
    torch.testing.assert_close(found[0].sample.pred_score, found[3].sample.pred_score)
    with pytest.raises(ValueError, match='batch_size must be a positive integer, got 0'):
        model(IMAGES, batch_size=0)
    (tmp_path / 'x.png').write_bytes(b'no image')
    stream = model.stream([IMAGES[0], tmp_path / 'x.png'], batch_size=2)
    assert next(stream).sample.pred_score.shape == found[0].sample.pred_score.shape
    with pytest.raises(ValueError, match=r'x\.png'):
        next(stream)


@pytest.mark.parametrize('task, reason', [('seg', 'convolves maps between its stages')])
def test_models_that_predict_one_by_one_say_why(task, reason, files):
    model = load(*files(task))
    assert reason in model.packed_unsupported_reason
    compare(model, IMAGES[:2])
