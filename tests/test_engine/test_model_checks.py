"""Wrong channels and old configs end in one line, before data is read."""

import importlib
from contextlib import nullcontext
from pathlib import Path

import pytest
from mmengine.config import Config
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.engine.config import load_config
from mmlinattn.engine.preflight.model import check_channels
from tests.sizes import some
from tests.test_configs import CONFIGS, load

BACKBONE = "backbone=dict(_delete_=True, type='RAVLT', arch='tiny')"
GIVEN = 'backbone RAVLT gives 64/128/256/512 channels'
WRONG = {
    'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py': (
        BACKBONE,
        f'model.neck.in_channels is .*2048.*, but {GIVEN}: '
        r'set model.neck.in_channels=\[64, 128, 256, 512\]',
    ),
    'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py': (
        f'{BACKBONE}, neck=dict(in_channels=[64, 128, 256, 512], out_channels=128)',
        'model.rpn_head.in_channels is 256, but neck FPN gives 128 channels',
    ),
    'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py': (
        BACKBONE,
        r'model.decode_head.in_channels is \[32, 64, 160, 256\], but ' + GIVEN,
    ),
    # Its constructor needs values, so the model cannot be built on the meta device.
    'mmseg::segmenter/segmenter_vit-s_mask_8xb1-160k_ade20k-512x512.py': (
        "pretrained=None, backbone=dict(_delete_=True, type='ViT', arch='deit-t', img_size=64)",
        'model.decode_head.in_channels is 384, but backbone ViT gives 192 channels',
    ),
    'mmpretrain::resnet/resnet18_8xb32_in1k.py': (
        "backbone=dict(_delete_=True, type='RAVLT', arch='tiny', out_indices=(2,))",
        'model.head.in_channels is 512, but neck GlobalAveragePooling gives 256 channels',
    ),
}


def config(tmp_path, base, text):
    framework, _, name = base.partition('::')
    package = pytest.importorskip(framework, reason=f'{framework} has the base config')
    base = str(Path(package.__file__).parent / '.mim/configs' / name)
    path = tmp_path / 'mine.py'
    imports = "custom_imports = dict(imports=['mmlinattn'])"
    path.write_text(f'_base_ = {base!r}\n{imports}\n{text}\n')
    return str(path)


@pytest.mark.parametrize('base', WRONG)
def test_channels_that_do_not_fit(tmp_path, base):
    model, message = WRONG[base]
    cfg = load_config(config(tmp_path, base, f'model = dict({model})'))
    with pytest.raises(ValueError, match=message):
        check_channels(cfg)


PLAIN = "backbone=dict(_delete_=True, type='ViT', arch='deit-t', img_size=128)"
NECK = "_delete_=True, type='SimpleFeaturePyramid', in_channels=192, out_channels=256"
WIDTHS = 'in_channels=[64, 128, 256, 512]'
FCOS, RETINANET = 'fcos/fcos_r50-caffe_fpn_gn-head_1x', 'retinanet/retinanet_r50_fpn_1x'
MASK_RCNN, FASTER_RCNN = 'mask_rcnn/mask-rcnn_r50_fpn_1x', 'faster_rcnn/faster-rcnn_r50_fpn_1x'
STRIDES = r'\[4, 8, 16, 32, 64\]'


