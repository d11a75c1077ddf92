"""The page in a browser without a screen, and what it sends out: nothing."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest
from PIL import Image

# Runs the command, and ends it where it would talk to any other machine.
GUARDED = """
import socket, sys
from mmlinattn.__main__ import main
connect, resolve = socket.socket.connect, socket.getaddrinfo
def local(host):
    if str(host) not in ('127.0.0.1', 'localhost', '::1', 'None'):
        print('OUTSIDE', host, flush=True)
        raise OSError(f'no way to {host}')
def guarded(self, address):
    if isinstance(address, tuple):
        local(address[0])
    return connect(self, address)
socket.socket.connect = guarded
socket.getaddrinfo = lambda host, *a, **k: (local(host), resolve(host, *a, **k))[1]
sys.exit(main(sys.argv[1:]))
"""
ADDRESS = re.compile(r'(http://127\.0\.0\.1:\d+)/? \(Ctrl-C closes it\)')


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    """A folder of examples, and a picture that is none of them: half red, half blue."""
    folder = tmp_path_factory.mktemp('pictures')
    (folder / 'examples').mkdir()
    cv2.imwrite(str(folder / 'examples' / 'grey.png'), np.full((64, 96, 3), 128, np.uint8))
    image = np.zeros((64, 96, 3), np.uint8)
    image[:, :48, 2] = image[:, 48:, 0] = 255
    cv2.imwrite(str(folder / 'mine.png'), image)
    (folder / 'broken.png').write_bytes(b'no picture')
    Image.new('1', (8000, 6400)).save(folder / 'large.png')
    return folder


@pytest.fixture(scope='module')
def page(files, pictures, root, tmp_path_factory):
    """(address, log): the command, serving a segmentor and a detector."""
    pytest.importorskip('gradio', reason="gradio is not installed: pip install 'gradio>=6'")
    log, uploads = tmp_path_factory.mktemp('page') / 'log', tmp_path_factory.mktemp('uploads')
    command = [
        sys.executable, '-c', GUARDED, 'app', *files('seg'), *files('det'),
        '--images', str(pictures / 'examples'),
    ]  # fmt: skip
    path = os.pathsep.join([str(root), os.environ.get('PYTHONPATH', '')])
    env = dict(os.environ, PYTHONPATH=path, TMPDIR=str(uploads))
    with log.open('w') as file, subprocess.Popen(
        command, cwd=root, env=env, stdout=file, stderr=subprocess.STDOUT
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 120
        while not (found := ADDRESS.search(log.read_text())):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        assert any(uploads.rglob('grey.png'))
        yield found[1], log
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert not any(uploads.glob('tmp*'))


@pytest.fixture(scope='module')
def browser():
    playwright = pytest.importorskip(
        'playwright.sync_api', reason='playwright is not installed: pip install playwright'
    )
    with playwright.sync_playwright() as engine:
        own = engine.chromium.executable_path
        path = next(filter(None, map(shutil.which, (own, 'chromium', 'google-chrome'))), None)
        if path is None:
            pytest.skip('there is no Chromium: `playwright install chromium`, or of the system')
        opened = engine.chromium.launch(executable_path=path, args=['--no-sandbox'])
        yield opened
        opened.close()


def picture_of(tab, name):
    """What an image of the page shows, (H, W, 3) BGR in its own size."""
    content = tab.evaluate(
        """async name => {
            const response = await fetch(document.querySelector(`#${name} img`).src);
            return Array.from(new Uint8Array(await response.arrayBuffer()));
        }""",
        name,
    )
    return cv2.imdecode(np.array(content, np.uint8), cv2.IMREAD_COLOR)


def settle(tab, what):
    tab.wait_for_function(what, timeout=30000)


@pytest.mark.parametrize('width', [1280, 390])
def test_upload_click_and_look(page, browser, pictures, tmp_path, width):
    address, log = page
    tab = browser.new_page(viewport=dict(width=width, height=844))
    faults = []
    tab.on('pageerror', lambda error: faults.append(str(error)))
    tab.on('console', lambda m: faults.append(m.text) if m.type == 'error' else None)
    tab.on('request', lambda r: None if r.url.startswith((address, 'data:', 'blob:'))
           else faults.append(r.url))  # fmt: skip
    tab.goto(address)
    settle(
        tab, "document.querySelector('#text')?.innerText.includes('row 9, column 13 of 16 x 24')"
    )
    assert (picture_of(tab, 'image') == 128).all()  # the first example, without a click

    tab.set_input_files('#image input[type=file]', pictures / 'mine.png')
    settle(tab, "document.querySelector('#image img')?.naturalWidth == 96")
    tab.wait_for_timeout(300)
    settle(tab, "!document.querySelector('.generating, .pending')")
    assert tab.locator('#summary').inner_text().endswith('segmentation')
    assert 'ms on cpu for 96 x 64 pixels' in tab.locator('#summary').inner_text()
    assert '%' in tab.locator('#found').inner_text()
    box = tab.locator('#prediction img').bounding_box()
    # The picture, 3 x 2, in the middle of its frame; in it the cell in row 4, column 21.
    shown = min(box['width'], box['height'] * 1.5, 480)
    x = box['width'] / 2 + (20.5 / 24 - 0.5) * shown
    y = box['height'] / 2 + (3.5 / 16 - 0.5) * shown / 1.5
    tab.locator('#prediction img').click(position=dict(x=x, y=y))
    settle(tab, "document.querySelector('#text').innerText.includes('row 4, column 21 of 16 x 24')")
    tab.wait_for_timeout(500)
    drawn, attention = picture_of(tab, 'prediction'), picture_of(tab, 'attention')
    assert drawn.shape == attention.shape == (5 * 64, 5 * 96, 3)
    mark = attention[60:80, 400:420].astype(int)  # the cell
    assert (mark > 230).all(-1).any() and (mark < 60).all(-1).any()
    elsewhere = attention[160:, :240].astype(int)
    assert np.ptp(elsewhere, -1).max() > 5  # has colour, and no mark
    assert not (elsewhere > 230).all(-1).any()

    shot = tmp_path / 'page.png'
    tab.screenshot(path=shot, full_page=True)
    height, wide = cv2.imread(str(shot)).shape[:2]
    assert wide == width and height >= 800  # nothing sticks out at the side
    assert cv2.imread(str(shot)).std() > 20

    assert not tab.locator('#score').is_visible() and not tab.locator('#head').is_visible()
    swatch = 'getComputedStyle(document.querySelector("#found i")).backgroundColor'
    assert tab.evaluate(swatch).startswith('rgb(')
    assert 'uniform' in tab.locator('#bar').inner_text()
    tab.locator('#opacity input[type=number]').fill('0')
    tab.locator('#opacity input[type=number]').press('Enter')
    tab.locator('#layer input').click()
    tab.get_by_role('option', name='backbone.stages.2.0: Softmax, keys').click()
    settle(tab, "document.querySelector('#text').innerText.includes('of 4 x 6 cells')")
    tab.locator('#head input').click()
    tab.get_by_role('option', name='head 2 of').click()
    settle(tab, "document.querySelector('#text').innerText.includes('Shown: head 2 of')")
    tab.wait_for_timeout(500)
    grey = picture_of(tab, 'attention').astype(int)
    assert np.ptp(grey, -1).max() <= 3  # nothing of the colours is left
    tab.locator('#model input').click()
    tab.get_by_role('option', name='mask-rcnn_ravlt-nano_shapes').click()
    settle(tab, "document.querySelector('#summary').innerText.endsWith('detection')")
    settle(tab, "document.querySelector('#text').innerText.includes('of 16 x 24 cells')")
    assert tab.locator('#score').is_visible()
    assert tab.evaluate('document.documentElement.scrollWidth') == width
    tab.locator('.gallery-item').first.click()  # the example, as a file of the server
    settle(tab, "document.querySelector('#image img')?.src.includes('grey')")
    settle(tab, "document.querySelector('#summary').innerText.endsWith('detection')")
    assert (picture_of(tab, 'image') == 128).all()
    assert faults == [] and 'OUTSIDE' not in log.read_text()
    tab.close()


@pytest.mark.parametrize(
    'name, said',
    [
        ('broken.png', 'image broken.png cannot be read'),
        ('large.png', 'image large.png has 8000 x 6400 = 51.2 megapixels, the limit is 50'),
    ],
)
def test_a_picture_that_is_refused(page, browser, pictures, name, said):
    """The page says so and goes on."""
    tab = browser.new_page()
    tab.goto(page[0])
    settle(tab, "document.querySelector('#attention img')")
    tab.set_input_files('#image input[type=file]', pictures / name)
    tab.get_by_text(said).first.wait_for(timeout=20000)
    tab.reload()
    settle(tab, "document.querySelector('#attention img')")
    tab.close()
