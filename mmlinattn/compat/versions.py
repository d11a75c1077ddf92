"""The versions of other packages that were tested."""

import re
import sys
import warnings
from typing import Tuple

# First and last version tested, by import name.
TESTED = {
    'torch': ('2.4', '2.15'),
    'torchvision': ('0.19', '0.29'),
    'mmengine': ('0.10', '0.10'),
    'mmcv': ('2.1', '2.3'),
    'mmdet': ('3.3', '3.5'),
    'mmseg': ('1.2', '1.4'),
    'mmpretrain': ('1.2', '1.3'),
}


def warn_if_untested() -> None:
    """Names, in one warning, the imported packages whose versions are outside ``TESTED``.

    Only what is already imported is looked at, and by ``__version__``: OneDL's packages and the
    originals have the same modules under different names of distribution.
    """
    found = []
    for name, (first, last) in TESTED.items():
        version = getattr(sys.modules.get(name), '__version__', None)
        if version is not None and not _number(first) <= _number(version) <= _number(last):
            tested = first if first == last else f'{first} to {last}'
            found.append(f'{name} {version} (tested: {tested})')
    if found:
        warnings.warn(f'mmlinattn was not tested with {", ".join(found)}', stacklevel=3)


def _number(version: str) -> Tuple[int, ...]:
    """Major and minor version: (2, 11) of '2.11.0+cu130'."""
    return tuple(int(part) for part in re.findall(r'\d+', version)[:2])
