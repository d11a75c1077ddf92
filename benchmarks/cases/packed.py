"""Cases of packed images of different sizes, against padding and one by one.

The sizes of a batch are those of a distribution:

- ``same``: all have the size of the setup, as those of BCCD (``--images 480x640``);
- ``scales``: the same with the shorter side from 1 to 5/3 of it, as DETR trains;
- ``coco``: frequent sizes of COCO, resized to the shorter and at most the longer side of the setup
  (``--images 800x1333``).
"""

import bisect
import itertools
from functools import partial
from typing import Callable, Dict, List, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .registry import Baseline, Baselines, Setup, case

Size = Tuple[int, int]
Call = Callable[[], Sequence[Tensor]]
# (height, width) and share. The other images of COCO have hundreds of sizes in between.
COCO = {
    (480, 640): 30, (427, 640): 25, (640, 480): 12, (640, 427): 7, (426, 640): 8, (500, 375): 2,
    (375, 500): 4, (360, 640): 4, (640, 640): 3, (640, 360): 2, (333, 500): 3,
}  # fmt: skip
SCALES = [1 + i / 15 for i in range(11)]  # 480, 512, ..., 800
DEPTHS = dict(vit=12, encoder=6)


def resized(size: Size, short: float, longest: float) -> Size:
    """Return (height, width) with the shorter side ``short``, the longer at most ``longest``.

    Example:
        >>> resized((480, 640), 800, 1333), resized((360, 640), 800, 1333)
        ((800, 1067), (750, 1333))
    """
    scale = min(short / min(size), longest / max(size))
    return round(size[0] * scale), round(size[1] * scale)


def draw(distribution: str, size: Size, count: int) -> List[Size]:
    """Return the (height, width) of a batch, which has each size by its share.

    Example:
        >>> draw('coco', (800, 1333), 4)
        [(800, 1067), (800, 1199), (1067, 800), (800, 1067)]
    """
    if distribution == 'same':
        return [size] * count
    if distribution == 'scales':
        shares = {resized(size, scale * min(size), 2 * max(size)): 1 for scale in SCALES}
    else:
        shares = COCO
    ends = list(itertools.accumulate(shares.values()))
    places = [bisect.bisect(ends, (i + 0.5) / count * ends[-1]) for i in range(count)]
    drawn = [[*shares][place] for place in places]
    return [resized(of, *size) for of in drawn] if distribution == 'coco' else drawn


def _vit(setup: Setup, sizes: Sequence[Size]) -> Tuple[nn.Module, Dict[str, Call]]:
    """Return a ViT with patches of 16 and the widths of DeiT-T, and its calls."""
    from mmlinattn.models.backbones import ViT

    arch = dict(embed_dims=192, num_heads=3, depth=DEPTHS['vit'])
    model = setup.module(ViT(arch, 'RALA', with_cls_token=False, img_size=(480, 640))).eval()
    images = [setup.randn(3, *size) for size in sizes]
    height, width = (max(size[i] for size in sizes) for i in range(2))
    batch = torch.stack([F.pad(x, (0, width - x.shape[2], 0, height - x.shape[1])) for x in images])
    return model, {
        'packed': lambda: model(images)[0],
        'padded': lambda: [model(batch)[0]],
        'one by one': lambda: [model(image[None])[0] for image in images],
    }


def _encoder(setup: Setup, sizes: Sequence[Size]) -> Tuple[nn.Module, Dict[str, Call]]:
    """Return the encoder of SMCA on maps with a stride of 32, and its calls."""
    from mmlinattn.models.detectors.smca_encoder import SMCAEncoder
    from mmlinattn.ops import PackedShapes

    encoder = SMCAEncoder(DEPTHS['encoder'], dict(attn_cfg='RALA', dropout=0.0))
    model = setup.module(encoder).eval()
    shapes = [(-(-height // 32), -(-width // 32)) for height, width in sizes]
    maps = [setup.randn(*shape, 256) for shape in shapes]
    height, width = (max(shape[i] for shape in shapes) for i in range(2))
    batch = setup.randn(len(maps), height, width, 256).zero_()
    mask = torch.ones(len(maps), height, width, dtype=torch.bool, device=setup.device)
    for i, x in enumerate(maps):
        batch[i, : x.shape[0], : x.shape[1]] = x
        mask[i, : x.shape[0], : x.shape[1]] = False
    tokens, packed = [x.flatten(0, 1)[None] for x in maps], PackedShapes(shapes)
    together = torch.cat(tokens, 1)
    return model, {
        'packed': lambda: packed.split(model(together, packed)),
        'padded': lambda: [model(batch.flatten(1, 2), (height, width), None, mask.flatten(1))],
        'one by one': lambda: [model(x, shape) for x, shape in zip(tokens, shapes)],
    }


def _packed(build: Callable, distribution: str, setup: Setup) -> Baselines:
    sizes = draw(distribution, setup.hw_shape, setup.batch)
    model, calls = build(setup, sizes)
    area = max(h for h, _ in sizes) * max(w for _, w in sizes) * len(sizes)
    padding = 1 - sum(h * w for h, w in sizes) / area
    calls[f'padded, {padding:.0%} of it padding'] = calls.pop('padded')
    parameters = tuple(model.parameters())
    return {
        name: Baseline(
            call, (), parameters, same=not name.startswith('padded'), as_first=torch.flatten
        )
        for name, call in calls.items()
    }


for _name, _build in (('vit', _vit), ('encoder', _encoder)):
    for _distribution in ('same', 'scales', 'coco'):
        case(
            f'packed-{_name}-{_distribution}',
            'backbone',
            f'{"DeiT-T without class token" if _name == "vit" else "The encoder of SMCA"}, with '
            'RALA: a batch of images packed, one by one, and padded (use --batch 8, --images '
            f'{"800x1333" if _distribution == "coco" else "480x640"}).',
            stride=16 if _name == 'vit' else 32,
            chosen=True,
        )(partial(_packed, _build, _distribution))
