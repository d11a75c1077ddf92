"""The full-size configs, one of each family, shrunk to train on Shapes in a second."""

from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, init_default_scope

from mmlinattn.datasets.shapes import CLASSES

CONFIGS = Path(__file__).resolve().parent.parent / 'configs'
CITYSCAPES = '8xb1-160k_cityscapes-1024x1024'
FAMILIES = {
    'ravlt-cls': 'ravlt/ravlt-t_8xb128_in1k',
    'ravlt-retinanet': 'ravlt/retinanet_ravlt-t_fpn_1x_coco',
    'ravlt-mask-rcnn': 'ravlt/mask-rcnn_ravlt-t_fpn_1x_coco',
    'ravlt-mask-rcnn-ms': 'ravlt/mask-rcnn_ravlt-s_fpn_ms-3x_coco',
    'ravlt-cascade': 'ravlt/cascade-mask-rcnn_ravlt-s_fpn_ms-3x_coco',
    'ravlt-semantic-fpn': 'ravlt/semantic-fpn_ravlt-t_8xb2-80k_ade20k-512x512',
    'ravlt-upernet': 'ravlt/upernet_ravlt-t_8xb2-160k_ade20k-512x512',
    'ravlt-nano-retinanet': 'ravlt/retinanet_ravlt-nano_bccd',
    'ravlt-nano-mask-rcnn': 'quickstart/mask-rcnn_ravlt-nano_shapes',
    'ravlt-nano-semantic-fpn': 'quickstart/semantic-fpn_ravlt-nano_shapes',
    'ravlt-nano-cls': 'quickstart/ravlt-nano_shapes',
    'mit-cls': 'segformer/mit-b0_8xb128_in1k',
    'mit-rwgka-cls': 'rwgka/mit-b0-rwgka_8xb128_in1k',
    'segformer': f'segformer/segformer_mit-b0_{CITYSCAPES}',
    'segformer-rwgka': f'rwgka/segformer_mit-b0-rwgka_{CITYSCAPES}',
    'segformer-rwgkp': f'rwgka/segformer_mit-b0-rwgkp_{CITYSCAPES}',
    'segformer-slinear': 'rwgka/segformer_mit-b0-slinear_shapes',
    'segformer-rala': 'rwgka/segformer_mit-b0-rala_shapes',
    'vit-cls': 'vit/deit-t_8xb128_in1k',
    'vit-enhanced-cls': 'vit/deit-t-enhanced_8xb128_in1k',
    'vit-mask-rcnn': 'vit/mask-rcnn_deit-b_sfp_1x_coco',
    'convit-cls': 'ripple/convit-t_8xb128_in1k',
    'fvit-cls': 'fvit/fastformer-b32_8xb8_in1k-384px',
    'cvt-cls': 'cvt/cvt-13_8xb128_in1k',
    'vil-cls': 'vil/vil-tiny_8xb128_in1k',
    'swin-mask-rcnn': 'swin/mask-rcnn_swin-t-rala_fpn_1x_coco',
    'swin-upernet': 'swin/upernet_swin-t-rala_8xb2-160k_ade20k-512x512',
    'hvittt-cls': 'vittt/hvittt-t_32xb128_in1k',
    'hvittt-mask-rcnn': 'vittt/mask-rcnn_hvittt-t_fpn_1x_coco',
    'mlla-cls': 'mlla/mlla-t_8xb128_in1k',
    'mlla-mask-rcnn': 'mlla/mask-rcnn_mlla-t_fpn_1x_coco',
    'mlla-upernet': 'mlla/upernet_mlla-b_8xb2-160k_ade20k-512x512',
    'cvt-semantic-fpn': 'cvt/semantic-fpn_cvt-13-rwgkp_8xb2-80k_ade20k-512x512',
    'smca': 'smca/smca_r50_8xb2-50e_coco',
    'smca-la': 'smca/smca-la_r50_8xb2-50e_coco',
    'smca-ripple': 'smca/smca-ripple_r50_8xb2-50e_coco',
    'smca-nano': 'smca/smca_nano_bccd',
    'rtmdet-nano': 'modern_heads/rtmdet_nano_shapes',
    'vitdet-nano': 'modern_heads/vitdet-mala_nano_shapes',
}
ARCHS = {
    'RAVLT': dict(embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)),
    'MixTransformer': dict(
        embed_dims=(16, 32, 40, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 5, 8)
    ),
    'Swin': dict(embed_dims=(16, 32, 48, 64), depths=(2, 1, 1, 1), num_heads=(1, 2, 3, 4)),
    'HViTTT': dict(embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)),
    'MLLA': dict(embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)),
    'CvT': dict(embed_dims=(16, 32, 48), depths=(1, 1, 2), num_heads=(1, 2, 3)),
    'ViL': dict(embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4)),
    'ViT': dict(embed_dims=32, num_heads=2, depth=12, patch_size=16),
}
# Widths behind the backbone; 64 is its widest too.
WIDTHS = (
    'channels', 'in_channels', 'out_channels', 'feat_channels', 'conv_out_channels',
    'fc_out_channels', 'feedforward_channels',
)  # fmt: skip
SIDE = 64


