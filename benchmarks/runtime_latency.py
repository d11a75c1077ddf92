"""Benchmark of exported models by format, for the table of docs/export.md.

    python benchmarks/runtime_latency.py                         # half an hour on one core
    python benchmarks/runtime_latency.py --only smca --format onnx
    python benchmarks/runtime_latency.py --zoo                   # all attentions, two classifiers

A cell holds the largest difference from torch at three sizes (static: at one size), the processor
seconds of the export after the capture, and the milliseconds of a call. Calls use the first size
and one thread. Weights are not trained.
"""

import argparse
import logging
import resource
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Iterator, List, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import commit, machine, version
from benchmarks.study.grid import refusal
from benchmarks.untrained import spread_head_weights
from benchmarks.zoo import plan
from mmlinattn.deployment import FORMATS, Export, ExportedFile, ExportResult, ExportSettings
from mmlinattn.deployment.capture import strides_of
from mmlinattn.deployment.deployable import Deployable, deployable
from mmlinattn.deployment.formats import check_format, silence
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import preprocessor_of
from mmlinattn.models.layers import optimize_for_cpu

console = Console(highlight=False, width=160, stderr=True)
ROOT = Path(__file__).resolve().parents[1]
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


def spent() -> float:
    """Return the processor time in seconds, including that of compilers in child processes."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)


def without_pretrained(node) -> None:
    """Remove pretrained checkpoints from a config in place."""
    if isinstance(node, dict):
        if (node.get('init_cfg') or {}).get('type') == 'Pretrained':
            node['init_cfg'] = None
        for value in node.values():
            without_pretrained(value)


def build(cfg: Config) -> Deployable:
    """Return the deployable model of a config, untrained."""
    without_pretrained(cfg._cfg_dict)
    torch.manual_seed(0)
    model = optimize_for_cpu(MODELS.build(dict(cfg.model, data_preprocessor=preprocessor_of(cfg))))
    spread_head_weights(model)
    return deployable(model, cfg)


def cells(cfg: Config, shape, static: bool, formats: List[str], folder: Path) -> Iterator[str]:
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
        except Exception as error:  # exporters raise exceptions of many types
            yield f'{type(error).__name__}: {" ".join(str(error).split())!s:.80}'
            continue
        seconds = spent() - start
        file, image = ExportedFile(written.path, threads=1), exported.images[0]
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


def zoo(only: List[str]) -> None:
    """Print the table of every attention in the classifiers of the zoo."""
    axes = plan.grid().axes
    print(f'| | {" | ".join(entry["title"] for entry in axes["backbone"].values())} |')
    print(f'| --- |{" ---: |" * len(axes["backbone"])}')
    for name in axes['attention']:
        if not any(part.lower() in name.lower() for part in only):
            continue
        row = []
        for host in axes['backbone']:
            console.print(name, host)
            start = spent()
            try:
                with silence(), tempfile.TemporaryDirectory() as folder:
                    sizes, written = zoo_export(host, name, Path(folder))
                worst = max(written.errors.values())
                row.append(f'{sizes}, {worst:.0e}, {spent() - start:.0f} s')
            except Exception as error:  # exporters raise exceptions of many types
                row.append(f'{type(error).__name__}: {" ".join(str(error).split())!s:.80}')
        print(f'| {name} | {" | ".join(row)} |', flush=True)


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--only', nargs='+', default=[''], help='parts of names')
    parser.add_argument('--format', nargs='+', default=['onnx', 'openvino', 'aoti'])
    parser.add_argument('--zoo', action='store_true', help='attentions in place of models')
    args = parser.parse_args(argv)
    for name in ['onnx'] if args.zoo else args.format:
        check_format(name)
    warnings.filterwarnings('ignore')
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    packages = ', '.join(f'{name} {version(name)}' for name in ('torch', 'onnxruntime', 'openvino'))
    print(f'{machine(torch.device("cpu"))}, {packages}, commit {commit()}\n')
    if args.zoo:
        return zoo(args.only)
    print(f'| | sizes | capture | {" | ".join(args.format)} |')
    print(f'| --- | --- | ---: |{" ---: |" * len(args.format)}')
    for name, (config, shape) in CASES.items():
        if not any(part.lower() in name.lower() for part in args.only):
            continue
        for static in (True, False):
            console.print(name, 'static' if static else 'dynamic')
            cfg = load_config(str(ROOT / 'configs' / f'{config}.py'))
            sizes = 'one' if static else 'any'
            with tempfile.TemporaryDirectory() as folder:
                found = ' | '.join(cells(cfg, shape, static, args.format, Path(folder)))
            print(f'| {name}, {shape[0]}x{shape[1]} | {sizes} | {found} |', flush=True)


if __name__ == '__main__':
    main(sys.argv[1:])
