"""The examples of the pages that say how to add to the package."""

import contextlib
import importlib
import inspect
import itertools
import json
import re
import runpy
import shlex
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Set

import cv2
import numpy as np
import pytest
import torch
from mmengine.model import ModuleList, trunc_normal_init
from mmengine.registry import (
    DATASETS,
    HOOKS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    VISBACKENDS,
    DefaultScope,
)
from PIL import Image
from pycocotools.coco import COCO
from torch import nn

from mmlinattn.__main__ import main
from mmlinattn.checkpoints.compare import HEADS
from mmlinattn.checkpoints.converters import convert
from mmlinattn.cli.commands import COMMANDS, find_command
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import initial_model
from mmlinattn.engine.preflight.model import check_channels
from mmlinattn.models.backbones import HierarchicalBackbone
from mmlinattn.models.backbones.transformer_block import TransformerBlock
from mmlinattn.models.layers import (
    BaseAttention,
    TokenLayout,
    build_attention,
    registered_subclasses,
)
from mmlinattn.projects.video import NonLocalBlock
from mmlinattn.testing import ATTENTION_RULES, check_attention


def example(page, name: str) -> type:
    """The class of that name from the page's Python code, unregistered."""
    blocks = re.findall(r'```python\n(.*?)```', page.read_text(), re.S)
    (code,) = (block for block in blocks if f'class {name}(' in block)
    names: Dict[str, object] = dict(
        __name__='mmlinattn.models.layers.mean',
        __package__='mmlinattn.models.layers',  # of relative imports
        MODELS=MODELS,
        ModuleList=ModuleList,
        nn=nn,
        trunc_normal_init=trunc_normal_init,
        BaseAttention=BaseAttention,
        HierarchicalBackbone=HierarchicalBackbone,
        TransformerBlock=TransformerBlock,
    )
    try:
        exec(textwrap.dedent(code), names)
    finally:
        MODELS.module_dict.pop(name)
    return names[name]


@pytest.mark.parametrize('attn_cfg', ['RALA', 'SpatialReductionAttention'])
def test_the_host_of_the_design_page(root, attn_cfg):
    model = example(root / 'docs' / 'design.md', 'Plain')('tiny', attn_cfg)
    model.init_weights()
    outs = model(torch.randn(1, 3, 64, 96))
    assert [tuple(out.shape) for out in outs] == [
        (1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3),
    ]  # fmt: skip
    assert 0.01 < model.patches[3].weight.std() < 0.03


@pytest.mark.parametrize('framework', ['mmdet', 'mmseg'])
def test_the_plugins_of_the_page_of_videos(root, framework):
    pytest.importorskip(framework, reason='plugins are those of its ResNet')
    page = (root / 'mmlinattn/projects/video/README.md').read_text()
    (code,) = (b for b in re.findall(r'```python\n(.*?)```', page, re.S) if 'plugins=' in b)
    names: Dict[str, dict] = {}
    exec(code, names)
    register = importlib.import_module(f'{framework}.registry').MODELS
    importlib.import_module(f'{framework}.models')
    scope = DefaultScope.overwrite_default_scope(framework)  # as a runner sets it
    with torch.device('meta'), scope:
        backbone = register.build(names['backbone'])
    blocks = [name for name, m in backbone.named_modules() if isinstance(m, NonLocalBlock)]
    assert type(backbone).__module__.startswith(framework)
    assert [name.split('.')[0] for name in blocks] == ['layer2'] * 4 + ['layer3'] * 6


def test_the_attention_of_the_contributing_page(root):
    kind = example(root / 'CONTRIBUTING.md', 'MeanAttention')
    slow = ('registered', 'compiles', 'exports', 'backbones')
    rules = [name for name in ATTENTION_RULES if name not in slow]
    with pytest.raises(AssertionError, match='MeanAttention breaks rules.\n\nquery_pos: '):
        check_attention(kind, rules=rules)
    attn = build_attention(dict(type=kind), 16, 2)
    x, mask = torch.randn(2, 6, 16), torch.zeros(2, 6, dtype=torch.bool)
    mask[0, 4:], mask[1] = True, True
    out = attn(x, (2, 3), key_padding_mask=mask)
    mean = attn.in_proj(x)[0, :4, 32:].mean(0)
    torch.testing.assert_close(out[0], attn.proj(mean).expand(6, 16))
    torch.testing.assert_close(out[1], attn.proj.bias.expand(6, 16))
    # As many tokens as a float16 cannot count.
    v, mask = torch.full((1, 1, 70000, 1), 4.0, dtype=torch.float16), mask.new_zeros(1, 70000)
    assert (attn.attend(v, v, v, TokenLayout((100, 700), mask)) == 4).all()


