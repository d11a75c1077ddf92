"""Every config loads and builds; sizes, costs and recipes are those of the release."""

import copy
import math
import re
from collections import Counter
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Dict, List, Tuple

import mmengine
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapperDict, build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, PARAM_SCHEDULERS, TRANSFORMS, DefaultScope

from mmlinattn.analysis import Complexity, analyse
from mmlinattn.checkpoints import check_fits, save_checkpoint
from mmlinattn.engine import build_model
from mmlinattn.engine.config_files import pretraining_config
from mmlinattn.engine.preflight.options import check_options
from tests.sizes import LONG, some

FOLDER = Path(__file__).resolve().parent.parent / 'configs'
CONFIGS = {
    path.stem: path
    for path in sorted(FOLDER.rglob('*.py'))
    if '_base_' not in path.relative_to(FOLDER).parts
}

DET, SEG, CLS = (800, 1280), (512, 2048), (224, 224)
# Config, image, parameters (M), convolution + linear (G), all products (G, None: not known).
COSTS = [
    ('ravlt-t_8xb128_in1k', CLS, 14.90, 2.41, 2.63),
    ('ravlt-s_8xb128_in1k', CLS, 25.59, 4.51, 4.90),
    ('ravlt-b_8xb128_in1k', CLS, 48.24, 9.80, 10.62),
    ('ravlt-l_8xb128_in1k', CLS, 95.24, 16.09, 17.26),
    ('retinanet_ravlt-t_fpn_1x_coco', DET, 23.6, 200.1, None),
    ('retinanet_ravlt-s_fpn_1x_coco', DET, 34.3, 242.9, None),
    ('mask-rcnn_ravlt-t_fpn_1x_coco', DET, 33.5, 218.7, None),
    ('mask-rcnn_ravlt-s_fpn_1x_coco', DET, 44.2, 261.5, None),
    ('semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512', SEG, 17.6, 135.6, 191.5),
    ('semantic-fpn_ravlt-s_8xb2-80k_ade20k-512x512', SEG, 28.3, 179.4, 283.0),
    ('semantic-fpn_ravlt-b_8xb2-80k_ade20k-512x512', SEG, 51.0, 290.9, 461.6),
    ('semantic-fpn_ravlt-l_8xb2-80k_ade20k-512x512', SEG, 97.9, 422.4, 729.2),
    ('upernet_ravlt-t_8xb2-160k_ade20k-512x512', SEG, 43.7, 892.1, 948.6),
    ('upernet_ravlt-s_8xb2-160k_ade20k-512x512', SEG, 54.5, 936.0, 1040.2),
    ('upernet_ravlt-b_8xb2-160k_ade20k-512x512', SEG, 77.4, 1048.5, 1219.7),
    ('upernet_ravlt-l_8xb2-160k_ade20k-512x512', SEG, 125.3, 1180.5, 1487.9),
]
# The same of models that only the paper gives, in whole millions and G.
PAPER_COSTS = [
    ('retinanet_ravlt-b_fpn_1x_coco', 57, 353),
    ('retinanet_ravlt-l_fpn_1x_coco', 104, 482),
    ('mask-rcnn_ravlt-b_fpn_1x_coco', 67, 372),
    ('mask-rcnn_ravlt-l_fpn_1x_coco', 114, 501),
    ('mask-rcnn_ravlt-s_fpn_ms-3x_coco', 44, 262),
    ('cascade-mask-rcnn_ravlt-s_fpn_ms-3x_coco', 82, 741),
    ('cascade-mask-rcnn_ravlt-b_fpn_ms-3x_coco', 105, 851),
    ('cascade-mask-rcnn_ravlt-l_fpn_ms-3x_coco', 152, 979),
]


