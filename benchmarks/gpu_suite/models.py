"""Section that times whole models with random weights and images."""

from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import numpy as np
import torch

from ..baselines.released_ravlt import released_ravlt
from ..cases.backbones import MIT_ATTENTIONS
from ..jobs import Jobs, NeedsMore, Row, Session
from ..machine import ROOT
from ..measure import wall


@dataclass(frozen=True)
class Model:
    """A model and the images of a training step.

    Args:
        config: path in ``configs/``, or ``'mmdet::'`` or ``'mmseg::'`` and a path in theirs.
        backbone: options of the backbone to replace.
        head: options of the decode head to replace.
        released: file of :func:`released_ravlt`, whose model replaces the backbone.
    """

    config: str
    hw_shape: Tuple[int, int] = (800, 1344)
    batch: int = 2
    backbone: Dict[str, Any] = field(default_factory=dict)
    head: Dict[str, Any] = field(default_factory=dict)
    released: Optional[Path] = None

    def build(self, device: torch.device) -> Any:
        """Return the model with random weights."""
        try:
            from mmlinattn.engine.config import load_config
            from mmlinattn.engine.model import initial_model

            package, _, path = self.config.rpartition('::')
            folder = ROOT / 'configs'
            if package:
                folder = Path(str(import_module(package).__file__)).parent / '.mim/configs'
            cfg = load_config(str(folder / path))
            cfg.model.backbone.update(self.backbone)
            if self.head:
                cfg.model.decode_head.update(self.head)
            model = initial_model(cfg, device=str(device))
            if self.released:
                model.backbone = released_ravlt(self.released).to(device)
        except ImportError as error:
            raise NeedsMore(f'needs OpenMMLab: {error}') from error
        return model


RWGKA, RALA = (dict(attn_cfg=MIT_ATTENTIONS[name]) for name in ('RWGKA', 'RALA'))
HEAD = dict(type='SegformerHead', channels=256)  # of MMSegmentation
RAVLT = Model('ravlt/mask-rcnn_ravlt-s_fpn_1x_coco.py')
LEVELWISE = dict(type='mmlinattn.models.decode_heads.LevelwiseSegformerHead')
TINY = {
    'Faster R-CNN RAVLT-nano': Model('ravlt/faster-rcnn_ravlt-nano_bccd.py', (64, 96), 1),
    'SegFormer-B0 RWGKA': Model(
        'segformer/segformer_mit-b0_shapes.py', (64, 64), 1, RWGKA, LEVELWISE
    ),
}


def _segformers(arch: str) -> Dict[str, Model]:
    found = {}
    for hw_shape, batch in (((1024, 1024), 8), ((1024, 2048), 4)):
        file = f'segformer/segformer_mit-{arch}_8xb1-160k_cityscapes-1024x1024.py'
        ours, at = Model(file, hw_shape, batch), '{}x{}'.format(*hw_shape)
        name = f'SegFormer-{arch.upper()}'
        found[f'{name} with its own attention, {at}'] = ours
        found[f'{name} RWGKA, {at}'] = replace(ours, backbone=RWGKA)
        found[f'{name} RALA without gate, {at}'] = replace(ours, backbone=RALA)
        found[f'{name} of MMSegmentation, {at}'] = replace(ours, config=f'mmseg::{file}')
        # Tells what of the difference is the head.
        theirs = replace(ours, head=HEAD)
        found[f"{name} with MMSegmentation's head, {at}"] = theirs
    return found


def models(session: Session, released: Optional[Path] = None) -> Dict[str, Model]:
    """Return all models by name, the most valuable first."""
    if session.tiny:
        return TINY
    linear, name = dict(attn_cfg='RALA'), 'Mask R-CNN RAVLT-S'
    return {
        name: RAVLT,
        'Mask R-CNN Swin-T': Model('mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'),
        **_segformers('b0'),
        f'{name}, RALA in all stages': replace(RAVLT, backbone=linear),
        'Mask R-CNN ResNet-50': Model('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'),
        **({f'{name}, released backbone': replace(RAVLT, released=released)} if released else {}),
        **_segformers('b2'),
        **{
            f'{kind.upper()} ResNet-50': Model(f'smca/{kind}_r50_8xb2-50e_coco.py')
            for kind in ('smca', 'smca-la', 'smca-ripple')
        },
    }


def timings(session: Session, released: Optional[Path] = None) -> Jobs:
    """Time a training step, and the prediction of one image up to post-processing."""
    found = models(session, released).items()
    return {name: partial(_timing, session, name, model) for name, model in found}


def _timing(session: Session, name: str, of: Model) -> Iterable[Row]:
    model = of.build(session.device)
    row: Row = dict(name=name, batch=of.batch, image='{}x{}'.format(*of.hw_shape))
    row['params'] = round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
    step = _training_step(session, of, model)
    row.update(_measured('train', step, session), loss=step().item())
    del step
    model.zero_grad(set_to_none=True)
    one = _random_batch(model.eval(), 1, of.hw_shape, False)

    def predict() -> None:
        with torch.no_grad(), _autocast(session):
            model(**one, mode='tensor')

    yield {**row, **_measured('tensor', predict, session)}


def _random_batch(model: Any, batch: int, hw_shape: Tuple[int, int], training: bool) -> dict:
    """Return preprocessed images with 20 objects each for a detector, else with a label map."""
    if not hasattr(model, 'decode_head'):
        from mmdet.testing import demo_mm_inputs

        np.random.seed(0)
        heads = getattr(model, 'roi_head', model)
        data = demo_mm_inputs(
            batch, [(3, *hw_shape)] * batch, num_items=[20] * batch,
            num_classes=heads.bbox_head.num_classes, with_mask=getattr(heads, 'with_mask', False),
        )  # fmt: skip
        return model.data_preprocessor(data, training)
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    sizes: Any = dict.fromkeys(('img_shape', 'ori_shape', 'pad_shape'), hw_shape)
    inputs, samples = [], []
    for _ in range(batch):
        inputs.append(torch.randint(0, 256, (3, *hw_shape), dtype=torch.uint8))
        labels = torch.randint(0, model.decode_head.num_classes, (1, *hw_shape))
        samples.append(SegDataSample(gt_sem_seg=PixelData(data=labels), metainfo=sizes))
    return model.data_preprocessor(dict(inputs=inputs, data_samples=samples), training)


def _autocast(session: Session) -> torch.autocast:
    return torch.autocast(session.device.type, torch.bfloat16, enabled=not session.tiny)


def _training_step(session: Session, of: Model, model: Any) -> Callable[[], torch.Tensor]:
    """Return a function that trains for one step and returns the loss."""
    data = _random_batch(model.train(), of.batch, of.hw_shape, True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-5)

    def step() -> torch.Tensor:
        with _autocast(session):
            loss, _ = model.parse_losses(model(**data, mode='loss'))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _measured(what: str, step: Callable[[], object], session: Session) -> Row:
    """Return the milliseconds of a step, with the host, and the peak memory in MiB."""
    for _ in range(1 if session.tiny else 3):
        step()
    if session.gpu:
        torch.cuda.reset_peak_memory_stats(session.device)
    seconds = wall(step, session.synchronize, 0.0, calls=1 if session.tiny else 2)
    row: Row = {f'{what}_ms': round(1e3 * seconds, 2)}
    if session.gpu:
        row[f'{what}_mib'] = torch.cuda.max_memory_allocated(session.device) >> 20
    return row
