"""What pyproject.toml cannot say: a file beside the packages, and configs inside of one."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# Read whenever Python starts; silent when the module is gone, as in a moved editable install.
STARTUP = 'import sys; exec("try:\\n    import mmlinattn_mmcv\\nexcept ImportError:\\n    pass")\n'
# Where mim, and this package when installed, look for them.
MIM = ('configs', 'tools', 'model-index.yml')


class Build(build_py):
    """Adds ``mmlinattn_mmcv.pth`` beside the packages, in a wheel and in an editable install, and
    ``mmlinattn/.mim`` to a wheel.

    pip records the files and removes them with the package.
    """

    def run(self) -> None:
        super().run()
        # An editable install takes nothing from build_lib; what it installs itself goes here.
        install_lib = self.get_finalized_command('install').install_lib
        folder = Path(install_lib if self.editable_mode else self.build_lib)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'mmlinattn_mmcv.pth').write_text(STARTUP)
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
