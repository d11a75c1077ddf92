"""Half precision: how near it stays, and what stays in float32."""

import copy

import pytest
import torch
from torch import nn

from mmlinattn.deployment import Export, ExportSettings, FormatError
from mmlinattn.deployment.compare import difference, match
from mmlinattn.deployment.deployable import deployable
from mmlinattn.deployment.fp16 import to_half

from .conftest import captures

pytestmark = pytest.mark.slow


@pytest.fixture
def classifier(make):
    pytest.importorskip('mmpretrain', reason='it is a classifier of MMPretrain')
    return make('ravlt-nano-cls')


@captures
def test_half_precision_stays_near_and_is_half(classifier, tmp_path):
    onnx = pytest.importorskip('onnx', reason='it comes with the extra "export"')
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    model = deployable(classifier.model, classifier.cfg)
    settings = ExportSettings((64, 64), static=True, fp16=True)
    path = tmp_path / 'half.onnx'
    written = Export(model, ['a'], settings, classifier.image).write('onnx', path)
    assert 0 < written.errors[64, 64] < 0.01
    weights = onnx.load(path).graph.initializer
    halves = [w for w in weights if w.data_type == onnx.TensorProto.FLOAT16]
    assert sum(w.ByteSize() for w in halves) > 0.8 * sum(w.ByteSize() for w in weights)


@captures
def test_a_number_beyond_half_precision_is_an_error(classifier, tmp_path):
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    nn.init.constant_(classifier.model.backbone.stages[1][0].norm1.weight, 3e7)
    model = deployable(classifier.model, classifier.cfg)
    settings = ExportSettings((64, 64), static=True, fp16=True)
    with pytest.raises(
        FormatError, match='half.pt2 has not the outputs of the model.*export without'
    ):
        Export(model, ['a'], settings, classifier.image).write('pt2', tmp_path / 'half.pt2')
    assert not [*tmp_path.iterdir()]


def test_large_variances_do_not_become_half():
    """Behind a convolution a batch norm becomes part of it; another one computes in float32."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4)
            self.pool, self.late = nn.AvgPool2d(2), nn.BatchNorm2d(4)

        def forward(self, x):
            return self.late(self.pool(self.bn(self.conv(x))))

    net = Net().eval().requires_grad_(False)
    for bn in (net.bn, net.late):
        bn.running_var.fill_(1e6)
        bn.weight.data.fill_(1e3)
    holder, x = nn.Module(), torch.randn(1, 3, 4, 4)
    holder.model, expected = copy.deepcopy(net), net(x)
    to_half(holder)
    out = holder.model(x.half())
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)


def test_detections_are_compared_in_any_order():
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 20, 20], [1, 1, 2, 2]])
    scores, labels = torch.tensor([0.9, 0.8, 0.1]), torch.tensor([0, 1, 1])
    one = dict(boxes=boxes[None], scores=scores[None], labels=labels[None], count=torch.tensor([3]))
    order = torch.tensor([1, 0, 2])
    other = {name: x[:, order] for name, x in one.items() if name != 'count'}
    assert match(other, one) == [0, 0]  # the last is unsure
    moved = dict(one, boxes=one['boxes'] + torch.tensor([[0.0], [2.0], [50.0]]))
    assert match(moved, one) == pytest.approx([0, 0.1])
    assert match(dict(one, labels=one['labels'] + 5), one) == [float('inf')] * 2
    assert difference(moved, one) == pytest.approx(0.1)