CITYSCAPES = '8xb1-160k_cityscapes'
# Size, parameters of the encoder (M), G of SegFormer and at most of RWGKA, as the paper prints.
RWGKA_COSTS = [
    ('b0', (1024, 1024), 3.32, 2.9, 44.3, 33.4),
    ('b1', (1024, 1024), 13.15, 11.4, 86.8, 64.9),
    ('b2', (1024, 1024), 24.2, 20.2, 291.0, 249.0),
    ('b0', (768, 768), 3.32, 2.9, 20.8, 18.5),
    ('b0', (640, 1024), 3.32, 2.9, 23.8, 20.6),
    ('b0', (512, 1024), 3.32, 2.9, 18.0, 16.4),
]


@cache
def _read(name: str) -> Config:
    return Config.fromfile(CONFIGS[name])


def load(name: str) -> Config:
    return copy.deepcopy(_read(name))


@cache
def built(name: str) -> torch.nn.Module:
    """The model without memory for its weights; not to be changed."""
    return build_model(_read(name))


@cache
def cost_of(name: str, shape: Tuple[int, int]) -> Complexity:
    return analyse(built(name), shape)


@cache
def linear_backbone(variant: str, shape: Tuple[int, int]) -> Complexity:
    """RAVLT with linear attention in all stages."""
    backbone = load(f'ravlt-{variant}_8xb128_in1k').model.backbone
    backbone.attn_cfg = 'RALA'
    return analyse(build_model(Config(dict(model=backbone))), shape)


def of_size(cases: list, letter: str) -> list:
    """The RAVLT of one size; all sizes in the long version."""
    return cases if LONG else [case for case in cases if f'ravlt-{letter}' in case[0]]


def readme(method: str, column: str) -> Dict[str, List[str]]:
    """The README's table with this column: config or first columns of each row to its cells."""
    rows, header = {}, None
    for line in (FOLDER / method / 'README.md').read_text().splitlines():
        cells = [cell.strip() for cell in line.strip('|').split('|')]
        if not line.startswith('|'):
            header = None
        elif header is None:
            header = cells
        elif column in header and not set(line) <= set('|-: '):
            config = re.search(r'\((?:\S+/)?(\S+)\.py\)', line)
            rows[config[1] if config else ' '.join(cells[:2])] = dict(zip(header, cells))
    assert rows, f'no table of {method} has the column {column!r}'
    return rows


def printed(text: str, value: float) -> None:
    """``text`` is the value as rounded for print."""
    assert text == f'{value:.{len(text.partition(".")[2])}f}'


@pytest.fixture(params=CONFIGS, scope='module')
def name(request) -> str:
    return request.param


@pytest.fixture(scope='module')
def model(name):
    return built(name)


@pytest.fixture
def cfg(name):
    cfg = load(name)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        yield cfg


def test_no_option_is_taken_for_a_misspelling(cfg):
    check_options(cfg)


def test_training_is_that_of_the_framework(cfg):
    """Hooks that change random streams or checkpoints are named by users, not by recipes."""
    hooks = [hook['type'] for hook in cfg.get('custom_hooks', ())]
    assert not {'ExactResumeHook', 'PreemptionHook'}.intersection(hooks)
    assert cfg.default_hooks.checkpoint.type == 'CheckpointHook'


def test_builds(model):
    # MMDetection's DINO makes one parameter by torch.Tensor(), which ignores the device.
    assert [p.device.type for p in model.parameters()].count('cpu') <= 1


def test_data_builds(cfg, panopticapi):
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        dataset = loader.dataset
        while 'pipeline' not in dataset:
            dataset = dataset.dataset
        with DATASETS.switch_scope_and_registry(None) as registry:
            assert registry.get(dataset.type) is not None
        for transform in dataset.pipeline:
            TRANSFORMS.build(transform)


def optimizer_of(cfg: Config, model: torch.nn.Module) -> torch.optim.Optimizer:
    wrapper = dict(cfg.optim_wrapper, type='OptimWrapper')
    for name in ('loss_scale', 'dtype'):  # of mixed precision
        wrapper.pop(name, None)
    built = build_optim_wrapper(model, wrapper)
    # The generator's, of a model that is trained with two.
    return built['generator'].optimizer if isinstance(built, OptimWrapperDict) else built.optimizer


