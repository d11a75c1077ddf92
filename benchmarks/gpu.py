"""Check and measure what only a GPU shows, the most valuable first and within a time limit.

    python benchmarks/gpu.py --minutes 15 --out work_dirs/gpu
    python benchmarks/gpu.py --minutes 0 --out work_dirs/gpu --docs       # shows results in docs/
    python benchmarks/gpu.py --device cpu --tiny --out work_dirs/tiny     # tests the script

Needs torch and Triton; models also need OpenMMLab. DIR/SECTION.json is written after every job, and
a second call with the same --out resumes. Results of another commit, device or version are run
again. The exit code is 1 if a check or a job fails.
"""

import argparse
import gc
import os
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Dict, Iterable, List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('KINETO_LOG_LEVEL', '99')

import torch

if 'cpu' in sys.argv or not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before the first import of Triton

from benchmarks import jobs, report
from benchmarks.baselines import flash_bla
from benchmarks.gpu_suite import checks, models, speed
from benchmarks.machine import facts, openmmlab, parse_device, version
from benchmarks.tables import pivot, rows_table

NAME = 'gpu'  # of the record in docs/benchmarks


def about(session: jobs.Session) -> Iterable[jobs.Row]:
    """Yield versions, device and copy bandwidth."""
    names = ('mmengine', 'mmcv', 'mmcv-lite', 'mmdet', 'mmdetection', 'mmsegmentation', 'timm')
    found = {name: openmmlab(name) for name in names if openmmlab(name) != 'not installed'}
    found['flash_bla'] = 'installed' if flash_bla.installed() else 'not installed'
    found['Python'], found['CUDA of torch'] = platform.python_version(), str(torch.version.cuda)
    if session.gpu:
        found['GPU'] = str(torch.cuda.get_device_properties(session.device))
    for name, value in found.items():
        yield dict(what=name, value=value)
    yield dict(what='copy bandwidth, GB/s', value=speed.copy_speed(session) / 1e9)


def errors(rows: List[dict]) -> str:
    """Return the number of cases and the largest errors of outputs and of gradients."""
    outputs = [row['output'] for row in rows if 'output' in row]
    gradients = [e for row in rows for n, e in row.items() if n[0] == 'd' and isinstance(e, float)]
    largest = ' / '.join(f'{max(x, default=0.0):.1e}' for x in (outputs, gradients))
    return f'{len(rows)}: {largest}'


def sections(released: Optional[Path]) -> List[jobs.Section]:
    """Return all sections with their shares of the time, the most valuable first."""
    correctness = pivot(['operator', 'form'], 'dtype', errors)
    host = pivot(
        ['operator', 'mode'],
        'tokens',
        lambda rows: ' / '.join(f'{rows[0].get(x, 0):.3g}' for x in ('eager_ms', 'graph_ms')),
    )
    operators = pivot(
        ['operator', 'baseline', 'mode', 'batch', 'heads'],
        'tokens',
        lambda rows: f'{rows[0]["ms"]:.3g} ms, {rows[0]["share"]:.0%}',
    )
    robustness = pivot(
        ['operator', 'dtype'],
        'check',
        lambda rows: '; '.join(row['wrong'] for row in rows if 'wrong' in row) or 'passed',
    )
    return [jobs.Section(*section) for section in (
        ('machine', 'Machine', 2, lambda session: {'all': [partial(about, session)]}, rows_table),
        ('correctness', 'Cases, and the largest errors of outputs / gradients', 27,
         checks.correctness, correctness, True),
        ('host', 'Batch 1, 8 heads, by tokens: ms with the host / as a CUDA graph', 8, speed.host,
         host),
        ('operators', 'Time of the device and share of copy bandwidth, by tokens', 20,
         speed.operators, operators),
        ('registers', 'Registers of the kernels', 5, checks.registers, rows_table, True),
        ('models', 'Training step, and one image without post-processing, bfloat16', 25,
         partial(models.timings, released=released), rows_table),
        ('robustness', 'CUDA graphs, repeated runs, TF32, more than 2^31 elements', 10,
         checks.robustness, robustness),
        ('profile', 'Kernels of a training step', 3, models.profiles, rows_table),
    )]  # fmt: skip


SECTIONS = tuple(section.name for section in sections(None))


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--minutes', type=float, default=15.0, help='in all; 0 measures nothing')
    add('--out', type=Path, default=Path('work_dirs/gpu'), metavar='DIR')
    add('--device', default='cuda', help='cpu, cuda or cuda:N')
    add('--tiny', action='store_true', help='tiny sizes, to test the script')
    add('--only', nargs='+', choices=SECTIONS, metavar='SECTION', default=SECTIONS)
    add('--released', type=Path, metavar='FILE', help="detection backbone of RALA's authors")
    add('--docs', action='store_true', help='show the results in docs/benchmarks.md, too')
    args = parser.parse_args(argv)
    if args.minutes:
        args.device = parse_device(args.device, parser)
        if args.device.type == 'cpu' and not args.tiny:
            parser.error('--device cpu needs --tiny: the sizes are those of a GPU')
    return args


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    every = sections(args.released)
    key: Dict[str, object] = {}
    if args.minutes:
        gc.freeze()  # skips imported objects, whose collection takes longer than most jobs
        key = facts('gpu.py', [], args.device)
        key.update(Triton=version('triton'), sizes='tiny, a test' if args.tiny else 'full')
        chosen = [section for section in every if section.name in args.only]
        jobs.run(chosen, jobs.Session(args.device, args.tiny), key, args.out, 60 * args.minutes)
    found = {section: jobs.read(args.out / f'{section.name}.json') for section in every}
    key = key or next((record['key'] for record in found.values() if record), {})
    records = {s: record for s, record in found.items() if record.get('key') == key}
    if not records:
        print(f'{args.out} has no results')
        return 1
    shown = dict(
        **key,
        **{f'{section.name} jobs': jobs.summary(record) for section, record in records.items()},
        tables={s.title: s.table(jobs.rows_of(r)) for s, r in records.items() if jobs.rows_of(r)},
    )
    bad = [f'{s.name}, {line}' for s, r in records.items() for line in jobs.bad_jobs(r)]
    lines = [*report.shown(NAME, shown), *(['', 'Wrong or failed:', ''] if bad else []), *bad]
    (args.out / 'report.md').write_text('\n'.join([*lines, '']))
    print(f'Written: {args.out / "report.md"}', *bad, sep='\n')
    if args.docs and not bad:
        report.publish(NAME, shown, new_heading='## GPU session')
    return int(bool(bad))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
