"""Every kind of bad record in COCO's format is named."""

import copy
import re

import numpy as np
import pytest

from mmlinattn.datasets.audit.coco import bad_mask_reason, check_coco, decode_run_lengths

IMAGE = dict(id=1, file_name='a.jpg', height=10, width=20)
BOX = dict(
    id=5, image_id=1, category_id=7, bbox=[2, 3, 4, 5.5], area=22, iscrowd=0,
    segmentation=[[2, 3, 6, 3, 6, 8.5]],
)  # fmt: skip
CONTENT = dict(images=[IMAGE], annotations=[BOX], categories=[dict(id=7, name='cat')])


def test_nothing_is_found_where_nothing_is_wrong():
    assert not [*check_coco(CONTENT)] and not [*check_coco(CONTENT, ('cat',))]
    # A box of all of the image, with the rounding of tools.
    content = copy.deepcopy(CONTENT)
    content['annotations'][0]['bbox'] = [-0.5, 0, 20.5, 10.4]
    assert not [*check_coco(content)]


@pytest.mark.parametrize(
    'change, kind, what',
    [
        (lambda c: c.pop('categories'), 'annotation', 'must be a list, got None'),
        (lambda c: c['images'][0].pop('file_name'), 'annotation', 'file_name is None'),
        (lambda c: c['images'][0].update(width=0), 'annotation', r'\(height, width\) is \(10, 0'),
        (lambda c: c['images'].append(IMAGE), 'annotation', 'there twice'),
        (lambda c: c['annotations'].append(BOX), 'annotation', 'there twice'),
        (lambda c: c['annotations'][0].update(image_id=2), 'annotation', 'no image has the id 2'),
        (lambda c: c['annotations'][0].update(category_id=8), 'class', 'no category .* 8'),
        (lambda c: c['annotations'][0].update(category_id=[7]), 'class', 'no category'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 4]), 'annotation', r'bbox is \[2, 3, 4'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 4, '5']), 'annotation', 'bbox is'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, np.nan, 5]), 'annotation', 'bbox is'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 0, 5]), 'box without extent', 'bbox is'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 4, 9]), 'box outside', '20 wide and 10'),
        (lambda c: c['annotations'][0].pop('area'), 'annotation', 'area is None'),
        (lambda c: c['annotations'][0].update(iscrowd=1), 'annotation', 'all 1 objects are crowds'),
        (lambda c: c['annotations'][0].update(id='5'), 'annotation', "'5' its id must be a number"),
        (lambda c: c['annotations'][0].update(id=0), 'annotation', '0 its id must be a number'),
        (
            lambda c: c['images'].append(dict(IMAGE, id=2)),
            'duplicate',
            "image 2 has the same file_name as image 1, 'a.jpg'",
        ),
        (lambda c: c['annotations'][0].update(iscrowd=2), 'annotation', 'iscrowd is 2'),
        (lambda c: c['annotations'][0].update(segmentation=[[1, 2, 3]]), 'mask', 'three times'),
        (
            lambda c: c['annotations'][0].update(segmentation=dict(size=[9, 20], counts=[180])),
            'mask',
            r'its size is \[9, 20\], that of its image \[10, 20\]',
        ),
    ],
)
def test_what_is_wrong(change, kind, what):
    content = copy.deepcopy(CONTENT)
    change(content)
    found = [*check_coco(content)]
    assert any(f.kind == kind and re.search(what, f'{f.where} {f.what}') for f in found), found


def test_a_class_that_the_file_lacks():
    (found,) = check_coco(CONTENT, ('cat', 'dog'))
    assert found.kind == 'class' and "lacks 'dog'" in found.what


def test_classes_in_another_order_than_the_files():
    content = copy.deepcopy(CONTENT)
    content['categories'].append(dict(id=3, name='ant'))
    assert not [*check_coco(content, ('cat', 'ant'))] and not [*check_coco(content, ('ant',))]
    (found,) = check_coco(content, ('ant', 'cat'))
    assert found.kind == 'class' and "order, 'cat', 'ant'" in found.what


def test_an_object_without_a_mask():
    content = copy.deepcopy(CONTENT)
    del content['annotations'][0]['segmentation']
    assert not [*check_coco(content)]
    (found,) = check_coco(content, masks=True)
    assert found.kind == 'mask' and 'for boxes alone use no mask head' in found.what


def test_run_lengths_are_those_of_pycocotools():
    mask = pytest.importorskip('pycocotools.mask', reason='needs pycocotools, the extra "det"')
    random = np.random.default_rng(0)
    for density in (0.0, 0.01, 0.5, 1.0):
        bits = (random.random((37, 23)) < density).astype(np.uint8)
        rle = mask.encode(np.asfortranarray(bits))
        runs = decode_run_lengths(rle['counts'])
        values = np.arange(len(runs)) % 2
        assert (np.repeat(values, runs) == bits.flatten('F')).all()
        assert bad_mask_reason(rle, (37, 23)) is None
        assert 'that of its image' in bad_mask_reason(rle, (23, 37))
        cut = dict(rle, counts=rle['counts'][:-1])
        assert len(runs) < 2 or bad_mask_reason(cut, (37, 23))