def check_data_of_page(cfg, head):
    """The classes of each loader are those of the head, and nothing is left of the base's data."""
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        assert len(dataset.metainfo.classes) == head.num_classes
        assert not any(name in str(dataset) for name in ('cityscapes/', 'coco/'))
        assert not any(step.get('reduce_zero_label') for step in dataset.pipeline)


def test_the_config_of_the_page_of_own_backbones(root, tmp_path):
    """It loads by the name of its base with the data of own data, and the channels fit."""
    pytest.importorskip('mmdet', reason='the config is one of its own')
    pages = ((root / 'docs' / name).read_text() for name in ('own_backbone.md', 'own_data.md'))
    code, data = (re.findall(r'```python\n(.*?)```', page, re.S)[0] for page in pages)
    (tmp_path / 'page.py').write_text(code + data[data.index('data_root = ') :])
    cfg = load_config(str(tmp_path / 'page.py'))
    assert 'neck' in check_channels(cfg)
    check_data_of_page(cfg, build_model(cfg).bbox_head)


SEGFORMER = 'mmseg::segformer/segformer_mit-b2_8xb1-160k_cityscapes-1024x1024.py'


def test_the_configs_of_the_page_of_segformer(root, tmp_path):
    """The encoder fits the head of the base, which tests whole images by the option of the page.

    A model of MMSegmentation has the same outputs here.
    """
    pytest.importorskip('mmseg', reason='the config is one of its own')
    page = (root / 'docs' / 'segformer.md').read_text()
    names = ('my_model', 'my_segformer', 'mine')
    for name, code in zip(names, re.findall(r'```python\n(.*?)```', page, re.S)):
        code = code.replace('path/to/your_config', 'theirs')
        (tmp_path / f'{name}.py').write_text(code)
    (option,) = re.findall(r'--cfg-options (model\.test_cfg\.mode)=whole$', page, re.M)
    (tmp_path / 'theirs.py').write_text(f"_base_ = '{SEGFORMER}'")
    path = str(tmp_path / 'my_segformer.py')
    cfg = load_config(path, {option: 'whole'})
    assert 'decode_head' in check_channels(cfg)
    assert build_model(cfg).test_cfg.mode == 'whole'
    assert load_config(path).model.test_cfg.mode == 'slide'
    cfg = load_config(str(tmp_path / 'mine.py'))
    dataset = DATASETS.build(dict(cfg.train_dataloader.dataset, lazy_init=True, _scope_='mmseg'))
    assert (dataset.img_suffix, dataset.seg_map_suffix) == ('.jpg', '.png')
    check_data_of_page(cfg, build_model(cfg).decode_head)
    theirs, ours = (load_config(str(tmp_path / f'{name}.py')) for name in ('theirs', 'my_model'))
    theirs, ours = initial_model(theirs).eval(), initial_model(ours).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, mean=parameter.ndim == 1, std=0.1)
    ours.load_state_dict(convert(theirs.state_dict(), 'mit'))
    image = torch.randn(1, 3, 64, 96)
    found, expected = ours(image), theirs(image)
    assert (found - expected).norm() < 1e-4 * expected.norm()
    assert (found.argmax(1) == expected.argmax(1)).all()


def lines_of_training():
    page = (Path(__file__).parents[1] / 'docs' / 'training.md').read_text()
    loggers = re.findall(r'`(visualizer = .*)` \|', page)
    assert len(loggers) == 3
    configs = [c for c in re.findall(r'```python\n(.*?)```', page, re.S) if 'import torch' not in c]
    return [*configs, *loggers]