@pytest.mark.parametrize(
    'base, backbone, neck, message',
    [
        (RETINANET, PLAIN, '', r'neck.in_channels is .*2048.*, but backbone ViT gives 192 channels'
         r": set model.neck=dict\(_delete_=True, type='SimpleFeaturePyramid', in_channels=192, "),
        (RETINANET, PLAIN, f'{NECK}, num_outs=5', r'bbox_head.anchor_generator.strides is \[8, 16, '
         rf'32, 64, 128\], but neck gives .* {STRIDES}: set .*anchor_generator.strides={STRIDES}'),
        (FASTER_RCNN, PLAIN, NECK,
         r'rpn_head.anchor_generator.strides is .*, but neck gives .* \[4, 8, 16, 32\]: set'),
        (FASTER_RCNN, PLAIN, f'{NECK}, num_outs=5', None),
        (RETINANET, PLAIN, f'{NECK}, num_outs=5), bbox_head=dict('
         'anchor_generator=dict(strides=[4, 8, 16, 32, 64])', None),
        (FCOS, BACKBONE, WIDTHS, None),
        (FCOS, BACKBONE, f'{WIDTHS}, start_level=0', r'model.bbox_head.strides is \[8, .*\], but '
         rf'neck gives .* {STRIDES}: set model.bbox_head.strides={STRIDES}'),
        (MASK_RCNN, BACKBONE, WIDTHS, None),
        (MASK_RCNN, BACKBONE, f'{WIDTHS}, num_outs=7), rpn_head=dict('
         'anchor_generator=dict(strides=[4, 8, 16, 32, 64, 128, 256])', None),
        (MASK_RCNN, BACKBONE, f'{WIDTHS}, num_outs=7', r'rpn_head.anchor_generator.strides is '
         r'.*: set .*strides=\[4, 8, 16, 32, 64, 128, 256\]'),
    ],
)  # fmt: skip
def test_pyramids_and_strides(tmp_path, base, backbone, neck, message):
    text = f'model = dict({backbone}, neck=dict({neck}))'
    cfg = load_config(config(tmp_path, f'mmdet::{base}_coco.py', text))
    if message is None:
        assert 'neck' in check_channels(cfg)
        return
    with pytest.raises(ValueError, match=message):
        check_channels(cfg)


@pytest.mark.parametrize(
    'out_type, neck, message',
    [
        ('featmap', None, r"head .* on the maps .*: set model.neck=dict\(type='Glo"),
        ('cls_token', 'GlobalAveragePooling', 'neck .* on the vectors .*: set model.neck=None, or'),
        ('featmap', 'GlobalAveragePooling', None),
        ('cls_token', None, None),
    ],
)
def test_the_form_that_a_classifier_reads(out_type, neck, message):
    """The channels are right."""
    cfg = load('deit-t_8xb128_in1k')
    cfg.model.backbone.out_type, cfg.model.neck = out_type, neck and dict(type=neck)
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        check_channels(cfg)


def test_the_stride_of_smca():
    cfg = load('smca_nano_bccd')
    check_channels(cfg)
    stride = cfg.model.decoder.stride
    cfg.model.decoder.stride = 2 * stride
    with pytest.raises(ValueError, match=f'decoder.stride is {2 * stride}, .*stride={stride}$'):
        check_channels(cfg)


def test_a_level_that_is_not_there(tmp_path):
    base = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'
    backbone = "backbone=dict(_delete_=True, type='RAVLT', arch='tiny', out_indices=(0, 1))"
    cfg = load_config(config(tmp_path, base, f'model = dict({backbone})'))
    with pytest.raises(ValueError, match=r'in_index is \[0, 1, 2, 3\], but .* has 2 outputs'):
        check_channels(cfg)


# Learnt weights of tokens run at the size of their images alone, and so not here.
# ViTVQGAN has neither neck nor head.
RUN_AT_ANY_SIZE = [n for n in CONFIGS if 'learnable-alpha' not in n and 'vqgan' not in n]


@pytest.mark.long
@pytest.mark.parametrize('name', some(RUN_AT_ANY_SIZE, every=16))
def test_our_configs_fit_and_are_compared(name):
    cfg = load(name)
    parts = {'neck', 'decode_head', 'auxiliary_head', 'bbox_head', 'rpn_head', 'head'}
    wanted = {part for part in parts & {*cfg.model} if 'in_channels' in (cfg.model[part] or {})}
    assert wanted and {*check_channels(cfg)} == wanted


def test_several_necks(tmp_path):
    path = config(tmp_path, 'mmpretrain::hrnet/hrnet-w18_4xb32_in1k.py', '')
    assert check_channels(load_config(path)) == ['head']


