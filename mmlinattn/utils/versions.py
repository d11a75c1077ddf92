"""Tested versions of other packages."""

import re
import sys
import warnings
from typing import Optional, Tuple

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
    """Warn once about all imported packages whose versions are outside ``TESTED``."""
    found = []
    for name in TESTED:
        # Distributions have other names, OneDL's and the originals'.
        version = getattr(sys.modules.get(name), '__version__', None)
        problem = None if version is None else untested(name, version)
        if problem:
            found.append(f'{name} {version} ({problem})')
    if found:
        warnings.warn(f'mmlinattn was not tested with {", ".join(found)}', stacklevel=3)


def untested(name: str, version: str) -> Optional[str]:
    """Return the tested versions of a package of ``TESTED``, or None if this one was tested.

    Example:
        >>> untested('mmcv', '2.0.1'), untested('mmcv', '2.2.0')
        ('tested: 2.1 to 2.3', None)
    """
    first, last = TESTED[name]
    if _number(first) <= _number(version) <= _number(last):
        return None
    return f'tested: {first}' if first == last else f'tested: {first} to {last}'


def _number(version: str) -> Tuple[int, ...]:
    """Return the major and minor version, for example (2, 11) for '2.11.0+cu130'."""
    return tuple(int(part) for part in re.findall(r'\d+', version)[:2])
