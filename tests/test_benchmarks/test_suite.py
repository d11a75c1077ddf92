import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks import first_page, report, run, suite
from benchmarks.cases import CASES, Baseline, Case, Setup, backbones
from benchmarks.report import table
from benchmarks.suite import MODES, Effort, Result, run_case, slopes
from tests.pictures import check_picture

pytestmark = pytest.mark.slow

QUICK = Effort(min_rounds=1, min_seconds=0.0)


def setup(hw_shape=(4, 6), dtype=torch.float32) -> Setup:
    return Setup(hw_shape, 2, 2, 8, dtype, torch.device('cpu'))


def made_up(**baselines) -> Case:
    return Case('made-up', 'operator', '', lambda setup: baselines)


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('name', [n for n, c in CASES.items() if c.kind != 'backbone'])
@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_baselines_of_operators_and_layers_agree(name, mode, dtype):
    results = list(run_case(CASES[name], [setup(dtype=dtype)], mode, QUICK))
    first, *others = results
    assert first.error is None and first.tokens == 24
    compared = [baseline.same for baseline in CASES[name].build(setup()).values()][1:]
    assert [result.error is not None for result in others] == compared
    for result in results:
        assert len(result.seconds) == 1 and result.peak_bytes > 0 and not result.skipped


@pytest.mark.parametrize('name', ['segformer-b0', 'segformer-b2'])
def test_segformers_have_as_many_weights_as_those_of_mmsegmentation(name):
    heads = pytest.importorskip(
        'mmlinattn.models.decode_heads', reason='MMSegmentation comes with the extra "seg"'
    )
    assert 'MMSegmentation' in CASES[name].build(setup((64, 64)))
    of_b2 = [3, 4, 6, 3]  # the default of MMSegmentation, whatever the width
    wrong = dict(embed_dims=64 if name == 'segformer-b0' else 32, num_layers=of_b2)
    with pytest.raises(AssertionError, match='not the same model'):
        backbones._segformers(setup((64, 64)), name[-2:], heads.AllMLPHead, **wrong)


def broken():
    raise ValueError('no such size\nand more')


@pytest.mark.parametrize(
    'baseline, mode, reason',
    [
        (lambda x: (2.01 * x, 2 * x), 'forward', r'differs from a by 5.0e-03 relative'),
        (lambda x: (x * float('nan'), 2 * x), 'forward', 'by nan'),
        (lambda x: (2 * x, x * float('nan')), 'forward', 'by nan'),
        (lambda x: 2 * x, 'forward', 'by inf'),
        (lambda x: (x + x.detach(), x + x.detach()), 'forward+backward', 'by 5.0e-01'),
        (lambda x: broken(), 'forward', 'ValueError: no such size$'),
    ],
    ids=['outputs', 'nan', 'second is nan', 'fewer', 'gradients', 'error'],
)
def test_a_baseline_that_is_wrong_is_not_measured(baseline, mode, reason):
    x = leaf()
    baselines = made_up(
        a=Baseline(lambda: (2 * x, x + x), (x,)),
        b=Baseline(lambda: baseline(x), (x,)),
        c=Baseline(lambda: (x + x, 2 * x), (x,)),
    )
    a, b, c = run_case(baselines, [setup()], mode, QUICK)
    assert b.failed and not b.seconds and re.search(reason, b.skipped)
    assert not a.failed and not c.failed and len(a.seconds) == len(c.seconds) == 1


def test_baselines_of_another_kind_are_not_compared():
    x = leaf()
    other = made_up(a=Baseline(lambda: 2 * x, (x,)), b=Baseline(lambda: 3 * x, (x,), same=False))
    assert [r.error for r in run_case(other, [setup()], 'forward', QUICK)] == [None, None]


def test_calls_that_would_take_too_long_are_left_out(monkeypatch):
    def interleave(steps, *args, **kwargs):
        return {name: [1e-3] for name in steps}

    monkeypatch.setattr(suite, 'interleave', interleave)
    x = leaf()
    baselines = dict(
        a=Baseline(lambda: 2 * x, (x,)), b=Baseline(lambda: 2 * x, (x,), quadratic=True)
    )
    setups = [setup((1000, 1000)), setup((2, 2))]
    results = list(run_case(made_up(**baselines), setups, 'forward', Effort(budget=1e3)))
    assert [r.size for r in results] == ['2x2', '2x2', '1000x1000', '1000x1000']
    assert [bool(r.skipped) for r in results] == [False, False, False, True]
    assert re.fullmatch(r'about [\d,]+ s, not run', results[-1].skipped)


