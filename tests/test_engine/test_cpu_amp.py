"""Mixed precision on the CPU: autocast in parts of a model, and the scale of a float16 loss."""

import copy
from typing import NamedTuple

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from torch import nn

from mmlinattn.engine import CPUAmpOptimWrapper


class Model(BaseModel):
    """A backbone and a head, whose loss is large enough to overflow float16 at the first scale."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.types: list = []

    def forward(self, x):
        features = self.backbone(x)
        self.types.append(features.dtype)
        return self.head(features).square().mean()


def train_by_hand(model: Model, x, dtype, steps: int) -> float:
    """Train with torch's own autocast and scaler, and return the scale."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler('cpu', enabled=dtype == torch.float16)
    for _ in range(steps):
        with torch.autocast('cpu', dtype):
            features = model.backbone(x)
        scaler.scale(model.head(features.float()).square().mean()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return scaler.get_scale()


@pytest.mark.parametrize('dtype, scale', [('bfloat16', 1.0), (torch.float16, 2.0**15)])
def test_steps_are_those_of_torch(dtype, scale):
    model, x = Model(), 6 * torch.ones(16, 4)
    start, expected = copy.deepcopy(model), copy.deepcopy(model)
    wrapper = CPUAmpOptimWrapper(
        dtype, optimizer=torch.optim.SGD(model.parameters(), 0.1), clip_grad=dict(max_norm=0.5)
    )
    for _ in range(5):
        with wrapper.optim_context(model):
            loss = model(x)
        wrapper.update_params(loss)
    assert train_by_hand(expected, x, wrapper.cast_dtype, 5) == scale
    assert wrapper.loss_scaler.get_scale() == scale  # float16: the first step is skipped
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert not torch.equal(model.head.weight, start.head.weight)
    assert {*model.types} == {torch.float32}  # the head gets float32


class Features(NamedTuple):
    maps: dict
    sizes: torch.Tensor


def test_features_of_any_structure():
    """Autocast also where a model calls parts of its backbone; the head gets float32."""

    class Other(Model):
        def extract_feat(self, x):
            return Features(dict(found=[self.head(x)]), torch.tensor([x.shape[0]]))

    model = Other()
    wrapper = CPUAmpOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), 0.1))
    x = torch.randn(2, 8)
    with wrapper.optim_context(model):
        found = model.extract_feat(x)
    assert found.sizes.tolist() == [2] and found.sizes.dtype == torch.int64
    with torch.autocast('cpu', torch.bfloat16):
        expected = model.head(x)
    assert expected.dtype == torch.bfloat16
    torch.testing.assert_close(found.maps['found'][0], expected.float(), rtol=0, atol=0)
    model.amp_parts = ('backbone',)  # and nothing else
    with wrapper.optim_context(model):
        found = model.extract_feat(x)
    torch.testing.assert_close(found.maps['found'][0], model.head(x), rtol=0, atol=0)


def test_the_scale_is_resumed():
    wrappers = []
    for _ in range(2):
        sgd = torch.optim.SGD(Model().parameters(), 0.1)
        wrappers.append(CPUAmpOptimWrapper('float16', optimizer=sgd))
    wrappers[0].loss_scaler = torch.amp.GradScaler('cpu', init_scale=2.0**7)
    wrappers[1].load_state_dict(wrappers[0].state_dict())
    assert wrappers[1].loss_scaler.get_scale() == 2.0**7


def test_a_checkpoint_of_bfloat16_is_resumed_with_a_scaler():
    """As on a GPU, whose scaler refuses an empty state."""
    sgd = torch.optim.SGD(Model().parameters(), 0.1)
    state = CPUAmpOptimWrapper(optimizer=sgd).state_dict()
    assert state.keys() == OptimWrapper(sgd).state_dict().keys()
    CPUAmpOptimWrapper('float16', optimizer=sgd).load_state_dict(state)


@pytest.mark.parametrize(
    'loss_scale, scale, after',
    [(8.0, 8.0, 8.0), (dict(init_scale=4.0, growth_interval=1), 4.0, 8.0)],
)
def test_a_scale_that_is_given(loss_scale, scale, after):
    model = Model()
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    wrapper = CPUAmpOptimWrapper('float16', loss_scale, optimizer=sgd)
    assert wrapper.loss_scaler.get_scale() == scale
    with wrapper.optim_context(model):
        loss = model(torch.ones(2, 4))
    wrapper.update_params(loss)
    assert wrapper.loss_scaler.get_scale() == after


def test_another_dtype():
    sgd = torch.optim.SGD(Model().parameters(), 0.1)
    with pytest.raises(ValueError, match="dtype must be one of .* on a CPU, got 'float64'"):
        CPUAmpOptimWrapper('float64', optimizer=sgd)
