"""What one query reads: rows of the kernels, and their picture."""

import math
import re
from collections import OrderedDict

import cv2
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from mmengine.registry import MODELS
from torch.nn import Sequential

from mmlinattn import __main__ as program
from mmlinattn.checkpoints import save_checkpoint
from mmlinattn.cli import visualize_key_weights as module
from mmlinattn.cli.arguments.analysis import visualize_key_weights
from mmlinattn.models.layers import BaseAttention, build_attention
from mmlinattn.models.layers.attend_calls import Call, calls_of
from mmlinattn.visualization.key_weights import draw_key_weights, key_shape, key_weights, reach

SHAPE, QUERY = (5, 7), (3, 2)
NUMBER = QUERY[0] * SHAPE[1] + QUERY[1]
OPTIONS = dict(
    SpatialReductionAttention=dict(sr_ratio=2),
    NystromAttention=dict(num_landmarks=4),
    RALA=dict(rotary=True),
    RippleAttention=dict(max_distance=2),
    RWGKA=dict(num_anchors=4),
    RWGKP=dict(num_anchors=4),
    VisionLongformerAttention=dict(window_size=2),
    WindowAttention=dict(window_size=3),
)
NOT_LINEAR = ('AdditiveAttention', 'CoreAttention', 'LinearAngularAttention', 'TTTAttention')


@pytest.fixture
def called():
    """called(name, **call): an attention in float64 and what it was called with."""

    def build(name, extra=0, options=None, **call):
        options = OPTIONS.get(name, {}) if options is None else options
        attn = build_attention(dict(type=name, **options), 16, 2).double().eval()
        x = torch.randn(2, extra + math.prod(SHAPE), 16, dtype=torch.float64)
        with calls_of(attn) as calls:
            attn(x, SHAPE, num_extra_tokens=extra, **call)
        assert 'attend' not in vars(attn) and len(calls) == 1
        return attn, calls[0]

    return build


def matrix(attn, call) -> torch.Tensor:
    """The N x N kernel (heads, queries, keys) from values that are 1 at one key."""
    columns, none = [], torch.zeros_like(call.v[:1])
    if hasattr(attn, 'logits'):  # rings as the true values make them
        logits = attn.logits(call.v[:1])
        attn.logits = lambda v: logits
    for j in range(call.v.shape[2]):
        one = none.clone()
        one[:, :, j] = 1
        # Less what windows read beside the map.
        out, offset = (attn.attend(call.q[:1], call.k[:1], v, call.tokens) for v in (one, none))
        columns.append((out - offset)[0].mean(-1))
    vars(attn).pop('logits', None)
    return torch.stack(columns, -1).detach()


@pytest.mark.parametrize('name', sorted({*module.package_attentions()} - {*NOT_LINEAR}))
def test_a_row_is_that_of_the_whole_kernel(called, name):
    attn, call = called(name)
    row = key_weights(attn, call, QUERY)
    whole = matrix(attn, call)
    assert row.shape[0] == whole.shape[0] and row.abs().max() > 0
    torch.testing.assert_close(row.flatten(1), whole[:, NUMBER], atol=1e-5, rtol=1e-5)
    assert 'logits' not in vars(attn)


def test_angles_by_hand(called):
    attn, (q, k, v, tokens) = called('LinearAngularAttention')
    unit = [x[0] / x[0].norm(dim=-1, keepdim=True) for x in (q, k)]
    kernel = unit[0] @ unit[1].mT / math.pi + 0.5 * torch.eye(q.shape[2], dtype=q.dtype)
    norm = (kernel @ v[0]).norm(dim=-1, keepdim=True)
    found = key_weights(attn, Call(q, k, v, tokens), QUERY).flatten(1)
    direction = (kernel @ v[0] / norm)[:, NUMBER]
    assert direction.norm(dim=-1).allclose(torch.ones(2, dtype=q.dtype))
    wanted = (1 - 1 / 8) * (kernel / norm)[:, NUMBER]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_additive_attention_by_small_steps(called):
    attn, (q, k, v, tokens) = called('AdditiveAttention')
    found = key_weights(attn, Call(q, k, v, tokens), QUERY).flatten(1)
    step = 1e-5
    for head, key in ((0, 4), (1, NUMBER)):
        slopes = []
        for channel in range(8):
            outs = []
            for sign in (1, -1):
                moved = k[:1].clone()
                moved[0, head, key, channel] += sign * step
                out = attn.attend(q[:1], moved, v[:1], tokens)
                outs.append(out[0, head, NUMBER, channel].item())
            slopes.append((outs[0] - outs[1]) / (2 * step))
        assert found[head, key].item() == pytest.approx(sum(slopes) / 8, abs=1e-7)


