"""Linear-complexity attention for dense prediction, as a plugin of the OpenMMLab stack.

Importing the package registers its modules; a config does that with
``custom_imports = dict(imports=['mmlinattn'])``.
"""

from . import compat

# isort: split
from . import backbones, classification, detection, engine, layers
from .version import __version__

compat.warn_if_untested()

__all__ = ['__version__', 'backbones', 'classification', 'compat', 'detection', 'engine', 'layers']
