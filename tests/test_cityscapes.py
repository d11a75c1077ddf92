"""Images of 2048x1024 in Cityscapes' layout, through the pipelines and models of its configs."""

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope

pytestmark = pytest.mark.slow

SCHEDULE = '8xb1-160k_cityscapes'
# Name of the config: short side of images, crop of training, windows of testing (None: whole).
SIZES = {
    '1024x1024': (1024, (1024, 1024), 3 * [(1024, 1024)]),
    '768x768': (768, (768, 768), 2 * [(768, 768)]),
    '640x1024': (640, (640, 1280), None),
    '512x1024': (512, (512, 1024), None),
}


@pytest.fixture
def load(root, cityscapes):
    def read(method, name):
        cfg = Config.fromfile(root / f'configs/{method}/{name}.py')
        for split in ('train', 'val', 'test'):
            cfg[f'{split}_dataloader'].dataset.data_root = str(cityscapes)
        cfg.model.backbone.init_cfg = None
        return cfg

    with DefaultScope.overwrite_default_scope('mmseg'):
        yield read


def samples(loader, repeats=1):
    dataset = DATASETS.build(loader.dataset)
    return [dataset[i] for _ in range(repeats) for i in range(len(dataset))]


@pytest.mark.parametrize('size', SIZES)
def test_sizes_of_training_and_testing(load, size):
    short, crop, windows = SIZES[size]
    cfg = load('segformer', f'segformer_mit-b0_{SCHEDULE}-{size}')
    np.random.seed(0)
    found = samples(cfg.train_dataloader, repeats=6)
    # Ratios of 0.5 to 2 of the short side; rounding moves them by less than a pixel.
    scales = [1024 / short * s['data_samples'].scale_factor[1] for s in found]
    assert len(found) == 12 and 0.49 < min(scales) < 0.9 and 1.2 < max(scales) < 2.01
    for sample, scale in zip(found, scales):
        shape = sample['inputs'].shape[1:]
        assert shape == sample['data_samples'].gt_sem_seg.shape
        whole = scale * short, 2 * scale * short
        assert all(abs(a - min(b, c)) <= 1 for a, b, c in zip(shape, whole, crop))
    model = MODELS.build(cfg.model)
    batch = model.data_preprocessor(pseudo_collate(found), training=True)
    assert batch['inputs'].shape == (12, 3, *crop)  # padded
    labels = {x.gt_sem_seg.shape for x in batch['data_samples']}
    assert labels == {crop}

    tested = samples(cfg.test_dataloader)
    assert [x['inputs'].shape for x in tested] == [(3, short, 2 * short)]
    assert tested[0]['data_samples'].gt_sem_seg.shape == (1024, 2048)
    reached = []

    def encode_decode(inputs, batch_img_metas):
        reached.append(tuple(inputs.shape))
        return torch.zeros(len(inputs), 19, *inputs.shape[2:])

    model.encode_decode = encode_decode
    predicted = model.eval().test_step(pseudo_collate(tested))
    windows = windows or [(short, 2 * short)]
    assert reached == [(1, 3, *window) for window in windows]
    assert predicted[0].pred_sem_seg.shape == (1024, 2048)


@pytest.mark.parametrize(('method', 'attn'), [('segformer', ''), ('rwgka', '-rwgka')])
def test_a_step_of_training_and_of_testing(load, method, attn):
    cfg = load(method, f'segformer_mit-b0{attn}_{SCHEDULE}-512x1024')
    np.random.seed(0)
    cfg.model.backbone.drop_path_rate = 0  # with one image a dropped branch has no gradient
    model = MODELS.build(cfg.model)
    model.init_weights()
    reached = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: reached.append(inputs[0].shape))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    # One image, as on each of the eight GPUs.
    assert cfg.train_dataloader.batch_size == 1
    optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    logs = model.train().train_step(
        pseudo_collate(samples(cfg.train_dataloader)[:1]), optim_wrapper=optim_wrapper
    )
    assert reached == [(1, 3, 512, 1024)] and 1 < logs['loss'] < 10
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []
    with torch.no_grad():
        predicted = model.eval().test_step(pseudo_collate(samples(cfg.test_dataloader)))
    assert reached[1:] == [(1, 3, 512, 1024)]
    assert predicted[0].pred_sem_seg.shape == (1024, 2048)
