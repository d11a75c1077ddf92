"""Ranks of matrices of known rank, and the KV sum, against what the layers keep themselves."""

import json

import cv2
import numpy as np
import pytest
import torch
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.analysis.rank import kv_sum, layer_ranks, numerical_rank
from mmlinattn.checkpoints import save_checkpoint
from mmlinattn.cli import rank as module
from mmlinattn.cli.arguments.analysis import rank as arguments
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import initial_model
from mmlinattn.models.backbones import RAVLT
from mmlinattn.models.layers import build_attention
from mmlinattn.models.layers.attend_calls import calls_of
from mmlinattn.ops.linear import torch_impl
from mmlinattn.visualization.rank import draw_ranks

SHAPE, TOKENS = (5, 7), 35
TINY = dict(embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=(2, 2, 2, 2))
CONFIG = 'deit-nano_shapes'


def low_rank(*shape, rank):
    *batch, rows, columns = shape
    left = torch.randn(*batch, rows, rank, dtype=torch.float64)
    return left @ torch.randn(*batch, rank, columns, dtype=torch.float64)


@pytest.mark.parametrize('tolerance', [1e-6, 0.01, 0.3])
def test_rank_is_that_of_torch_at_the_same_tolerance(tolerance):
    x = torch.randn(6, 40, 9, dtype=torch.float64) * torch.logspace(0, -8, 9, dtype=torch.float64)
    x[0] = 0
    found = numerical_rank(torch.linalg.svdvals(x), tolerance)
    assert torch.equal(found, torch.linalg.matrix_rank(x, rtol=tolerance))
    assert found[0] == 0 and found[1:].min() >= 1 and found.max() < 9


class Single(nn.Module):
    """A backbone of one attention whose input is a map of tokens (1, C, H, W)."""

    def __init__(self, attn):
        super().__init__()
        self.attn = attn.double().eval()

    def forward(self, x):
        return self.attn(x.flatten(2).transpose(1, 2), x.shape[-2:])


def ranks_of(attn, *images, **options):
    images = images or [torch.randn(1, 16, *SHAPE, dtype=torch.float64)]
    (layer,) = layer_ranks(Single(attn), [lambda x=x: x for x in images], **options)
    return layer


def set_part(layer, part, weight):
    """Set the weight of queries (0), keys (1) or values (2); the biases are 0."""
    with torch.no_grad():
        layer.in_proj.weight[16 * part : 16 * (part + 1)] = weight
        layer.in_proj.bias.zero_()
        layer.proj.bias.zero_()


def test_softmax_attention_that_cannot_tell_its_queries_apart_has_rank_1():
    attn = build_attention('SoftmaxAttention', 16, 2)
    set_part(attn, 0, 0.0)  # all rows of the weights are 1 / N
    layer = ranks_of(attn)
    assert layer.attention == 'SoftmaxAttention' and layer.tokens == [TOKENS]
    assert set(layer.spectra) == {'head_output', 'layer_output'}
    assert layer.spectra['head_output'].ranks == [1, 1]
    assert layer.spectra['head_output'].full == [8, 8]
    assert layer.spectra['layer_output'].ranks == [1] and layer.spectra['layer_output'].full == [16]
    assert max(layer.spectra['head_output'].values[1:]) < 1e-12


@pytest.mark.parametrize(
    'name, options',
    [('LinearAttention', dict(feature_map='elu+1')), ('RALA', dict(lepe=0, gate=None))],
)
def test_values_of_low_rank_give_a_kv_sum_of_that_rank(name, options):
    """Of a head; two heads side by side have twice the rank."""
    attn = build_attention(dict(type=name, **options), 16, 2)
    set_part(attn, 2, 0.0)
    for head in range(2):
        attn.in_proj.weight.data[32 + 8 * head : 40 + 8 * head] = low_rank(8, 16, rank=3).float()
    spectra = ranks_of(attn, tolerance=1e-6).spectra
    assert spectra['kv_sum'].ranks == spectra['head_output'].ranks == [3, 3]
    assert spectra['kv_sum'].full == [8, 8]
    assert spectra['layer_output'].ranks == [6]


