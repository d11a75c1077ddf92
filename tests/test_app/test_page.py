"""What the controls of the page do, and its server."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData

from mmlinattn import __main__ as program
from mmlinattn.apis import Prediction, coco_categories
from mmlinattn.app import load_models, package_models
from mmlinattn.app.page import Callbacks, build_page, table_of

IMAGE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
NEEDS_GRADIO = "gradio is not installed: pip install 'gradio>=6'"
SHOWN = ('prediction', 'attention')
ADDRESS = re.compile(r'(http://127\.0\.0\.1:\d+)/? \(Ctrl-C closes it\)')


def test_the_controls(predictor, tmp_path):
    path = str(tmp_path / 'a.png')
    cv2.imwrite(path, IMAGE)
    page = Callbacks({name: predictor(name) for name in ('seg', 'det', 'cls')})
    for name in page.models:
        drawn, table, text = page.predict(name, path, 0.0)
        assert drawn.shape == (320, 480, 3) and drawn.dtype == np.uint8
        assert text.endswith(' ms for 96 x 64 pixels')
        assert table['data'] and all(len(row) == len(table['headers']) for row in table['data'])
        layer = page.layers(name)[-1]
        first, _ = page.explain(name, path, layer, None)
        other, _ = page.explain(name, path, layer, [3, 4])
        assert first.shape == other.shape and not np.array_equal(first, other)
    assert page.predict('seg', None, 0.0) == (None, None, '')
    assert page.explain('seg', path, None, None)[1] == 'No attention of this model can be shown.'
    page.close()
    with pytest.raises(RuntimeError, match='the page is closed'):
        page.predict('seg', path, 0.0)


def prediction(categories, **content):
    return Prediction(BaseDataElement(**content), 0.02, IMAGE, '', categories, 0.3)


def test_tables():
    categories = coco_categories('xy', [(0, 0, 0), (9, 9, 9)])
    boxes = torch.tensor([[1.0, 2, 4, 6], [0, 0, 9, 9]])
    found = InstanceData(
        bboxes=boxes, scores=torch.tensor([0.5, 0.75]), labels=torch.tensor([1, 0])
    )
    assert table_of(prediction(categories, pred_instances=found)) == dict(
        headers=['class', 'score', 'left', 'top', 'right', 'bottom'],
        data=[['x', 0.75, 0, 0, 9, 9], ['y', 0.5, 1, 2, 4, 6]],
    )
    labels = torch.tensor([[[0, 1, 1, 1]]])
    assert table_of(prediction(categories, pred_sem_seg=PixelData(data=labels))) == dict(
        headers=['class', 'share'], data=[['y', 0.75], ['x', 0.25]]
    )
    scores = table_of(prediction(coco_categories('abcdefghijkl'), pred_score=torch.rand(12)))
    assert len(scores['data']) == 10 and scores['headers'] == ['class', 'score']


def test_models_of_the_same_name_and_of_the_package(files):
    config, checkpoint = files('cls')
    found = load_models([(config, checkpoint), (config, checkpoint)])
    assert list(found) == [f'ravlt-nano_shapes, {checkpoint}']
    name = 'semantic-fpn_ravlt-nano-linear_nuclei'
    assert (name, f'mmlinattn://{name}') in package_models()


@pytest.mark.parametrize(
    'argv, message',
    [
        (['x.py', 'x.pth'], "config 'x.py' does not exist"),
        (['ravlt-nano_shapes', 'x.pth'], 'x.pth'),
        (['--images', 'none'], "--images 'none' has no images"),
        (['x.py'], "each CONFIG needs its CHECKPOINT; 'x.py' has none"),
        (['x.py', 'x.pth', '--port', '70000'], '--port must be 1 to 65535, got 70000'),
        (['x.py', 'x.pth', '--host', '192.0.2.1'], '--host 192.0.2.1 --port unset: Cannot assign'),
        (['x.py', 'x.pth', '--host', '::1'], '--host must have an IPv6 address in brackets: [::1]'),
        (['x.py', 'x.pth', '--host', '[::1]'], "config 'x.py' does not exist"),
    ],
)
def test_what_is_not_there(monkeypatch, tmp_path, error_of, argv, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: name)
    assert message in error_of(program.main, ['app', *argv])


def test_a_taken_port(monkeypatch, error_of):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: name)
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = str(server.getsockname()[1])
        error = error_of(program.main, ['app', 'x.py', 'x.pth', '--port', port])
    assert f'--host 127.0.0.1 --port {port}: Address already in use: set another --port' in error


def test_without_gradio(monkeypatch, error_of):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    error = error_of(program.main, ['app', 'x.py', 'x.pth'])
    assert "the page needs the package gradio: pip install 'gradio>=6'" in error


def test_errors_are_shown(predictor, tmp_path):
    """The page names what is wrong with a picture, in one line, and goes on."""
    gradio = pytest.importorskip('gradio', reason=NEEDS_GRADIO)
    page = build_page(Callbacks(dict(seg=predictor('seg'))))
    (call,) = {one.fn for one in page.fns.values() if len(one.inputs) == 3}
    (tmp_path / 'broken.png').write_bytes(b'no picture')
    with pytest.raises(gradio.Error, match='broken.png cannot be read'):
        call('seg', str(tmp_path / 'broken.png'), 0.3)


def test_a_picture_of_16_bits_reaches_the_model_as_it_is(predictor, tmp_path):
    gradio = pytest.importorskip('gradio', reason=NEEDS_GRADIO)
    path = str(tmp_path / 'a.png')
    cv2.imwrite(path, IMAGE[..., 0].astype(np.uint16) * 257)
    page = build_page(Callbacks(dict(seg=predictor('seg'))))
    (image,) = (x for x in page.blocks.values() if getattr(x, 'elem_id', None) == 'image')
    shown = [x for x in page.blocks.values() if getattr(x, 'elem_id', None) in SHOWN]
    assert [x.format for x in shown] == ['png', 'png']
    found = image.preprocess(gradio.data_classes.ImageData(path=path))
    assert np.array_equal(cv2.imread(found, cv2.IMREAD_UNCHANGED) // 257, IMAGE[..., 0])


@pytest.mark.parametrize('number, code', [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_server(root, files, tmp_path, number, code):
    """It serves the page, and leaves no uploads."""
    pytest.importorskip('gradio', reason=NEEDS_GRADIO)
    cv2.imwrite(str(tmp_path / 'a.png'), IMAGE)
    uploads, log = tempfile.mkdtemp(dir=tmp_path), tmp_path / 'log'
    command = [sys.executable, '-m', 'mmlinattn', 'app', *files('seg'), '--images', str(tmp_path)]
    path = os.pathsep.join([str(root), os.environ.get('PYTHONPATH', '')])
    env = dict(os.environ, TMPDIR=uploads, PYTHONPATH=path, no_proxy='*')
    with log.open('w') as file, subprocess.Popen(
        command, cwd=root, env=env, stdout=file, stderr=subprocess.STDOUT
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while not (found := ADDRESS.search(log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert b'MMLinAttn' in opener.open(found[1]).read()
        process.send_signal(number)
        assert process.wait(30) == code, log.read_text()
    assert not os.listdir(uploads)
