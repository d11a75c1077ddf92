"""One training step and the validation of each dense recipe, with sides of images divided by 8."""

import json
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from tests.sizes import some

pytestmark = pytest.mark.slow

DIMS = [16, 32, 48, 64]
ARCH = dict(embed_dims=DIMS, depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 2), drop_path_rate=0.0)
DET, SEG = 'coco/bbox_mAP', 'mIoU'
SHRINK = 8
# Config, score, and what differs in a small model of its kind.
NECK = dict(neck=dict(in_channels=DIMS))
# Few regions, and every box is kept: a detector that is barely trained is sure of none.
RCNN = dict(
    NECK,
    train_cfg=dict(rpn_proposal=dict(max_per_img=20)),
    test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(score_thr=0.0)),
)
RETINA = dict(neck=dict(in_channels=DIMS[1:]), test_cfg=dict(score_thr=0.0))
RECIPES = {
    'ravlt/retinanet_ravlt-t_fpn_1x_coco': (DET, RETINA),
    'ravlt/mask-rcnn_ravlt-t_fpn_1x_coco': (DET, RCNN),
    'ravlt/mask-rcnn_ravlt-l_fpn_ms-3x_coco': (DET, RCNN),
    'ravlt/cascade-mask-rcnn_ravlt-s_fpn_ms-3x_coco': (DET, RCNN),
    'ravlt/semantic-fpn_ravlt-t-no-kv-aug_8xb2-80k_ade20k-512x512': (SEG, NECK),
    'ravlt/upernet_ravlt-t_8xb2-160k_ade20k-512x512': (
        SEG, dict(decode_head=dict(in_channels=DIMS), auxiliary_head=dict(in_channels=DIMS[2]))
    ),
    'smca/smca-ripple_r50_8xb2-50e_coco': (DET, {}),
}  # fmt: skip


def smaller(node):
    """Divide the sizes of a pipeline, in all its branches."""
    if isinstance(node, dict):
        sizes = ('scale', 'scales', 'crop_size')
        return {k: _divided(v) if k in sizes else smaller(v) for k, v in node.items()}
    return [smaller(x) for x in node] if isinstance(node, (list, tuple)) else node


def _divided(size):
    if isinstance(size, int):
        return max(size // SHRINK, 32)
    return type(size)(map(_divided, size))


def small_config(config: Path, model: dict, data_root: str, path: Path) -> Path:
    """Write a config that inherits the recipe, with a small backbone and small images."""
    cfg = Config.fromfile(config)
    backbone = dict(init_cfg=None)
    if cfg.model.backbone.type == 'RAVLT':
        backbone['arch'] = dict(ARCH, _delete_=True)
    overrides = dict(model=dict(model, backbone=backbone))
    for split, count in (('train', 2), ('val', 1)):
        loader = cfg[f'{split}_dataloader']
        dataset = dict(
            data_root=data_root,
            indices=count,
            pipeline=smaller(loader.dataset.to_dict()['pipeline']),
        )
        overrides[f'{split}_dataloader'] = dict(
            num_workers=0, persistent_workers=False, dataset=dataset
        )
    if 'ann_file' in cfg.val_evaluator:
        ann_file = f'{data_root}/annotations/instances_val2017.json'
        overrides['val_evaluator'] = dict(ann_file=ann_file)
    else:
        overrides['model']['data_preprocessor'] = dict(size=(512 // SHRINK,) * 2)
    length = 'max_epochs' if 'max_epochs' in cfg.train_cfg else 'max_iters'
    overrides['train_cfg'] = {length: 1, 'val_interval': 1}
    overrides['default_hooks'] = dict(logger=dict(interval=1), checkpoint=dict(interval=1))
    lines = [f'_base_ = {str(config)!r}', *(f'{k} = {v!r}' for k, v in overrides.items())]
    path.write_text('\n'.join(lines))
    return path


@pytest.mark.long
@pytest.mark.parametrize('name', some(RECIPES, every=2))
def test_trains_and_validates(root, run, shapes_root, coco_root, tmp_path, name):
    score, model = RECIPES[name]
    data = coco_root if score == DET else shapes_root / 'ade'
    config = small_config(root / f'configs/{name}.py', model, str(data), tmp_path / 'small.py')
    work = tmp_path / 'train'
    run('train', config, '--work-dir', work)
    logged = [json.loads(x) for x in next(work.glob('*/vis_data/scalars.json')).open()]
    losses = [line['loss'] for line in logged if 'loss' in line]
    assert losses and all(0 < loss < float('inf') for loss in losses)
    assert 0 <= logged[-1][score] <= 100, 'validation'
    best = [*work.glob('best_mIoU*.pth')]
    assert len(best) == ('upernet' in name)
    saved = torch.load((work / 'last_checkpoint').read_text(), weights_only=False)
    assert saved['optimizer']['state'] and saved['message_hub']
