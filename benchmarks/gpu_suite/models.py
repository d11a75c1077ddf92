"""Sections that time and profile whole models with random weights and images."""

import statistics
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from ..baselines.released_ravlt import released_ravlt
from ..cases import configs
from ..jobs import Jobs, NeedsMore, Row, Session


@dataclass(frozen=True)
class Model:
    """A model and the images of a training step.

    Args:
        config, backbone: see :func:`benchmarks.cases.configs.build`.
        released: file of :func:`released_ravlt`, whose model replaces the backbone.
    """

    config: str
    hw_shape: Tuple[int, int] = (800, 1344)
    batch: int = 2
    backbone: Dict[str, Any] = field(default_factory=dict)
    released: Optional[Path] = None

    def build(self, device: torch.device) -> Any:
        try:
            model = configs.build(self.config, self.backbone)
            if self.released:
                model.backbone = released_ravlt(self.released)
        except ModuleNotFoundError as error:
            raise NeedsMore(f'needs OpenMMLab: {error}') from error
        return model.to(device)


RWGKA = dict(attn_cfg=dict(type='RWGKA', num_anchors=64))
RALA = dict(attn_cfg='RALA')
RAVLT = Model('ravlt/mask-rcnn_ravlt-s_fpn_1x_coco.py')
TINY = {
    'Faster R-CNN RAVLT-nano': Model('ravlt/faster-rcnn_ravlt-nano_bccd.py', (64, 96), 1),
    'SegFormer-B0 RWGKA': Model('segformer/segformer_mit-b0_shapes.py', (64, 64), 1, RWGKA),
}
PROFILED = ('Mask R-CNN RAVLT-S', 'SegFormer-B0 RWGKA, 1024x1024')


def models(session: Session, released: Optional[Path] = None) -> Dict[str, Model]:
    """Return all models by name, the most valuable first."""
    if session.tiny:
        return TINY
    found = {
        'Mask R-CNN RAVLT-S': RAVLT,
        'Mask R-CNN RAVLT-S, RALA in all stages': replace(RAVLT, backbone=RALA),
        'Mask R-CNN Swin-T': Model('mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py'),
        'Mask R-CNN ResNet-50': Model('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'),
    }
    if released:
        found['Mask R-CNN RAVLT-S, released backbone'] = replace(RAVLT, released=released)
    for hw_shape, batch in (((1024, 1024), 8), ((1024, 2048), 4)):
        for arch in ('b0', 'b2'):
            file = f'segformer/segformer_mit-{arch}_8xb1-160k_cityscapes-1024x1024.py'
            ours, at = Model(file, hw_shape, batch), '{}x{}'.format(*hw_shape)
            name = f'SegFormer-{arch.upper()}'
            found[f'{name} of MMSegmentation, {at}'] = replace(ours, config=f'mmseg::{file}')
            found[f'{name} with its own attention, {at}'] = ours
            found[f'{name} RWGKA, {at}'] = replace(ours, backbone=RWGKA)
            found[f'{name} RALA, {at}'] = replace(ours, backbone=RALA)
    for name in ('smca', 'smca-la', 'smca-ripple'):
        found[f'{name.upper()} ResNet-50'] = Model(f'smca/{name}_r50_8xb2-50e_coco.py')
    return found


def timings(session: Session, released: Optional[Path] = None) -> Jobs:
    """Time a training step, and the prediction of one image up to post-processing."""
    found = models(session, released).items()
    return {name: [partial(_timing, session, name, model)] for name, model in found}


def _timing(session: Session, name: str, of: Model) -> Iterable[Row]:
    model = of.build(session.device)
    row: Row = dict(name=name, batch=of.batch, image='{}x{}'.format(*of.hw_shape))
    row['params'] = round(sum(p.numel() for p in model.parameters()) / 1e6, 2)
    step = _training_step(session, of, model)
    row.update(_measured('train', step, session), loss=step().item())
    del step
    model.zero_grad(set_to_none=True)
    one = configs.random_batch(model.eval(), 1, of.hw_shape, False)

    def predict() -> None:
        with torch.no_grad(), _autocast(session):
            model(**one, mode='tensor')

    yield {**row, **_measured('tensor', predict, session)}


def _autocast(session: Session) -> torch.autocast:
    return torch.autocast(session.device.type, torch.bfloat16, enabled=not session.tiny)


def _training_step(session: Session, of: Model, model: Any) -> Callable[[], torch.Tensor]:
    """Return a function that trains for one step and returns the loss."""
    data = configs.random_batch(model.train(), of.batch, of.hw_shape, True)
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
    session.synchronize()
    if session.gpu:
        torch.cuda.reset_peak_memory_stats(session.device)
    seconds = []
    for _ in range(1 if session.tiny else 6):
        start = time.perf_counter()
        step()
        session.synchronize()
        seconds.append(time.perf_counter() - start)
    row: Row = {f'{what}_ms': round(1e3 * statistics.median(seconds), 2)}
    if session.gpu:
        row[f'{what}_mib'] = torch.cuda.max_memory_allocated(session.device) >> 20
    return row


def profiles(session: Session) -> Jobs:
    """Count the kernels of a training step and name those that take most of the time."""
    chosen = [(n, model) for n, model in models(session).items() if session.tiny or n in PROFILED]
    return {name: [partial(_profile, session, name, model)] for name, model in chosen}


def _profile(session: Session, name: str, of: Model) -> Iterable[Row]:
    from torch.profiler import ProfilerActivity, profile

    step = _training_step(session, of, of.build(session.device))
    for _ in range(2):
        step()
    session.synchronize()
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * session.gpu]
    with profile(activities=activities) as profiler:
        step()
        session.synchronize()
    times: Dict[str, List[float]] = {}
    for event in profiler.events():
        if (event.device_type == torch.autograd.DeviceType.CUDA) == session.gpu:
            taken = event.time_range.elapsed_us() if session.gpu else event.self_cpu_time_total
            times.setdefault(event.name, []).append(taken)
    total, launches = sum(map(sum, times.values())), sum(map(len, times.values()))
    for kernel in sorted(times, key=lambda kernel: -sum(times[kernel]))[:10]:
        yield dict(
            what=name, launches=launches, device_ms=round(total / 1e3, 2), kernel=kernel[:80],
            calls=len(times[kernel]), share=sum(times[kernel]) / total,
        )  # fmt: skip
