"""Exported files in the place of a model: what does not fit is refused, what fits predicts."""

import json

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, init_default_scope

from mmlinattn.deployment import (
    ExportedFile,
    FileError,
    FileMetadata,
    check_classes,
    file_checks,
    use_exported,
)
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
        classes = number_of_classes(MODELS.build(cfg.model))
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
    assert built.file.images == 1
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
        (dict(raw=True, outputs=['logits0']), 'has raw outputs, which cannot be scored'),
    ],
)
def test_a_file_of_another_model_is_refused(model, metadata, message):
    with pytest.raises(FileError, match=message):
        model('detection', **metadata)


def test_each_window_of_a_segmentor_is_counted(model):
    """A window of 64x64 each 32 pixels: 2 of them down and 3 across an image of 96x128."""

    def slide(cfg):
        cfg.model.test_cfg = dict(mode='slide', crop_size=(64, 64), stride=(32, 32))

    built, batch = model('segmentation', change=slide)
    batch['inputs'] = [torch.nn.functional.pad(image, (0, 64, 0, 32)) for image in batch['inputs']]
    for sample in batch['data_samples']:
        sample.set_metainfo(dict(img_shape=(96, 128), ori_shape=(96, 128)))
    built.test_step(batch)
    assert built.file.images == 6


@pytest.mark.parametrize('calls', [0, 2])
@pytest.mark.parametrize('task', TASKS)
def test_predictions_that_are_not_of_the_file_are_no_score(model, task, calls):
    """As those of a framework's model that ignores what is put in the place of its network."""
    built, batch = model(task)
    pixels = torch.zeros(1, 3, 64, 64)

    def predict(inputs, data_samples):
        for _ in range(calls):
            built.file(pixels)
        return data_samples

    built.predictions = predict
    with pytest.raises(FileError, match=f'ran on {calls} images of a batch in place of 1'):
        built.test_step(batch)


@pytest.mark.parametrize('task, number', [('classification', 4), ('segmentation', 1)])
def test_outputs_of_other_classes_than_the_metadata_say(model, monkeypatch, task, number):
    built, batch = model(task)
    names = tuple(f'class {i}' for i in range(number))
    monkeypatch.setitem(built.file.metadata.__dict__, 'classes', names)
    with pytest.raises(FileError, match=f'has {number} classes in its metadata, its outputs have'):
        built.test_step(batch)


def test_a_larger_image_than_the_file_takes(model):
    built, batch = model('classification', dynamic=False, shape=[32, 32], least=32)
    with pytest.raises(FileError, match='an image of 64x64 for a file of 32x32 alone'):
        built.test_step(batch)


HOSTILE = [
    ({'task': 'forward'}, 'task must be one of classification, segmentation, detection, got .forw'),
    ({'task': ['detection']}, 'task must be one of'),
    ({'stride': 0}, 'stride must be a positive integer, got 0'),
    ({'stride': True}, 'stride must be a positive integer, got True'),
    ({'stride': 32.0}, r'stride must be a positive integer, got 32\.0'),
    ({'batch': -1}, 'batch must be a positive integer or null, got -1'),
    ({'batch': 0}, 'batch must be a positive integer or null, got 0'),
    ({'least': 0}, 'least must be a positive integer, got 0'),
    ({'least': 40}, 'least must be a multiple of the stride 32, got 40'),
    ({'shape': [64]}, 'shape must be two positive integers'),
    ({'shape': [64, 48]}, r'shape must be a multiple of the stride 32, got \(64, 48\)'),
    ({'classes': 'abc'}, "classes must be a list of names, got 'abc'"),
    ({'classes': ['a', 1]}, 'classes must be a list of names'),
    ({'raw': 1}, 'raw must be true or false, got 1'),
    ({'dynamic': 'yes'}, "dynamic must be true or false, got 'yes'"),
    ({'fp16': None}, 'fp16 must be true or false, got None'),
    ({'outputs': []}, 'outputs must be a list of different names'),
    ({'outputs': ['scores', 'scores']}, 'outputs must be a list of different names'),
    ({'outputs': ['labels']}, r"outputs of classification .*must be \['scores'\]"),
    ({'padding': [0, 0]}, 'padding must be three numbers'),
    ({'padding': [0, 0, float('nan')]}, 'padding must be three numbers'),
]


@pytest.mark.parametrize('changes, message', HOSTILE)
def test_damaged_metadata_are_refused(tmp_path, changes, message):
    about = {**description('classification', 6), **changes}
    path = write_stub(tmp_path / 'stub.onnx', 'classification', about)
    with pytest.raises(FileError, match=f'stub.onnx has damaged metadata: {message}'):
        ExportedFile(path)


@pytest.mark.parametrize(
    'text, message',
    [
        ('{', 'the text is no JSON'),
        ('[' * 100_000, 'the text is no JSON'),
        ('7' * 10_000, 'the text is no JSON'),
        ('[]', r'the text must be an object, got \[\]'),
        ('{"task": "detection"}', 'classes, outputs, raw, .*missing'),
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
    about = description('segmentation', 6, raw=True, outputs=['logits'])
    file = ExportedFile(write_stub(tmp_path / 'stub.onnx', 'segmentation', about))
    with pytest.raises(FileError, match='stub.onnx cannot be run: .*logits'):
        file(torch.zeros(1, 3, 64, 64))


def test_names_of_classes(tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(
        file_checks, 'print_log', lambda text, *args, **kwargs: printed.append(text)
    )

    def check(own, data):
        about = description('classification', 6, classes=list(own))
        path = write_stub(tmp_path / 'stub.onnx', 'classification', about)
        check_classes(ExportedFile(path), data)

    check(('cat', 'dog'), ['cat', 'dog'])
    check(('class 0', 'class 1'), ('cat', 'dog'))
    with pytest.raises(FileError, match="class 0 is 'dog' in the file and 'cat' in the data set"):
        check(('dog', 'cat'), ('cat', 'dog'))
    assert not printed
    check(('cat', 'hound'), ('cat', 'dog'))
    assert len(printed) == 1 and "('cat', 'hound')" in printed[0] and "('cat', 'dog')" in printed[0]
