"""Exported files in the place of a model: what does not fit is refused, what fits predicts."""

import json

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmlinattn.deployment import ExportedFile, FileError, FileMetadata, check_classes, use_exported
from mmlinattn.deployment.deployable import NotDeployable, deployable
from mmlinattn.deployment.exported_model import pad_to_metadata
from mmlinattn.engine.model import number_of_classes
from tests.families import shrunk

from .stub import description, write_stub

pytest.importorskip('onnx', reason='it comes with the extra "export"')
pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')

FAMILIES = dict(
    classification='ravlt-nano-cls',
    segmentation='ravlt-semantic-fpn',
    detection='ravlt-nano-mask-rcnn',
)
TASKS = [*FAMILIES]


@pytest.fixture
def model(shapes_root, tmp_path):
    """model(family's task, file's task, changes of metadata, change of config) -> ExportedModel
    of a stub, and the batch of its first test image."""

    def call(task, of_file=None, change=lambda cfg: None, **metadata):
        cfg = shrunk(FAMILIES[task], shapes_root)
        change(cfg)
        init_default_scope(cfg.default_scope)
        classes = number_of_classes(MODELS.build(cfg.model)) or 6
        of_file = of_file or task
        about = {**description(of_file, classes), **metadata}
        use_exported(cfg, str(write_stub(tmp_path / 'stub.onnx', of_file, about, classes)))
        built = MODELS.build(dict(cfg.model, data_preprocessor=cfg.get('data_preprocessor')))
        return built, pseudo_collate([DATASETS.build(cfg.test_dataloader.dataset)[0]])

    return call


@pytest.mark.parametrize('task', TASKS)
def test_a_file_that_fits_predicts(model, task):
    built, batch = model(task)
    (sample,) = built.test_step(batch)
    if task == 'classification':
        assert sample.pred_label.tolist() == [1]
    elif task == 'segmentation':
        assert sample.pred_sem_seg.data.unique().tolist() == [1]
    else:
        found = sample.pred_instances
        assert found.labels.tolist() == [1] and found.masks.shape == (1, 64, 64)
        # A mask that is 1 all over its box from (8, 8) to (40, 40).
        assert found.masks[0, 8:40, 8:40].all() and found.masks.sum() == 32 * 32


@pytest.mark.parametrize(
    'head',
    [
        dict(type='MultiLabelLinearClsHead', num_classes=6),
        dict(type='CSRAClsHead', num_classes=6, num_heads=1, lam=0.1),
    ],
    ids=lambda head: head['type'],
)
def test_scores_of_several_labels_are_those_of_the_framework(make, model, head):
    def change(cfg):
        cfg.model.head = dict(head, in_channels=cfg.model.head.in_channels)
        if head['type'] == 'CSRAClsHead':
            del cfg.model.neck

    case = make('ravlt-nano-cls', change)
    with torch.no_grad():
        found = deployable(case.model, case.cfg)(case.image)
    torch.testing.assert_close(found['scores'][0], case.sample.pred_score)
    built, batch = model('classification', change=change)
    (sample,) = built.test_step(batch)
    assert sample.pred_score.tolist() == [0, 1, 0, 0, 0, 0] and sample.pred_label.tolist() == [1]


@pytest.mark.parametrize(
    'head',
    [
        dict(type='MultiTaskHead', task_heads=dict(a=dict(type='LinearClsHead', num_classes=2))),
        dict(type='LinearRegressionHead', num_classes=1),
    ],
    ids=lambda head: head['type'],
)
def test_heads_without_an_exported_form_are_named(shapes_root, head):
    cfg = shrunk('ravlt-nano-cls', shapes_root)
    with MODELS.switch_scope_and_registry('mmpretrain') as registry:
        if not registry.get(head['type']):
            pytest.skip(f'this MMPretrain has no {head["type"]}')
    cfg.model.head = dict(head, in_channels=cfg.model.head.in_channels)
    with pytest.raises(NotDeployable, match=f'{head["type"]} predicts in a way'):
        deployable(MODELS.build(cfg.model), cfg)


@pytest.mark.parametrize(
    'task, of_file', [(a, b) for a in TASKS for b in TASKS if a != b]
)  # fmt: skip
def test_a_file_of_another_task_is_refused(model, task, of_file):
    with pytest.raises(FileError, match=f'its task is {of_file}, that of .* is {task}; give'):
        model(task, of_file)


