"""Images a second, against calls that take a known time, and the speeds of papers."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.analysis.throughput import Throughput, throughput
from mmlinattn.cli.arguments.analysis import throughput as arguments

CPU = torch.device('cpu')
TINY = ('ravlt-nano_shapes', '--shape', 64, 64, '--limit', 1.2)


class Sleeper(nn.Module):
    """A model that takes a millisecond an image on its own clock, and records what it gets."""

    def __init__(self, monkeypatch, seconds=1e-3):
        super().__init__()
        self.now = 0.0
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr('mmlinattn.analysis.throughput.time', clock)
        self.seconds, self.shapes, self.dtypes = seconds, [], []

    def forward(self, images):
        self.shapes.append(tuple(images.shape))
        self.dtypes.append(
            torch.get_autocast_dtype('cpu') if torch.is_autocast_enabled('cpu') else None
        )
        self.now += self.seconds * len(images)


def test_images_a_second_of_a_model_of_known_speed(monkeypatch):
    model = Sleeper(monkeypatch)
    found = throughput(model, 4, (32, 64), CPU, limit=0.6)
    assert set(model.shapes) == {(4, 3, 32, 64)}
    assert found.batch == 4 and found.images_a_second() == pytest.approx(1000)
    # One call of warm-up, then those that count: 0.1 s of 4 ms.
    assert len(model.shapes) - 1 == len(found.seconds)
    assert len(found.seconds) in (25, 26) and not any(model.dtypes)


def test_a_slow_model_is_called_three_times(monkeypatch):
    found = throughput(Sleeper(monkeypatch, 0.06), 1, (32, 32), CPU, limit=0.6)
    assert len(found.seconds) == 3


def test_precision_is_that_of_autocast(monkeypatch):
    model = Sleeper(monkeypatch)
    throughput(model, 1, (32, 32), CPU, precision='bf16', limit=0.3)
    assert set(model.dtypes) == {torch.bfloat16}


def test_median_and_quartiles():
    found = Throughput(6, [1.0, 2.0, 3.0, 6.0, 0.5])  # 6, 3, 2, 1, 12 images a second
    assert found.images_a_second() == 3
    assert found.to_dict() == dict(
        batch=6, images_a_second=3.0, low=2.0, high=6.0, seconds=found.seconds
    )


def test_a_call_that_takes_too_long(monkeypatch):
    model = Sleeper(monkeypatch, 0.06)
    message = r'batch size 2 at 32 x 32: 4 calls take more than 0.2 s \(the first one 0.1 s\): take'
    with pytest.raises(TimeoutError, match=message):
        throughput(model, 2, (32, 32), CPU, limit=0.2)
    assert len(model.shapes) == 2


@pytest.fixture
def command(tmp_path, monkeypatch):
    pytest.importorskip('mmpretrain', reason='the command takes classifiers of MMPretrain')
    monkeypatch.chdir(tmp_path)
    return lambda *words: program.main(['analyze', 'throughput', *map(str, words)])


def test_command_line(command, tmp_path, capsys):
    assert command(*TINY[:-1], 6, '--batch-size', 2, 1, '--json', 'out/a.json') == 0
    said, found = capsys.readouterr(), json.loads((tmp_path / 'out/a.json').read_text())
    assert [row['batch'] for row in found['results']] == [2, 1]
    assert found['model'] == 'ImageClassifier' and found['shape'] == [64, 64]
    assert f'cpu, threads: {torch.get_num_threads()}, float32, torch' in found['machine']
    text = ' '.join(said.out.split())
    assert found['machine'] in text
    for row in found['results']:
        assert row['low'] <= row['images_a_second'] <= row['high']
        assert f'{row["images_a_second"]:.1f} ' in text


@pytest.mark.parametrize(
    'kind, text',
    [
        (TimeoutError, 'batch size 64 at 64 x 64: 6 calls\ntake more than 1 s'),
        (RuntimeError, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        (torch.cuda.OutOfMemoryError, 'CUDA out of memory'),
    ],
)
def test_a_batch_that_takes_too_much_is_one_line_and_the_others_are_measured(
    command, monkeypatch, capsys, kind, text
):
    def measure(model, batch, *_, **options):
        if batch == 64:
            raise kind(text)
        return Throughput(batch, [0.5])

    monkeypatch.setattr('mmlinattn.cli.throughput.throughput', measure)
    assert command(*TINY) == 1
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if 'error' in line]
    assert lines == [f'error: {kind.__name__}: {" ".join(text.split())}']
    assert '2.0 to 2.0' in said.out


@pytest.mark.parametrize(
    'words, message',
    [
        (['ravlt-nano_shapes', '--shape', '16', '64'], 'at least 32x32 pixels, got (16, 64)'),
        (['nowhere', '--shape', '64', '64'], "config 'nowhere' does not exist"),
        ([*TINY, '--json', 'file/a.json'], 'file/a.json cannot be written'),
        ([*TINY, '--threads', '100000'], '--threads must be at most'),
    ],
)
def test_errors_are_one_line(command, tmp_path, monkeypatch, error_of, words, message):
    (tmp_path / 'file').write_text('')
    monkeypatch.setattr('mmlinattn.cli.throughput.initial_model', lambda *_: pytest.fail('built'))
    assert message in error_of(command, *words)


@pytest.mark.parametrize(
    'words, message',
    [
        (['--batch-size', '8', '0'], '--batch-size must be positive, got 0'),
        (['--limit', '0'], '--limit must be positive, got 0'),
        (['--precision', 'int8'], "invalid choice: 'int8'"),
    ],
)
def test_errors_of_arguments(error_of, words, message):
    assert message in error_of(arguments, ['c', '--shape', '64', '64', *words])
    assert arguments(['c', '--shape', '64', '64']).batch_size == [64, 1]