def test_every_trained_parameter_is_in_one_group_of_the_optimiser(cfg, model):
    groups = list(optimizer_of(cfg, model).param_groups)
    if cfg.optim_wrapper.get('constructor') == 'GeneratorDiscriminatorConstructor':
        both = build_optim_wrapper(model, dict(cfg.optim_wrapper))
        groups += both['discriminator'].param_groups
    found = Counter(id(p) for group in groups for p in group['params'])
    trained = {id(p): key for key, p in model.named_parameters() if p.requires_grad}
    assert len(trained) > 30
    assert {key: found[i] for i, key in trained.items() if found[i] != 1} == {}


def test_the_learning_rate_is_for_the_images_of_a_step(name, cfg):
    """On the GPUs of the name, or on eight, ``--auto-scale-lr`` leaves the rate."""
    gpus = re.search(r'_(\d+)xb\d+', name)
    if gpus or '_coco' in name:
        images = int(gpus[1] if gpus else 8) * cfg.train_dataloader.batch_size
        images *= cfg.optim_wrapper.get('accumulative_counts', 1)
        assert images == cfg.auto_scale_lr.base_batch_size


EPOCH_LENGTH = 130  # iterations, instead of the thousands of the real sets


@cache
def learning_rates(schedule: str) -> List[float]:
    """The learning rate of each iteration of training, stepped as MMEngine's hook does."""
    schedule = Config.fromstring(schedule, '.py')
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], schedule.lr)
    schedulers = []
    for scheduler in schedule.schedulers:
        scheduler = dict(scheduler, optimizer=optimizer)
        if scheduler.get('convert_to_iter_based'):
            scheduler['epoch_length'] = EPOCH_LENGTH
        schedulers.append(PARAM_SCHEDULERS.build(scheduler))
    found = []
    for i in range(1, schedule.iterations + 1):
        found.append(optimizer.param_groups[0]['lr'])
        for scheduler in schedulers:
            if not scheduler.by_epoch or i % EPOCH_LENGTH == 0:
                scheduler.step()
    return found


