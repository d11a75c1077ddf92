"""Package metadata. Nothing here pins: requirements/constraints.txt does."""

from pathlib import Path

from setuptools import find_packages, setup

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
    *['ftfy', 'torchvision'],
]

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
    # mmengine and mmcv are not required by name: OneDL's packages and the originals both serve.
    install_requires=['matplotlib', 'numpy', 'rich', 'safetensors', 'torch>=2.4'],
    extras_require={
        'det': DET,
        'seg': SEG,
        'cls': CLS,
        'all': DET + SEG + CLS,
        'original': ORIGINAL,
        'test': ['hypothesis', 'onnx', 'pytest', 'pytest-xdist', 'ruff'],
    },
)
