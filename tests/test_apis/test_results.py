"""Predictions are on disk as soon as they are made, and become one COCO file."""

import json

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData
from pycocotools.coco import COCO

from mmlinattn.apis import ResultsFile, coco_categories, coco_json, lines_to_coco
from mmlinattn.utils import WriteError


def regions(*rows):
    return BaseDataElement(pred_sem_seg=PixelData(data=torch.tensor(rows)[None]))


SAMPLES = [
    ('a.jpg', (2, 3), regions([0, 0, 2], [0, 2, 2])),
    ('b.jpg', (1, 2), regions([1, 1])),
]
CATEGORIES = coco_categories('xyz', ids=[2, 5, 9])


@pytest.fixture
def results(tmp_path):
    with ResultsFile(tmp_path / 'predictions.json', CATEGORIES) as results:
        yield results


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_complete_run_leaves_one_coco_file(results, tmp_path):
    for sample in SAMPLES:
        results.add(*sample)
    assert names(tmp_path) == ['predictions.jsonl']
    results.finish()
    assert names(tmp_path) == ['predictions.json']
    coco = COCO(results.path)
    assert coco.dataset == coco_json(SAMPLES, CATEGORIES)
    assert [(one['id'], one['image_id'], one['category_id']) for one in coco.anns.values()] == [
        (1, 1, 2),
        (2, 1, 9),
        (3, 2, 5),
    ]


def test_run_without_images_is_a_coco_file(results):
    results.finish()
    content = json.loads(results.path.read_text())
    assert content['images'] == content['annotations'] == []
    assert [one['name'] for one in content['categories']] == ['x', 'y', 'z']


def test_each_line_is_on_disk_at_once_and_half_a_line_is_passed_over(results, tmp_path):
    for i, sample in enumerate(SAMPLES, 1):
        results.add(*sample)
        assert len(results.lines.read_text().splitlines()) == i + 1
    results.lines.write_bytes(results.lines.read_bytes()[:-9])  # as a kill may leave it
    lines_to_coco(results.lines, tmp_path / 'out.json')
    images = json.loads((tmp_path / 'out.json').read_text())['images']
    assert images == [dict(id=1, file_name='a.jpg', height=2, width=3)]


def test_old_results_are_removed_when_a_run_starts(results):
    results.add(*SAMPLES[0])
    results.finish()
    with ResultsFile(results.path, CATEGORIES) as again:
        assert not again.path.exists() and len(again.lines.read_text().splitlines()) == 1


def test_name_that_is_not_utf8_is_text_in_json(results):
    results.add('caf\udce9.jpg', *SAMPLES[0][1:])  # as Python decodes the byte 0xE9
    results.finish()
    (image,) = json.loads(results.path.read_text())['images']
    assert image['file_name'].encode() == rb'caf\udce9.jpg'


def test_deleted_file_is_an_error(results):
    results.lines.unlink()
    with pytest.raises(WriteError, match='it was deleted'):
        results.add(*SAMPLES[0])
    assert not results.lines.exists()


def test_second_run_into_the_same_folder_ends_the_first(results):
    results.add(*SAMPLES[0])
    with ResultsFile(results.path, CATEGORIES) as second:
        second.add(*SAMPLES[1])
        with pytest.raises(WriteError, match='another run has begun to write it .it got 1 images'):
            results.add(*SAMPLES[0])
        second.finish()
    images = json.loads(results.path.read_text())['images']
    assert [image['file_name'] for image in images] == ['b.jpg']


def test_a_run_that_is_continued(results):
    results.add(*SAMPLES[0])
    results.add(*SAMPLES[1], is_complete=False)  # its picture could not be written
    with results.lines.open('ab') as file:
        file.write(b'{"file_name": "c.jpg", "hei')  # as a kill may leave it
    with ResultsFile(results.path, CATEGORIES, resume=True) as again:
        assert again.count == 1 and 'a.jpg' in again
        assert 'b.jpg' not in again and 'c.jpg' not in again
        with pytest.raises(WriteError, match='another run has begun'):
            results.add('c.jpg', *SAMPLES[0][1:])
        again.add(*SAMPLES[1])
        again.finish()
    assert json.loads(again.path.read_text()) == coco_json(SAMPLES, CATEGORIES)


@pytest.mark.parametrize('content', [b'', b'{"categories": [{"id"'])
def test_a_run_that_was_killed_before_its_first_image(results, content):
    results.lines.write_bytes(content)
    with ResultsFile(results.path, CATEGORIES, resume=True) as again:
        assert again.count == 0
        again.finish()
    assert json.loads(again.path.read_text()) == coco_json([], CATEGORIES)


def test_a_run_of_other_settings_is_not_continued(results, tmp_path):
    with ResultsFile(tmp_path / 'a.json', CATEGORIES, settings=dict(tta=True)) as first:
        first.add(*SAMPLES[0])
    before = first.lines.read_bytes()
    for categories, tta, message in (
        (CATEGORIES, False, 'of a run with tta=True, not False: repeat its options, or remove'),
        (coco_categories('abc'), True, 'of a model with other classes: remove the file'),
    ):
        with pytest.raises(ValueError, match=f'a.jsonl is {message}'):
            ResultsFile(first.path, categories, settings=dict(tta=tta), resume=True)
    assert first.lines.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith('.tmp')] == []
    for content in ('no JSON\n', '{"categories": []}\n', '[]\n'):
        first.lines.write_text(content)
        with pytest.raises(ValueError, match='a.jsonl is damaged or of an older version: remove'):
            ResultsFile(first.path, CATEGORIES, resume=True)