def test_the_example_of_cuda_graphs(root):
    pytest.importorskip('mmseg', reason='the config is one of SegFormer')
    page = (root / 'docs' / 'training.md').read_text()
    (code,) = re.findall(r'```python\n(import torch\n.*?)```', page, re.S)
    code = code.replace("mode='reduce-overhead'", "backend='eager'").replace(
        '1024, 1024,', '64, 64,'
    )
    names: Dict[str, Any] = {}
    exec(code, names)
    assert names['logits'].shape == (1, 19, 16, 16)
    assert not any('_orig_mod' in name for name in names['model'].state_dict())


@pytest.mark.parametrize('text', lines_of_training(), ids=lambda text: text[:40])
def test_the_lines_of_the_page_of_trainings(root, tmp_path, text):
    pytest.importorskip('mmdet', reason='the base is one of MMDetection')
    base = root / 'configs' / 'quickstart' / 'mask-rcnn_ravlt-nano_shapes.py'
    (tmp_path / 'line.py').write_text(f'_base_ = {str(base)!r}\n{text}\n')
    cfg = load_config(str(tmp_path / 'line.py'))  # checks names of classes and options
    for backend in cfg.visualizer.vis_backends:
        assert VISBACKENDS.get(backend.type), backend
    for hook in (*cfg.get('custom_hooks', ()), cfg.default_hooks.checkpoint):
        arguments = {name: value for name, value in hook.items() if name not in ('type', '_scope_')}
        inspect.signature(HOOKS.get(hook.type)).bind(**arguments)
    assert OPTIM_WRAPPER_CONSTRUCTORS.get(
        cfg.optim_wrapper.get('constructor', 'DefaultOptimWrapperConstructor')
    )


def test_the_config_of_the_readme_and_that_of_own_data(root, tmp_path):
    """The model builds, and the neck fits the backbone."""
    pytest.importorskip('mmdet', reason='the config is one of MMDetection')
    for page, name in (('README.md', 'my_config.py'), ('docs/own_data.md', 'my_parts.py')):
        code = re.findall(r'```python\n(.*?)```', (root / page).read_text(), re.S)[0]
        (tmp_path / name).write_text(code)
    cfg = load_config(str(tmp_path / 'my_parts.py'))
    assert cfg.optim_wrapper.optimizer.type == 'AdamW' and cfg.train_dataloader.batch_size > 0
    model = build_model(cfg)
    maps = model.backbone.to('meta')(torch.zeros(1, 3, 64, 64, device='meta'))
    assert [x.shape[1] for x in maps] == cfg.model.neck.in_channels
    assert model.roi_head.bbox_head.num_classes == model.roi_head.mask_head.num_classes == 3
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        assert cfg[loader].dataset.metainfo.classes == ('bolt', 'nut', 'washer')


def test_the_config_of_a_folder_per_class(root, tmp_path, monkeypatch, error_of):
    """The page's names fit folders; those of the base are one line with what to set."""
    pytest.importorskip('mmpretrain', reason='the config is one of MMPretrain')
    page = (root / 'docs' / 'own_data.md').read_text().partition('## Classification')[2]
    code = re.search(r'```python\n(.*?)```', page, re.S)[1]
    monkeypatch.chdir(tmp_path)
    for split, name in itertools.product(('train', 'val'), ('cat', 'dog', 'eel')):
        path = Path('data', 'animals', split, name, 'a.png')
        path.parent.mkdir(parents=True)
        Image.new('RGB', (64, 64)).save(path)
    base = f"_base_ = '{root / 'configs' / 'zoo' / 'deit-nano_shapes.py'}'\n"
    Path('mine.py').write_text(base + code)
    assert main(['check-data', 'mine.py']) == 0
    Path('wrong.py').write_text(base + code.replace(', metainfo=metainfo', ''))
    for command in (['check-data'], ['train']):
        error = error_of(main, [*command, 'wrong.py', '--cfg-options', 'model.head.num_classes=5'])
        assert 'there are 3 folders of classes, but metainfo.classes has 5 names: set' in error


