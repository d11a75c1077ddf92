"""Check and measure what only a GPU shows, the most valuable first and within a time limit.

    python benchmarks/gpu.py --minutes 15 --out work_dirs/gpu
    python benchmarks/gpu.py --device cpu --tiny --out work_dirs/tiny     # tests the script

Needs torch and Triton; models also need OpenMMLab. DIR/SECTION.json is written after every job, and
DIR/report.md at the end. A second call with the same --out resumes. Results of other code,
device or versions are run again. The exit code is 1 if a check or a job fails.
"""

import argparse
import gc
import hashlib
import os
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
from benchmarks.machine import ROOT, facts, parse_device, version


def about(session: jobs.Session) -> Iterable[jobs.Row]:
    """Yield versions, device and copy bandwidth."""
    yield dict(what='flash_bla', value='installed' if flash_bla.installed() else 'not installed')
    yield dict(what='CUDA of torch', value=str(torch.version.cuda))
    if session.gpu:
        yield dict(what='GPU', value=str(torch.cuda.get_device_properties(session.device)))
    yield dict(what='copy bandwidth, GB/s', value=speed.copy_speed(session) / 1e9)


def rows_table(rows: List[jobs.Row]) -> dict:
    """Return the arguments of :func:`.report.number_table`, a column for each key of the rows."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [[row.get(name) for name in columns] for row in rows]
    percent = [i for i, name in enumerate(columns) if name == 'share']
    return dict(columns=columns, lines=lines, percent=percent)


def errors(rows: List[jobs.Row]) -> dict:
    """Return a table of the largest errors by operator, backend and dtype."""
    groups: Dict[tuple, List[jobs.Row]] = {}
    for row in rows:
        key = tuple(str(row.get(name, '')) for name in ('check', 'operator', 'form', 'dtype'))
        groups.setdefault(key, []).append(row)
    lines = []
    for key, group in groups.items():
        found = [(name, x) for row in group for name, x in row.items() if isinstance(x, float)]
        output = _largest(x for name, x in found if name == 'output')
        gradients = _largest(x for name, x in found if name != 'output')
        wrong = sum('wrong' in row for row in group)
        lines.append([*key, len(group), wrong, output, gradients])
    heads = ['check', 'operator', 'form', 'dtype', 'cases', 'wrong', 'output', 'gradients']
    return dict(columns=heads, lines=lines)


def _largest(numbers: Iterable[float]) -> Optional[float]:
    """Return the largest number, NaN if there is one, or None."""
    return max(numbers, key=lambda x: (x != x, x), default=None)


def sections(released: Optional[Path]) -> List[jobs.Section]:
    """Return all sections with their shares of the time, the most valuable first."""
    timings = partial(models.timings, released=released)
    return [jobs.Section(*section) for section in (
        ('machine', 'Machine', 2, lambda session: {'all': partial(about, session)}, rows_table),
        ('correctness', 'Largest errors', 27, checks.correctness, errors, True),
        ('host', 'Calls, batch 1, 8 heads, with the host and as a CUDA graph', 8, speed.host,
         rows_table),
        ('operators', 'Time of the device and share of copy bandwidth', 20, speed.operators,
         rows_table),
        ('models', 'Training step, and one image without post-processing, bfloat16', 25, timings,
         rows_table),
        ('robustness', 'CUDA graphs, repeated runs, TF32, more than 2^31 elements', 10,
         checks.robustness, errors),
    )]  # fmt: skip


def sources(root: Path = ROOT) -> str:
    """Return a digest of the code, which may change between calls with the same commit."""
    digest = hashlib.sha256()
    for folder in ('mmlinattn', 'benchmarks', 'configs'):
        for file in sorted((root / folder).rglob('*.py')):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:10]


SECTIONS = tuple(section.name for section in sections(None))


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add('--minutes', type=float, default=15.0, help='in all')
    add('--out', type=Path, default=Path('work_dirs/gpu'), metavar='DIR')
    add('--device', default='cuda', help='cpu, cuda or cuda:N')
    add('--tiny', action='store_true', help='tiny sizes, to test the script')
    add('--only', nargs='+', choices=SECTIONS, metavar='SECTION', default=SECTIONS)
    add('--released', type=Path, metavar='FILE', help="detection backbone of RALA's authors")
    args = parser.parse_args(argv)
    args.device = parse_device(args.device, parser)
    if args.device.type == 'cpu' and not args.tiny:
        parser.error('--device cpu needs --tiny: the sizes are those of a GPU')
    return args


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    every = sections(args.released)
    gc.freeze()  # skips imported objects, whose collection takes longer than most jobs
    key = facts('gpu.py', [], args.device)
    key.update(sources=sources(), Triton=version('triton'))
    key.update(sizes='tiny, a test' if args.tiny else 'full')
    chosen = [section for section in every if section.name in args.only]
    jobs.run(chosen, jobs.Session(args.device, args.tiny), key, args.out, 60 * args.minutes)
    found = {section: jobs.read(args.out / f'{section.name}.json') for section in every}
    records = {s: record for s, record in found.items() if record.get('key') == key}
    shown = dict(
        **key,
        **{f'{section.name} jobs': jobs.summary(record) for section, record in records.items()},
        tables={s.title: s.table(jobs.rows_of(r)) for s, r in records.items() if jobs.rows_of(r)},
    )
    bad = [f'{s.name}, {line}' for s, r in records.items() for line in jobs.bad_jobs(r)]
    lines = [*report.shown('gpu', shown), *(['', 'Wrong or failed:', ''] if bad else []), *bad]
    (args.out / 'report.md').write_text('\n'.join([*lines, '']))
    print(f'Written: {args.out / "report.md"}', *bad, sep='\n')
    return int(bool(bad))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