def result(baseline, tokens, seconds, peak=2**20, **kwargs) -> Result:
    return Result('rala', 'operator', baseline, 'forward', 'float32', 1, f'1x{tokens}', tokens,
                  [seconds], peak, **kwargs)  # fmt: skip


def test_slopes_and_table():
    group = [
        result('mmlinattn', 1024, 1.0), result('slow', 1024, 1.0),
        result('mmlinattn', 4096, 1e-3), result('slow', 4096, 2e-3),
        result('mmlinattn', 16384, 4e-3, 4 * 2**20), result('slow', 16384, 32e-3, 16 * 2**20),
        result('mmlinattn', 65536, 16e-3, 16 * 2**20),
        result('slow', 65536, 0, skipped='about 9 s, not run'),
    ]  # fmt: skip
    fitted = slopes(group)
    # The overhead below 4,096 tokens is no growth.
    assert fitted['mmlinattn'] == pytest.approx((1, 1))
    assert fitted['slow'] == pytest.approx((2, 2))
    columns, _, ours, slow = table(group)
    assert columns.startswith('|  | 1x1024, 1,024 tokens | 1x4096, 4,096 tokens |')
    assert ours.startswith('| mmlinattn | 1.00 s, 1.00 MiB |')
    assert ours.endswith('| 16.0 ms, 16.0 MiB | 1.00 | 1.00 |')
    assert '| 2.00 ms (2.00x), 1.00 MiB |' in slow and '| 32.0 ms (8.00x), 16.0 MiB |' in slow
    assert slow.endswith('| about 9 s, not run | 2.00 | 2.00 |')


def test_cases_of_one_mode_share_a_table():
    group = [
        replace(result('mmlinattn', 4096, 0.0), case=name, seconds=[0.001, 0.002, 0.003])
        for name in ('rala', 'linear')
    ]
    group.append(replace(group[0], mode='forward+backward'))
    record = dict(command='c', machine='m', plots=False, results=[asdict(r) for r in group])
    text = '\n'.join(report.shown('name', record))
    assert 'Machine: m.' in text and text.count('float32:') == 2
    assert 'Forward, batch 1, float32:' in text
    slow = replace(group[0], seconds=[0.5, 0.6, 0.7])
    assert report.cell(slow, slow).startswith('600 ± 50 ms')
    assert report.cell(slow, group[0]).startswith('600 ± 50 ms (300x), ')
    assert report.cell(group[0], slow).startswith('2.00 ± 0.5 ms (0.003x), ')
    for name in ('rala', 'linear'):
        assert f'\n| {name}: this package | 2.00 ± 0.5 ms, 1.00 MiB |' in text


def test_pages_name_series_and_sizes_by_what_they_are():
    """One of a case, one of all cases; images are width x height, maps rows x columns."""
    of = replace(result('mmlinattn', 8, 1.0), kind='backbone', size='2x4')
    results = [replace(of, case='retinanet'), of, replace(of, kind='layer', baseline='RALA')]
    _, shown = report._parsed(dict(results=[asdict(result) for result in results]))
    assert [result.baseline for result in shown] == ['RAVLT-T as released', 'this package', 'RALA']
    assert [result.size for result in shown] == ['4x2', '4x2', '2x4']