def test_images_of_different_sizes():
    """Ranks and largest possible ranks are of each image; fewer tokens than channels count."""
    attn = build_attention('SoftmaxAttention', 16, 2)
    layer = ranks_of(attn, *(torch.randn(1, 16, *s).double() for s in ((2, 3), SHAPE)))
    assert layer.tokens == [6, TOKENS]
    assert layer.spectra['head_output'].full == [6, 6, 8, 8]
    assert layer.spectra['layer_output'].full == [6, 16]
    assert len(layer.spectra['layer_output'].values) == 6
    assert layer.spectra['layer_output'].values[0] == 1
    assert layer.spectra['layer_output'].mean_full == 11


def test_the_spectrum_is_the_median_over_heads_and_images():
    attn = build_attention('SoftmaxAttention', 16, 2)
    images = [torch.randn(1, 16, *SHAPE, dtype=torch.float64) for _ in range(4)]
    found = ranks_of(attn, *images).spectra['layer_output'].values
    outputs = torch.cat([Single(attn)(x) for x in images])
    values = np.linalg.svd(outputs.detach().numpy(), compute_uv=False)
    assert found == pytest.approx(np.median(values / values[:, :1], axis=0).tolist())


KEEP_A_SUM = {
    'linear': dict(type='LinearAttention', feature_map='elu+1'),
    'adaptive features': dict(type='LinearAttention'),
    'mean normaliser': dict(type='LinearAttention', feature_map='relu', mean_normaliser=True),
    'rotary position': dict(type='LinearAttention', feature_map='elu+1', rotary=True),
    'rotated features': dict(
        type='LinearAttention', feature_map='elu+1', position='RotaryPosition'
    ),
    'efficient': dict(type='EfficientAttention'),
    'focused': dict(type='FocusedLinearAttention'),
    'RALA': dict(type='RALA'),
    'RALA of relu': dict(type='RALA', feature_map='relu', rotary=False),
    'RALA without weights': dict(type='RALA', kv_augmentation=None),
    'RALA of learnt weights': dict(type='RALA', kv_augmentation='learnable', num_tokens=TOKENS),
    'MALA': dict(type='MALA'),
    'MLLA': dict(type='MLLAAttention'),
}
MEANS = ('RALA', 'MALA')  # they keep the sum over the number of tokens


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('case', KEEP_A_SUM)
def test_the_kv_sum_is_what_the_layer_keeps(case, masked, monkeypatch):
    attn_cfg = KEEP_A_SUM[case]
    attn = build_attention(attn_cfg, 16, 2).double().eval()
    if getattr(attn, 'token_logits', None) is not None:
        nn.init.normal_(attn.token_logits)
    kept, compute = [], torch_impl._attend_whole
    monkeypatch.setattr(
        torch_impl, '_attend_whole', lambda *args: kept.append(compute(*args)) or kept[-1]
    )
    mask = torch.zeros(2, TOKENS, dtype=torch.bool)
    mask[0, -SHAPE[1] :] = True
    with calls_of(attn) as calls, torch.no_grad():
        attn(torch.randn(2, TOKENS, 16).double(), SHAPE, None, mask if masked else None)
        counts = (~mask).sum(1) if masked else torch.tensor([TOKENS, TOKENS])
        ((_, state),), scale = kept, counts if attn_cfg['type'] in MEANS else torch.ones(2)
        found = kv_sum(attn, calls[0])
    torch.testing.assert_close(found, state.state * scale[:, None, None, None])
    assert 'weigh' not in vars(attn) and 'attend' not in vars(attn)


def test_the_kv_sum_of_polaformer_has_both_halves_of_the_values():
    attn = build_attention('PolaFormerAttention', 16, 2).double().eval()
    with calls_of(attn) as calls, torch.no_grad():
        attn(torch.randn(1, TOKENS, 16).double(), SHAPE)
        features, values = attn.feature_map(*calls[0][:2], None)[1], calls[0].v
        found = kv_sum(attn, calls[0])
    torch.testing.assert_close(found, torch.einsum('bhnm,bhnd->bhmd', features, values))


