"""Exports by exporter and by format, with error and time, for docs/export.md.

    python benchmarks/exports.py                      # layers of every attention, then backbones
    python benchmarks/exports.py --only mit-b0-rwgkp ravlt-s
    python benchmarks/exports.py --models             # by format: half an hour on one core
    python benchmarks/exports.py --models --only smca --format onnx
    python benchmarks/exports.py --zoo                # all attentions in two classifiers

A difference is the largest from torch in float32 over the largest number of the output. Sizes and
batches differ from the exported ones. Seconds are those of the processor, milliseconds those of a
call at the first size. One thread; weights are not trained.
"""

import argparse
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch.export import Dim, export

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import model_exports, tables
from benchmarks.cases.layers import attentions
from benchmarks.machine import commit, machine, version
from mmlinattn.deployment.formats import OPSET, check_format, silence
from mmlinattn.models.backbones import RAVLT, CvT, MixTransformer, Swin, ViL, ViT
from mmlinattn.models.layers import build_attention, map_to_tokens, tokens_to_map

# isort: split
import onnxruntime  # after mmlinattn, which disables its usage reports

CHANNELS, HEADS = 32, 2
Size = Tuple[int, int, int]  # images, rows, columns; the first of several is exported
LAYER: Tuple[Size, ...] = ((2, 12, 20), (1, 9, 14), (3, 17, 11), (2, 5, 30))
BACKBONE: Tuple[Size, ...] = ((2, 160, 224), (1, 128, 192), (3, 157, 203), (2, 96, 333))
VARIANTS = {
    'RALA, learnable': dict(type='RALA', kv_augmentation='learnable', num_tokens=12 * 20),
    'LinearAttention, rotary': dict(type='LinearAttention', position='RotaryPosition'),
    'LinearAttention, SineSPE': dict(type='LinearAttention', position='SineSPE'),
    'LinearAttention, ConvSPE': dict(type='LinearAttention', position='ConvSPE'),
    'LinearAttention, permuted': dict(type='LinearAttention', position='PermutationPosition'),
    'RippleAttention, log': dict(type='RippleAttention', groups='log'),
    'RippleAttention, sat': dict(type='RippleAttention', backend='sat'),
    'VisionLongformerAttention, relative': dict(
        type='VisionLongformerAttention', relative_bias=True
    ),
}
SMALL = dict(embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4))
VIT = dict(embed_dims=64, num_heads=2, depth=3, patch_size=8)
BATCH_NORM = dict(norm_cfg=dict(type='BN'))
RIPPLE = ['RippleAttention', 'RippleAttention', 'LinearAttention']
BACKBONES: Dict[str, Callable[[], nn.Module]] = {
    'ravlt-nano': partial(RAVLT, SMALL, **BATCH_NORM),
    'ravlt-nano-rala': partial(RAVLT, SMALL, 'RALA', **BATCH_NORM),
    'mit-b0': partial(MixTransformer, 'b0'),
    'mit-b0-rwgka': partial(MixTransformer, 'b0', 'RWGKA'),
    'mit-b0-rwgkp': partial(MixTransformer, 'b0', 'RWGKP'),
    'cvt-nano': partial(CvT, dict(embed_dims=(16, 32, 48), depths=1, num_heads=(1, 2, 4))),
    'cvt-nano-rwgkp': partial(
        CvT, dict(embed_dims=(16, 32, 48), depths=1, num_heads=(1, 2, 4)), 'RWGKP'
    ),
    'vit-nano-ripple': partial(ViT, VIT, RIPPLE, img_size=64),
    'vit-nano-ripple-no-cls': partial(ViT, VIT, RIPPLE, img_size=64, with_cls_token=False),
    'swin-nano-rala': partial(Swin, SMALL, 'RALA'),
    'vil-nano-rwgkp': partial(ViL, SMALL, 'RWGKP', img_size=64),
    'ravlt-s': partial(RAVLT, 'small'),
}


