"""The runner: batches that cannot be trained on or stacked, and unused parameters, in one line."""

import importlib
import math
import os
import random
import subprocess
import sys
import time
from subprocess import PIPE
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import DefaultSampler, InfiniteSampler
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import BaseModel, BaseTTAModel
from mmengine.optim import OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from mmengine.structures import BaseDataElement
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from mmlinattn.engine.preflight import validation
from mmlinattn.engine.preflight.model import check_single_images
from mmlinattn.engine.runner import runner as module
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.models.backbones import ViT
from mmlinattn.utils.errors import InputError
from tests.test_engine.tiny_runner import IMAGES, Constant, Net, tiny_runner


class Head(nn.Sequential):
    def forward(self, features):
        return super().forward(features[-1])


def pooled(norm) -> nn.Module:
    with torch.device('meta'):
        model = nn.Module()
        model.backbone = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.BatchNorm2d(4))
        model.decode_head = Head(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), norm)
    return model


@pytest.mark.parametrize('images, size, sampler, drop_last, cure', [
    (5, 4, DefaultSampler, False, 'set drop_last=True'),
    (5, 4, DefaultSampler, True, None),
    (5, 4, InfiniteSampler, False, None),
    (6, 4, DefaultSampler, False, None),
    (6, 1, InfiniteSampler, False, 'set batch_size=2, or another norm_cfg than BN'),
])  # fmt: skip
def test_batches_of_one_image(monkeypatch, images, size, sampler, drop_last, cure):
    monkeypatch.setattr(module, 'build_model', lambda cfg: pooled(nn.BatchNorm2d(4)))
    batches = BatchSampler(sampler(range(images)), size, drop_last)
    loader = DataLoader(range(images), batch_sampler=batches)
    run = SimpleNamespace(cfg=Config(dict(model=dict(type='any'))))
    if cure is None:
        PluginRunner._check_smallest_batch(run, loader)
        return
    message = r'has a batch of one image: batch norm of model.decode_head .* gets \[1, 4, 1, 1\]; '
    with pytest.raises(ValueError, match=f'train_dataloader {message}{cure}'):
        PluginRunner._check_smallest_batch(run, loader)


def test_other_norms_are_trained_on_one_image():
    with torch.device('meta'):
        assert check_single_images(pooled(nn.GroupNorm(2, 4))) is None  # raises no error


WORKERS, PROCESSES = 'persistent_workers=True', 'diff_rank_seed=True'
EXACT = [dict(type='ExactResumeHook')]


@pytest.mark.parametrize('processes, workers, kept, differ, hook, warned', [
    (1, 1, False, False, [], [WORKERS]), (1, 1, True, False, [], []), (1, 0, False, False, [], []),
    (1, 1, False, False, EXACT, []), (2, 0, False, False, [], [PROCESSES]),
    (2, 0, False, True, [], []), (2, 1, True, False, [], []), (2, 0, False, False, EXACT, []),
])  # fmt: skip
def test_workers_or_processes_that_draw_the_same_numbers(
    tmp_path, monkeypatch, processes, workers, kept, differ, hook, warned
):
    found = []
    monkeypatch.setattr(module, 'log_warning', found.append)
    runner = tiny_runner(tmp_path, custom_hooks=hook)
    runner._randomness_cfg['diff_rank_seed'] = differ
    runner._train_dataloader.update(num_workers=workers, persistent_workers=kept)
    monkeypatch.setattr(module, 'get_world_size', lambda: processes)
    runner.build_train_loop(runner._train_loop)
    assert len(found) == len(warned) and all(cure in text for cure, text in zip(warned, found))


def test_images_of_several_sizes_are_batched_apart():
    seen = []

    def step(batch):
        seen.append(torch.stack(batch['inputs']).shape)
        return [int(image.sum()) + sample for image, sample in zip(*batch.values())]

    images = [torch.full((1, side, 4), i) for i, side in enumerate((2, 3, 2, 2))]
    batch = dict(inputs=images, data_samples=[100, 200, 300, 400])
    assert module._by_size(step)(batch) == [100, 212, 316, 424]
    assert seen == [(3, 1, 2, 4), (1, 1, 3, 4)]


class Means(BaseModel):
    """Predicts the mean of each image, which padding would change."""

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return [dict(mean=float(image.mean())) for image in inputs]


