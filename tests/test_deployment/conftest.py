"""Shrunk models of the frameworks whose predictions are many and unlike each other."""

import inspect
from typing import NamedTuple

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS
from torch import Tensor, nn

from mmlinattn.deployment import Export, ExportedFile, ExportSettings
from mmlinattn.deployment.capture import DEFERRED
from mmlinattn.deployment.deployable import deployable
from mmlinattn.engine.model import class_names, number_of_classes
from tests.families import shrunk

# Spread of the outputs of a layer, by its name or that of its parent.
SPREAD = dict(
    rpn_cls=1, rpn_reg=1, retina_cls=1, retina_reg=1, fc_cls=4, fc_reg=1, conv_logits=3,
    conv_seg=3, offset=30, cross_attn=3,
)  # fmt: skip
CAPTURES = DEFERRED in inspect.signature(torch.export.export).parameters
captures = pytest.mark.skipif(not CAPTURES, reason='export needs torch 2.9 or newer')


def spread_head_weights(model: nn.Module) -> None:
    """Initialise the weights of heads in place, for many distinct predictions and no ties."""
    for name, layer in model.named_modules():
        spread = SPREAD.get(name.removesuffix('.in_proj').rpartition('.')[2])
        if spread is not None and hasattr(layer, 'weight'):
            nn.init.normal_(layer.weight, std=spread / layer.weight[0].numel() ** 0.5)


def padded(model: nn.Module, image: Tensor, height: int, width: int) -> Tensor:
    """The upper left part of an image; the remainder has the padding colour of the model."""
    out = torch.tensor(model.padding()).view(1, 3, 1, 1).expand_as(image).clone()
    out[..., :height, :width] = image[..., :height, :width]
    return out


class Case(NamedTuple):
    """A model, its config, an image (1, 3, 64, 64) as it is exported for, and what the framework
    predicts on it."""

    model: nn.Module
    cfg: Config
    image: Tensor
    sample: object


@pytest.fixture
def make(shapes_root):
    """make(family, **options of test_cfg) -> Case."""

    def call(family: str, change=lambda cfg: None) -> Case:
        torch.manual_seed(0)
        cfg = shrunk(family, shapes_root)
        change(cfg)
        model = MODELS.build(cfg.model).eval()
        spread_head_weights(model)
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        with torch.no_grad():
            (sample,) = model.test_step(pseudo_collate([dataset[1]]))
        image = dataset[1]['inputs'].flip(0)[None].float()  # loaded as BGR
        return Case(model, cfg, image, sample)

    return call


@pytest.fixture
def export(tmp_path):
    """export(case, settings) -> its exported form, and the ONNX file of that."""

    def call(case: Case, settings: ExportSettings):
        model = deployable(case.model, case.cfg)
        names = class_names(case.cfg, {}, number_of_classes(case.model))
        path = tmp_path / 'model.onnx'
        Export(model, names, settings, case.image).write('onnx', path)
        return model, ExportedFile(path, threads=1)

    return call