class OnMap(nn.Module):
    """Wrapper that applies an attention to a map (B, C, H, W)."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn = attn

    def forward(self, x: Tensor) -> Tensor:
        hw_shape = tuple(x.shape[-2:])
        return tokens_to_map(self.attn(map_to_tokens(x), hw_shape), hw_shape)


def difference(found: Sequence, expected: Sequence[Tensor]) -> float:
    """Return the largest relative difference of all outputs; raise ValueError if shapes differ."""
    worst = 0.0
    for a, b in zip(found, expected):
        a = torch.as_tensor(a)
        if a.shape != b.shape:
            raise ValueError(f'an output of {tuple(a.shape)} in place of {tuple(b.shape)}')
        worst = max(worst, float((a - b).abs().max() / b.abs().max()))
    return worst


def outputs(out) -> Sequence[Tensor]:
    return out if isinstance(out, (tuple, list)) else (out,)


def compare(run: Callable, model: nn.Module, sizes: Sequence[Size], channels: int) -> float:
    images = [torch.randn(batch, channels, *hw) for batch, *hw in sizes]
    return max(difference(run(x), outputs(model(x))) for x in images)


def session(path: Path) -> Callable[[Tensor], Sequence]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    ready = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    name = ready.get_inputs()[0].name
    return lambda x: ready.run(None, {name: x.numpy()})


def exported_cells(
    model: nn.Module, x: Tensor, sizes: Sequence[Size], least: int, folder: Path, **options
):
    """Yield one cell per exporter: largest difference and seconds, or the reason of failure."""
    batch, height, width = (
        Dim(name, min=low, max=4096) for name, low in zip('bhw', (1, least, least))
    )
    dynamic, channels, path = ({0: batch, 2: height, 3: width},), x.shape[1], folder / 'model.onnx'

    def by_export() -> float:
        program = export(model, (x,), dynamic_shapes=dynamic)
        spent.append(time.process_time() - start)
        run = program.module()
        return compare(lambda y: outputs(run(y)), model, sizes[1:], channels)

    def by_onnx() -> float:
        torch.onnx.export(
            model, (x,), path, opset_version=OPSET, dynamo=True, verbose=False,
            external_data=False, dynamic_shapes=dynamic, **options,
        )  # fmt: skip
        spent.append(time.process_time() - start)
        return compare(session(path), model, sizes[1:], channels)

    def by_tracing() -> float:
        torch.onnx.export(model, (x,), path, opset_version=OPSET, dynamo=False)
        spent.append(time.process_time() - start)
        return compare(session(path), model, sizes[:1], channels)

    for exporter in (by_export, by_onnx, by_tracing):
        spent: List[float] = []
        start = time.process_time()
        try:
            with silence():
                found = exporter()
            yield f'{found:.0e}, {spent[0]:.0f} s'
        except Exception as error:
            yield refusal(' '.join(str(error).split())) or model_exports.failure(error)


def refusal(text: str) -> str:
    """Return a short form of this package's message in an exporter's error, or ''."""
    refusals = {'dynamic height and width': 'fixed size', 'cannot be exported to ONNX': 'refused'}
    return next((word for part, word in refusals.items() if part in text), '')


def table(models: Dict[str, Callable[[], nn.Module]], *args, **options) -> None:
    columns = ('', 'torch.export', 'ONNX, dynamic', 'ONNX, traced')
    print(*tables.markdown(columns, []), sep='\n')
    sizes, channels, least = args
    with tempfile.TemporaryDirectory() as folder:
        for name, build in models.items():
            torch.manual_seed(0)
            with silence():
                model = build().eval().requires_grad_(False)
            x = torch.randn(sizes[0][0], channels, *sizes[0][1:])
            cells = exported_cells(model, x, sizes, least, Path(folder), **options)
            print(tables.row([name, *cells]), flush=True)


def main(argv: List[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    configs = {name: dict(type=name) for name in attentions()}
    layers = {
        name: partial(lambda cfg: OnMap(build_attention(cfg, CHANNELS, HEADS)), cfg)
        for name, cfg in {**configs, **VARIANTS}.items()
    }
    parser.add_argument(
        '--only', nargs='+', metavar='NAME', help='with --models, --zoo parts of names'
    )
    parser.add_argument('--no-optimize', action='store_true', help='of onnxscript')
    parser.add_argument('--models', action='store_true', help='whole models by format')
    parser.add_argument('--format', nargs='+', default=['onnx', 'pt2'], metavar='NAME')
    parser.add_argument('--zoo', action='store_true', help='attentions in classifiers')
    args = parser.parse_args(argv)
    for name in args.format if args.models else ['onnx']:
        check_format(name)
    known = [*layers, *BACKBONES]
    unknown = [name for name in args.only or () if name not in known]
    if unknown and not (args.models or args.zoo):
        parser.error(f'--only {unknown[0]} is unknown; known are {", ".join(known)}')
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    packages = ', '.join(f'{name} {version(name)}' for name in ('torch', 'onnxruntime'))
    print(f'{machine(torch.device("cpu"))}, {packages}, commit {commit()}\n')
    if args.models:
        return model_exports.models(args.only or [''], args.format)
    if args.zoo:
        return model_exports.classifiers(args.only or [''])
    options = dict(optimize=not args.no_optimize)
    for models, *setting in ((layers, LAYER, CHANNELS, 4), (BACKBONES, BACKBONE, 3, 96)):
        chosen = {name: models[name] for name in models if not args.only or name in args.only}
        if chosen:
            table(chosen, *setting, **options)
            print()


if __name__ == '__main__':
    main(sys.argv[1:])
