"""Exports of whole models by format, and of classifiers with every attention, for exports.py."""

import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Iterator, List, Tuple

import torch
from mmengine.config import Config
from torch import nn

from benchmarks import tables
from benchmarks.machine import ROOT
from benchmarks.study.grid import refusal
from benchmarks.zoo import plan
from mmlinattn.deployment import FORMATS, Export, ExportResult, ExportSettings
from mmlinattn.deployment.capture import strides_of
from mmlinattn.deployment.deployable import Deployable, deployable
from mmlinattn.deployment.formats import silence
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import initial_model

# Config, and height and width of the capture.
CASES = {
    'classifier, RAVLT nano': ('quickstart/ravlt-nano_shapes', (64, 96)),
    'Semantic FPN, RAVLT nano': ('quickstart/semantic-fpn_ravlt-nano_shapes', (128, 160)),
    'SegFormer, MiT-B0 RWGKP': ('rwgka/segformer_mit-b0-rwgkp_shapes', (128, 160)),
    'RetinaNet, RAVLT nano': ('ravlt/retinanet_ravlt-nano_bccd', (128, 160)),
    'Mask R-CNN, RAVLT nano': ('quickstart/mask-rcnn_ravlt-nano_shapes', (128, 160)),
    'SMCA nano': ('smca/smca_nano_shapes', (128, 160)),
    'classifier, RAVLT-S': ('ravlt/ravlt-s_8xb128_in1k', (224, 256)),
}
# Spread of the outputs of a layer, by its name or that of its parent.
SPREAD = dict(
    rpn_cls=1, rpn_reg=1, retina_cls=1, retina_reg=1, fc_cls=4, fc_reg=1, conv_logits=3,
    conv_seg=3, offset=30, cross_attn=3,
)  # fmt: skip


def spread_head_weights(model: nn.Module) -> None:
    """Initialise the weights of heads in place, for many distinct predictions and no ties."""
    for name, layer in model.named_modules():
        spread = SPREAD.get(name.removesuffix('.in_proj').rpartition('.')[2])
        if spread is not None and hasattr(layer, 'weight'):
            nn.init.normal_(layer.weight, std=spread / layer.weight[0].numel() ** 0.5)


def failure(error: Exception) -> str:
    """Return the cell of a failed export: exporters raise exceptions of many types."""
    return f'{type(error).__name__}: {" ".join(str(error).split())!s:.80}'


def spent() -> float:
    """Return the processor time in seconds, including that of compilers in child processes."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def build(cfg: Config) -> Deployable:
    """Return the deployable model of a config, untrained."""
    model = initial_model(cfg)
    spread_head_weights(model)
    return deployable(model, cfg)


def cells(cfg: Config, shape, static: bool, formats: List[str], folder: Path) -> Iterator[str]:
    with silence():
        model = build(cfg)
    noise = torch.nn.functional.interpolate(torch.rand(1, 3, 16, 20) * 255, shape, mode='bicubic')
    start = spent()
    with silence():
        exported = Export(model, [], ExportSettings(shape, static), noise.clamp(0, 255))
    yield f'{spent() - start:.0f} s'
    for name in formats:
        start = spent()
        try:
            written = exported.write(name, folder / f'model{FORMATS[name].suffix}')
        except Exception as error:
            yield failure(error)
            continue
        seconds = spent() - start
        file, image = FORMATS[name].load(written.path), exported.images[0]
        times = []
        for _ in range(12):
            start = time.process_time()
            file(image)
            times.append(1e3 * (time.process_time() - start))
        worst = max(written.errors.values())
        yield f'{worst:.0e}, {seconds:.0f} s, {statistics.median(times[2:]):.1f} ms'


def zoo_export(host: str, attention: str, folder: Path) -> Tuple[str, ExportResult]:
    """Export a zoo classifier to ONNX and return its sizes, ``any`` or ``one``, and the file.

    Raises:
        ValueError: the host does not support the attention. Exceptions of the exporter pass
            through.
    """
    cfg = plan.grid().run(dict(backbone=host, data='shapes', attention=attention)).load()
    why = refusal(cfg)
    if why:
        raise ValueError(f'not in {host}: {why}')
    # A file of dynamic size needs at least two cells of the coarsest map.
    side = max(plan.SIDE, 2 * strides_of(build(cfg).model)[0])
    image = torch.nn.functional.interpolate(torch.rand(1, 3, 9, 9) * 255, (side, side))
    path = folder / f'{host}-{attention}.onnx'
    try:
        settings = ExportSettings((side, side + side // 2))
        return 'any', Export(build(cfg), [], settings, image).write('onnx', path)
    except Exception as error:
        if 'dynamic height and width' not in str(error):
            raise
    settings = ExportSettings((side, side), static=True)
    return 'one', Export(build(cfg), [], settings, image).write('onnx', path)


def models(only: List[str], formats: List[str]) -> None:
    """Print the table of whole models, captured at one size and at any."""
    print(*tables.markdown(['', 'sizes', 'capture', *formats], []), sep='\n')
    for name, (config, shape) in CASES.items():
        if not wanted(name, only):
            continue
        for static in (True, False):
            cfg = load_config(str(ROOT / 'configs' / f'{config}.py'))
            title, sizes = f'{name}, {shape[0]}x{shape[1]}', 'one' if static else 'any'
            with tempfile.TemporaryDirectory() as folder:
                found = cells(cfg, shape, static, formats, Path(folder))
                print(tables.row([title, sizes, *found]), flush=True)


def classifiers(only: List[str]) -> None:
    """Print the table of every attention in the classifiers of the zoo."""
    axes = plan.grid().axes
    titles = (entry['title'] for entry in axes['backbone'].values())
    print(*tables.markdown(['', *titles], []), sep='\n')
    for name in axes['attention']:
        if not wanted(name, only):
            continue
        row = [name]
        for host in axes['backbone']:
            start = spent()
            try:
                with silence(), tempfile.TemporaryDirectory() as folder:
                    sizes, written = zoo_export(host, name, Path(folder))
                worst = max(written.errors.values())
                row.append(f'{sizes}, {worst:.0e}, {spent() - start:.0f} s')
            except Exception as error:
                row.append(failure(error))
        print(tables.row(row), flush=True)


def wanted(name: str, only: List[str]) -> bool:
    """Return True if a name has one of the parts."""
    return any(part.lower() in name.lower() for part in only)
