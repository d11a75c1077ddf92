"""Misspelt options, anywhere in a config, are found before any work; others are left alone."""

import inspect
import re
import sys

import pytest
from mmcv.ops import nms
from mmengine.config import Config
from mmengine.runner import Runner

from mmlinattn.cli.test import set_pictures
from mmlinattn.deployment.detectors import check_nms
from mmlinattn.engine.config import load_config
from mmlinattn.engine.preflight.options import TOP_LEVEL, check_options, nearest
from mmlinattn.engine.training_setup import use_amp
from tests.test_tools.conftest import CONFIGS

WRONG = [
    # Ignored by the frameworks.
    ('seg', 'val_evaluator.iou_metric', "val_evaluator .* 'iou_metric'; did you mean iou_metrics"),
    ('seg', 'auto_scale_lr.base_batchsize', 'did you mean base_batch_size'),
    ('seg', 'model.test_cfg.mod', 'did you mean mode'),
    ('seg', 'optim_wrapper.paramwise_cfg.norm_decay_mul', 'did you mean norm_decay_mult'),
    ('det', 'model.test_cfg.rcnn.score_th', r"model.test_cfg.rcnn .* 'score_th'.* score_thr"),
    ('det', 'model.train_cfg.rpn_propsal.nms_pre', 'did you mean rpn_proposal'),
    ('det', 'train_dataloader.dataset.filter_cfg.min_siz', 'did you mean min_size'),
    # Found while training, or at its first checkpoint.
    ('seg', 'default_hooks.chekpoint.interval', 'did you mean checkpoint'),
    ('seg', 'param_scheduler.0.en', r"param_scheduler\[0\] .* 'en'; did you mean end"),
    ('seg', 'optim_wrapper.clip_grad.max_nrm', 'did you mean max_norm'),
    # Found by constructors, which do not say where.
    ('cls', 'model.backbone.attn_cg', 'model.backbone .* did you mean attn_cfg'),
    ('det', 'train_dataloader.batchsize', 'did you mean batch_size'),
    ('det', 'test_dataloader.dataset.pipeline.1.scal', r'pipeline\[1\] .* did you mean scale'),
    ('cls', 'randomness.sed', 'did you mean seed'),
]


@pytest.mark.parametrize('task, option, message', WRONG)
def test_a_misspelt_option_is_named_with_what_was_meant(root, task, option, message):
    with pytest.raises(TypeError, match=message):
        load_config(str(root / CONFIGS[task]), {option: 1})


@pytest.mark.parametrize(
    'base, cure',
    [
        (
            'mmlinattn::a/b.py',
            "mmlinattn::...': give the path .*print_config.py NAME > my_config.py",
        ),
        ('mmdett::a/b.py', "mmdett::...' names no package; known are .*mmdet.*mmseg"),
    ],
)
def test_prefixes_of_base_configs_that_mmengine_does_not_know(tmp_path, base, cure):
    (tmp_path / 'mine.py').write_text(f'_base_ = {base!r}')
    with pytest.raises(ValueError, match=f"config .*mine.py: _base_ = '{cure}"):
        load_config(str(tmp_path / 'mine.py'))


def test_delete_where_no_base_has_the_section(tmp_path):
    """MMEngine would give it to the class as an option."""
    (tmp_path / 'base.py').write_text('model = dict(type="A", b=1)\n')
    text = (
        "_base_ = 'base.py'\nmodel = dict(_delete_=True, neck=[dict(c=dict(_delete_=True, d=2))])"
    )
    (tmp_path / 'mine.py').write_text(
        f'{text}\ntrain_dataloader = dict(_delete_=True, dataset={{}})'
    )
    cfg = load_config(str(tmp_path / 'mine.py'))
    assert cfg.model == dict(neck=[dict(c=dict(d=2))]) and cfg.train_dataloader == dict(dataset={})


