"""Categories of a model's classes in the COCO format, with the ids of its data set."""

import json
from collections import Counter
from typing import Any, Dict, List, Sequence, Tuple

from mmengine import fileio
from mmengine.config import Config

from ..engine.preflight.data import annotation_path, dataset_configs, path_exists


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
    """Return the category ids that the test data of a config have for its classes.

    They are looked up by name in its annotation file; the 80 classes of COCO have COCO's ids
    without the file.

    Returns:
        the ids, and the reason why they are counted from 1 although the data have ids, else ``''``.
    """
    counted = [*range(1, len(classes) + 1)]
    configs = [*dataset_configs(cfg.get('test_dataloader') or {})]
    path = annotation_path(configs[0]) if configs else ''
    if not path.endswith('.json'):
        return counted, ''
    if not path_exists(path, configs[0].get('backend_args')):
        ids = _ids_of_coco(classes)
        return ids or counted, '' if ids else f'{path} does not exist'
    try:
        found = json.loads(fileio.get_text(path, backend_args=configs[0].get('backend_args')))
        pairs = [(str(one['name']), int(one['id'])) for one in found['categories']]
    except (ValueError, KeyError, TypeError) as error:
        return counted, f'{path} has no categories ({type(error).__name__}: {error})'
    times = Counter(name for name, _ in pairs)
    for name in classes:
        if times[name] != 1:
            return counted, f'{path} has {times[name]} categories with the name {name!r}'
    return [dict(pairs)[name] for name in classes], ''


def _ids_of_coco(classes: Sequence[str]) -> List[int]:
    """Return the ids 1 to 90 of COCO's 80 classes, nothing for other classes."""
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_Weights as Weights

    names = Weights.DEFAULT.meta['categories']  # listed by id
    has_all = len(classes) == len({*names} - {'__background__', 'N/A'}) and {*classes} <= {*names}
    return [names.index(name) for name in classes] if has_all else []
