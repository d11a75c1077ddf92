"""Package metadata. Nothing here pins: requirements/constraints.txt does."""

from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
VERSION = {}
exec((HERE / 'mmlinattn' / 'version.py').read_text(), VERSION)

# The frameworks of OneDL, which work with current torch, and the originals, for torch up to 2.5.
# No mmcv: mmcv-lite names the original mmengine, which would overwrite OneDL's (README).
ONEDL = ['onedl-mmengine>=0.10.12', 'torchvision']
DET = [*ONEDL, 'onedl-mmdetection>=3.5', 'pycocotools']
SEG = [*ONEDL, 'onedl-mmsegmentation>=1.4', 'ftfy']
CLS = [*ONEDL, 'onedl-mmpretrain>=1.3']
ORIGINAL = [
    *['mmengine>=0.10.7', 'mmdet>=3.3', 'mmsegmentation>=1.2.2', 'mmpretrain>=1.2'],
    *['ftfy', 'regex', 'torchvision'],  # the first two MMSegmentation's, unsaid
]

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


setup(
    name='mmlinattn',
    version=VERSION['__version__'],
    description='Linear-cost attention for MMDetection, MMSegmentation and MMPretrain',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10',
    classifiers=[f'Programming Language :: Python :: 3.{minor}' for minor in range(10, 14)],
    packages=find_packages(include=['mmlinattn', 'mmlinattn.*']),
    py_modules=['mmlinattn_mmcv'],  # with mmcv-lite: docs/installation.md
    cmdclass={'build_py': BuildWithStartup},
    # mmengine and mmcv are not required by name: OneDL's packages and the originals both serve.
    install_requires=[
        'filelock',
        'matplotlib',
        'numpy',
        'rich',
        'pyyaml',
        'safetensors',
        'torch>=2.4',
    ],
    extras_require={
        'det': DET,
        'seg': SEG,
        'cls': CLS,
        'all': DET + SEG + CLS,
        'original': ORIGINAL,
        'test': ['hypothesis', 'onnx', 'pytest', 'pytest-xdist', 'ruff'],
    },
)
