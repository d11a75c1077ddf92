"""Shapes: a small synthetic data set in the layouts of COCO, ADE20K, Cityscapes and ImageNet.

It has textured circles, squares, triangles, stars and crosses on textured backgrounds, drawn from
a seed and stored as files. A config for Shapes runs on the real data set with another
``data_root``::

    mmlinattn shapes data/shapes

The root contains::

    coco/{train,val}2017/*.jpg, coco/annotations/instances_{train,val}2017.json
    ade/images/{training,validation}/*.jpg      ade/annotations/{training,validation}/*.png
    cityscapes/leftImg8bit/{train,val}/shapes/*_leftImg8bit.png
    cityscapes/gtFine/{train,val}/shapes/*_gtFine_labelTrainIds.png
    imagenet/{train,val}/<class>/*.jpg          shapes.json

COCO category ids are 1..5 in the order of ``CLASSES``. ADE maps have 1 for background and 2..6 for
the shapes (0, unlabelled, is unused), Cityscapes maps have 0 and 1..5. Readers of the ImageNet
layout sort the class folders by name, which is not the order of ``CLASSES``.
"""

from .draw import CLASSES, PALETTE, SEG_CLASSES, Instance, Sample, draw_image
from .install import generate

__all__ = [
    'CLASSES', 'PALETTE', 'SEG_CLASSES', 'Instance', 'Sample', 'draw_image', 'generate',
]  # fmt: skip