@pytest.mark.parametrize(
    'metadata, message',
    [
        (dict(classes=list('abcdefghijk')), 'its number of classes is 11, that of MaskRCNN'),
        (dict(stride=16), 'its stride is 16, that of MaskRCNN in the config is 32'),
        (dict(outputs=['boxes', 'scores', 'labels', 'count']), 'its prediction of masks is False'),
    ],
)
def test_a_file_of_another_model_is_refused(model, metadata, message):
    with pytest.raises(FileError, match=message):
        model('detection', **metadata)


def test_a_larger_image_than_the_file_takes(model):
    built, batch = model('classification', dynamic=False, shape=[32, 32], least=32)
    with pytest.raises(FileError, match='an image of 64x64 for a file of 32x32 alone'):
        built.test_step(batch)


def test_images_are_padded_with_the_colour_of_the_file():
    about = description('segmentation', 2, padding=[1.0, 2.0, 3.0])
    padded = pad_to_metadata(
        torch.full((2, 3, 70, 64), 9.0), FileMetadata.from_json(json.dumps(about))
    )
    assert padded.shape == (2, 3, 96, 64) and (padded[:, :, :70] == 9).all()
    assert padded[:, :, 70:].amax((0, 2, 3)).tolist() == [1, 2, 3]
    assert padded[:, :, 70:].amin((0, 2, 3)).tolist() == [1, 2, 3]


HOSTILE = [
    ('task', 'forward'), ('task', ['detection']), ('stride', 0), ('stride', True), ('stride', 32.0),
    ('batch', -1), ('batch', 0), ('least', 0), ('shape', [64]), ('classes', 'abc'),
    ('classes', ['a', 1]), ('dynamic', 'yes'), ('outputs', []),
    ('outputs', ['scores', 'scores']), ('padding', [0, 0]), ('padding', [0, 0, float('nan')]),
    ('padding', [0, 0, 'a']),
]  # fmt: skip


@pytest.mark.parametrize('name, value', HOSTILE)
def test_damaged_metadata_are_refused(tmp_path, name, value):
    about = {**description('classification', 6), name: value}
    path = write_stub(tmp_path / 'stub.onnx', 'classification', about)
    with pytest.raises(FileError, match=f'stub.onnx has damaged metadata: {name} is '):
        ExportedFile(path)


@pytest.mark.parametrize(
    'text, message',
    [
        ('{', 'the text is no JSON'),
        ('[' * 100_000, 'the text is no JSON'),
        ('7' * 10_000, 'the text is no JSON'),
        ('[]', 'the text is no JSON object'),
        ('{"task": "detection"}', "'classes' is missing"),
    ],
)
def test_metadata_that_are_no_description(text, message):
    with pytest.raises(ValueError, match=message):
        FileMetadata.from_json(text)


def test_names_of_later_versions_are_ignored():
    about = description('detection', 2)
    later = FileMetadata.from_json(json.dumps(dict(about, colour='red')))
    assert later == FileMetadata.from_json(json.dumps(about)) and later.batch == 1


def test_a_file_that_does_not_run_is_an_error_that_names_it(tmp_path):
    about = description('segmentation', 6, outputs=['logits'])
    file = ExportedFile(write_stub(tmp_path / 'stub.onnx', 'segmentation', about))
    with pytest.raises(FileError, match='stub.onnx cannot be run: .*logits'):
        file(torch.zeros(1, 3, 64, 64))


def test_what_a_file_takes(tmp_path):
    file = ExportedFile(write_stub(tmp_path / 'a.onnx', 'detection', description('detection', 2)))
    found = file(torch.zeros(1, 3, 64, 64).requires_grad_())
    assert found['labels'].tolist() == [[1, -1]] and int(found['count']) == 1
    for image, got in (
        (torch.zeros(1, 3, 64, 64).numpy(), 'ndarray'),
        (torch.zeros(1, 3, 64, 64).byte(), r'torch.uint8 \(1, 3, 64, 64\)'),
        (torch.zeros(3, 64, 64), r'torch.float32 \(3, 64, 64\)'),
        (torch.zeros(1, 64, 64, 3), r'torch.float32 \(1, 64, 64, 3\)'),
    ):
        with pytest.raises(FileError, match=rf'takes a float32 tensor \(B, 3, H, W\), got {got}'):
            file(image)


def test_names_of_classes(tmp_path):
    def check(own, data):
        about = description('classification', 6, classes=list(own))
        path = write_stub(tmp_path / 'stub.onnx', 'classification', about)
        check_classes(ExportedFile(path), data)

    check(('cat', 'dog'), ['cat', 'dog'])
    check(('class 0', 'class 1'), ('cat', 'dog'))
    check(('cat', 'hound'), ('cat', 'dog'))
    with pytest.raises(FileError, match="class 0 is 'dog' in the file and 'cat' in the data set"):
        check(('dog', 'cat'), ('cat', 'dog'))
