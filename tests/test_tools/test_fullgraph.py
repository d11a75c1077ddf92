"""Whole models of the frameworks compile in one graph: no host sync, no branch on a tensor."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.structures import BaseDataElement
from torch import Tensor

pytestmark = pytest.mark.slow

SHAPE = (64, 96)


@pytest.fixture(autouse=True)
def _needs_to_compile(needs_to_compile):
    needs_to_compile('whole models of the frameworks')


def build(path) -> torch.nn.Module:
    cfg = Config.fromfile(path)
    pytest.importorskip(cfg.default_scope, reason=f'{path.stem} needs {cfg.default_scope}')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(cfg.model).eval()


def tensors(outputs) -> list:
    """All tensors of nested tuples and lists."""
    if isinstance(outputs, Tensor):
        return [outputs]
    return [x for part in outputs for x in tensors(part)]


@torch.no_grad()
def check(call, *args) -> None:
    torch.compiler.reset()
    eager = tensors(call(*args))
    compiled = tensors(torch.compile(call, fullgraph=True, backend='aot_eager')(*args))
    assert len(compiled) == len(eager) > 0
    for ours, theirs in zip(compiled, eager):
        assert theirs.std() > 0
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    'name',
    [
        'quickstart/ravlt-nano_shapes',
        'quickstart/semantic-fpn_ravlt-nano_shapes',
        'rwgka/segformer_mit-b0-rwgka_shapes',
        'ravlt/retinanet_ravlt-nano_bccd',
    ],
)
def test_model(root, name):
    model = build(root / f'configs/{name}.py')
    check(lambda image: model(image, mode='tensor'), torch.randn(2, 3, *SHAPE))


def test_mask_rcnn_before_its_proposals(root):
    """The number of these depends on the image, which no graph allows."""
    model = build(root / 'configs/quickstart/mask-rcnn_ravlt-nano_shapes.py')
    check(lambda image: model.rpn_head(model.extract_feat(image)), torch.randn(1, 3, *SHAPE))


@pytest.mark.parametrize('shapes', [(SHAPE, SHAPE), (SHAPE, (48, 80))], ids=['equal', 'padded'])
def test_smca_with_ripple_attention(root, shapes):
    model = build(root / 'configs/smca/smca-ripple_nano_shapes.py')
    samples = [
        BaseDataElement(metainfo=dict(img_shape=shape, batch_input_shape=SHAPE)) for shape in shapes
    ]
    image = torch.randn(2, 3, *SHAPE)
    check(lambda image: model(image, samples, mode='tensor'), image)