def test_extra_tokens_are_left_out_and_padding_weighs_nothing(called):
    mask = torch.zeros(2, 2 + math.prod(SHAPE), dtype=torch.bool)
    mask[0, -SHAPE[1] :] = True
    attn, call = called('SoftmaxAttention', extra=2, key_padding_mask=mask)
    logits = (call.q[0] @ call.k[0].mT / 8**0.5).masked_fill(mask[0], -math.inf)
    wanted = logits.softmax(-1)[:, 2 + NUMBER, 2:]
    found = key_weights(attn, call, QUERY)
    torch.testing.assert_close(found.flatten(1), wanted)
    assert (found[:, -1] == 0).all() and (found[:, :-1] > 0).all()
    attn, call = called('VSSDAttention', key_padding_mask=mask[:, 2:])  # clears values instead
    assert (key_weights(attn, call, QUERY)[:, -1] == 0).all()


def test_keys_of_cells_have_a_map_of_their_own(called):
    shapes = dict(SpatialReductionAttention=(2, 3), ConvProjectionAttention=(3, 4))
    for name, shape in shapes.items():
        assert key_weights(*called(name), QUERY).shape == (2, *shape)
    with pytest.raises(ValueError, match=r'11 keys are no cells of a map of \(5, 7\)'):
        key_shape(11, SHAPE)


@pytest.mark.parametrize('position', [(5, 0), (-1, 0), (0, 7)])
def test_a_query_outside_of_the_map(called, position):
    with pytest.raises(ValueError, match='is not on a map of'):
        key_weights(*called('SoftmaxAttention'), position)


def test_the_picture(tmp_path, monkeypatch):
    """A weight is at its cell, red or blue, as strong as it is over the largest."""
    image = np.full((40, 60, 3), 90, np.uint8)
    weights = torch.zeros(2, 4, 6)
    weights[0, 1, 2], weights[1, 3, 5] = 2.0, -1.0
    figures, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, 'savefig', lambda self, *a, **k: figures.append(self) or save(self, *a, **k)
    )
    path = draw_key_weights(tmp_path / 'out/a.png', image, {'RALA': weights}, (25, 15))
    assert cv2.imread(str(path)).std() > 0
    picture, panel = figures[0].axes
    assert panel.get_title().startswith('RALA\nhalf in 4.2%')
    colors = panel.images[0].get_array().astype(int)
    assert colors.shape == (40, 60, 3)
    grey = round(90 * 0.35 + 0.65 * 255)
    red, blue = colors[10:20, 20:30], colors[30:, 50:]
    assert (red == [217, 26, 26]).all()
    assert (abs(blue - (grey + np.array([26, 64, 230])) / 2) <= 1).all()
    red[:], blue[:] = grey, grey
    assert (colors == grey).all()
    for axes in (picture, panel):
        assert axes.lines[0].get_xydata().tolist() == [[25, 15]]
    with pytest.raises(ValueError, match='nothing to draw'):
        draw_key_weights(tmp_path / 'b.png', image, {}, (0, 0))


def test_reach_of_half_the_weight():
    assert reach(torch.tensor([4.0, -3.0, 2.0, 1.0])) == 0.5
    assert reach(torch.tensor([5.0, 4.0, 1.0, 0.0])) == 0.25


@pytest.fixture
def tool(root, monkeypatch):
    pytest.importorskip('mmpretrain', reason='the tool takes classifiers of MMPretrain')
    drawn = {}
    draw = module.draw_key_weights

    def keep(path, image, weights, pixel):
        drawn.update(weights)
        return draw(path, image, weights, pixel)

    monkeypatch.setattr(module, 'draw_key_weights', keep)

    def call(*arguments, config='configs/zoo/ravlt-nano_shapes.py'):
        drawn.clear()
        program.main(['analyze', 'key-weights', *map(str, (root / config, *arguments))])
        return dict(drawn)

    call.module, call.root = module, root
    return call


@pytest.mark.parametrize('patch, size', [(16, (105, 150)), (14, (192, 160)), (8, (64, 96))])
def test_tokens_of_an_image_that_ends_within_a_patch(patch, size):
    arch = dict(embed_dims=16, num_heads=2, depth=1, patch_size=patch)
    vit = MODELS.build(dict(type='ViT', arch=arch, img_size=224)).eval()
    attn = vit.layers[0].attn
    with calls_of(attn) as calls, torch.no_grad():
        vit(torch.zeros(1, 3, *size))
    model = Sequential(OrderedDict(backbone=vit))
    assert module.stride_of(model, attn, size, calls[0].tokens.hw_shape) == patch