def test_runner_writes_its_files(tmp_path, monkeypatch, capsys):
    def build(setup):
        return {'conv': Baseline.of_module(torch.nn.Conv2d(3, 4, 4, 4), setup.image())}

    monkeypatch.setitem(CASES, 'nano', Case('nano', 'backbone', '', build))
    argv = (
        '--cases rala nano --tokens 16 64 --images 64x64 --heads 1 --head-dim 8 --rounds 1 '
        f'--quick --threads 1 --out {tmp_path}'
    ).split()
    assert run.main(argv) == 0
    data = json.loads((tmp_path / 'results.json').read_text())
    assert data['command'].startswith('python benchmarks/run.py --cases rala')
    assert data['threads'] == 1 and torch.__version__ in data['versions'] and data['commit']
    assert {r['baseline'] for r in data['results'] if r['case'] == 'rala'} == {
        'mmlinattn', 'textbook', 'SDPA softmax',
    }  # fmt: skip
    assert all(r['peak_bytes'] > 0 and len(r['seconds']) >= 1 for r in data['results'])
    text = (tmp_path / 'results.md').read_text()
    headings = re.findall(r'^(Forward.*):$', text, re.M)
    assert len({*headings}) == 4 and headings[0] == 'Forward, batch 1, float32, operators'
    assert '| 8x8, 64 tokens |' in text and '| 64x64, 256 tokens |' in text
    assert '.png' not in text and not list(tmp_path.glob('*.png'))
    assert 'mmlinattn' in capsys.readouterr().out


def test_runner_fails_where_baselines_disagree(tmp_path, monkeypatch, capsys):
    x = leaf()
    baselines = dict(a=Baseline(lambda: 2 * x, (x,)), b=Baseline(lambda: 3 * x, (x,)))
    monkeypatch.setitem(CASES, 'rala', Case('rala', 'operator', '', lambda setup: baselines))
    args = ['--cases', 'rala', '--modes', 'forward', '--tokens', '16', '--out', str(tmp_path)]
    assert run.main(args) == 1
    assert 'rala, forward, batch 1, 4x4: b: differs from a by 5.0e-01' in capsys.readouterr().out
    assert 'differs from a' in (tmp_path / 'results.md').read_text()


def test_list_of_cases(capsys):
    assert run.main(['--list']) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CASES)


def test_sizes_on_the_command_line():
    args = run.parse_args(['--tokens', '1k', '4k', '65k', '262k', '100', '--images', '800x1280'])
    assert args.tokens == [1024, 4096, 65536, 262144, 100] and args.images == [(800, 1280)]
    assert [run.map_shape(n) for n in (4096, 2048, 7, 1)] == [(64, 64), (32, 64), (1, 7), (1, 1)]


@pytest.mark.parametrize(
    'argv, message',
    [
        ('--cases nothing', "'nothing'"),
        ('--tokens 4q', "like 4096 or 4k, got '4q'"),
        ('--tokens 0', 'must be positive'),
        ('--images 800', "like 800x1280, got '800'"),
        ('--device tpu', "got 'tpu'"),
        ('--head-dim 6', 'multiple of 4, got 6'),
    ],
)
def test_bad_command_lines(argv, message, capsys):
    with pytest.raises(SystemExit):
        run.parse_args(argv.split())
    assert message in capsys.readouterr().err


def without_memory(part) -> list:
    return [line.replace(', 9.54e-07 MiB', '') for line in table(part)]


def test_a_baseline_may_be_left_out_at_some_sizes():
    of = dict(case='attentions', kind='layer', mode='forward', dtype='float32', batch=1)
    group = [
        Result(baseline=baseline, size=size, tokens=tokens, seconds=[1.0], peak_bytes=1, **of)
        for size, tokens, baselines in (('8x8', 64, 'ab'), ('64x64', 4096, 'a'))
        for baseline in baselines
    ]
    columns, _, a, b = without_memory(group)
    assert columns == '|  | 8x8, 64 tokens | 64x64, 4,096 tokens |'  # no slope of one size
    assert a == '| a | 1.00 s | 1.00 s |' and b == '| b | 1.00 s (1.00x) |  |'
    # The first may be missing, and models of other strides have other tokens.
    group = [group[1], replace(group[2], baseline='d', tokens=1024), replace(group[2], case='c')]
    columns, _, *rows = without_memory(group)
    assert columns == '|  | 8x8, 64 tokens | 64x64 |'
    assert rows == [
        '| attentions: b | 1.00 s |  |', '| attentions: d |  | 1.00 s |', '| c: a |  | 1.00 s |',
    ]  # fmt: skip


