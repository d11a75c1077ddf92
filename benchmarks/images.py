"""Images of the nuclei set on a CPU: batches of mixed sizes, and tiles against whole images.

    python benchmarks/images.py --docs       # docs/benchmarks/images.md

Sizes alone matter: pixels and weights are random. The scores of tiles and whole images are in
docs/studies/nuclei.md.
"""

import argparse
import sys
from pathlib import Path
from typing import Callable, Dict, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F

import mmlinattn  # noqa: F401  registers
from benchmarks import machine, report
from benchmarks.measure import Spread, interleave, peak_memory
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import initial_model
from mmlinattn.models.backbones import ViT

CPU = torch.device('cpu')
# (height, width) of a batch: the five commonest sizes of the validation images, by their shares.
BATCH = [*[(256, 256)] * 4, (256, 320), (360, 360), (520, 696), (1024, 1024)]
LARGEST = (1040, 1388)
SEGMENTORS = {
    'its own attention': 'segformer_mit-b0_nuclei',
    'RWGKA': 'segformer_mit-b0-rwgka_nuclei',
    'RALA': 'segformer_mit-b0-rala_nuclei',
}


def costs(calls: Dict[str, Callable], rounds: int) -> List[list]:
    """Return name, seconds and MiB of each call, measured in turns."""
    with torch.no_grad():
        for call in calls.values():
            call()
        times = interleave(calls, CPU, rounds, 0.0)
        return [
            [name, round(Spread.of(times[name]).median, 2), round(peak_memory(call, CPU) / 2**20)]
            for name, call in calls.items()
        ]


def mixed(rounds: int) -> List[list]:
    """Measure a ViT on a batch of mixed sizes, packed, one by one and padded."""
    torch.manual_seed(0)
    images = [torch.randn(3, *size) for size in BATCH]
    height, width = (max(size[i] for size in BATCH) for i in range(2))
    batch = torch.stack([F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in images])
    lines = []
    for attention in ('RALA', 'SoftmaxAttention'):
        arch = dict(embed_dims=192, num_heads=3, depth=12)
        model = ViT(arch, attention, with_cls_token=False, img_size=(256, 256)).eval()
        calls: Dict[str, Callable] = {
            'packed': lambda model=model: model(images)[0],
            'one by one': lambda model=model: [model(x[None])[0][0] for x in images],
            'padded': lambda model=model: model(batch)[0],
        }
        with torch.no_grad():
            pairs = zip(calls['packed'](), calls['one by one']())
            difference = max((a - b).abs().max().item() for a, b in pairs)
        found = costs(calls, rounds)
        lines += [[f'{attention}, {name}', *rest, ''] for name, *rest in found]
        lines[-2][-1] = f'{difference:.0e}'
    return lines


def tiles(rounds: int) -> List[list]:
    """Measure segmentors on the largest image, whole and in tiles that overlap by a quarter."""
    image = torch.randn(1, 3, *LARGEST)
    metas = [dict(ori_shape=LARGEST, img_shape=LARGEST, pad_shape=LARGEST, padding_size=[0] * 4)]
    calls: Dict[str, Callable] = {}
    for name, config in SEGMENTORS.items():
        for tile in (None, 512, 256):
            model = initial_model(load_config(config)).eval()
            if tile:
                sides = dict(crop_size=(tile, tile), stride=(tile * 3 // 4,) * 2)
                model.test_cfg.update(mode='slide', **sides)
            what = f'{name}, tiles of {tile}' if tile else f'{name}, whole'
            calls[what] = lambda model=model: model.inference(image, metas)
    return costs(calls, rounds)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=5, help='of each measurement')
    parser.add_argument('--docs', action='store_true', help='write docs/benchmarks/images.md')
    args = parser.parse_args(argv)
    record = machine.facts('images.py', [*argv], CPU)
    columns = ['s', 'MiB']
    record['tables'] = {
        'Eight images of the sizes of the nuclei, ViT-T with patches of 16': dict(
            columns=['batch', *columns, 'largest difference from packed'], lines=mixed(args.rounds)
        ),
        'SegFormer-B0, one image of 1388x1040': dict(
            columns=['attention', *columns], lines=tiles(args.rounds)
        ),
    }
    print(*report.shown('images', record), sep='\n')
    if args.docs:
        report.publish('images', record)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