class Average(BaseTTAModel):
    def merge_preds(self, data_samples_list):
        return [dict(mean=sum(view['mean'] for view in views)) for views in data_samples_list]


class Listed(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results += [sample['mean'] for sample in data_samples]

    def compute_metrics(self, results):
        return dict(zip('abc', results))


@pytest.mark.parametrize('views', [0, 2])
@pytest.mark.parametrize('kind', ['mmpretrain.ClsDataPreprocessor', 'mmengine.ImgDataPreprocessor'])
def test_padding_changes_no_score(tmp_path, kind, views):
    pytest.importorskip('mmpretrain.models', reason='a preprocessor is of MMPretrain')
    model = Means(data_preprocessor=dict(type=kind))
    images = [torch.ones(3, side, 4) for side in (2, 3, 2)]
    images = [dict(inputs=[image] * views if views else image) for image in images]
    loader = dict(dataset=images, batch_size=3, sampler=dict(type='DefaultSampler', shuffle=False))
    options = dict(val_dataloader=loader, test_dataloader=loader, metrics=[Listed()])
    run = tiny_runner(tmp_path, model=Average(model) if views else model, **options)
    scores = dict.fromkeys('abc', float(views or 1))
    assert run.test() == scores
    assert views or run.val() == scores


def test_parameters_without_a_gradient_are_named(monkeypatch):
    def train(self):
        raise RuntimeError(
            'Expected to have finished reduction in the prior iteration before starting a new one. '
            'Parameter indices which did not receive grad for rank 1: 1 2\n In addition, ...'
        )

    monkeypatch.setattr(Runner, 'train', train)
    run = PluginRunner.__new__(PluginRunner)
    run.model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    run.model[0].bias.requires_grad = False  # not counted
    with pytest.raises(InputError, match=r'depend on 1.weight, 1.bias: .*find_unused_parameters'):
        run.train()


def test_a_loss_that_is_not_finite_is_one_line(tmp_path):
    """MMDetection's hook has an assertion without a text."""
    from mmdet.engine.hooks import CheckInvalidLossHook

    model = Net()
    model.weight.data.fill_(math.inf)
    hooks = [CheckInvalidLossHook(interval=1)]
    with pytest.raises(InputError, match='loss of iteration 1 is infinite or NaN: set a lower'):
        tiny_runner(tmp_path, model=model, custom_hooks=hooks).train()


@pytest.mark.parametrize('options', ['yes', dict(mode='fast'), dict(opt=1), dict(backend='none')])
def test_a_wrong_option_of_compile(options):
    run = PluginRunner.__new__(PluginRunner)
    run.cfg, run.model = Config(dict(compile=options)), Net()
    with pytest.raises(InputError, match=r'compile=.* of the config: \S'):
        run._maybe_compile('train_step')


def test_optimizers_that_can_be_resumed():
    layer = nn.Linear(2, 2)
    # torch adds options to the defaults of one that is loaded.
    own = torch.optim.Optimizer(layer.parameters(), dict(lr=0.1))
    own.load_state_dict(own.state_dict())
    runner = SimpleNamespace(optim_wrapper=OptimWrapper(own))
    module._check_optimizers(runner)
    # As ZeroRedundancyOptimizer has it for parameters of other processes.
    own.state.update({layer.weight: None, layer.bias: dict(exp_avg=torch.zeros(2), step=1)})
    module._check_optimizers(runner)
    own.state[layer.bias]['exp_avg'] = torch.zeros(3)
    with pytest.raises(ValueError, match=r'exp_avg of .* has the shape \(3,\), the .* \(2,\)'):
        module._check_optimizers(runner)


def test_a_wrapper_of_a_config_on_the_cpu(monkeypatch):
    """It would select a GPU by the number of the process."""
    importlib.import_module('mmlinattn.projects.vqgan')  # registers the last wrapper
    given = []
    monkeypatch.setattr(Runner, 'wrap_model', lambda self, cfg, model: given.append(cfg))
    monkeypatch.setattr(module, 'is_distributed', lambda: True)
    monkeypatch.setattr(module, 'get_device', lambda: 'cpu')
    run = PluginRunner.__new__(PluginRunner)
    run.cfg = Config()
    for cfg in (
        None, dict(type='MMDistributedDataParallel', static_graph=True), dict(type='Own'),
        dict(broadcast_buffers=False), dict(type='AlternatingDistributedDataParallel'),
    ):  # fmt: skip
        run.wrap_model(cfg, nn.Linear(1, 1))
    ids = [cfg.get('device_ids', 'unset') for cfg in given]
    assert ids == [None, None, 'unset', None, None]
    assert given[3]['type'] == 'MMDistributedDataParallel'
    assert given[1]['static_graph'] and not given[0]['find_unused_parameters']


def test_the_best_checkpoint_of_a_copied_work_directory(tmp_path):
    """MMEngine would remove that of the original after a better score."""
    first, copy = tmp_path / 'first', tmp_path / 'copy'
    first.mkdir(), copy.mkdir()
    names = {'best_ckpt': 'a.pth', 'best_ckpt_x': 'b.pth', 'best_ckpt_y': None, 'other': 'c.pth'}
    info = {key: name and str(first / name) for key, name in names.items()}
    (copy / 'a.pth').touch()
    runner = SimpleNamespace(
        work_dir=str(copy), hooks=[CheckpointHook()], message_hub=SimpleNamespace(runtime_info=info)
    )
    module._relocate_best_checkpoints(runner)
    kept = {'best_ckpt': str(copy / 'a.pth'), 'best_ckpt_y': None, 'other': str(first / 'c.pth')}
    assert info == kept
    info.update(best_ckpt=str(copy / 'removed.pth'))  # nothing to remove
    module._relocate_best_checkpoints(runner)
    assert info['best_ckpt'] == str(copy / 'removed.pth')
    runner.hooks, info['best_ckpt'] = [CheckpointHook(out_dir='elsewhere')], 'elsewhere/copy/a.pth'
    module._relocate_best_checkpoints(runner)
    assert info['best_ckpt'] == 'elsewhere/copy/a.pth'


def test_a_config_in_its_work_directory_is_kept(tmp_path):
    """The whole config, with the options of this run, would be written over a user's own file."""
    (tmp_path / 'mine.py').write_text('a = 1  # mine')
    for folder, expected in (('.', 'a = 1  # mine'), ('work', 'a = 2')):
        cfg = Config.fromfile(tmp_path / 'mine.py')
        cfg.a = 2
        tiny_runner(tmp_path / folder, cfg=cfg)
        assert (tmp_path / folder / 'mine.py').read_text().strip() == expected


@pytest.mark.parametrize('whole', [True, False])
def test_a_cache_of_yapf_that_is_being_written(tmp_path, whole):
    env = {**os.environ, 'XDG_CACHE_HOME': str(tmp_path)}
    subprocess.run([sys.executable, '-c', 'import yapf.yapflib.yapf_api'], env=env, check=True)
    (cache,) = tmp_path.rglob('PatternGrammar*')
    content = cache.read_bytes()
    cache.write_bytes(b'')
    if whole:
        start = 'from mmlinattn.engine.runner import runner; print("ready", flush=True);'
    else:
        start = 'from mmlinattn.engine.runner import runner; runner.time.sleep = print;'
    command = [sys.executable, '-c', f'{start} runner._import_formatter()']
    with subprocess.Popen(command, env=env, text=True, stdout=PIPE, stderr=PIPE) as process:
        if whole:
            process.stdout.readline()
            time.sleep(0.3)
            cache.write_bytes(content)
        _, errors = process.communicate()
    assert (process.returncode == 0) is whole, errors
    assert whole or f"InputError: yapf's cache is damaged: remove the folder {tmp_path}" in errors


def test_an_option_that_traces_the_backbone(tmp_path):
    runner = tiny_runner(tmp_path, cfg=dict(efficient_conv_bn_eval=['backbone']))
    runner.prepare_training()  # the model has no backbone of this package
    runner.model.backbone = ViT()
    with pytest.raises(ValueError, match='torch.fx cannot trace ViT: leave it out'):
        runner.prepare_training()


class Drawing(Net):
    """Draws random numbers in a prediction, which fails on images of other sizes than 2."""

    modes = ()

    def forward(self, inputs, mode='tensor'):
        if mode != 'loss':
            np.random.rand(), random.random()
            self.modes = *self.modes, self.training
            torch.cat([torch.rand(1, 2), inputs]) if inputs.shape[1] > 1 else inputs.topk(2)
        return super().forward(inputs, mode)


class Failing(Constant):
    def process(self, data_batch, data_samples):
        raise KeyError('pred_sem_seg')


def drawn_in_training(folder, metrics):
    hook = Hook()
    hook.before_train_iter = lambda *_, **__: found.append(
        (random.random(), np.random.rand(), torch.rand(()).item())
    )
    found, images = [], [dict(inputs=torch.ones(2))] * 2
    model = Drawing()
    runner = tiny_runner(
        folder, model=model, metrics=metrics, dataset=images, custom_hooks=[hook],
        randomness=dict(seed=3),
    )  # fmt: skip
    runner.train()
    return found, model, runner


class Counting(Constant):
    def __init__(self):
        super().__init__()
        self.seen = []

    def process(self, data_batch, data_samples):
        self.seen.append(len(self.results))
        super().process(data_batch, data_samples)


class Other(Counting):
    """A metric that is not known may have other state than its results."""

    def compute_metrics(self, results):
        return dict(third=1.0)


def test_a_validation_is_tried_before_a_training(tmp_path, monkeypatch):
    monkeypatch.setattr(validation, 'SAMPLES', {'Counting': None})
    metrics = [Counting(), Other()]
    numbers, model, runner = drawn_in_training(tmp_path / 'a', metrics)
    assert model.modes == (False,) * 3 and runner.val_loop.evaluator.metrics == metrics
    assert [metric.seen for metric in metrics] == [[0, 0, 1], [0, 1]]
    runner.val()
    assert len(model.modes) == 5
    plain, model, _ = drawn_in_training(tmp_path / 'b', None)
    assert model.modes == () and numbers == plain


@pytest.mark.parametrize(
    'size, metric, text',
    [(3, Constant, 'RuntimeError: Sizes of tensors must match .* set .*pad_size_divisor to its'),
     (1, Constant, 'RuntimeError: selected index k .*; there are fewer queries .*max_per_img'),
     (2, Failing, 'KeyError: pred_sem_seg')],
)  # fmt: skip
def test_a_validation_that_fails_is_an_error_before_the_training(
    tmp_path, monkeypatch, size, metric, text
):
    monkeypatch.setattr(validation, 'SAMPLES', {'Failing': None})
    model, images = Drawing(), [dict(inputs=torch.ones(size))] * 2
    runner = tiny_runner(tmp_path, model=model, metrics=[metric()], dataset=images)
    with pytest.raises(InputError, match=f'^the validation, tried before the training,.* {text}'):
        runner.train()
    assert model.weight == 0 and model.training


class Trained(Net):
    """A model that needs training, or something of a hook, before it predicts."""

    prepared = False

    def forward(self, inputs, mode='tensor'):
        if mode != 'loss' and self.weight == 0 and not self.prepared:
            raise RuntimeError('not trained')
        return super().forward(inputs, mode)


class Retriever(Trained):
    def prepare_prototype(self):
        """It would encode a gallery with initial weights."""


class Images(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        assert torch.utils.data.get_worker_info() is not None
        return IMAGES[index]


def prepare(stage):
    def ready(self, runner):
        runner.model.prepared = True

    return type('Prepare', (Hook,), {stage: ready})()


class Loop(EpochBasedTrainLoop):
    """A loop of a user's."""


class Pairs(DefaultSampler):
    """Yields what only its data set understands."""

    def __iter__(self):
        return ((i, 0) for i in range(2))


class OfPairs(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, pair):
        return IMAGES[sum(pair)]


IN_ORDER = dict(type='DefaultSampler', shuffle=False)


@pytest.mark.parametrize(
    'options',
    [
        dict(train_cfg=dict(by_epoch=True, max_epochs=1, val_begin=2)),
        dict(custom_hooks=[prepare('before_val')]),
        dict(custom_hooks=[prepare('before_train_epoch')]),
        dict(train_cfg=dict(type=Loop, max_epochs=1)),
        dict(model=Retriever()),
        dict(val_dataloader=dict(dataset=Images(), num_workers=1, sampler=IN_ORDER)),
    ],
    ids=['val_begin', 'before_val', 'before_train', 'loop', 'retriever', 'workers'],
)
def test_validations_that_are_not_tried(tmp_path, options):
    runner = tiny_runner(tmp_path, metrics=[Constant()], **{'model': Trained(), **options})
    runner.train()
    assert runner.model.weight != 0


class Converting(Evaluator):
    def process(self, data_samples, data_batch=None):
        super().process([dict(x=1) for _ in data_samples], data_batch)


class Converted(Constant):
    def process(self, data_batch, data_samples):
        self.results += [sample['x'] for sample in data_samples]


def test_samplers_and_evaluators_of_others_are_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(validation, 'SAMPLES', {'Converted': None})
    loader = dict(dataset=OfPairs(), sampler=dict(type=Pairs))
    runner = tiny_runner(tmp_path, metrics=Converting([Converted()]), val_dataloader=loader)
    runner.train()
    assert runner.model.weight != 0 and runner.message_hub.get_scalar('val/score').current() == 1


def test_the_trial_is_of_trainings_alone_and_blames_no_checkpoint(tmp_path):
    options = dict(model=Trained(), metrics=[Constant()])
    with pytest.raises(RuntimeError, match='^not trained$'):
        tiny_runner(tmp_path, **options).val()
    tiny_runner(tmp_path, optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.0))).train()
    with pytest.raises(
        InputError, match='^the validation, tried .*not trained; .*val_begin=2 skips'
    ):
        path = str(tmp_path / 'epoch_1.pth')
        tiny_runner(tmp_path, length=2, load_from=path, resume=True, **options).train()