def test_command_line(tool, root, tmp_path, error_of):
    options = ('--size', 64, 32, '--position', 20, 9, '--out', tmp_path / 'a.png')
    drawn = tool(*options, '--attentions', 'RALA', 'RWGKA')
    assert {name: tuple(w.shape) for name, w in drawn.items()} == dict.fromkeys(
        ('RALA, untrained', 'RWGKA, untrained'), (1, 8, 16)
    )
    drawn_of_1 = tool(*options, '--attentions', 'RALA', '--layer', 1)
    assert drawn_of_1['RALA, untrained'].shape == (2, 4, 8)
    # Weights of a file, with the options of its attention.
    cfg = tool.module.load_image_config(str(root / 'configs/zoo/ravlt-nano_shapes.py'))
    attn_cfg = dict(type='RWGKA', num_anchors=4)
    cfg.model.backbone.attn_cfg = attn_cfg
    torch.manual_seed(3)
    model = MODELS.build(cfg.model)
    save_checkpoint(tmp_path / 'a.pth', model.state_dict(), dict(attn_cfg=attn_cfg))
    read = tool(*options, '--checkpoints', tmp_path / 'a.pth')
    assert list(read) == ['RWGKA'] and not torch.equal(read['RWGKA'], drawn['RWGKA, untrained'])
    assert (tmp_path / 'a.png').is_file()
    save_checkpoint(tmp_path / 'b.pth', model.state_dict(), {})
    for arguments, message in (
        (('--checkpoints', tmp_path / 'b.pth'), 'does not say which attention it is of'),
        (('--layer', 9, '--attentions', 'RALA'), '--layer 9: the backbone has 5 attentions'),
    ):
        assert message in error_of(tool, *options, *arguments)


@pytest.mark.parametrize(
    'config', ['semantic-fpn_ravlt-nano_shapes', 'mask-rcnn_ravlt-nano_shapes']
)
def test_a_trained_detector_or_segmentor(tool, tmp_path, error_of, config):
    """The weights are those of the checkpoint, for the image as the model takes it."""
    config = f'configs/quickstart/{config}.py'
    cfg = tool.module.load_image_config(str(tool.root / config))
    torch.manual_seed(7)
    model = MODELS.build(cfg.model).eval()
    save_checkpoint(tmp_path / 'a.pth', model.state_dict(), {})
    image = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    cv2.imwrite(str(tmp_path / 'a.png'), image)
    drawn = tool(tmp_path / 'a.pth', tmp_path / 'a.png', '--out', tmp_path / 'b.png', config=config)
    (title, found), preprocessor = *drawn.items(), cfg.model.data_preprocessor
    mean, std = (torch.tensor(preprocessor[name])[:, None, None] for name in ('mean', 'std'))
    rgb = torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)
    attn = next(m for m in model.backbone.modules() if isinstance(m, BaseAttention))
    with calls_of(attn) as calls, torch.no_grad():
        model.backbone(((rgb - mean) / std)[None])
    assert title == 'RALA' and found.shape == (1, 16, 24)
    torch.testing.assert_close(found, key_weights(attn, calls[0], (8, 12)))
    error = error_of(tool, tmp_path / 'a.pth', '--attentions', 'RALA', config=config)
    assert 'CHECKPOINT goes with neither' in error


@pytest.mark.parametrize(
    'arguments, message',
    [
        (('--position', 160, 0), '--position 160 0 is not on an image of --size 160 192'),
        (('--image', 'nowhere.jpg'), "'nowhere.jpg' does not exist"),
        (('--image', __file__), 'test_key_weights.py cannot be read: damaged, or no image'),
        (('--checkpoints', 'nowhere.pth'), "'nowhere.pth' does not exist"),
        (('--out', 'weights.docx'), "--out must end with one of .*got 'weights.docx'"),
        (('--out', 'weights'), "--out must end with one of .*got 'weights'"),
    ],
)
def test_command_line_refuses_before_any_work(tool, monkeypatch, error_of, arguments, message):
    for name in ('initial_model', 'load_model'):
        monkeypatch.setattr(tool.module, name, lambda *_: pytest.fail('a model was built'))
    assert re.search(message, error_of(tool, *arguments))


def test_a_checkpoint_may_be_an_address():
    words = ['config.py', '--checkpoints', 'mmlinattn://some', __file__]
    assert visualize_key_weights(words).checkpoints == ['mmlinattn://some', __file__]


def test_attentions_that_a_host_refuses_are_left_out(tool, tmp_path, monkeypatch, capsys, error_of):
    names, deit = ['EnhancedLinearAttention', 'RALA'], 'configs/zoo/deit-nano_shapes.py'
    options = ('--size', 64, 64, '--out', tmp_path / 'a.png')
    monkeypatch.setattr(tool.module, 'package_attentions', lambda: names)
    assert list(tool(*options, config=deit)) == ['RALA, untrained']
    refused = 'EnhancedLinearAttention does not support extra tokens'
    assert f'left out EnhancedLinearAttention: {refused}' in capsys.readouterr().out
    assert refused in error_of(tool, *options, '--attentions', *names, config=deit)