def test_the_config_of_videos_of_ones_own(root, tmp_path):
    pytest.importorskip('mmpretrain', reason='the config is one of MMPretrain')
    page = (root / 'configs' / 'timesformer' / 'README.md').read_text()
    (code,) = (b for b in re.findall(r'```python\n(.*?)```', page, re.S) if '_base_' in b)
    (tmp_path / 'mine.py').write_text(code.replace("'configs/", f"'{root}/configs/"))
    cfg = load_config(str(tmp_path / 'mine.py'))
    with torch.device('meta'):
        assert build_model(cfg).head.num_classes == 2
    for split in ('train', 'val', 'test'):
        dataset = cfg[f'{split}_dataloader'].dataset
        assert dataset.type == 'VideoList' and dataset.metainfo.classes == ('fall', 'walk')
        assert dataset.data_root == 'data/mine/' and dataset.data_prefix == dict(video='videos')
        assert dataset.ann_file == ('train.txt' if split == 'train' else 'val.txt')


def test_the_options_of_the_page_of_attentions(root):
    """They are those of the constructors, and every attention builds with all of its own."""
    page = (root / 'docs' / 'reference' / 'attentions.md').read_text()
    table = page.split('<!-- options -->')[1].split('<!-- end of table -->')[0]
    rows = re.findall(r'^\| (.*?`\w+`) \| .* \| (`\w+=[^|]+`|) \| ([^|]*) \|$', table, re.M)
    listed = {name.strip('`'): eval(f'dict({text.replace("`", "")})') for name, text, _ in rows}
    refused = {name.strip('`'): tuple(re.findall(r'`(\w+)`', text)) for name, _, text in rows}
    common = listed.pop('all but `NonLocalBlock')
    assert common == {
        name: parameter.default
        for name, parameter in inspect.signature(BaseAttention).parameters.items()
        if parameter.default is not parameter.empty
    }
    kinds = {kind.__name__: kind for kind in registered_subclasses(BaseAttention).values()}
    kinds = {n: kind for n, kind in kinds.items() if kind.__module__.startswith('mmlinattn.models')}
    assert {*listed} == {*kinds, 'NonLocalBlock'}
    for name, kind in [*kinds.items(), ('NonLocalBlock', NonLocalBlock)]:
        for option in inspect.signature(kind).parameters.values():
            if option.default is not option.empty and option.name != 'init_cfg':
                shown = {**common, **listed[name]} if name in kinds else listed[name]
                assert shown[option.name] == option.default, (name, option.name)
    for name, kind in kinds.items():
        assert refused[name] == kind.unsupported_options
        plain, explicit = kind(64, 2), kind(64, 2, **listed[name])
        assert repr(plain) == repr(explicit) and {*plain.state_dict()} == {*explicit.state_dict()}
    assert listed['RWGKA']['decay'] == 0.1 and 'feature_map' not in listed['EfficientAttention']


def test_the_config_of_the_page_of_fine_tuning(root, tmp_path):
    """The released config has its weights, but for what depends on the classes."""
    pytest.importorskip('mmdet', reason='the config is one of MMDetection')
    pages = {'README.md': 'my_config', 'docs/own_data.md': 'my_parts', 'docs/fine_tune.md': 'mine'}
    for page, name in pages.items():
        code = re.findall(r'```python\n(.*?)```', (root / page).read_text(), re.S)[0]
        (tmp_path / f'{name}.py').write_text(code)
    page = (root / 'docs/fine_tune.md').read_text()
    (released,) = re.findall(r'--config (mask\S+)', page)
    cfg = load_config(str(tmp_path / 'mine.py'))
    assert cfg.load_from in page.split('```python')[0] and cfg.model.backbone.init_cfg is None
    theirs, ours = (build_model(each).state_dict() for each in (load_config(released), cfg))
    assert {*theirs} == {*ours}
    other = [name for name in ours if ours[name].shape != theirs[name].shape]
    assert len(other) == 6 and all(name.startswith(HEADS) for name in other)


