"""Predictions and classes in the COCO format."""

import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence, Tuple

import numpy as np
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from pycocotools import mask as coco_mask

from .pipeline import test_dataset


def coco_categories(
    classes: Sequence[str], palette: Sequence = (), ids: Sequence[int] = ()
) -> List[Dict[str, Any]]:
    """Return the COCO categories of class names: ``id``, ``name`` and, with a palette, ``color``.

    Args:
        classes: class names.
        palette: one RGB triple per class.
        ids: one id per class; counted from 1 by default.

    Example:
        >>> coco_categories(['cat', 'dog'], ids=[17, 18])
        [{'id': 17, 'name': 'cat'}, {'id': 18, 'name': 'dog'}]
    """
    numbers = ids or range(1, len(classes) + 1)
    categories = [dict(id=number, name=name) for number, name in zip(numbers, classes)]
    for category, color in zip(categories, palette):
        category['color'] = [int(value) for value in color]
    return categories


def category_ids(cfg: Config, classes: Sequence[str]) -> Tuple[List[int], str]:
    """Return the ids that the annotation file of the test data has for the classes of a model.

    Also return why they are counted from 1, or ''. COCO's 80 classes have its ids without the file.
    """
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights as Weights

    counted, dataset = [*range(1, len(classes) + 1)], test_dataset(cfg)
    path = Path(dataset.get('data_root') or '', dataset.get('ann_file') or '')
    of_coco = Weights.DEFAULT.meta['categories']  # listed by id
    if not path.is_file():
        if len(classes) == 80 and {*classes} <= {*of_coco}:
            return [of_coco.index(name) for name in classes], ''
        return counted, f'{path} does not exist'
    try:
        found = json.loads(path.read_bytes())['categories']
        ids = {str(one['name']): int(one['id']) for one in found}
        return [ids[name] for name in classes], ''
    except KeyError as error:
        return counted, f'{path} has no category {error}'
    except (ValueError, TypeError) as error:
        return counted, f'{path} has no categories ({type(error).__name__}: {error})'


def coco_json(records: Sequence[dict], categories: Sequence[dict]) -> Dict[str, Any]:
    """Return predictions as the dict that ``pycocotools.coco.COCO`` reads.

    Args:
        records: one :func:`coco_record` per image.
        categories: see :func:`coco_categories`.
    """
    images: List[dict] = []
    annotations: List[dict] = []
    for index, record in enumerate(records, 1):
        image = {key: record[key] for key in ('file_name', 'height', 'width')}
        images.append(dict(id=index, **image))
        for found in record['annotations']:
            number = len(annotations) + 1
            annotations.append(dict(id=number, image_id=index, iscrowd=0, **found))
    return dict(images=images, categories=[*categories], annotations=annotations)


def coco_record(
    name: str,
    shape: Tuple[int, int],
    sample: BaseDataElement,
    categories: Sequence[dict],
    min_score: float = 0.0,
) -> dict:
    """Return one image with its annotations, without ids.

    Detections have ``bbox`` (x, y, width, height in pixels), ``score`` and, with masks, a
    run-length ``segmentation``. Segmentations have one annotation for each class of an image,
    classifications have ``score`` only.

    Args:
        name: file name; bytes that are not UTF-8 are written as ``\\udc80`` to ``\\udcff``.
        shape: (height, width).
        sample: data sample of the framework, on the CPU.
        min_score: lowest score of the objects and classes to keep.
    """
    found = [
        dict(category_id=categories[label]['id'], **content)
        for label, content in _annotations(sample, min_score)
    ]
    file_name = name.encode('utf-8', 'backslashreplace').decode()
    return dict(file_name=file_name, height=shape[0], width=shape[1], annotations=found)


def _annotations(sample: BaseDataElement, min_score: float) -> Iterable[Tuple[int, dict]]:
    """Yield the class index and the content of each annotation."""
    if 'pred_instances' in sample:
        yield from _objects(sample.pred_instances, min_score)
    elif 'pred_sem_seg' in sample:
        labels = sample.pred_sem_seg.data[0].numpy()
        for label in np.unique(labels):
            yield int(label), _region(labels == label)
    else:
        for label in sample.pred_score.argsort(descending=True).tolist():
            if sample.pred_score[label] >= min_score:
                yield label, dict(score=float(sample.pred_score[label]))


def _objects(found: BaseDataElement, min_score: float) -> Iterable[Tuple[int, dict]]:
    found = found[found.scores >= min_score]
    boxes, scores, labels = (found[k].tolist() for k in ('bboxes', 'scores', 'labels'))
    for i, ((left, top, right, bottom), score, label) in enumerate(zip(boxes, scores, labels)):
        box = [left, top, right - left, bottom - top]
        region = _region(found.masks[i].numpy()) if 'masks' in found else dict(area=box[2] * box[3])
        yield label, dict(region, score=score, bbox=box)


def _region(mask: np.ndarray) -> dict:
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    area, box = float(coco_mask.area(encoded)), coco_mask.toBbox(encoded).tolist()
    run_lengths = dict(size=list(encoded['size']), counts=encoded['counts'].decode('ascii'))
    return dict(segmentation=run_lengths, area=area, bbox=box)
