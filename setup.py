"""What pyproject.toml cannot say: a file beside mmcv's, and configs inside of the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# The operators that mmcv-lite lacks. Python prefers a compiled mmcv/_ext.*.so to mmcv/_ext.py.
OPERATORS = ROOT / 'mmlinattn' / 'utils' / 'mmcv_ops.py'
# Where mim, and this package when installed, look for them.
MIM = ('configs', 'tools', 'model-index.yml')


class Build(build_py):
    """Adds ``mmcv/_ext.py`` to a wheel and to an editable install, ``mmlinattn/.mim`` to a wheel.

    pip records the files and removes them with the package.
    """

    def run(self) -> None:
        super().run()
        # An editable install takes nothing from build_lib; what it installs itself goes here.
        install_lib = self.get_finalized_command('install').install_lib
        folder = Path(install_lib if self.editable_mode else self.build_lib)
        self._copy(OPERATORS, folder / 'mmcv' / '_ext.py')
        if not self.editable_mode:  # there the checkout is read
            for name in MIM:
                self._copy(ROOT / name, folder / 'mmlinattn' / '.mim' / name)

    def _copy(self, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            no_byte_code = shutil.ignore_patterns('__pycache__', '*.py[cod]')
            shutil.copytree(source, target, dirs_exist_ok=True, ignore=no_byte_code)
        else:
            shutil.copy2(source, target)


setup(cmdclass={'build_py': Build})
