"""Lets ``mmcv.ops`` of mmcv-lite import: finds a stand-in for the compiled module that it lacks.

``mmlinattn_mmcv.pth`` imports this file whenever Python starts, so that scripts which import
MMDetection before they read a config find the stand-in too; ``import mmlinattn`` does the same
where the package is on the path without being installed. It must cost next to nothing: no torch,
no mmlinattn, one more finder that answers to one name.
"""

import os
import sys


class StandInFinder:
    """Finds ``mmcv._ext`` where no other finder did: last in line, compiled mmcv goes first."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """The stand-in's ``ModuleSpec`` for that name, None for any other."""
        if name != 'mmcv._ext':
            return None
        from importlib.util import spec_from_file_location

        # By file, not by module name: mmlinattn itself imports mmcv.
        here = os.path.dirname(os.path.abspath(__file__))
        return spec_from_file_location(
            name, os.path.join(here, 'mmlinattn', 'utils', 'mmcv_ops.py')
        )


if StandInFinder not in sys.meta_path:
    sys.meta_path.append(StandInFinder)
