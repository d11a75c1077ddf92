"""Package metadata. Nothing here pins: requirements/constraints.txt does."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = {}
exec((HERE / 'mmlinattn' / 'version.py').read_text(), VERSION)

DET = ['onedl-mmdetection>=3.5', 'pycocotools']
SEG = ['onedl-mmsegmentation>=1.4', 'ftfy']
CLS = ['onedl-mmpretrain>=1.3', 'torchvision']
ONEDL = ['onedl-mmengine>=0.10.12', 'onedl-mmcv>=2.3']

setup(
    name='mmlinattn',
    version=VERSION['__version__'],
    description='Linear-cost attention for MMDetection, MMSegmentation and MMPretrain',
    long_description=(HERE / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.9',
    packages=find_packages(include=['mmlinattn', 'mmlinattn.*']),
    # mmengine and mmcv are not required by name: OneDL's packages and the originals both serve.
    install_requires=['matplotlib', 'numpy', 'rich', 'safetensors', 'torch'],
    extras_require={
        'det': ONEDL + DET,
        'seg': ONEDL + SEG,
        'cls': ONEDL + CLS,
        'all': ONEDL + DET + SEG + CLS,
        'test': ['hypothesis', 'onnx', 'pytest', 'pytest-xdist', 'ruff'],
    },
)
