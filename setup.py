"""The one step that pyproject.toml cannot say: a file beside the packages."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Read whenever Python starts; silent when the module is gone, as in a moved editable install.
STARTUP = 'import sys; exec("try:\\n    import mmlinattn_mmcv\\nexcept ImportError:\\n    pass")\n'


class BuildWithStartup(build_py):
    """Adds ``mmlinattn_mmcv.pth`` beside the packages, in a wheel and in an editable install.

    pip records the file and removes it with the package.
    """

    def run(self) -> None:
        super().run()
        # An editable install takes nothing from build_lib; what it installs itself goes here.
        install_lib = self.get_finalized_command('install').install_lib
        folder = Path(install_lib if self.editable_mode else self.build_lib)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'mmlinattn_mmcv.pth').write_text(STARTUP)


setup(cmdclass={'build_py': BuildWithStartup})
