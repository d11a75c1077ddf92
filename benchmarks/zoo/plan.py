"""Grid of the zoo: the axes of ``zoo.yml``, with attentions of other modules on request."""

import importlib
from pathlib import Path
from typing import Dict, Optional, Sequence, Type

from benchmarks.study import grid as study
from mmlinattn.models.layers import BaseAttention, registered_subclasses

FILE = Path(__file__).with_name('zoo.yml')
SIDE = 64  # image size in pixels
SEEDS = 5  # of the attentions in MAIN; the others have one
MAIN = (
    'SoftmaxAttention', 'LinearAttention', 'RALA', 'RWGKA', 'RWGKP', 'RippleAttention',
    'AdditiveAttention',
)  # fmt: skip


def content(
    names: Optional[Dict[str, Sequence[str]]] = None, seeds: int = 1, quick: bool = False
) -> dict:
    """Return the content of the grid, with ``sizes`` of the data sets besides.

    Args:
        names: on some axes, in this order; an attention may be ``module.Class``.
        seeds: number of seeds of the attentions in :data:`MAIN`.
        quick: a few images and one epoch.

    Raises:
        benchmarks.study.grid.GridError: a name is unknown.
    """
    found = study.read(FILE, quick)
    own = {name: own_attention(name) for name in (names or {}).get('attention', ()) if '.' in name}
    found['axes']['attention'].update(own)
    study.select(found, names or {})
    main = [name for name in found['axes']['attention'] if name in MAIN]
    found['more_seeds'] = dict(attention=dict.fromkeys(main, seeds))
    for name, entry in found['axes']['data'].items():
        root = f'data/{folders(found["sizes"])[name]}'
        splits = ('train', 'val', 'test')
        entry['options'] = {f'{split}_dataloader.dataset.data_root': root for split in splits}
    return found


def folders(sizes: Dict[str, int]) -> Dict[str, str]:
    """Return the folder of each data set, named by its size, because results depend on it."""
    return {
        'shapes': f'shapes-{sizes["drawn"]}-{sizes["drawn_val"]}/imagenet',
        'bccd-cells': f'bccd-cells-{sizes["cells"]}-{sizes["cells_val"]}',
    }


def grid(data_root: str = 'data', **options: object) -> study.Grid:
    """Return the grid; see :func:`content` for the options."""
    found = content(**options)
    del found['sizes']
    return study.build(found, data_root)


def own_attention(name: str) -> dict:
    """Import an attention by its path ``module.Class`` and return its entry on the axis.

    Raises:
        benchmarks.study.grid.GridError: there is none, or it is no registered attention.
    """
    module, _, cls = name.rpartition('.')
    try:
        kind: Type[BaseAttention] = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise study.GridError(
            f'{name!r} cannot be imported: {error}. Run the command in the folder of the '
            'module, or add the folder to PYTHONPATH'
        ) from error
    registered = [n for n, of in registered_subclasses(BaseAttention).items() if of is kind]
    if not registered:
        raise study.GridError(
            f'{name!r} is no registered attention: derive it from BaseAttention and decorate it '
            'with @MODELS.register_module()'
        )
    attn_cfg: Dict[str, object] = dict(type=registered[0])
    if 'lepe' in kind.backbone_options:
        attn_cfg.update(rotary=False, lepe=0, gate=None)
    imports = ['mmlinattn', module]
    return dict(options={'model.backbone.attn_cfg': attn_cfg, 'custom_imports.imports': imports})