def test_a_swin_of_mmdetection_on_the_page_of_fine_tuning(root, tmp_path):
    pytest.importorskip('mmdet', reason='the config is one of MMDetection')
    page = (root / 'docs/fine_tune.md').read_text()
    kept, ours = re.findall(r'```python\n(.*?)```', page, re.S)[1:3]
    base = re.search("'(mmdet::.*?)'", kept)[1]
    (tmp_path / 'kept.py').write_text(kept)
    (tmp_path / 'my_swin.py').write_text(ours)
    (tmp_path / 'zoo.py').write_text(
        f"_base_ = '{base}'\nmodel = dict(backbone=dict(init_cfg=None))"
    )
    with DefaultScope.overwrite_default_scope('mmdet'):
        zoo, model = (
            MODELS.build(load_config(str(tmp_path / name)).model).eval()
            for name in ('zoo.py', 'my_swin.py')
        )
    new = build_model(load_config(str(tmp_path / 'kept.py'))).state_dict()
    other = [name for name, x in zoo.state_dict().items() if new[name].shape != x.shape]
    assert len(other) == 6 and all(name.startswith(HEADS) for name in other)
    found = convert(zoo.state_dict(), 'swin')
    model.load_state_dict(found)
    (count,) = re.findall(r'`(\d+) keys match`', page)
    assert len(found) == int(count)
    image = torch.randn(1, 3, 256, 288, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for a, b in zip(model.extract_feat(image), zoo.extract_feat(image)):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_the_commands_from_voc_and_yolo(root, tmp_path, monkeypatch, capsys):
    """Both formats of one box give the same COCO file; a mistake is one line with the file."""
    page = (root / 'docs' / 'own_data.md').read_text()
    commands = re.findall(r'^python (tools/dataset_converters/\S+) (.*?)(?: +#.*)?$', page, re.M)
    monkeypatch.chdir(tmp_path)
    for folder in ('annotations/train', 'images/train', 'labels/train', 'data/parts'):
        Path(folder).mkdir(parents=True)
    Image.new('RGB', (40, 20)).save('images/train/a.png')
    ends = dict(xmin=11, ymin=6, xmax=20, ymax=15)  # counted from 1: columns 10..19, rows 5..14
    box = ''.join(f'<{name}>{value}</{name}>' for name, value in ends.items())
    xml, txt = Path('annotations/train/a.xml'), Path('labels/train/a.txt')
    xml.write_text(
        '<annotation><filename>a.png</filename><size><width>40</width><height>20</height></size>'
        f'<object><name>nut</name><bndbox>{box}</bndbox></object></annotation>'
    )
    txt.write_text('1 0.375 0.5 0.25 0.5\n\n')

    said = []

    def run(script, words):
        monkeypatch.setattr(sys, 'argv', [script, *words.split()])
        runpy.run_path(str(root / script), run_name='__main__')
        said.append(capsys.readouterr().out)
        assert 'train.json: 1 images, 1 boxes' in said[-1]
        return json.loads(Path('data/parts/train.json').read_text())

    voc, yolo = (run(*command) for command in commands)
    assert voc == yolo and yolo['annotations'] == [
        dict(id=1, image_id=1, bbox=[10, 5, 10, 10], area=100, iscrowd=0, category_id=2)
    ]
    lying = Image.Exif()
    lying[0x0112] = 6  # readers turn it by 90 degrees
    Image.new('RGB', (20, 40)).save('images/train/a.png', exif=lying)
    assert run(*commands[1]) == yolo
    Image.new('RGB', (20, 40)).save('images/train/a.png', 'TIFF', exif=lying)  # turned by Pillow
    assert run(*commands[1]) == yolo
    lying[0x0112] = 9  # of no meaning
    Image.new('RGB', (40, 20)).save('images/train/a.png', exif=lying)
    Path('labels/train/classes.txt').touch()
    Path('labels/train/b.txt').touch()
    assert run(*commands[1]) == yolo
    assert said[-1].endswith('; 0 images without a text file, 1 text files without an image\n')
    coco = COCO('data/parts/train.json')
    assert [c['name'] for c in coco.loadCats(coco.getCatIds())] == ['bolt', 'nut', 'washer']
    script, words = commands[0]
    assert run(script, f'{words} --from-0')['annotations'][0]['bbox'] == [11, 6, 9, 9]
    text = xml.read_text()
    for bad, path, content, line in (
        (0, xml, text.replace('nut', 'rivet'), "a.xml: the class 'rivet' is not in --classes bolt"),
        (0, xml, text.replace('ymax', 'y'), 'a.xml: <object> has no bndbox/ymax'),
        (0, xml, text.replace('>11<', '><'), 'a.xml: <object> has no bndbox/xmin'),
        (0, xml, text.replace('a.png', ' '), 'a.xml: <annotation> has no filename'),
        (0, xml, text.replace('>11<', '>21<'), "a.xml: the box 21 6 20 15 of 'nut' is empty"),
        (0, xml, text.replace('>40<', '>0<'), 'a.xml: the image is 0 wide and 20 high'),
        (0, xml, text.replace('>40<', '>wide<'), "a.xml: size/width is 'wide', no number"),
        (0, xml, text.replace('>40<', '>inf<'), "a.xml: size/width is 'inf', no number"),
        (0, xml, text.replace('>11<', '>nan<'), "a.xml: bndbox/xmin is 'nan', no number"),
        (0, xml, text[:-5], 'a.xml: unclosed token'),
        (1, txt, '3 0.4 0.5 0.2 0.5', 'a.txt: class 3, but --classes has 3'),
        (1, txt, '1 .1 .1 .2 .1 .2 .2', "a.txt: a box has five numbers, not '1 .1"),
        (1, txt, '1 15 10 10 10', "in fractions of the image, above 0, not '1 15"),
        (1, txt, '1 nan .5 .2 .5', "in fractions of the image, above 0, not '1 nan"),
        (1, txt, '1 .5 .5 .2 0', 'a.txt: a box has its centre and sides in fractions'),
        (1, txt, '', 'labels/train has no boxes of the images in images/train'),
        (1, Path('images/train/c.jpg'), 'text', 'images/train/c.jpg cannot be read'),
    ):
        path.write_text(content)
        capsys.readouterr()
        with pytest.raises(SystemExit, match='2'):
            run(*commands[bad])
        assert line in capsys.readouterr().err


def test_the_server_that_users_copy(root, monkeypatch):
    """Flask is a stand-in that calls its function."""
    pytest.importorskip('mmdet', reason='its model is a detector of MMDetection')
    body = SimpleNamespace(get_data=lambda: b'')
    app = SimpleNamespace(config={}, post=lambda path: lambda function: function)
    flask = SimpleNamespace(Flask=lambda name: app, request=body)
    monkeypatch.setitem(sys.modules, 'flask', flask)
    predict = runpy.run_path(str(root / 'demo/server.py'))['predict']
    assert predict() == ({'error': 'the body is no image'}, 400)
    large = cv2.imencode('.png', np.zeros((8000, 8000), np.uint8))[1].tobytes()
    body.get_data = lambda: large
    assert predict() == ({'error': 'the image has more than 50000000 pixels'}, 413)
    picture = min((root / 'demo/nuclei').rglob('*.jpg')).read_bytes()
    body.get_data = lambda: picture
    found = json.loads(json.dumps(predict()))
    assert len(found['boxes']) == len(found['names']) == len(found['scores']) > 1
    assert {*found['names']} == {'nucleus'} and len(found['boxes'][0]) == 4


def test_the_commands_of_pages_have_options_that_exist(root, capsys):
    """Lines with brackets or dots show a form, or go on in the next line."""
    seen = 0
    for page in [*root.glob('*.md'), *root.glob('docs/**/*.md'), *root.glob('configs/*/README.md')]:
        for language, block in re.findall(r'```(\w*)\n(.*?)```', page.read_text(), re.S):
            if language not in ('', 'shell'):
                continue
            for line in re.findall(r'^(?:\$ )?mmlinattn .*', block.replace('\\\n', ' '), re.M):
                if any(mark in line for mark in ('[', '...', ' H W', '--help')):
                    continue
                words = shlex.split(line.removeprefix('$ '), comments=True)[1:]
                if words:
                    name, arguments = find_command(words)
                    with contextlib.suppress(SystemExit):  # files that do not exist
                        COMMANDS[name](arguments)
                    error = capsys.readouterr().err
                    assert not re.search('unrecognized|required|invalid|expected', error), line
                    seen += 1
    assert seen > 50


def headings(page: Path) -> set:
    """Return the anchors of a page, as GitHub names them."""
    found = re.findall(r'^#+ (.*)$', page.read_text(), re.M)
    plain = (re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).lower() for heading in found)
    return {re.sub(r'[^\w\- ]', '', heading.strip()).replace(' ', '-') for heading in plain}