def test_learning_rate_rises_to_its_base_and_falls_to_its_end(cfg):
    length = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters
    iterations = EPOCH_LENGTH * length if 'max_epochs' in cfg.train_cfg else length
    lr, last = cfg.optim_wrapper.optimizer.lr, cfg.param_scheduler[-1]
    end = {
        'MultiStepLR': lambda: lr * last.gamma ** len(last.milestones),
        'PolyLR': lambda: last.eta_min,
        'CosineAnnealingLR': lambda: last.eta_min,
        'OneCycleLR': lambda: lr / 25 / 1e4,  # torch's defaults
    }[last.type.rpartition('.')[2]]()
    assert last.get('total_steps', last.get('end')) == length
    schedulers = [dict(s) for s in cfg.param_scheduler]
    found = learning_rates(f'lr={lr}\niterations={iterations}\nschedulers={schedulers}')
    # A cosine under the warm-up has fallen a little when the warm-up ends.
    overlap = len(schedulers) == 2 and not last.get('begin', 0)
    peak_rate = pytest.approx(lr, rel=0.03 if overlap else 1e-6)
    assert max(found) == peak_rate
    assert found[-1] == pytest.approx(end, abs=5e-3 * lr)
    if len(cfg.param_scheduler) == 2:
        warm_up = cfg.param_scheduler[0]
        peak = warm_up.end * (EPOCH_LENGTH if warm_up.get('by_epoch', True) else 1)
        lag = warm_up.get('lag', 0) * (
            EPOCH_LENGTH if not warm_up.get('convert_to_iter_based') else 1
        )
        assert found[peak + lag if overlap else peak - 1] == peak_rate
        assert found[0] < 0.01 * lr and found[peak // 2] < 0.6 * lr


@pytest.mark.long
@pytest.mark.parametrize(('name', 'shape', 'params', 'conv_linear', 'total'), of_size(COSTS, 't'))
def test_cost(name, shape, params, conv_linear, total):
    cost = cost_of(name, shape)
    assert cost.params / 1e6 == pytest.approx(params, abs=0.1)
    assert cost.conv_linear / 1e9 == pytest.approx(conv_linear, rel=0.005)
    if total is not None:
        # The published totals count norms, too: 2 or 5 for each element.
        assert cost.total / 1e9 == pytest.approx(total, rel=0.01)
        assert cost.total / 1e9 < total
    assert not cost.uncounted
    check_readme(name, shape, cost)


@pytest.mark.long
@pytest.mark.parametrize(('name', 'params', 'conv_linear'), of_size(PAPER_COSTS, 'b'))
def test_paper_cost(name, params, conv_linear):
    cost = cost_of(name, DET)
    assert cost.params / 1e6 == pytest.approx(params, abs=0.5)
    assert cost.conv_linear / 1e9 == pytest.approx(conv_linear, rel=0.005)
    if '1x' in name:
        check_readme(name, DET, cost)


# Parameters (M) and products with norms (G) of MLLA and H-ViT³, as the releases print them.
MLLA_COSTS = [
    ('mlla-t_8xb128_in1k', CLS, 24.4, 4.2),
    ('mlla-b_8xb64_in1k', CLS, 96.0, 16.2),
    ('mask-rcnn_mlla-s_fpn_1x_coco', DET, 63, 319),
    ('upernet_mlla-b_8xb2-160k_ade20k-512x512', SEG, 128, 1183),
    ('mask-rcnn_hvittt-b_fpn_1x_coco', DET, 114, 510),
    ('hvittt-t_32xb128_in1k', CLS, 28.7, 4.9),
]


@pytest.mark.long
@pytest.mark.parametrize(('name', 'shape', 'params', 'total'), some(MLLA_COSTS))
def test_cost_of_mlla(name, shape, params, total):
    cost = cost_of(name, shape)
    assert cost.params / 1e6 == pytest.approx(params, abs=0.5)
    assert cost.total / 1e9 == pytest.approx(total, rel=0.02) and not cost.uncounted


MODELS_OF_README = {
    'ravlt': 'classifier',
    'retinanet': 'RetinaNet',
    'mask-rcnn': 'Mask R-CNN',
    'semantic-fpn': 'Semantic FPN',
    'upernet': 'UperNet',
}


def check_readme(name: str, shape: Tuple[int, int], cost: Complexity) -> None:
    """The row of this config in the first table of the README of RAVLT."""
    model, variant = re.match(r'(?:(.*)_)?ravlt-([tsbl])_', name).groups()
    rows = readme('ravlt', 'convolution + linear')
    assert len(rows) == 20
    row = rows[f'{MODELS_OF_README[model or "ravlt"]} RAVLT-{variant.upper()}']
    assert row['image'] == f'{shape[1]}x{shape[0]}'
    printed(row['parameters (M)'], cost.params / 1e6)
    printed(row['convolution + linear'], cost.conv_linear / 1e9)
    printed(row['all products, released layout'], cost.total / 1e9)
    backbone, linear = cost.by_module['backbone'], linear_backbone(variant, shape)
    assert linear.conv_linear == backbone.conv_linear
    products = cost.total - backbone.total + linear.total
    printed(row['all products, paper layout'], products / 1e9)


# Parameters, trained ones; at 800x1280 and 800x1067 G, and those of the encoder.
SMCA_COSTS = {
    'smca': (41_810_518, 41_534_998, (99.8, 10.95), (84.0, 8.9)),
    'smca-la': (41_959_510, 41_683_990, (97.1, 8.26), (82.1, 7.02)),
    'smca-ripple': (41_971_990, 41_696_470, (97.65, 8.8), (82.54, 7.47)),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ('shape', 'method'), some([*product([(800, 1280), (800, 1067)], SMCA_COSTS)], every=2)
)
def test_smca_cost(method, shape):
    params, trained, *costs = SMCA_COSTS[method]
    total, encoder = costs[shape[1] == 1067]
    name = f'{method}_r50_8xb2-50e_coco'
    cost = cost_of(name, shape)
    assert cost.params == params
    found = sum(p.numel() for p in build_model(load(name)).parameters() if p.requires_grad)
    assert found == trained
    paper = {'smca': 41.5, 'smca-la': 41.7, 'smca-ripple': 41.8}[method]
    assert found / 1e6 == pytest.approx(paper, abs=0.15)
    assert cost.total / 1e9 == pytest.approx(total, abs=0.05)
    assert cost.by_module['encoder'].total / 1e9 == pytest.approx(encoder, abs=0.02)
    assert not cost.uncounted


VQGAN = [name for name in CONFIGS if name.startswith('vit-vqgan-ss') and '100e' not in name]


@pytest.mark.long
@pytest.mark.parametrize('name', some(VQGAN))
def test_costs_of_reconstruction_of_readme(name):
    row, side = readme('vqgan', 'M, here')[name], int(re.search(r'(\d+)px', name)[1])
    cost = cost_of(name, (side, side))
    generator = cost.params - cost.by_module['discriminator'].params
    printed(row['M, here'], generator / 1e6)
    printed(row['G of the model, here'], cost.total / 1e9)
    assert (
        int(row['tokens'].replace(',', ''))
        == (side // load(name).model.backbone.arch.patch_size) ** 2
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ('size', 'shape', 'plain', 'params', 'total', 'at_most'), some(RWGKA_COSTS)
)
def test_cost_of_random_walks(size, shape, plain, params, total, at_most):
    suffix = f'_{CITYSCAPES}-{shape[0]}x{shape[1]}'
    costs = {}
    for attn in ('', '-rwgka', '-rwgkp'):
        costs[attn] = cost = cost_of(f'segformer_mit-{size}{attn}{suffix}', shape)
        assert not cost.uncounted
        if attn != '-rwgkp':
            row = readme('rwgka', 'encoder M, here')[f'segformer_mit-{size}{attn}{suffix}']
            assert row['image'] == f'{shape[1]}x{shape[0]}'
            printed(row['encoder M, here'], cost.by_module['backbone'].params / 1e6)
            printed(row['G, here'], cost.extended / 1e9)
    encoders = {attn: cost.by_module['backbone'].params / 1e6 for attn, cost in costs.items()}
    assert encoders[''] == pytest.approx(plain, abs=0.05)
    assert encoders['-rwgka'] == pytest.approx(params, abs=0.05)
    assert encoders['-rwgkp'] < encoders['-rwgka']
    # The paper's totals count norms and resizing, too; half a unit of the last digit printed.
    assert costs[''].extended / 1e9 == pytest.approx(total, rel=0.002, abs=0.05)
    for attn in ('-rwgka', '-rwgkp'):
        assert 0.9 * at_most < costs[attn].extended / 1e9 <= at_most


def test_heads_of_segformer():
    """The release's in recipes of papers; MMSegmentation's by option and where measured here."""
    for name in [n for n in CONFIGS if n.startswith('segformer_')]:
        kind = 'AllMLPHead' if 'cityscapes' in name else 'SegformerHead'
        assert type(built(name).decode_head).__name__ == kind, name
    cfg = load(f'segformer_mit-b1_{CITYSCAPES}-1024x1024')
    cfg.merge_from_dict({'model.decode_head.type': 'SegformerHead'})
    head = build_model(cfg).decode_head
    assert type(head).__module__ == 'mmseg.models.decode_heads.segformer_head'
    assert len(head.convs) == 4 and all(conv.with_norm for conv in head.convs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('method', 'column', 'counted', 'size'),
    [
        ('ravlt', 'Semantic FPN 80k', 'conv_linear', CLS),  # table 9
        ('rwgka', 'decay', 'extended', (1024, 1024)),  # table 5
        ('rwgka', 'top-1 (paper)', 'extended', CLS),
    ],
)
def test_costs_of_readme(method, column, counted, size):
    for name, row in readme(method, column).items():
        cost = cost_of(name, size)
        products = getattr(cost, counted) / 1e9
        printed(row['M, here'], cost.params / 1e6)
        printed(row['G, here'], products)
        if size == CLS and 'M, paper' in row:
            assert cost.params / 1e6 == pytest.approx(float(row['M, paper']), abs=0.1)
            assert products == pytest.approx(float(row['G, paper']), rel=0.02)


# What the papers count besides matrix products, or of them; and how near our M and G are to theirs.
PAPERS = {
    'vit': ('conv_linear', dict(rel=0.06), dict(rel=0.03)),
    'swin': ('total', dict(rel=0.027), dict(rel=0.035)),
    'cvt': ('extended', dict(rel=0.005), dict(rel=0.015)),
    'vil': ('total', dict(rel=0.02), dict(rel=0.02)),
    'ripple': ('total', dict(abs=0.02), None),
    # It cuts digits off.
    'fvit': ('conv_linear', dict(rel=0.0101), dict(rel=0.005)),
}
# Rows that the papers' texts do not reach; the READMEs say why.
BEYOND = {
    'vil-tiny_8xb128_in1k': ('M, paper', 'G, paper'),
    'vil-tiny-rwgkp_8xb128_in1k': ('M, paper', 'G, paper'),
    'vil-medium-wide_8xb128_in1k': ('G, paper',),
    'deit-s_8xb128_in1k': ('G, paper',),  # these two of another paper, which counts all products
    'deit-b_8xb128_in1k': ('G, paper',),
    'deit-t-rala-learnable-alpha_8xb128_in1k': ('G, paper',),
    'deit-t-rala_8xb128_in1k': ('G, paper',),  # the figures of a projected gate fit DeiT-S alone
    'deit-t-la_8xb64_cifar100': ('M, paper',),
    'deit-t-la-no-ape_8xb64_cifar100': ('M, paper',),
    'deit-t-ripple-4-layers_8xb64_cifar100': ('M, paper',),
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize('method', PAPERS)
def test_costs_of_hosts_of_other_papers(method):
    counted, *near = PAPERS[method]
    rows = readme(method, 'M, here')
    assert {path.stem for path in (FOLDER / method).glob('*.py')} == set(rows)
    for name, row in some(rows.items(), every=8):
        shape = tuple(map(int, row['image'].split('x')[::-1])) if 'image' in row else CLS
        cost = cost_of(name, shape)
        assert not cost.uncounted
        shown = counted if method in ('cvt', 'fvit') else 'total'
        printed(row['M, here'], cost.params / 1e6)
        printed(row['G, here'], getattr(cost, shown) / 1e9)
        counts = (cost.params / 1e6, getattr(cost, counted) / 1e9)
        for column, count, tolerance in zip(('M, paper', 'G, paper'), counts, near):
            if row.get(column):
                agrees = count == pytest.approx(float(row[column]), **tolerance)
                assert agrees == (column not in BEYOND.get(name, ())), (name, column, count)


@pytest.mark.parametrize(
    ('attn', 'lr', 'power'), [('', 6e-5, 1.0), ('-rwgka', 1e-4, 0.9), ('-rwgkp', 1e-4, 0.9)]
)
def test_cityscapes_schedule_is_the_closed_form_of_mmcv(attn, lr, power):
    """The release's hook: the polynomial from iteration 0, times a linear warm-up."""
    schedulers = [
        dict(x) for x in load(f'segformer_mit-b0{attn}_{CITYSCAPES}-640x1024').param_scheduler
    ]
    found = learning_rates(f'lr={lr}\niterations=160000\nschedulers={schedulers}')

    def rates(warm_up, length):
        i = np.arange(160000)
        factor = 1 - np.maximum(0, 1 - i / warm_up) * (1 - 1e-6)
        return factor * lr * (1 - i / length).clip(0) ** power

    # MMEngine reaches both ends one iteration earlier, and is exact otherwise.
    released = rates(1500, 160000)
    np.testing.assert_allclose(found, rates(1499, 159999), rtol=1e-8, atol=1e-15)
    np.testing.assert_allclose(found, released, rtol=0, atol=7e-4 * lr)
    np.testing.assert_allclose(found[1500:], released[1500:], rtol=0, atol=3e-5 * lr)


def test_camvid_variants_differ_in_the_attention_only():
    plain = load('segformer_mit-b0_camvid').to_dict()
    variants = ['rwgka', 'rwgka-1-step', 'rwgka-2-steps', 'rwgkp', 'rala', 'slinear']
    for variant in [*variants, 'slinear-2-steps', 'slinear-unlimited']:
        other = load(f'segformer_mit-b0-{variant}_camvid').to_dict()
        assert other['model']['backbone'].pop('attn_cfg') != dict(type='SpatialReductionAttention')
        other['model']['backbone']['attn_cfg'] = plain['model']['backbone']['attn_cfg']
        assert other == plain


@pytest.mark.parametrize(
    ('variant', 'attn', 'steps'),
    [
        ('rwgka', 'RWGKA', None), ('rwgka-1-step', 'RWGKA', 1), ('rwgka-2-steps', 'RWGKA', 2),
        ('slinear', 'SlinearAttention', 1), ('slinear-2-steps', 'SlinearAttention', 2),
        ('slinear-unlimited', 'SlinearAttention', None),
    ],
)  # fmt: skip
def test_steps_of_random_walks(variant, attn, steps):
    layers = built(f'segformer_mit-b0-{variant}_camvid').backbone.stages
    for block in (block for stage in layers for block in stage):
        assert (type(block.attn).__name__, block.attn.steps) == (attn, steps)
        assert block.attn.decay == 0.1


@pytest.mark.parametrize(
    ('name', 'released', 'options'),
    [
        (
            'mask-rcnn_swin-t-rala_fpn_1x_coco', 'swin-t',
            {f'model.backbone.attn_cfg.{i}.gate': 'identity' for i in range(2)},
        ),
        ('semantic-fpn_cvt-13-rwgkp_8xb2-80k_ade20k-512x512', 'cvt-13', {}),
    ],
)  # fmt: skip
def test_weights_of_the_softmax_encoder_fit_with_the_options_of_the_readme(
    name, released, options, tmp_path
):
    cfg, backbone = load(name), load(f'{released}_8xb128_in1k').model.backbone
    text = (CONFIGS[name].parent / 'README.md').read_text()
    options['model.backbone.init_cfg.checkpoint'] = f'checkpoints/{released}_in1k.pth'
    assert all(f'{key}={value}' in text for key, value in options.items())
    cfg.merge_from_dict(options)
    state_dict = MODELS.build(backbone).state_dict()
    path = tmp_path / 'a.pth'
    save_checkpoint(path, {f'backbone.{key}': value for key, value in state_dict.items()}, {})
    cfg.model.backbone.init_cfg = None
    report = check_fits(path, MODELS.build(cfg.model.backbone), prefix='backbone.')
    new = {key.rpartition('.')[0].rpartition('.')[2] for key in report.missing}
    assert new <= {'lepe', '0', '1', '2'}, new  # convolution of RALA, output norms
    assert all('in_proj.weight' not in key for key in report.missing)


METHODS = [path.parent.name for path in FOLDER.glob('*/metafile.yml')]


def test_the_index_that_mim_reads(root):
    imported = mmengine.load(root / 'model-index.yml')['Import']
    assert imported == [f'configs/{method}/metafile.yml' for method in sorted(METHODS)]


def test_configs_of_the_frameworks_that_readmes_name_exist():
    named = {
        match
        for path in FOLDER.glob('*/README.md')
        for match in re.findall(r'(mm\w+)::([\w./-]+\.py)', path.read_text())
    }
    folders = {p: Path(find_spec(p).origin).parent / '.mim/configs' for p, _ in named}
    assert len(named) > 10
    assert [(p, file) for p, file in named if not (folders[p] / file).is_file()] == []


def test_shapes_configs_name_the_classes_that_the_generator_draws(root):
    from mmlinattn.datasets import shapes

    def classes(name):
        dataset = Config.fromfile(root / f'configs/_base_/datasets/{name}.py').train_dataloader
        return tuple(dataset.dataset.get('classes') or dataset.dataset.metainfo.classes)

    palettes = [
        Config.fromfile(root / f'configs/_base_/datasets/shapes_{name}.py').metainfo.palette
        for name in ('semantic', 'instance')
    ]
    assert [list(c) for c in palettes[0]] == shapes.PALETTE
    assert [list(c) for c in palettes[1]] == shapes.PALETTE[1:]
    assert classes('shapes_semantic') == shapes.SEG_CLASSES
    assert classes('shapes_instance') == shapes.CLASSES
    # MMPretrain numbers the folders by name.
    assert classes('shapes_classification') == tuple(sorted(shapes.CLASSES))


# Closed forms of the schedules in the releases: start, base and last rate, epochs of warm-up,
# whether the rate changes by iterations, and the iterations that the release is behind. DeiT's
# script steps with the index of the finished epoch.
@pytest.mark.parametrize(
    ('name', 'start', 'lr', 'floor', 'warm_up', 'by_iteration', 'lag'),
    [
        *(
            (f'{name}_8xb128_in1k', 1e-6, 1e-3, 1e-5, 5, False, EPOCH_LENGTH)
            for name in ('ravlt-t', 'deit-t', 'deit-t-rala', 'mit-b2-rwgka', 'convit-t')
        ),
        ('deit-t-ripple_8xb64_cifar100', 1e-6, 5e-4, 1e-5, 5, False, EPOCH_LENGTH),
        ('swin-t_8xb128_in1k', 1e-6, 1e-3, 1e-5, 20, True, 1),
        ('swin-t-focused_8xb128_in1k', 1e-6, 1e-3, 1e-5, 20, True, 1),
        ('cvt-13_8xb128_in1k', 1e-6, 2e-3, 1e-5, 5, False, 0),
        ('vil-tiny_8xb128_in1k', 2e-6, 1e-3, 1e-6, 5, True, 0),
    ],
)
def test_schedules_of_releases(name, start, lr, floor, warm_up, by_iteration, lag):
    cfg, iterations = load(name), 300 * EPOCH_LENGTH
    schedulers = [dict(s) for s in cfg.param_scheduler]
    found = learning_rates(f'lr={lr}\niterations={iterations}\nschedulers={schedulers}')
    assert cfg.optim_wrapper.optimizer.lr == lr and cfg.train_cfg.max_epochs == 300
    for i in range(0, iterations, 37):
        step = i if by_iteration else i - i % EPOCH_LENGTH
        epoch = max(step - lag, 0) / EPOCH_LENGTH
        if epoch < warm_up:
            rate = start + (lr - start) * epoch / warm_up
        else:
            rate = floor + (lr - floor) * (1 + math.cos(math.pi * epoch / 300)) / 2
        assert found[i] == pytest.approx(rate, rel=1e-9), i


def test_weights_to_start_from_are_those_of_a_config_and_fit(root, name, cfg, model):
    """A config here trains the backbone that the config starts from, with the same attentions."""
    init = (cfg.model.get('backbone') or {}).get('init_cfg') or {}
    start = cfg.get('load_from') or init.get('checkpoint') or ''
    if not start.endswith('_in1k.pth'):
        return
    path = pretraining_config(start)
    assert path and (root / path).is_file(), start
    ours, theirs = model.backbone, built(Path(path).stem).backbone
    # Norms of maps and biases of windows are new, positions are resized, no head reads the token.
    free = re.compile(r'norms\.|relative_bias|pos_embed|cls_token')
    shapes = [
        {k: v.shape for k, v in backbone.named_parameters() if not free.search(k)}
        for backbone in (ours, theirs)
    ]
    assert {key: shapes[0].get(key) for key in shapes[1]} == shapes[1]
    assert name.startswith('vitdet') or shapes[0].keys() == shapes[1].keys()
    attns = [[m for m in x.modules() if hasattr(m, 'in_proj')] for x in (ours, theirs)]
    for ours, theirs in zip(*attns):
        assert type(ours) is type(theirs) or name.startswith('vitdet')
        for option in ('decay', 'num_anchors', 'num_heads', 'steps'):
            assert getattr(ours, option, None) == getattr(theirs, option, None)
