"""Semantic segmentation of the instances of a COCO data set: background, interior, border."""

from typing import Any, Dict, List, Tuple

import cv2
import numpy as np
from mmengine.dataset import BaseDataset
from mmengine.fileio import join_path
from mmengine.registry import DATASETS, TRANSFORMS

from .audit.coco import read_json, runs_fault

INTERIOR, BORDER = 1, 2
_SQUARE = np.ones((3, 3), np.uint8)


@DATASETS.register_module()
class InstanceMaps(BaseDataset):
    """Instances of a COCO file for segmentors: background, interior, border.

    A border two pixels wide runs along the edge of each instance, one pixel inside and one outside,
    so that instances that touch stay apart. All categories count alike; crowds are left out.
    ``LoadInstanceMap`` draws the map. Images without instances are background.

    Args:
        ann_file: COCO's annotations, with masks as polygons or RLE.
        kwargs: options of MMEngine's ``BaseDataset``; ``data_prefix=dict(img_path=...)``.

    Samples, before the pipeline:
        ``img_path``, ``height``, ``width``; ``masks``, COCO's segmentations; ``seg_fields``, an
        empty list.

    Raises:
        ValueError: the file is no JSON, or an annotation, which is named, has no segmentation or
            no image.

    Example:
        >>> InstanceMaps(lazy_init=True).metainfo['classes']
        ('background', 'interior', 'border')
    """

    METAINFO = dict(
        classes=('background', 'interior', 'border'),
        palette=[[0, 0, 0], [250, 170, 30], [255, 255, 255]],
    )

    def load_data_list(self) -> List[dict]:
        content = read_json(self.ann_file)
        masks: Dict[Any, list] = {image['id']: [] for image in content['images']}
        for annotation in content['annotations']:
            where = f'{self.ann_file}: annotation {annotation["id"]}'
            if not annotation.get('segmentation'):
                raise ValueError(f'{where} has no segmentation, which the map is drawn from')
            if annotation['image_id'] not in masks:
                raise ValueError(
                    f'{where} is of image {annotation["image_id"]}, which is not there'
                )
            if not annotation.get('iscrowd'):
                masks[annotation['image_id']].append(annotation['segmentation'])
        folder = self.data_prefix.get('img_path', '')
        return [
            dict(
                img_path=join_path(folder, image['file_name']),
                height=image.get('height'),
                width=image.get('width'),
                masks=masks[image['id']],
                reduce_zero_label=False,
                seg_fields=[],
            )
            for image in content['images']
        ]


@TRANSFORMS.register_module()
class LoadInstanceMap:
    """Draw the map of :class:`InstanceMaps`: 0 background, 1 interior, 2 border.

    The map has the size of the image file, like that of ``LoadAnnotations``. Place this transform
    before ``Resize`` to resize image and map (training), after it to resize only the image (test).

    Required keys:
        ``ori_shape``, ``masks``, ``seg_fields``.

    Added keys:
        ``gt_seg_map``, (H, W) uint8.

    Raises:
        ValueError: a mask has another size than the image, or no outline; the message names the
            image.

    Example:
        >>> square = [[4, 4, 12, 4, 12, 12, 4, 12]]
        >>> sample = dict(ori_shape=(16, 16), masks=[square], seg_fields=[])
        >>> np.bincount(LoadInstanceMap()(sample)['gt_seg_map'].flat).tolist()
        [156, 36, 64]
    """

    def __call__(self, results: dict) -> dict:
        """Add the map to a sample; an image to predict has no masks."""
        if 'masks' not in results:
            return results
        height, width = results['ori_shape']
        try:
            instances = [_decode(mask, height, width) for mask in results['masks']]
        except Exception as error:  # of pycocotools
            raise ValueError(
                f'{results.get("img_path")} of {height} x {width} pixels has a mask that does not '
                f'fit: {error}'
            ) from error
        seg_map = np.zeros((height, width), np.uint8)
        inner = [cv2.erode(instance, _SQUARE) for _, instance in instances]
        for (place, _), interior in zip(instances, inner):
            seg_map[place][interior > 0] = INTERIOR
        for (place, instance), interior in zip(instances, inner):
            seg_map[place][cv2.dilate(instance, _SQUARE) > interior] = BORDER
        results['gt_seg_map'] = seg_map
        results['seg_fields'].append('gt_seg_map')
        return results


def _decode(mask: Any, height: int, width: int) -> Tuple[Tuple[slice, slice], np.ndarray]:
    """Return the box of polygons or RLE, a pixel wider, as slices, and the mask within it."""
    from pycocotools import mask as coco_mask  # comes with MMDetection

    if not isinstance(mask, list) and (fault := runs_fault(mask['counts'], height * width)):
        raise ValueError(fault)
    if isinstance(mask, list):
        mask = coco_mask.merge(coco_mask.frPyObjects(mask, height, width))
    elif isinstance(mask['counts'], list):
        mask = coco_mask.frPyObjects(mask, height, width)
    if [*mask['size']] != [height, width]:
        raise ValueError(f'its size is {mask["size"]}')
    left, top, columns, rows = coco_mask.toBbox(mask).astype(int)
    place = slice(max(top - 1, 0), top + rows + 1), slice(max(left - 1, 0), left + columns + 1)
    return place, np.ascontiguousarray(coco_mask.decode(mask)[place])