def test_modes_side_by_side():
    """A row that a mode lacks has empty cells there."""
    first = Result('c', 'layer', 'a', 'forward', 'float32', 1, '8x8', 64, [1.0], 1)
    part = [first, replace(first, baseline='b'), replace(first, mode='forward+backward')]
    columns, _, a, b = without_memory(part)
    assert columns == '|  | forward: 8x8, 64 tokens | forward+backward: 8x8, 64 tokens |'
    assert a == '| a | 1.00 s | 1.00 s |' and b == '| b | 1.00 s (1.00x) |  |'


def test_pages_show_what_the_committed_results_give(root: Path, tmp_path: Path):
    """Tables and pictures of docs/benchmarks are drawn from the JSON file beside them."""
    records = sorted((root / 'docs/benchmarks').glob('*.json'))
    linked = re.findall(r'\(benchmarks/(\S+)\.md\)', (root / 'docs/benchmarks.md').read_text())
    pages = (root / 'docs/benchmarks').glob('*.md')
    assert {*linked} == {path.stem for path in pages} == {path.stem for path in records}
    for record in records:
        name, content = record.stem, json.loads(record.read_text())
        lines = report.published(name)
        assert record.with_suffix('.md').read_text() == '\n'.join([*lines, '']), '--redraw'
        pictures = re.findall(r'\(../images/(.*\.png)\)', '\n'.join(lines))
        assert bool(pictures) == (content.get('plots', True) and 'results' in content)
        report.draw(name, tmp_path)
        drawn = {path.name for path in (root / 'docs/images').glob(f'{name}_*.png')}
        assert drawn == {*pictures}
        for picture in pictures:
            check_picture(root / 'docs/images' / picture, tmp_path / picture, record)


def test_the_plot_and_the_claims_of_the_readme(root: Path, tmp_path: Path):
    picture = root / 'docs/images/segformer-b0.png'
    first_page.draw(tmp_path / 'drawn.png')
    check_picture(picture, tmp_path / 'drawn.png', first_page.RECORD)
    of_size = first_page.rows()['1024x2048']
    (rival, most), (time, memory) = of_size['MMSegmentation'], of_size['mmlinattn']
    assert time / rival == pytest.approx(2 / 5, rel=0.1)
    assert memory / most == pytest.approx(1 / 7, rel=0.1)
    for name in ('RWGKA', 'RALA'):
        assert of_size[name][0] / time == pytest.approx(0.6, rel=0.1)
    smaller = first_page.rows()['1024x1024']
    assert smaller['RALA'][0] / smaller['mmlinattn'][0] == pytest.approx(3 / 4, rel=0.1)
    # docs/choose.md: B2 with the head of MMSegmentation.
    record = json.loads((root / 'docs/benchmarks/segformer-b2.json').read_text())
    rows = {r['baseline']: r for r in record['results'] if r['size'] == '1024x2048'}
    ours, theirs = rows['mmlinattn'], rows['MMSegmentation']
    linear = median(rows['RWGKA']['seconds'])
    assert linear / median(ours['seconds']) == pytest.approx(0.6, rel=0.1)
    assert median(ours['seconds']) / median(theirs['seconds']) == pytest.approx(1 / 2, rel=0.1)
    assert ours['peak_bytes'] / theirs['peak_bytes'] == pytest.approx(1 / 5, rel=0.1)


def test_results_are_shown_in_a_page(docs, tmp_path, capsys):
    words = '--cases linear --tokens 16 64 --rounds 1 --heads 1 --modes forward --quick --docs'
    argv, page = [*words.split(), 'a', '--out', str(tmp_path / 'out')], docs / 'benchmarks' / 'a.md'
    assert run.main([*argv, '--no-plots']) == 0
    assert '.png' not in page.read_text() and 'lots: ' not in page.read_text()
    assert not [*tmp_path.rglob('*.png')]
    assert run.main(argv) == 0
    text = page.read_text()
    assert f'python benchmarks/run.py {words} a' in text and '| 8x8, 64 tokens |' in text
    assert '](../images/a_linear-forward-1.png)' in text
    assert (docs / 'images' / 'a_linear-forward-1.png').is_file()
    page.write_text(text.replace('| 8x8, ', '| 9x9, '))
    assert run.main(['--redraw', 'a']) == 0 and page.read_text() == text
    with pytest.raises(SystemExit):
        run.main(['--redraw', 'b'])
    assert 'there is no docs/benchmarks/b.json' in capsys.readouterr().err
