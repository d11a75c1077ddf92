"""Every kind of bad record in COCO's format is named."""

import copy
import re

import numpy as np
import pytest

from mmlinattn.datasets.audit.coco import check_coco

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
        (lambda c: c.pop('categories'), 'annotation', 'must be a list with at least one'),
        (lambda c: c['images'][0].pop('file_name'), 'annotation', 'file_name is None'),
        (lambda c: c['images'][0].update(width=0), 'annotation', r'\(height, width\) is \(10, 0'),
        (lambda c: c['images'].append(IMAGE), 'annotation', 'there twice'),
        (lambda c: c['annotations'][0].update(image_id=2), 'unknown id', 'no image has the id 2'),
        (lambda c: c['annotations'][0].update(category_id=8), 'unknown id', 'no category .* 8'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 4]), 'annotation', r'bbox is \[2, 3, 4'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, np.nan, 5]), 'annotation', 'bbox is'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 0, 5]), 'box without extent', 'bbox is'),
        (lambda c: c['annotations'][0].update(bbox=[2, 3, 4, 9]), 'box outside', '20 wide and 10'),
        (lambda c: c['annotations'][0].pop('area'), 'area', 'area is None'),
        (lambda c: c['annotations'][0].update(iscrowd=1), 'annotation', r'1 of crowds \(iscrowd=1'),
        (lambda c: c['annotations'][0].update(id='5'), 'annotation', "'5' its id is text"),
        (lambda c: c['annotations'][0].update(id=0), 'annotation', '0 its id is 0, which'),
        (
            lambda c: c['images'][0].update(id='1'),
            'annotation',
            r"1 of unknown id \(no image has the id 1, one has '1': write both as numbers\)",
        ),
        (
            lambda c: c['annotations'][0].update(category_id='7'),
            'unknown id',
            "no category has the id '7', one has 7: write both as numbers",
        ),
        (
            lambda c: c['images'].append(dict(IMAGE, id=2)),
            'duplicate',
            "image 2 has the same file_name as image 1, 'a.jpg'",
        ),
        (lambda c: c['annotations'][0].update(area=0), 'area', 'area is 0: objects without area'),
        (
            lambda c: c['annotations'][0].update(bbox=[0.2, 0.3, 0.4, 0.5]),
            'box without extent',
            'sides below 1 pixel are not trained',
        ),
        (
            lambda c: c['annotations'][0].update(segmentation=dict(size=[10, 20], counts=[9])),
            'mask',
            'do not sum to 200 pixels',
        ),
        (  # without the last run, as some encoders write it
            lambda c: c['annotations'][0].update(segmentation=dict(size=[10, 20], counts='23')),
            'mask',
            "do not sum to 200 pixels: '23'",
        ),
        (lambda c: c['annotations'][0].update(iscrowd=2), 'annotation', 'iscrowd is 2'),
        (
            lambda c: c['annotations'][0].update(segmentation=[[1, 2, 3]]),
            'annotation',
            'none of the 1 objects can be trained: 1 of mask without extent .an outline',
        ),
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
    found = [*check_coco(content, masks=True)]
    assert any(f.kind == kind and re.search(what, f'{f.where} {f.what}') for f in found), found


def test_an_object_without_a_mask():
    content = copy.deepcopy(CONTENT)
    del content['annotations'][0]['segmentation']
    assert not [*check_coco(content)]
    (found,) = check_coco(content, masks=True)
    assert found.kind == 'mask' and found.what.startswith('has no segmentation, but masks are tr')
    assert 'for boxes alone use no mask head' in found.what


@pytest.mark.parametrize(
    'mask, trained, scored',
    [
        ([[2, 3, 6, 3]], False, True),  # left out of training; pycocotools reads a box
        ([[2, 3, 6, 3, 6]], False, True),
        ([[2, 3, 25, 3, 6, 8]], False, False),  # pycocotools cuts it
        ([[2, 3, 25, 3, 6, 8], [2, 3, 6]], False, True),
        ([[2, 3, 6], [2, 3, 25, 3, 6, 8]], False, True),
        ([[2, 3, 6, 3, 6, 9999]], True, True),  # pycocotools exhausts the memory
        ([[2, 3, 'x', 3, 6, 9]], True, True),
        ([[2, 3, [6], 3, 6, 9]], True, True),
        (7, True, True),
    ],
)
def test_masks_that_end_a_run(mask, trained, scored):
    content = copy.deepcopy(CONTENT)
    content['annotations'][0]['segmentation'] = mask
    content['annotations'].append(dict(BOX, id=6))
    assert not [*check_coco(content)]
    for is_trained, ends in ((True, trained), (False, scored)):
        (found,) = check_coco(content, masks=True, trained=is_trained)
        assert found.kind.startswith('mask') and found.fatal == ends


def test_objects_of_which_some_are_trained():
    content = copy.deepcopy(CONTENT)
    content['annotations'].append(dict(BOX, id=6, area=0))
    content['categories'].append(dict(id=8, name='dog'))
    (found, missing) = check_coco(content)
    assert found.kind == 'area' and not found.fatal and not missing.fatal
    assert missing.what == "no object of ['dog'] can be trained"
    content['annotations'][0]['iscrowd'] = 1
    fatal = [found.what for found in check_coco(content) if found.fatal]
    assert fatal == [
        'none of the 2 objects can be trained: 1 of crowds (iscrowd=1), 1 of area '
        '(area is 0: objects without area are not trained)'
    ]
    assert not any(found.fatal for found in check_coco(content, trained=False))


@pytest.mark.parametrize('value', [None, 2, 'nan'])
def test_crowds_that_the_evaluation_cannot_take(value):
    """COCOeval reads iscrowd of each object, and fails after the first epoch if it is missing."""
    content = copy.deepcopy(CONTENT)
    content['annotations'][0]['iscrowd'] = value
    if value is None:
        del content['annotations'][0]['iscrowd']
        assert not [*check_coco(content)]
    (found,) = check_coco(content, trained=False)
    assert found.what == f'iscrowd is {value!r}, not 0 or 1' and found.fatal


def test_images_of_a_test_without_annotations():
    content = dict(images=[IMAGE], categories=CONTENT['categories'])
    assert not [*check_coco(content, trained=False)]
    (found,) = check_coco(content)
    assert found.fatal and found.where == 'annotations'
