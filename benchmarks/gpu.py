"""Run all checks and measurements that need a GPU within a time budget.

    python benchmarks/gpu.py --minutes 10 --out work_dirs/gpu
    python benchmarks/gpu.py --device cpu --tiny --out work_dirs/tiny    # tests the script

Needs torch and triton; layers and backbones also need OpenMMLab. Each section has a share of the
time, writes NAME.json after every job and reports the jobs that it skipped. A second call with the
same --out resumes. Results of another commit, device or version are run again. report.md is for
docs/benchmarks.md; verified_gpus.json, written if all checks passed, for mmlinattn/ops/common/.
The exit code is 1 if any check fails.
"""

import argparse
import functools
import gc
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Dict, Iterable, List

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault('KINETO_LOG_LEVEL', '99')
os.environ['MMLINATTN_GPU_CHECK'] = '0'  # 'auto' must mean the kernels: this is the longer check

import torch

if 'cpu' in sys.argv or not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before the first import of Triton

from benchmarks.baselines import flash_bla
from benchmarks.gpu_suite import checks, kernels, speed, tables
from benchmarks.gpu_suite.session import (
    DONE,
    Job,
    Row,
    Section,
    Session,
    bad_jobs,
    read,
    rows_of,
    run,
)
from benchmarks.machine import commit, machine, openmmlab, parse_device, version
from mmlinattn.ops.common import kernel_verdicts


def facts(session: Session) -> List[Job]:
    """Return the jobs that report versions, device and copy bandwidth."""

    def versions() -> Iterable[Row]:
        found = {'Triton': version('triton'), 'matplotlib': version('matplotlib')}
        found.update((name, openmmlab(name)) for name in ('mmengine', 'mmcv'))
        found['flash_bla'] = 'installed' if flash_bla.installed() else 'not installed'
        found['Python'] = platform.python_version()
        found['CUDA of torch'] = str(torch.version.cuda)
        if session.gpu:
            device = torch.cuda.get_device_properties(session.device)
            found['multiprocessors'] = str(device.multi_processor_count)
            found['compute capability'] = f'{device.major}.{device.minor}'
            found['memory, GiB'] = f'{device.total_memory / 2**30:.0f}'
        for name, value in found.items():
            yield dict(what=name, value=value)

    def copying() -> Iterable[Row]:
        yield dict(what='copy bandwidth, GB/s', value=speed.copy_speed(session) / 1e9)

    return [('versions', versions), ('copy bandwidth', copying)]


def milliseconds(row: Row) -> str:
    return f'{row["ms"]:.3g} ms, {row["share"]:.0%}'


def two_clocks(row: Row) -> str:
    graph = f'{row["graph_ms"]:.3g}' if 'graph_ms' in row else 'needs a GPU'
    return f'{row["eager_ms"]:.3g}, {graph}'


def sections(folder: Path, seconds: float) -> List[Section]:
    """Return all sections in order; shares are approximate percentages."""

    def tune(session: Session) -> List[Job]:
        return kernels.tune(session, folder, 0.03 * seconds)

    def compiling(session: Session) -> List[Job]:
        return kernels.compiling(session, 0.1 * seconds)

    share = tables.pivot(('operator', 'batch', 'heads', 'mode'), 'tokens', milliseconds)
    clocks = tables.pivot(('operator', 'mode'), 'tokens', two_clocks)
    plain = tables.plain()
    return [
        Section('machine', 'Versions and copy bandwidth', 1, facts, plain),
        Section('compiling', 'Kernels compiled before they are needed', 10, compiling, plain),
        Section('correctness', 'Correctness against float64', 15, checks.correctness,
                tables.worst_errors),
        Section('precision', "With set_float32_matmul_precision('high')", 2, checks.precision,
                tables.worst_errors),
        Section('repeats', 'The same bits on every run', 3, checks.repeats, plain),
        Section('graphs', 'CUDA graphs against eager steps', 3, checks.graphs, plain),
        Section('large', 'More than 2^31 elements', 5, checks.large, plain),
        Section('registers', 'Registers and spills', 6, kernels.registers, plain),
        Section('tuning', 'Tuning', 10, tune, plain),
        Section('bandwidth', 'Share of the copy bandwidth on minimum bytes', 8, speed.bandwidth,
                share),
        Section('operators', 'Operators against baselines', 14, speed.operators, tables.baselines),
        Section('wall', 'Eager calls with the host, replayed graphs, ms', 5, speed.walls, clocks),
        Section('crossover', 'Tokens from which on softmax attention (SDPA) is slower', 6,
                speed.crossover, tables.plain('ratios')),
        Section('layers', 'Layers', 4, speed.layers, tables.baselines),
        Section('backbones', 'Backbones', 12, speed.backbones, tables.baselines),
        Section('profile', 'Where the time goes', 4, speed.profiles, plain),
    ]  # fmt: skip