def shrunk(family: str, shapes: Path) -> Config:
    """A family's config with tiny widths and images, on the Shapes set of that folder."""
    cfg = Config.fromfile(CONFIGS / f'{FAMILIES[family]}.py')
    init_default_scope(cfg.default_scope)
    if 'data_preprocessor' in cfg:
        cfg.model.data_preprocessor = cfg.data_preprocessor
    _shrink_model(cfg.model)
    if 'loss_decode' in cfg.model.get('decode_head', {}):
        # MMSegmentation 1.2 cannot weigh classes where pixels have no label, as in without_objects.
        cfg.model.decode_head.loss_decode.pop('class_weight', None)
    for split in ('train', 'val'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False, batch_size=2)
        _use_shapes(loader.dataset, shapes, cfg.default_scope)
        _limit(loader.dataset.pipeline)
    cfg.test_dataloader = cfg.val_dataloader
    if 'ann_file' in cfg.val_evaluator:
        dataset = cfg.val_dataloader.dataset
        cfg.val_evaluator.ann_file = f'{dataset.data_root}{dataset.ann_file}'
    cfg.test_evaluator = cfg.val_evaluator
    return cfg


def batch_of(cfg: Config, count: int = 2) -> dict:
    """The first training images of a config as its model's preprocessor takes them."""
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    return pseudo_collate([dataset[i] for i in range(count)])


def without_objects(batch: dict) -> dict:
    """The same images, with no box, no mask, and no labelled pixel. Classes stay."""
    for sample in batch['data_samples']:
        if 'gt_instances' in sample:
            sample.gt_instances = sample.gt_instances[:0]
        if 'gt_sem_seg' in sample:
            sample.gt_sem_seg.data.fill_(255)
    return batch


def _shrink_model(model: dict) -> None:
    backbone = model.backbone
    if backbone.type == 'ResNet':
        backbone.init_cfg = None
        if backbone.depth == 50:
            backbone.update(depth=18, base_channels=8)
            model.neck.in_channels = [64]
    else:
        backbone.arch = ARCHS[backbone.type]
        backbone.init_cfg = None
        dims = backbone.arch['embed_dims']
        if isinstance(dims, int):
            used, backbone.img_size = [dims], SIDE
        else:
            used = [dims[i] for i in backbone.get('out_indices', range(len(dims)))]
        neck = (model.get('neck') or {}).get('type')
        if neck in ('FPN', 'CSPNeXtPAFPN'):
            model.neck.in_channels = used
        elif neck in ('RAVLTNeck', 'SimpleFeaturePyramid'):
            model.neck.in_channels = used[-1]
        elif 'head' in model:
            model.head.in_channels = used[-1]
        else:
            model.decode_head.in_channels = used
            if 'auxiliary_head' in model:
                model.auxiliary_head.in_channels = used[model.auxiliary_head.in_index]
    for key, value in _leaves(model):
        if key in WIDTHS and value is not backbone and model.type != 'SMCA':
            value[key] = _at_most(value[key], SIDE)
        if key == 'num_classes' and model.type != 'EncoderDecoder':
            value[key] = len(CLASSES)
        elif key in ('encoder', 'decoder') and 'num_layers' in value[key]:
            value[key].num_layers = 2
    if model.data_preprocessor.get('size'):
        model.data_preprocessor.size = (SIDE, SIDE)


def _leaves(node: Any):
    if isinstance(node, dict):
        for key in list(node):
            yield key, node
            yield from _leaves(node[key])
    elif isinstance(node, (list, tuple)):
        for item in node:
            yield from _leaves(item)


def _use_shapes(dataset: dict, shapes: Path, scope: str) -> None:
    """What a user changes: the folder, and the classes where the annotations name them."""
    if scope == 'mmdet':
        split = 'train' if 'train' in str(dataset.ann_file) else 'val'
        dataset.update(
            data_root=f'{shapes}/coco/',
            ann_file=f'annotations/instances_{split}2017.json',
            data_prefix=dict(img=f'{split}2017/'),
            metainfo=dict(classes=CLASSES),
        )
    elif scope == 'mmseg':
        # MMSegmentation's own classes of data sets keep their classes; Shapes' are the first.
        layout = 'cityscapes' if dataset.type == 'CityscapesDataset' else 'ade'
        dataset.data_root = f'{shapes}/{layout}'
    else:
        dataset.update(data_root=f'{shapes}/imagenet', metainfo=dict(classes=sorted(CLASSES)))


def _limit(pipeline: Any) -> None:
    for key, owner in _leaves(pipeline):
        if key in ('scale', 'scales', 'crop_size', 'img_scale'):
            owner[key] = _at_most(owner[key], SIDE)


def _at_most(value: Any, limit: int) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(_at_most(item, limit) for item in value)
    return None if value is None else min(value, limit)
