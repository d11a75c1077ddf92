"""Cases of backbones and models."""

import copy
from typing import Any, Dict, Sequence

import torch
from torch import Tensor, nn

from .problems import DECAY, NUM_ANCHORS
from .registry import OURS, Baseline, Baselines, Setup, case

MIT_ATTENTIONS = {
    'RWGKA': dict(type='RWGKA', num_anchors=NUM_ANCHORS, decay=DECAY),
    'RWGKP': dict(type='RWGKP', num_anchors=NUM_ANCHORS, decay=DECAY),
    'one step': dict(type='RWGKA', num_anchors=NUM_ANCHORS, decay=DECAY, steps=1),
    'two steps': dict(type='RWGKA', num_anchors=NUM_ANCHORS, decay=DECAY, steps=2),
    'RALA': dict(type='RALA', gate=None, lepe=0),  # that SegFormer's weights load into
    'spatial reduction': dict(type='SpatialReductionAttention'),
}


@case(
    'mit-b0',
    "SegFormer's encoder MiT-B0 with random walks and RALA in all stages, against its own spatial "
    'reduction.',
)
def _mit(setup: Setup) -> Baselines:
    from mmlinattn.models.backbones import MixTransformer

    image = setup.image()
    models = {
        name: setup.module(MixTransformer('b0', attn_cfg, drop_path_rate=0.0))
        for name, attn_cfg in MIT_ATTENTIONS.items()
    }
    return {name: Baseline.of_module(model, image) for name, model in models.items()}


class _Segmentor(nn.Module):
    """Backbone and decode head, up to the logits at stride 4."""

    def __init__(self, backbone: nn.Module, decode_head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.decode_head = backbone, decode_head

    def forward(self, image: Tensor) -> Tensor:
        return self.decode_head(self.backbone(image))


def _segformers(setup: Setup, arch: str, head: type, **theirs: Any) -> Dict[str, nn.Module]:
    """Return SegFormer with three attentions, and that of MMSegmentation, built with ``theirs``.

    The last one is there twice: as installed, and after ``optimize_for_cpu``.
    """
    from mmseg.models.backbones import MixVisionTransformer
    from mmseg.models.decode_heads import SegformerHead

    from mmlinattn.models.backbones import MixTransformer

    def options(backbone: nn.Module) -> dict:
        widths = [backbone(torch.zeros(1, 3, 64, 64))[i].shape[1] for i in range(4)]
        return dict(in_channels=widths, in_index=[0, 1, 2, 3], channels=256, num_classes=19,
                    norm_cfg=dict(type='BN'), dropout_ratio=0.0)  # fmt: skip

    def segmentor(attn: str) -> nn.Module:
        backbone = MixTransformer(arch, MIT_ATTENTIONS[attn], drop_path_rate=0.0)
        return setup.module(_Segmentor(backbone, head(**options(backbone))))

    def installed() -> nn.Module:
        backbone = MixVisionTransformer(num_heads=[1, 2, 5, 8], drop_path_rate=0.0, **theirs)
        model = _Segmentor(backbone, SegformerHead(**options(backbone)))
        return model.to(setup.device, setup.dtype).train(setup.training)

    models = {
        OURS: segmentor('spatial reduction'),
        'RWGKA': segmentor('RWGKA'),
        'RALA': segmentor('RALA'),
        'MMSegmentation': installed(),
        'MMSegmentation, optimize_for_cpu': setup.module(installed()),
    }
    sizes = [
        sum(p.numel() for p in models[n].backbone.parameters()) for n in (OURS, 'MMSegmentation')
    ]
    assert sizes[0] == sizes[1], f'encoders of {sizes} parameters: these are not the same model'
    return models


@case(
    'segformer-b0',
    'SegFormer-B0 with the head of its release, against random walks and RALA, against '
    "MMSegmentation's SegFormer, and against the same weights with the formula of its head.",
)
def _segformer_b0(setup: Setup) -> Baselines:
    from mmseg.models.decode_heads import SegformerHead

    from mmlinattn.models.decode_heads import AllMLPHead

    class Concatenation(AllMLPHead):
        forward = SegformerHead.forward

    theirs = dict(embed_dims=32, num_layers=[2, 2, 2, 2])  # those of B2 are its defaults
    image, models = setup.image(), _segformers(setup, 'b0', AllMLPHead, **theirs)
    found = {name: Baseline.of_module(model, image) for name, model in models.items()}
    plain = copy.deepcopy(models[OURS])
    plain.decode_head.__class__ = Concatenation
    return {**found, 'concatenation': Baseline.of_module(plain, image, same=True)}


class _Detector(nn.Module):
    """RetinaNet, up to the scores and offsets of its anchor boxes."""

    def __init__(self, backbone: nn.Module, in_channels: Sequence[int]) -> None:
        from mmdet.models.dense_heads import RetinaHead
        from mmdet.models.necks import FPN

        super().__init__()
        self.backbone = backbone
        self.neck = FPN(in_channels, 256, num_outs=5, start_level=1, add_extra_convs='on_output')
        self.bbox_head = RetinaHead(num_classes=80, in_channels=256)

    def forward(self, image: Tensor) -> Tensor:
        scores, offsets = self.bbox_head(self.neck(self.backbone(image)))
        return torch.cat([x.flatten(1) for x in (*scores, *offsets)], 1)


@case(
    'retinanet',
    'RetinaNet with RAVLT-T as released, against RALA in all stages, MLLA-T, H-ViT³-T, and '
    "MMDetection's Swin-T and ResNet-50.",
)
def _retinanet(setup: Setup) -> Baselines:
    from mmdet.models.backbones import ResNet, SwinTransformer

    from mmlinattn.models.backbones import MLLA, RAVLT, HViTTT

    image, ravlt, swin = setup.image(), [64, 128, 256, 512], [96, 192, 384, 768]
    models = {
        OURS: _Detector(RAVLT('tiny', norm_cfg=dict(type='BN')), ravlt),
        'RALA': _Detector(RAVLT('tiny', 'RALA', norm_cfg=dict(type='BN')), ravlt),
        'MLLA-T': _Detector(MLLA('tiny'), ravlt),
        'H-ViT³-T': _Detector(HViTTT('tiny'), [64, 128, 320, 512]),
        'Swin-T': _Detector(SwinTransformer(), swin),
        'ResNet-50': _Detector(ResNet(50, norm_eval=False), [256, 512, 1024, 2048]),
    }
    return {name: Baseline.of_module(setup.module(model), image) for name, model in models.items()}


@case(
    'segformer-b2',
    "SegFormer-B2 with MMSegmentation's head, computed level by level, against random "
    "walks and RALA, and against MMSegmentation's SegFormer.",
)
def _segformer_b2(setup: Setup) -> Baselines:
    from mmlinattn.models.decode_heads import LevelwiseSegformerHead

    theirs = dict(embed_dims=64, num_layers=[3, 4, 6, 3])
    models = _segformers(setup, 'b2', LevelwiseSegformerHead, **theirs)
    image = setup.image()
    return {name: Baseline.of_module(model, image) for name, model in models.items()}


@case('dinov3-s', 'DINOv3-S with 64 cores and with its own softmax attention.')
def _dinov3(setup: Setup) -> Baselines:
    from mmlinattn.models.backbones import ViT

    image = setup.image()
    models = {OURS: ViT('dinov3-s', 'CoreAttention'), 'softmax attention': ViT('dinov3-s')}
    return {name: Baseline.of_module(setup.module(model), image) for name, model in models.items()}
