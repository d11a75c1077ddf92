"""Conversion of predictions to the COCO format."""

import itertools
from typing import Any, Dict, Iterable, Iterator, Sequence, Tuple

import numpy as np
from mmengine.structures import BaseDataElement
from pycocotools import mask as coco_mask

Shape = Tuple[int, int]


def coco_json(
    samples: Iterable[Tuple[str, Shape, BaseDataElement]],
    categories: Sequence[dict],
    min_score: float = 0.0,
) -> Dict[str, Any]:
    """Return predictions as the dict that ``pycocotools.coco.COCO`` reads.

    Its keys are ``images``, ``categories`` and ``annotations``. Detections have ``bbox`` (x, y,
    width, height in pixels), ``score`` and, with masks, a run-length ``segmentation``.
    Segmentations have one annotation for each class of an image; classifications have ``score``
    only; reconstructions have no annotations.

    Args:
        samples: name, (height, width) and prediction of each image.
        categories: see :func:`.categories.coco_categories`.
        min_score: lowest score of the objects and classes to keep.
    """
    records = [coco_record(*sample, categories, min_score) for sample in samples]
    return dict(
        images=list(numbered_images(records)),
        categories=[*categories],
        annotations=list(numbered_annotations(records)),
    )


def coco_file_name(name: str) -> str:
    """Return the name of an image as JSON holds it.

    Bytes that are not UTF-8 become ``\\udc80`` to ``\\udcff``, as Python prints them.
    """
    return name.encode('utf-8', 'backslashreplace').decode()


def coco_record(
    name: str,
    shape: Shape,
    sample: BaseDataElement,
    categories: Sequence[dict],
    min_score: float,
) -> dict:
    """Return one image with its annotations, without ids; see :func:`coco_file_name`."""
    height, width = shape
    found = [
        dict(category_id=categories[label]['id'], **content)
        for label, content in _annotations(sample, min_score)
    ]
    return dict(file_name=coco_file_name(name), height=height, width=width, annotations=found)


def numbered_images(records: Iterable[dict]) -> Iterator[dict]:
    """Yield the images of the records with ids from 1."""
    for index, record in enumerate(records, 1):
        yield dict(id=index, **{key: record[key] for key in ('file_name', 'height', 'width')})


def numbered_annotations(records: Iterable[dict]) -> Iterator[dict]:
    """Yield the annotations of the records with ids from 1."""
    ids = itertools.count(1)
    for index, record in enumerate(records, 1):
        for found in record['annotations']:
            yield dict(id=next(ids), image_id=index, iscrowd=0, **found)


def _annotations(sample: BaseDataElement, min_score: float) -> Iterable[Tuple[int, dict]]:
    """Yield the class index and the content of each annotation."""
    if 'pred_instances' in sample:
        yield from _objects(sample.pred_instances, min_score)
    elif 'pred_sem_seg' in sample:
        labels = sample.pred_sem_seg.data[0].numpy()
        for label in np.unique(labels):
            yield int(label), _region(labels == label)
    elif 'pred_score' in sample:
        scores = sample.pred_score.tolist()
        for label in sorted(range(len(scores)), key=scores.__getitem__, reverse=True):
            if scores[label] >= min_score:
                yield label, dict(score=scores[label])


def _objects(found: BaseDataElement, min_score: float) -> Iterable[Tuple[int, dict]]:
    masks = found.masks.numpy() if 'masks' in found else None
    boxes, scores, labels = (found[k].tolist() for k in ('bboxes', 'scores', 'labels'))
    for i, (box, score, label) in enumerate(zip(boxes, scores, labels)):
        if score < min_score:
            continue
        left, top, right, bottom = box
        area = dict(bbox=[left, top, right - left, bottom - top])
        area['area'] = area['bbox'][2] * area['bbox'][3]
        if masks is not None:
            region = _region(masks[i])
            area.update(segmentation=region['segmentation'], area=region['area'])
        yield label, dict(score=score, **area)


def _region(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    area, box = float(coco_mask.area(encoded)), coco_mask.toBbox(encoded).tolist()
    decode_run_lengths = dict(size=list(encoded['size']), counts=encoded['counts'].decode('ascii'))
    return dict(segmentation=decode_run_lengths, area=area, bbox=box)
