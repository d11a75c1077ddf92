"""The table of docs/own_backbone.md."""

import importlib.util

import pytest

from mmlinattn.models.backbones import MixTransformer
from mmlinattn.models.backbones.base import Backbone
from mmlinattn.models.layers import registered_subclasses
from tests.sizes import some


@pytest.fixture(scope='module')
def script(root):
    path = root / 'tools' / 'misc' / 'backbone_table.py'
    spec = importlib.util.spec_from_file_location('backbone_table', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_a_line_for_every_architecture(script):
    lines = script.PAGE.read_text().splitlines()
    kinds = registered_subclasses(Backbone)
    assert {'RAVLT', 'ViT'} <= {*script.kinds()} <= {*kinds}
    known = [(kind, arch) for kind in script.kinds().values() for arch in kind.architectures]
    for kind, arch in known:
        assert (
            sum(f'| `{kind.__name__}` |' in line and f"`'{arch}'` |" in line for line in lines) == 1
        )
    assert sum(line.startswith('| `') for line in lines) == len(known) + 1  # and the header


@pytest.mark.long
def test_the_page_has_not_drifted(script):
    lines = script.PAGE.read_text().splitlines()
    known = [(kind, arch) for kind in script.kinds().values() for arch in kind.architectures]
    for kind, arch in some(known, every=7):
        line = script.row(kind, arch)
        assert line in lines, f'run python tools/misc/backbone_table.py: {line}'


# Table 6 of SegFormer, table 1 of RALA, section 3.3 of Swin, table 1 of DeiT.
@pytest.mark.parametrize(
    'start, cells',
    [
        ("| `MixTransformer` | `'small'` or `'b2'`", ['`[64, 128, 320, 512]`', '4, 8, 16, 32']),
        ("| `RAVLT` | `'large'`", ['`[96, 192, 448, 640]`', '4, 8, 16, 32']),
        ("| `Swin` | `'base'` or `'b'`", ['`[128, 256, 512, 1024]`', '4, 8, 16, 32']),
        ("| `ViT` | `'tiny'` or `'deit-t'`", ['`[192]`', '16']),
        ("| `CvT` | `'small'` or `'13'`", ['`[64, 192, 384]`', '4, 8, 16']),
    ],
)
def test_channels_and_strides_are_those_of_the_papers(script, start, cells):
    lines = script.PAGE.read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(start + ' | '))
    assert line.split(' | ')[2:4] == cells


class Tiny(MixTransformer):
    architectures = dict(b0=dict(embed_dims=(8, 16, 40, 64), depths=1))


def test_a_page_that_has_drifted(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(script.RELEASES, 'Tiny', ('none', 'https://localhost', 'mit'))
    monkeypatch.setattr(script, 'kinds', lambda: dict(Tiny=Tiny))
    path = tmp_path / 'own_backbone.md'
    path.write_text(f'before\n{script.BEGIN}\nold\n{script.END}\nafter\n')
    monkeypatch.setattr(script, 'PAGE', path)
    assert script.main(['--check']) == 1 and 'has drifted' in capsys.readouterr().out
    assert script.main([]) == 0 and script.main(['--check']) == 0
    text = path.read_text()
    assert text.startswith('before\n') and text.endswith('after\n') and 'old' not in text
