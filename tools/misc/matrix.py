#!/usr/bin/env python
"""Run the tests in an environment for each supported set of Python, torch and frameworks.

Creates missing environments with tools/misc/setup.sh (some GB each), and prints a table of passed,
failed and skipped tests, with reasons. Requires only Python.
"""

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]
# Python, stack and mmcv (see setup.sh), file of pinned versions.
ENVIRONMENTS = {
    'py310-torch2.4-original': ('3.10', 'original', 'lite', 'py310-torch2.4-original.txt'),
    'py311-torch2.11-onedl-compiled': ('3.11', 'onedl', 'compiled', 'constraints.txt'),
    'py312-torch2.15-onedl': ('3.12', 'onedl', 'lite', 'py312-torch2.15-onedl.txt'),
    'py313-torch2.11-onedl': ('3.13', 'onedl', 'lite', 'constraints.txt'),
}
# The short matrix tests the features that differ most between the oldest and the newest torch.
SHORT_ENVIRONMENTS = ('py310-torch2.4-original', 'py312-torch2.15-onedl')
SHORT_TESTS = (
    # compile
    'tests/test_models/test_layers/test_attention_contract.py',
    'tests/test_ops/test_value_width.py',
    'tests/test_models/test_backbones/test_cvt.py',
    'tests/test_tools/test_fullgraph.py',
    # export
    'tests/test_models/test_layers/test_export.py',
    'tests/test_ops/test_portable.py',
    'tests/test_models/test_backbones/test_ravlt.py',
    'tests/test_tools/test_export.py',
    # train
    'tests/test_ops/test_properties.py',
    'tests/test_tools/test_train_and_test.py',
    'tests/test_tutorial.py',
    # resume
    'tests/test_engine/test_exact_resume.py',
    'tests/test_tools/test_interrupted.py',
    'tests/test_checkpoints/test_io.py',
    # threads
    'tests/test_engine/test_threads.py',
    # videos
)


def version(python: str) -> Optional[str]:
    """Return the version of an interpreter, such as '3.11'; None if it does not run."""
    code = 'import sys, venv; print("{}.{}".format(*sys.version_info))'
    try:
        done = subprocess.run([python, '-c', code], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def interpreter(wanted: str, given: List[str]) -> Optional[str]:
    """Return the first interpreter of this version: given, on the PATH, or installed by pyenv."""
    pyenv = Path(os.environ.get('PYENV_ROOT', Path.home() / '.pyenv')) / 'versions'
    installed = sorted(map(str, pyenv.glob(f'{wanted}.*/bin/python')))
    for python in (*given, f'python{wanted}', 'python3', *installed):
        if version(python) == wanted:
            return python
    return None


def set_up(name: str, folder: Path, pythons: List[str]) -> str:
    """Create or update an environment and return its interpreter."""
    wanted, stack, mmcv, constraints = ENVIRONMENTS[name]
    python = folder / 'bin' / 'python'
    env = dict(os.environ, STACK=stack, MMCV=mmcv, CONSTRAINTS=f'requirements/{constraints}')
    if not python.exists():
        base = interpreter(wanted, pythons)
        if base is None:
            sys.exit(f'{name}: no Python {wanted} on the PATH or in pyenv; give it with --python')
        env['BASE_PYTHON'] = base
    command = ['bash', 'tools/misc/setup.sh', str(python), str(folder)]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return str(python)


def run_tests(python: str, folder: Path, arguments: List[str]) -> Path:
    """Run the tests with output to a log file, and return pytest's XML report."""
    report, log = (folder.with_name(f'{folder.name}.{kind}') for kind in ('xml', 'log'))
    report.unlink(missing_ok=True)
    command = ['-m', 'pytest', '-n', '2', '--dist', 'worksteal', f'--junitxml={report}', *arguments]
    env = dict(os.environ, OMP_NUM_THREADS='1')
    print(f'[matrix] {folder.name}: tests, see {log}', flush=True)
    with log.open('w') as file:
        subprocess.run([python, *command], cwd=ROOT, env=env, stdout=file, stderr=file)
    return report


def read(report: Path) -> Tuple[Dict[str, int], List[str], Counter]:
    """Return the count of each outcome, the names of failed tests and the reasons of skips."""
    failed, reasons, total = [], Counter(), 0
    for case in ElementTree.parse(report).iter('testcase'):
        total += 1
        if case.find('failure') is not None or case.find('error') is not None:
            failed.append(f'{case.get("classname")}::{case.get("name")}')
        elif case.find('skipped') is not None:
            reasons[case.find('skipped').get('message', '')] += 1
    skipped = sum(reasons.values())
    passed = total - len(failed) - skipped
    return dict(passed=passed, failed=len(failed), skipped=skipped), failed, reasons


def commit() -> str:
    """Return the short hash of the checkout, with '-dirty' if it has uncommitted changes."""
    if not shutil.which('git'):
        return 'unknown'
    command = ['git', 'describe', '--always', '--dirty', '--exclude=*']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or 'unknown'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(ENVIRONMENTS))
    parser.add_argument(
        '--short', action='store_true',
        help=f'only {len(SHORT_TESTS)} files of tests (compile, export, train, resume, threads), '
        'by default with the oldest and the newest torch',
    )  # fmt: skip
    parser.add_argument('--set-up', action='store_true', help='make the environments, test nothing')
    parser.add_argument('--folder', type=Path, default=ROOT / 'build' / 'matrix')
    parser.add_argument('--python', nargs='+', default=[], help='interpreters to make them with')
    parser.add_argument('--pytest', nargs=argparse.REMAINDER, default=[], help='last: for pytest')
    args = parser.parse_args()
    unknown = set(args.names) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f'unknown environment {", ".join(unknown)}; known: {", ".join(ENVIRONMENTS)}')
    pythons = [shutil.which(python) or python for python in args.python]
    args.folder.mkdir(parents=True, exist_ok=True)
    reports, title = {}, f'Commit {commit()}, {date.today()}'
    for name in args.names or (SHORT_ENVIRONMENTS if args.short else ENVIRONMENTS):
        folder = args.folder.resolve() / name
        python = set_up(name, folder, pythons)
        if not args.set_up:
            tests = SHORT_TESTS if args.short else ()
            reports[name] = run_tests(python, folder, [*tests, *args.pytest])
    file = args.folder / ('short.md' if args.short else 'table.md')
    return 0 if args.set_up else summarize(reports, title, file)


def summarize(reports: Dict[str, Path], title: str, file: Path) -> int:
    """Print the table of the reports and write it; return 1 if a test failed."""
    rows, notes, failures = [], [], 0
    for name, report in reports.items():
        if not report.exists():
            notes.append(f'{name}: pytest did not end, see {name}.log')
            failures += 1
            continue
        counts, failed, reasons = read(report)
        rows.append(f'| {name} | {counts["passed"]} | {counts["failed"]} | {counts["skipped"]} |')
        notes += [f'{name}: failed: {test}' for test in failed]
        notes += [f'{name}: {n} skipped: {why}' for why, n in reasons.most_common()]
        failures += len(failed)
    heads = '| environment | passed | failed | skipped |\n| --- | ---: | ---: | ---: |'
    table = '\n'.join([title, '', heads, *rows, '', *notes]) + '\n'
    file.write_text(table)
    print(table)
    return int(failures > 0)


if __name__ == '__main__':
    sys.exit(main())