def test_links_between_pages_reach_a_file_and_a_heading(root):
    # Those of include_patterns in docs/conf.py, where a link to another page ends `make docs`.
    folders = ('', 'docs/', 'docs/*/', 'configs/*/', 'demo/nuclei/', 'benchmarks/',
               'benchmarks/study/', 'mmlinattn/projects/*/')  # fmt: skip
    pages = [page for folder in folders for page in root.glob(f'{folder}*.md')]
    broken, seen = [], 0
    for page in pages:
        for target, anchor in re.findall(r'\]\(([^)#\s]*)#?([^)\s]*)\)', page.read_text()):
            if target.startswith(('http', 'mailto:')):
                continue
            file = (page.parent / target).resolve() if target else page
            seen += 1
            is_page = file.suffix == '.md'
            is_found = file in pages if is_page else file.exists()
            if not is_found or (anchor and is_page and anchor not in headings(file)):
                broken.append(f'{page.relative_to(root)}: {target}#{anchor}')
    assert not broken
    assert seen > 300


# What measures nothing: versions, minutes, counts, and the rule of differences.
OTHER_NUMBERS = {
    'README.md': '0.2.0 3.10 3.13 2.4 5 7 28 30',
    'docs/choose.md': '205 233 367 1.3 1.46 2.27 4,000 6,000 18,000',
}