class Teacher(Net):
    """As some of MMDetection: train() returns nothing. Its validation has a loss."""

    def train(self, mode=True):
        super().train(mode)

    def forward(self, inputs, mode='tensor'):
        loss = BaseDataElement(loss=dict(loss=torch.ones(1)))
        return super().forward(inputs, mode) if mode == 'loss' else [BaseDataElement(), loss]


class One(Constant):
    def process(self, data_batch, data_samples):
        assert len(data_samples) == 1
        super().process(data_batch, data_samples)


def test_models_that_return_other_things_are_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(validation, 'SAMPLES', {'One': None})
    runner = tiny_runner(tmp_path, model=Teacher(), metrics=[One()])
    runner.train()
    assert runner.model.weight != 0 and runner.message_hub.get_scalar('val/score').current() == 1


@pytest.mark.parametrize(
    'constructor, framework',
    [('LayerDecayOptimizerConstructor', 'mmseg'),
     ('LearningRateDecayOptimWrapperConstructor', 'mmpretrain'),
     ('LearningRateDecayOptimizerConstructor', 'mmdet')],
)  # fmt: skip
def test_layer_decay_of_a_framework_names_that_of_this_package(tmp_path, constructor, framework):
    pytest.importorskip(f'{framework}.engine', reason='the constructor is of that framework')
    model = Net()
    model.backbone = ViT()
    paramwise = dict(decay_rate=0.7, layer_decay_rate=0.7, decay_type='layer_wise', num_layers=12)
    optimizer = dict(type='AdamW', lr=1e-4, weight_decay=0.05)
    wrapper = dict(
        type='OptimWrapper', constructor=constructor, optimizer=optimizer, paramwise_cfg=paramwise
    )
    runner = tiny_runner(tmp_path, model=model, optim_wrapper=wrapper, default_scope=framework)
    text = f"{constructor}' does not know the layers of ViT: set constructor='LayerDecayOptimWrap"
    with pytest.raises(ValueError, match=text):
        runner.prepare_training()


