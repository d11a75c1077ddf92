"""The page docs/own_attention.md, as a reader follows it."""

import re
import sys

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.models.layers import BaseAttention
from mmlinattn.testing import ATTENTION_RULES, BACKBONE_RULES, check_attention, check_backbone
from tests.more_rules import SMALL


@pytest.fixture
def blocks(root):
    """Return the Python blocks of the page."""
    text = (root / 'docs' / 'own_attention.md').read_text()
    return re.findall(r'```python\n(\S.*?)```', text, re.S)


@pytest.fixture
def folder(blocks, tmp_path, monkeypatch):
    """Return a folder with the files of the page, in which Python finds modules."""
    for name, code in zip(('gated_linear.py', 'test_gated_linear.py', 'config.py'), blocks[1:]):
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    MODELS.module_dict.pop('GatedLinearAttention', None)
    sys.modules.pop('gated_linear', None)


def test_the_attention_of_the_page(folder):
    names: dict = {}
    exec((folder / 'test_gated_linear.py').read_text(), names)
    names['test_contract']()
    pytest.importorskip('mmdet', reason='the config is one of MMDetection')
    backbone = build_model(load_config(str(folder / 'config.py'))).backbone
    found = [m for m in backbone.modules() if isinstance(m, names['GatedLinearAttention'])]
    assert len(found) == sum(backbone.arch['depths']) and {m.eps for m in found} == {1e-4}


def test_the_feature_map_of_the_page(blocks):
    names: dict = {}
    try:
        exec(blocks[0], names)
        features = names['SquaredReLUFeatures'](head_dim=16, num_heads=2)
        assert (features.features(torch.randn(1, 2, 9, 16)) > 0).all()
        check_attention('LinearAttention', feature_map='SquaredReLUFeatures')
    finally:
        MODELS.module_dict.pop('SquaredReLUFeatures', None)


def test_the_attention_on_the_map_of_the_page(root):
    text = (root / 'docs' / 'own_attention.md').read_text()
    (method,) = re.findall(r'```python\n( +def attend.*?)```', text, re.S)
    names: dict = {'torch': torch, 'BaseAttention': BaseAttention}
    exec(f'class Mixed(BaseAttention):\n{method}', names)

    class Mixed(names['Mixed']):
        needs_map = True

        def __init__(self, embed_dims, num_heads, **kwargs):
            super().__init__(embed_dims, num_heads, **kwargs)
            self.conv = nn.Conv2d(
                embed_dims, embed_dims, 3, padding=1, groups=embed_dims, bias=False
            )

    # Queries and keys are not read.
    slow = ('registered', 'compiles', 'exports', 'backbones')
    skipped = ('gradients', 'query_pos', 'extra_tokens', *slow)
    check_attention(Mixed, rules=[name for name in ATTENTION_RULES if name not in skipped])


def test_the_backbone_of_the_design_page(root):
    text = (root / 'docs' / 'design.md').read_text()
    (code,) = [c for c in re.findall(r'```python\n(.*?)```', text, re.S) if 'class Plain' in c]
    names: dict = {}
    try:
        exec(code, names)
        check_backbone(names['Plain'], ['RALA', 'HydraAttention'], arch=SMALL)
        assert len(names['Plain']()(torch.randn(1, 3, 64, 64))) == 4
    finally:
        MODELS.module_dict.pop('Plain', None)


def test_the_tables_of_the_page(root):
    page = (root / 'docs' / 'reference' / 'rules.md').read_text()
    for name, rule in (*ATTENTION_RULES.items(), *BACKBONE_RULES.items()):
        assert f'| `{name}` | {" ".join(rule.__doc__.split())} |' in page