def test_a_neck_that_flattens_maps(tmp_path):
    """Its channels depend on the size of the image, so those of the head are not compared."""
    path = config(tmp_path, 'mmdet::reid/reid_r50_8xb32-6e_mot17train80_test-mot17val20.py', '')
    assert check_channels(load_config(path)) == []


class Head(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc = nn.Linear(channels, 2)

    def forward(self, feats):
        return self.fc(feats[-1])


@pytest.mark.parametrize('name, fails', [('ImageClassifier', True), ('Own', False)])
def test_forms_of_classifiers_alone(name, fails):
    """The heads of other models may read more than features."""
    model = type(name, (nn.Module,), {})()
    model.backbone, model.head = nn.Conv2d(3, 4, 1), Head(4)
    with pytest.raises(ValueError, match='model.head Head cannot') if fails else nullcontext():
        check_channels(Config(dict(model={})), model)
    # Clips give maps of frames.
    model.backbone, model.backbone.num_frames = nn.Conv3d(3, 4, 1), 2
    match = 'on the maps .B, C, T, H, W.'
    with pytest.raises(ValueError, match=match) if fails else nullcontext():
        check_channels(Config(dict(model={})), model)
    model.head = Head(9)  # it fails on vectors, too
    check_channels(Config(dict(model={})), model)


def test_channels_of_videos():
    """Test backbones of clips that do not say how many frames they take."""
    pytest.importorskip('mmpretrain', reason='MMPretrain comes with the extra "cls"')
    backbone = dict(type='NonLocalR3D', depths=(1, 1, 1, 1))
    model = dict(
        type='VideoRecognizer',
        backbone=backbone,
        neck=dict(type='RegionGraphNeck', in_channels=512, out_channels=16),
        head=dict(type='LinearClsHead', num_classes=4, in_channels=50),
    )
    importlib.import_module('mmlinattn.projects.video')
    cfg = Config(dict(model=model, default_scope='mmpretrain'))
    with pytest.raises(ValueError, match='model.head.in_channels is 50, but neck RegionGraphNeck'):
        check_channels(cfg)


def test_training_ends_before_data_is_read(tmp_path, error_of):
    base = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
    path = config(tmp_path, base, f'model = dict({BACKBONE})')
    error = error_of(program.main, ['train', path, '--work-dir', str(tmp_path / 'work')])
    assert error.startswith('error: ValueError: model.neck.in_channels')
    assert not (tmp_path / 'work').exists()


@pytest.mark.parametrize(
    'text, message',
    [
        ("optimizer = dict(type='AdamW')", "'optimizer': write optim_wrapper=dict"),
        ("# lr_config\nlr_config = dict(policy='poly')", "'lr_config': write param_scheduler"),
        (
            'total_epochs = 3\nevaluation = dict(interval=1)',
            "'evaluation': write train_cfg.val_interval; 'total_epochs': write train_cfg",
        ),
    ],
)
def test_sections_of_2x_that_nothing_reads(tmp_path, text, message):
    path = config(tmp_path, 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py', text)
    with pytest.raises(ValueError, match=f'nothing reads {message}'):
        load_config(path)


def test_a_variable_that_the_wrapper_reads(tmp_path, capsys):
    dumped = tmp_path / 'dumped.py'
    sgd = "optimizer = dict(type='SGD')\n"
    dumped.write_text(sgd + 'optim_wrapper = dict(\n    ' + sgd.strip() + ')\n')
    assert load_config(str(dumped)).optim_wrapper.optimizer.type == 'SGD'
    lazy = tmp_path / 'lazy.py'
    lazy.write_text(
        'from mmengine.config import read_base\nwith read_base():\n    from .dumped import *\n'
        "optimizer = dict(type='AdamW')\noptim_wrapper.update(optimizer=optimizer)\n"
    )
    assert load_config(str(lazy)).optim_wrapper.optimizer.type == 'AdamW'
    assert 'nothing reads' not in ''.join(capsys.readouterr())
    text = "optimizer = dict(type='AdamW')\noptim_wrapper = dict(optimizer=optimizer)"
    path = config(tmp_path, 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', text)
    assert load_config(path).optim_wrapper.optimizer.type == 'AdamW'
