"""Getting along with other packages: what mmcv-lite lacks, which versions were tested.

Imported before the rest: with mmcv-lite, ``mmcv.ops`` imports from here on.
"""

import mmlinattn_mmcv  # noqa: F401

from .environment import prepare_environment
from .versions import TESTED, warn_if_untested

__all__ = ['TESTED', 'warn_if_untested']

prepare_environment()
