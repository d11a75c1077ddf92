"""Datasets of the zoo, created if they are missing."""

from pathlib import Path
from typing import Dict, Optional, Sequence

from benchmarks.study.grid import ROOT
from mmlinattn.datasets import shapes
from mmlinattn.datasets.crops import crop_objects

from .plan import SIDE, folders

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


def prepare(folder: Path, sizes: Dict[str, int], names: Sequence[str], bccd: Path) -> None:
    """Create the data sets with these names in a folder."""
    for name in names:
        root = folder / folders(sizes)[name]
        if name == 'shapes':
            shapes.generate(root.parent, sizes['drawn'], sizes['drawn_val'], workers=1)
        else:
            most = dict(train=sizes['cells'], val=sizes['cells_val'])
            crop_objects(bccd, root, BCCD_SPLITS, SIDE, max_per_class=most)
