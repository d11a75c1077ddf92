"""Datasets of the zoo, created if they are missing."""

import json
from pathlib import Path
from typing import Dict, Optional

from mmlinattn.datasets import shapes
from mmlinattn.datasets.crops import DESCRIPTION, crop_objects

from .plan import ROOT, SIDE, Sizes

BCCD = ROOT / 'data' / 'bccd'  # docs/datasets.md
# Also use the test split: the schedule is fixed, and 87 images are too few for a score.
BCCD_SPLITS = dict(train=['train'], val=['val', 'test'])


def find_bccd(given: Optional[Path] = None) -> Optional[Path]:
    """Return the folder of BCCD, or None if there is none.

    Raises:
        FileNotFoundError: ``given`` is not a BCCD folder.
    """
    folder = given or BCCD
    if (folder / 'annotations' / 'train.json').is_file():
        return folder
    if given:
        raise FileNotFoundError(f'--bccd {given}: no annotations/train.json there')
    return None


def prepare(folder: Path, sizes: Sizes, bccd: Optional[Path]) -> Dict[str, Path]:
    """Create the datasets in a folder and return the root of each by its name in ``plan.DATA``."""
    root = folder / f'shapes-{sizes.drawn}-{sizes.drawn_val}'
    shapes.generate(root, sizes.drawn, sizes.drawn_val, workers=1)
    roots = {'shapes': root / 'imagenet'}
    if bccd:
        roots['bccd-cells'] = crop_objects(
            bccd,
            folder / f'bccd-cells-{sizes.cells}-{sizes.cells_val}',
            BCCD_SPLITS,
            SIDE,
            max_per_class=dict(train=sizes.cells, val=sizes.cells_val),
        )
    return roots


def description(root: Path) -> dict:
    """Return the settings that a dataset was created with."""
    files = (root / DESCRIPTION, root.parent / 'shapes.json')
    return json.loads(next(file for file in files if file.is_file()).read_bytes())