def test_layers_of_a_backbone_in_their_order():
    model = RAVLT(TINY, norm_cfg=dict(type='BN')).eval()
    layers = layer_ranks(model, [lambda: torch.randn(1, 3, 64, 64)] * 2)
    assert [layer.name for layer in layers] == [f'stages.{i}.0.attn' for i in range(4)]
    assert [layer.attention for layer in layers] == ['RALA'] * 2 + ['SoftmaxAttention'] * 2
    assert [layer.tokens for layer in layers] == [[256] * 2, [64] * 2, [16] * 2, [4] * 2]
    assert ['kv_sum' in layer.spectra for layer in layers] == [True, True, False, False]
    assert all(not m._forward_hooks and 'attend' not in vars(m) for m in model.modules())
    assert len(layers[0].spectra['kv_sum'].ranks) == 4 and layers[3].spectra['head_output'].full


def test_what_has_no_rank_is_said():
    with pytest.raises(ValueError, match='the backbone Conv2d has no attention of this package'):
        layer_ranks(nn.Conv2d(3, 8, 1), [lambda: torch.zeros(1, 3, 4, 4)])
    attn = build_attention('SoftmaxAttention', 16, 2)
    attn.proj.weight.data[0] = torch.nan
    with pytest.raises(ValueError, match='layer_output of attn is not finite'):
        ranks_of(attn)


def test_initial_weights_are_those_that_a_training_begins_with(tmp_path):
    """Also where the config names weights that are not there."""
    cfg = load_config('ravlt-nano_shapes')
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='nowhere.pth')
    models = [initial_model(cfg, seed) for seed in (0, 0, 1)]
    first, again, other = (model.backbone.stages[0][0].attn.in_proj.weight for model in models)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0.015 < first.std() < 0.025 and not models[0].training
    assert cfg.model.backbone.init_cfg.checkpoint == 'nowhere.pth'


@pytest.fixture
def command(tmp_path, monkeypatch):
    pytest.importorskip('mmpretrain', reason='the command takes classifiers of MMPretrain')
    monkeypatch.chdir(tmp_path)

    def call(*words):
        program.main(['analyze', 'rank', *map(str, words)])
        return json.loads((tmp_path / 'work_dirs/rank/rank.json').read_text())

    return call


def test_command_line(command, tmp_path, capsys):
    options = ('--shape', 64, 32, '--num-images', 2)
    found = command(CONFIG, *options, '--cfg-options', 'model.backbone.attn_cfg=RALA')
    said = ' '.join(capsys.readouterr().out.split())
    assert 'initial weights, untrained (seed 0)' in said
    assert '2 images of random noise, 64 x 32' in said and found['checkpoint'] is None
    assert [layer['attention'] for layer in found['layers']] == ['RALA'] * 6
    assert found['layers'][0]['tokens'] == [33, 33]
    for matrix, rank in found['layers'][5]['mean_ranks'].items():
        spectrum = found['layers'][5]['spectra'][matrix]
        assert rank == np.mean(spectrum['ranks']) and f'{rank:.1f}/' in said
    assert cv2.imread(str(tmp_path / 'work_dirs/rank/rank.png')).std() > 0
    # The same without the command.
    cfg = load_config(CONFIG, {'model.backbone.attn_cfg': 'RALA'})
    noise = torch.randn((2, 1, 3, 64, 32), generator=torch.Generator().manual_seed(0))
    backbone = initial_model(cfg).backbone
    layers = layer_ranks(backbone, [lambda i=i: noise[i] for i in range(2)])
    assert [layer.to_dict() for layer in layers] == found['layers']