@pytest.mark.parametrize(
    'line, error',
    [
        ('b = [RALA for _ in range(2)]', "NameError: name 'RALA' is not"),
        ("assert a > 1, 'a is small'", 'AssertionError: a is small'),
    ],
)
def test_an_error_of_the_code_of_a_base(tmp_path, line, error):
    (tmp_path / 'base.py').write_text(f'a = 1\n{line}\n')
    (tmp_path / 'mine.py').write_text("_base_ = 'base.py'\n")
    with pytest.raises(ValueError, match=f'config .*base.py, line 2: {error}'):
        load_config(str(tmp_path / 'mine.py'))


@pytest.mark.parametrize(
    'option, value',
    [
        ('train_dataloader.batch_size', '8'),
        ('optim_wrapper.optimizer.lr', '6e-5'),
        ('param_scheduler.0.eta_max', '.5'),
    ],
)
def test_numbers_in_quotes(root, option, value):
    wanted = f"{option} of the config is the text '{value}': write {option}={value}"
    with pytest.raises(TypeError, match=f'^{re.escape(wanted)}$'):
        load_config(str(root / CONFIGS['seg']), {option: value})


@pytest.mark.parametrize(
    'task, options, message',
    [
        ('seg', {'train_cfg.max_iters': 0}, 'train_cfg.max_iters .* is 0, but at least 1'),
        ('seg', {'train_cfg.val_interval': 0}, 'train_cfg.val_interval .* is 0, but at least 1'),
        ('det', {'train_cfg.max_epochs': ''}, "max_epochs .* is the text '': write a number"),
        ('seg', {'model.test_cfg': dict(mode='slide', crop_size=(64, 64))},
         r"test_cfg.stride .* is None: mode='slide' needs stride=\(height, width\)"),
        ('seg', {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(0, 32))},
         r"test_cfg.stride .* is \(0, 32\): mode='slide' needs stride=\(height, width\)"),
        ('seg', {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(32, 96))},
         r'stride .* is \(32, 96\), larger than model.test_cfg.crop_size=\(64, 64\): pixels betw'),
        ('det', {'model.backbone.init_cfg': dict(type='Kaiming', layer='Conv2d', checkpoint='a')},
         r"init_cfg of the config has no option 'checkpoint'.*init_cfg=dict\(_delete_=True"),
        ('seg', {'model.backbone.init_cfg': dict(type='pretrained', checkpoint='a')},
         r"backbone.init_cfg.type of the config is 'pretrained'; did you mean Pretrained\?$"),
        ('seg', {'optim_wrapper.optimizer.type': 'AdamWW'}, "'AdamWW'; did you mean AdamW\\?$"),
        ('seg', {'optim_wrapper.optimizer.type': 'sgdd'}, "'sgdd'; did you mean SGD\\?$"),
        ('seg', {'model.type': 'EncoderDecodr'}, r'model.type .*; did you mean EncoderDecoder\?$'),
        ('det', {'model.backbone.type': 'ravltt'}, r'model.backbone.type .* mean RAVLT\?$'),
        ('cls', {'custom_hooks': [dict(type='EMAHok')]}, r'hooks\[0\].type .* mean EMAHook\?$'),
        ('seg', {'param_scheduler.0': dict(type='PolyLR')},
         r"replace it: param_scheduler.0=dict\(_delete_=True, type='PolyLR', ...\)"),
    ],
)  # fmt: skip
def test_values_that_fail_later(root, task, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        load_config(str(root / CONFIGS[task]), options)


@pytest.mark.parametrize(
    'option, value, expected',
    [
        ('model.backbone.attn_cfg.1', 'MALA', ['RALA', 'MALA']),
        ('model.backbone.attn_cfg.0', dict(type='MALA'), [dict(type='MALA'), 'RALA']),
        ('train_dataloader.dataset.pipeline.1', None, None),
        ('param_scheduler.0', dict(_delete_=True, type='ConstantLR'), [dict(type='ConstantLR')]),
    ],
)
def test_an_element_of_a_list_is_replaced(root, option, value, expected):
    place = option.rpartition('.')[0]
    first = {'model.backbone.attn_cfg': ['RALA', 'RALA']}
    before = load_config(str(root / CONFIGS['seg']), first)
    cfg = load_config(str(root / CONFIGS['seg']), {**first, option: value})
    if expected is None:
        expected = [*before.train_dataloader.dataset.pipeline]
        expected[1] = None
    found = cfg
    for name in place.split('.'):
        found = found[name]
    assert found == expected
    assert cfg.val_dataloader == before.val_dataloader
    assert isinstance(found, list) and all(not isinstance(x, dict) or x.type for x in found)


def test_an_element_of_a_tuple_is_replaced(root):
    name = 'model.backbone.attn_cfg'
    options = {name: ('RALA', dict(type='RALA')), f'{name}.1': dict(_delete_=True, type='MALA')}
    cfg = load_config(str(root / CONFIGS['seg']), options)
    assert cfg.model.backbone.attn_cfg == ('RALA', dict(type='MALA'))
    with pytest.raises(ValueError, match=r'a tuple of 2 elements: give the whole element, .*\.1='):
        load_config(str(root / CONFIGS['seg']), {**options, f'{name}.1': 1, f'{name}.1.gate': None})


def test_the_list_of_another_section_stays(root):
    option = 'val_dataloader.dataset.pipeline.0'
    value = dict(_delete_=True, type='LoadImageFromFile', to_float32=True)
    cfg = load_config(str(root / CONFIGS['seg']), {option: value})
    ours, theirs = (cfg[f'{s}_dataloader'].dataset.pipeline for s in ('val', 'test'))
    assert ours[0] == dict(type='LoadImageFromFile', to_float32=True)
    assert theirs[0] == dict(type='LoadImageFromFile') and ours[1:] == theirs[1:]


def test_delete_as_an_option_of_its_own(root):
    options = {
        'model.backbone.type': 'ResNet', 'model.backbone.depth': 18,
        'model.backbone._delete_': True,
    }  # fmt: skip
    cfg = load_config(str(root / CONFIGS['seg']), options)
    assert cfg.model.backbone == dict(type='ResNet', depth=18)
    with pytest.raises(ValueError, match='give the whole element, param_scheduler.0=dict'):
        load_config(str(root / CONFIGS['seg']), {'param_scheduler.0._delete_': True})


@pytest.mark.parametrize('option', ['param_scheduler.end', 'param_scheduler.9.end'])
def test_what_is_no_element_of_a_list(root, option):
    message = 'param_scheduler is a list of 1 elements: name one by its number from 0, as in'
    with pytest.raises(ValueError, match=f'--cfg-options {option}: {message}'):
        load_config(str(root / CONFIGS['seg']), {option: 3})


def test_init_cfg_with_an_override(root):
    part = dict(type='Normal', std=0.01, override=dict(name='conv_seg'))
    cfg = load_config(str(root / CONFIGS['seg']), {'model.decode_head.init_cfg': part})
    assert cfg.model.decode_head.init_cfg == part


@pytest.mark.parametrize(
    'name, meant',
    [
        ('load_form', 'load_from'),
        ('optim_wraper', 'optim_wrapper'),
        ('train_datalaoder', 'train_dataloader'),
        ('custom_hook', 'custom_hooks'),
        ('randomnes', 'randomness'),
        ('param_schedulers', 'param_scheduler'),
    ],
)
def test_a_misspelt_section_of_a_file(root, tmp_path, name, meant):
    (tmp_path / 'base.py').write_text(f'_base_ = {str(root / CONFIGS["seg"])!r}\n{name} = None\n')
    config = tmp_path / 'mine.py'
    config.write_text("_base_ = 'base.py'\n")
    with pytest.raises(ValueError, match=f"{config}: nothing reads '{name}': .* mean {meant}.$"):
        load_config(str(config))
    (tmp_path / 'mine.json').write_text(f'{{"_base_": "base.py",\n "{name}": 1}}')
    with pytest.raises(ValueError, match=f"mine.json: nothing reads '{name}'"):
        load_config(str(tmp_path / 'mine.json'))
    config.write_text(f"_base_ = 'base.py'\nwork_dir = {{{{_base_.{name}}}}}\n")
    load_config(str(config))  # a variable
    config.write_text("_base_ = 'base.py'\nripple = dict(n=1)\nimg_scale = 2\nload = ripple\n")
    with pytest.raises(ValueError, match=f"nothing reads '{name}'"):
        load_config(str(config))
    config = tmp_path / 'vit_base_x.py'  # the name is part of what MMEngine gives as text
    config.write_text(f'{name} = {meant} = dict()\n')  # as MMEngine writes what a variable was in
    load_config(str(config))


def test_texts_that_are_no_numbers_of_the_run(root, tmp_path):
    config = tmp_path / 'mine.py'
    config.write_text(
        f"""_base_ = {str(root / CONFIGS['seg'])!r}
lr = '1e-3'
work_dir = f'rate_{{lr}}'
visualizer = dict(vis_backends=[dict(type='MLflowVisBackend', tags=dict(seed='1'))])
"""
    )
    assert load_config(str(config)).work_dir == 'rate_1e-3'


def test_custom_imports_of_an_option_are_imported(root, tmp_path, monkeypatch):
    """MMEngine imports those of the file alone; the attention would not be registered."""
    (tmp_path / 'imported_by_option.py').write_text('loaded = True')
    (tmp_path / 'broken_by_option.py').write_text('import no_such_package')
    two = 'try:\n    import no_first\nexcept ImportError:\n    import no_second\n'
    (tmp_path / 'two_by_option.py').write_text(two)
    monkeypatch.syspath_prepend(tmp_path)
    path = str(root / CONFIGS['seg'])

    def load(*modules):
        return load_config(path, {'custom_imports.imports': ['mmlinattn', *modules]})

    load('imported_by_option')
    assert sys.modules.pop('imported_by_option').loaded
    with pytest.raises(ImportError, match="custom_imports: No module named 'no_such_package'"):
        load('broken_by_option')
    with pytest.raises(ImportError, match="custom_imports: No module named 'no_second'"):
        load('two_by_option')
    load_config(path, {'custom_imports': None})
    for value in (['mmlinattn'], 'mmlinattn', dict(_delete_=True, allow_failed_imports=True)):
        with pytest.raises(TypeError, match=r'custom_imports is .*; write custom_imports.imports='):
            load_config(path, {'custom_imports': value})
    config = tmp_path / 'mine.py'
    config.write_text("custom_imports = dict(imports=['no_such_module'])\n")
    with pytest.raises(ImportError, match=f"{config}: custom_imports: No module named 'no_such_m"):
        load_config(str(config))


def test_options_of_the_backbone_that_the_base_config_has(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(
        "_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'\n"
        "custom_imports = dict(imports=['mmlinattn'])\n"
        "model = dict(backbone=dict(type='RAVLT', arch='tiny'))\n"
    )
    cure = r"replace it: backbone=dict\(_delete_=True, type='RAVLT', ...\)"
    with pytest.raises(TypeError, match=f'RAVLT does not take: depth, num_stages, style.* {cure}'):
        load_config(str(path))


def test_a_variable_that_replaces_a_dict_of_a_base():
    check_options(Config(dict(mine=dict(_delete_=True, type='RAVLT', arch='tiny'))))
    with pytest.raises(TypeError, match="mine of the config has no option 'archh'"):
        check_options(Config(dict(mine=dict(_delete_=True, type='RAVLT', archh='tiny'))))


def test_an_option_of_an_attention():
    attention = dict(type='RALA', backnd='auto')
    cfg = Config(dict(model=dict(backbone=dict(type='RAVLT', attn_cfg=attention))))
    with pytest.raises(TypeError, match="backbone.attn_cfg .* 'backnd'; did you mean backend.$"):
        check_options(cfg)
    cfg.model.backbone.attn_cfg = dict(type='RALA', num_anchors=64)
    cure = r"'num_anchors', which RWGKA, RWGKP have; RALA has .* base config, replace it: "
    cure += r"attn_cfg=dict\(_delete_=True, type='RALA', ...\)"
    with pytest.raises(TypeError, match=cure):
        check_options(cfg)


@pytest.mark.parametrize('name', ['patch_size', 'final_norm', 'depth'])
def test_keys_of_the_architecture(name):
    cfg = Config(dict(model=dict(backbone=dict({name: 8}, type='ViT', arch='deit-t'))))
    with pytest.raises(
        TypeError, match=rf"{name}', which is a key of arch=dict\({name}=..., ...\)"
    ):
        check_options(cfg)


def test_a_part_beside_the_model():
    part = dict(type='RAVLT', arch='tiny')
    for model in (
        dict(backbone=part),
        dict(backbone=dict(part, arch='small')),  # a variable, changed by an option
        dict(neck=[dict(inner=part)]),
    ):
        check_options(Config(dict(backbone=part, model=model)))
    with pytest.raises(TypeError, match=r"backbone .*'RAVLT', is .* model=dict\(backbone=dict"):
        check_options(Config(dict(backbone=part, model=dict(backbone=dict(type='ResNet')))))


@pytest.mark.parametrize(
    'option, value',
    [
        ('model.test_cfg.of_my_head', 1),  # what code of one's own may read
        ('train_dataloader.dataset.metainfo.colours', ('red',)),
        ('model.test_cfg.rcnn.nms.iou_threshold', 0.6),
        ('default_hooks.mine', dict(type='EMAHook')),
        ('param_scheduler.0.convert_to_iter_based', True),
        ('optim_wrapper.clip_grad.type', 'value'),
        ('model.test_cfg.mine', dict(type='conv')),  # as in MMDetection's FPG, no class
        ('model.test_cfg.other', dict(_scope_='mmseg', head=dict(type='RetinaNett'))),
    ],
)
def test_what_may_be_read_passes(root, option, value):
    found = load_config(str(root / CONFIGS['det']), {option: value})
    for name in option.split('.'):
        found = found[int(name) if name.isdigit() else name]
    assert found == value


def test_without_a_framework_types_are_left_to_the_builders():
    model = dict(type='FPM', neck=dict(type='FPN'))  # not FFN
    for scope in (None, 'mmnone'):
        assert check_options(Config(dict(default_scope=scope, model=model))) is None, 'no error'
    with pytest.raises(ValueError, match='FPM'):
        check_options(Config(dict(default_scope='mmdet', model=model)))


def test_one_letter():
    names = ['interval', 'end', 'by_epoch']
    meant = {'intervall': 'interval', 'en': 'end', 'edn': 'end', 'bypoch': None, 'xyz': None}
    assert {name: nearest(name, names) for name in meant} == meant


PYTHON_TYPES = """
from mmengine.config import read_base
from mmengine.optim import OptimWrapper
from mmpretrain.engine.hooks import VisualizationHook
from mmpretrain.models import ImageClassifier
default_scope = None
model = dict(type=ImageClassifier)
optim_wrapper = dict(type=OptimWrapper)
default_hooks = dict(visualization=dict(type=VisualizationHook))
visualizer = dict()
"""


def test_types_may_be_python_classes(tmp_path, monkeypatch):
    monkeypatch.setattr('mmlinattn.engine.training_setup.get_device', lambda: 'cpu')
    (tmp_path / 'a.py').write_text(PYTHON_TYPES, encoding='utf-8')
    cfg = load_config(str(tmp_path / 'a.py'))
    assert cfg.default_scope == 'mmpretrain'
    use_amp(cfg, requested=True)
    assert cfg.optim_wrapper.type == 'CPUAmpOptimWrapper'
    set_pictures(cfg, str(tmp_path))
    assert cfg.default_hooks.visualization.out_dir == str(tmp_path)
    check_nms(dict(nms=dict(type=nms, iou_threshold=0.5), nms_pre=9, max_per_img=9), 'test_cfg')


def test_names_that_the_runner_reads_are_known():
    read = re.findall(r"self\.cfg\.get\(\s*'(\w+)'", inspect.getsource(Runner))
    assert {'sync_bn', 'activation_checkpointing'} <= {*read}
    assert {*read, *inspect.signature(Runner).parameters} - {'cfg'} <= TOP_LEVEL
