"""Import hook that makes ``mmcv.ops`` of mmcv-lite importable without the compiled module.

``mmlinattn_mmcv.pth`` imports this file whenever Python starts, because scripts may import
MMDetection before they read a config. If the package is on the path without being installed,
``import mmlinattn`` imports it. This file must stay cheap, so it imports neither torch nor
mmlinattn.
"""

import os
import sys


class StandInFinder:
    """Finder of ``mmcv._ext``, the last in ``sys.meta_path`` so that compiled mmcv has priority."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the ``ModuleSpec`` of the stand-in for ``mmcv._ext``, None for any other name."""
        if name != 'mmcv._ext':
            return None
        from importlib.util import spec_from_file_location

        # Loaded by file, not by module name, because mmlinattn imports mmcv.
        here = os.path.dirname(os.path.abspath(__file__))
        return spec_from_file_location(
            name, os.path.join(here, 'mmlinattn', 'utils', 'mmcv_ops.py')
        )


if StandInFinder not in sys.meta_path:
    sys.meta_path.append(StandInFinder)