def test_trained_weights_and_images(command, tmp_path, capsys):
    """Images go through the test pipeline, and every k-th of the folder is taken."""
    cfg = load_config(CONFIG)
    model = initial_model(cfg, 7)
    save_checkpoint(tmp_path / 'a.pth', model.state_dict(), {})
    (tmp_path / 'images').mkdir()
    generator = np.random.default_rng(0)
    for i in range(4):
        image = generator.integers(0, 255, (64, 64, 3), np.uint8)
        cv2.imwrite(str(tmp_path / f'images/{i}.png'), image)
    found = command(CONFIG, 'a.pth', '--images', 'images', '--num-images', 2)
    assert found['names'] == ['0.png', '2.png'] and found['weights'] == 'weights of a.pth'
    assert 'untrained' not in capsys.readouterr().out
    mean, std = (torch.tensor(cfg.data_preprocessor[n])[:, None, None] for n in ('mean', 'std'))

    def image(name):
        rgb = cv2.imread(str(tmp_path / 'images' / name))[..., ::-1].copy()
        return ((torch.from_numpy(rgb).permute(2, 0, 1) - mean) / std)[None]

    layers = layer_ranks(model.backbone, [lambda n=n: image(n) for n in found['names']])
    expected = [layer.to_dict() for layer in layers]
    assert [layer['mean_ranks'] for layer in found['layers']] == [e['mean_ranks'] for e in expected]
    for layer, other in zip(found['layers'], expected):
        for matrix, spectrum in layer['spectra'].items():
            values = other['spectra'][matrix]['values']
            assert spectrum['values'] == pytest.approx(values, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    'words, message',
    [
        (['--images', 'nowhere'], '--images nowhere: there is no such folder'),
        (['--images', 'empty'], "source 'empty' is a folder without images"),
        (['--images', 'damaged'], 'image damaged/a.png cannot be read'),
        (['nowhere.pth', '--shape', '64', '64'], 'nowhere.pth'),
        (['--shape', '64', '64', '--out', 'file'], 'file/rank.json cannot be written'),
    ],
)
def test_errors_are_one_line(command, tmp_path, monkeypatch, error_of, words, message):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'damaged').mkdir()
    (tmp_path / 'damaged/a.png').write_bytes(b'no image')
    (tmp_path / 'file').write_text('')
    monkeypatch.setattr(module, 'layer_ranks', lambda *_: pytest.fail('it is measured'))
    assert message in error_of(command, CONFIG, *words)


@pytest.mark.parametrize(
    'words, message',
    [
        (
            ['--shape', '64', '64', '--tolerance', '1'],
            '--tolerance must be at least 1e-06, the rounding of float32',
        ),
        (['--shape', '64', '64', '--tolerance', '1e-9'], 'got 1e-09'),
        (['--num-images', '0'], '--num-images must be positive, got 0'),
        (['--images', 'a', '--shape', '64', '64'], 'give either --images DIR, or --shape H W'),
        ([], 'give either --images DIR, or --shape H W of random noise'),
    ],
)
def test_errors_of_arguments(error_of, words, message):
    assert message in error_of(arguments, ['c', *words])


def test_the_picture_has_ranks_and_singular_values(tmp_path, monkeypatch):
    figures = []
    save = module.draw_ranks.__globals__['Figure'].savefig
    monkeypatch.setattr(
        module.draw_ranks.__globals__['Figure'], 'savefig',
        lambda self, *args: figures.append(self) or save(self, *args),
    )  # fmt: skip
    attn = build_attention(dict(type='LinearAttention', feature_map='elu+1'), 16, 2)
    layer = ranks_of(attn)
    draw_ranks(tmp_path / 'a.png', [layer, layer], 0.01, 'title')
    axes = figures[0].axes
    assert len(axes) == 6 and figures[0].get_suptitle() == 'title'
    drawn = axes[0].containers[0].lines[0].get_xydata().tolist()
    assert drawn == [[i, layer.spectra['kv_sum'].mean] for i in range(2)]
    assert axes[3].lines[0].get_ydata() == pytest.approx(layer.spectra['kv_sum'].values)
    assert 0.01 in axes[3].lines[-1].get_ydata()