@pytest.mark.parametrize(
    'backbone, wrapper', [(nn.Identity(), dict(constructor='Own')), (ViT(), dict())]
)
def test_other_optimizers_that_are_not_implemented(tmp_path, monkeypatch, backbone, wrapper):
    def fail(self, optim_wrapper):
        raise NotImplementedError('own words')

    runner = tiny_runner(tmp_path)
    runner.model.backbone = backbone
    monkeypatch.setattr(Runner, 'build_optim_wrapper', fail)
    with pytest.raises(NotImplementedError, match='^own words$'):
        runner.build_optim_wrapper(wrapper)


@pytest.mark.parametrize(
    'by_epoch, hook, warns',
    [(False, dict(), True), (False, dict(by_epoch=False), False), (True, dict(), False)],
)
def test_a_checkpoint_hook_that_counts_epochs(tmp_path, monkeypatch, by_epoch, hook, warns):
    said = []
    monkeypatch.setattr(module, 'log_warning', said.append)
    hooks = dict(checkpoint=dict(type='CheckpointHook', interval=1, **hook))
    tiny_runner(tmp_path, by_epoch=by_epoch, default_hooks=hooks).prepare_training()
    assert [text for text in said if 'CheckpointHook counts epochs' in text] == said
    assert len(said) == warns