# Sections that must be complete and without error for a GPU to be verified.
CHECKS = ('correctness', 'precision', 'repeats', 'graphs', 'large')
SECTIONS = tuple(section.name for section in sections(Path(), 0.0))


def is_verified(records: Dict[str, dict]) -> bool:
    """Return True if every job of the checks ran and found nothing wrong."""
    return all(
        name in records and all(job['state'] == DONE for job in records[name]['jobs'].values())
        for name in CHECKS
    )


def parse_args(argv: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--minutes', type=float, default=10.0, help='in all')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/gpu'), metavar='DIR')
    parser.add_argument('--device', default='cuda', help='cpu, cuda or cuda:N')
    parser.add_argument('--tiny', action='store_true', help='tiny sizes, to try the script')
    parser.add_argument('--only', nargs='+', choices=SECTIONS, metavar='SECTION')
    parser.add_argument(
        '--again', nargs='*', choices=SECTIONS, metavar='SECTION',
        help='sections to run though they are done; all without a name',
    )  # fmt: skip
    args = parser.parse_args(argv)
    args.device = parse_device(args.device, parser)
    if args.device.type == 'cpu' and not args.tiny:
        parser.error('--device cpu needs --tiny: the sizes are those of a GPU')
    if args.minutes <= 0:
        parser.error(f'--minutes must be positive, got {args.minutes}')
    args.again = [] if args.again is None else args.again or list(SECTIONS)
    return args


def main(argv: List[str]) -> int:
    args = parse_args(argv)
    gc.freeze()  # skips imported objects, whose collection takes longer than most jobs
    session, seconds = Session(args.device, args.tiny), 60 * args.minutes
    key: Dict[str, str] = {
        'commit': commit(),
        'machine': machine(args.device),
        'versions': f'torch {torch.__version__}, Triton {version("triton")}',
        'sizes': 'tiny, to try the script: no figures' if args.tiny else 'full',
    }
    every = sections(args.out, seconds)
    chosen = [section for section in every if not args.only or section.name in args.only]
    show = functools.partial(print, flush=True)
    others = {s.name: read(args.out / f'{s.name}.json') for s in every if s not in chosen}
    others = {name: record for name, record in others.items() if record.get('key') == key}
    command = shlex.join(['python', 'benchmarks/gpu.py', *argv])
    report, plot = args.out / 'report.md', args.out / 'bandwidth.png'

    def write(records: Dict[str, dict]) -> None:
        shown = {**others, **records}
        report.write_text(tables.report(every, shown, dict(command=command, **key)))

    records = run(chosen, session, key, args.out, seconds, args.again, show, write)
    write(records)
    paths = [report]
    if 'bandwidth' in records and tables.picture(rows_of(records['bandwidth']), plot):
        paths.append(plot)
    if session.gpu and is_verified({**others, **records}):
        paths.append(args.out / kernel_verdicts.VERIFIED.name)
        known = json.loads(kernel_verdicts.VERIFIED.read_text())
        environment = kernel_verdicts.environment(torch.cuda.current_device())
        paths[-1].write_text(json.dumps(sorted({*known, environment}), indent=1) + '\n')
    show('Written: ' + ', '.join(map(str, paths)))
    return int(any(bad_jobs(record) for record in records.values()))


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