def shown_numbers(file: Path) -> Set[float]:
    """Return the numbers that a page shows, also in GiB, or the scores in the record of a study."""
    text = file.read_text()
    if file.suffix == '.json':
        metrics = [record['metrics'] for record in json.loads(text)['records']]
        return {
            score for of in metrics for split in ('val', 'test') for score in of[split].values()
        }
    found = {float(n.replace(',', '')) for n in re.findall(r'\d[\d,]*(?:\.\d+)?', text)}
    return found | {mebibytes / 1024 for mebibytes in found if mebibytes > 1024}


@pytest.mark.parametrize('name', [*OTHER_NUMBERS])
def test_every_number_is_in_a_record_that_its_section_links(root, name):
    """Pages of docs/benchmarks and docs/studies show their records, those of configs the ledger."""
    page, missing, seen = root / name, [], 0
    text = re.sub(r'```.*?```', '', page.read_text(), flags=re.S)
    for section in re.split(r'^#+ ', text, flags=re.M):
        links = re.findall(
            r'\]\(([^)#]*(?:benchmarks|studies|configs)/[^)#]+\.(?:md|json))', section
        )
        known = {n for link in links for n in shown_numbers((page.parent / link).resolve())}
        # No number: code, links, sizes, years, names as B0 and H100.
        plain = re.sub(r'`[^`]*`|\]\([^)]*\)|\d+x\d+|\b20\d\d\b|[A-Za-z][\w-]*\d', '', section)
        for number in re.findall(r'(?<![\w.])\d[\d,.]*(?<![,.])', plain):
            if number not in OTHER_NUMBERS[name].split():
                digits = len(number.partition('.')[2])
                seen += 1
                if number not in {f'{value:,.{digits}f}' for value in known}:
                    missing.append(f'{number} in {section.splitlines()[0]}')
    assert not missing
    assert seen > 2


def test_messages_and_docstrings_name_pages_that_exist(root):
    seen = 0
    for file in [*root.glob('mmlinattn/**/*.py'), *root.glob('tools/**/*')]:
        if file.suffix not in ('.py', '.sh'):
            continue
        for name, anchor in re.findall(r'(docs/[a-z_/]+\.md)(?:#([\w-]+))?', file.read_text()):
            assert not anchor or anchor in headings(root / name), f'{file}: {name}#{anchor}'
            assert (root / name).is_file(), f'{file}: {name}'
            seen += 1
    assert seen > 30
