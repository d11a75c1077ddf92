#!/usr/bin/env python
"""Runs the tests in an environment for each supported set of Python, torch and frameworks.

Makes the environments by tools/misc/setup.sh where they are not there yet (some GB each), and ends
with a table of what passed, failed and was skipped, and why. Needs Python alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Dict, List, Optional, Tuple

ROOT = Path(__file__).resolve().parents[2]
# Python, stack and mmcv (see setup.sh), pinned versions.
ENVIRONMENTS = {
    'py310-torch2.4-original': ('3.10', 'original', 'lite', 'py310-torch2.4-original.txt'),
    'py311-torch2.11-onedl-compiled': ('3.11', 'onedl', 'compiled', 'constraints.txt'),
    'py312-torch2.15-onedl': ('3.12', 'onedl', 'lite', 'py312-torch2.15-onedl.txt'),
    'py313-torch2.11-onedl': ('3.13', 'onedl', 'lite', 'constraints.txt'),
}


def version(python: str) -> Optional[str]:
    """'3.11' of an interpreter; None of what does not run."""
    code = 'import sys, venv; print("{}.{}".format(*sys.version_info))'
    try:
        done = subprocess.run([python, '-c', code], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None


def interpreter(wanted: str, given: List[str]) -> Optional[str]:
    """The first of the given ones and those on the PATH that is of this version."""
    for python in (*given, f'python{wanted}', 'python3'):
        if version(python) == wanted:
            return python
    return None


def set_up(name: str, folder: Path, pythons: List[str]) -> str:
    """Makes or updates an environment; returns its interpreter."""
    wanted, stack, mmcv, constraints = ENVIRONMENTS[name]
    python = folder / 'bin' / 'python'
    env = dict(os.environ, STACK=stack, MMCV=mmcv, CONSTRAINTS=f'requirements/{constraints}')
    if not python.exists():
        base = interpreter(wanted, pythons)
        if base is None:
            sys.exit(f'{name}: no Python {wanted} on the PATH; give it with --python')
        env['BASE_PYTHON'] = base
    command = ['bash', 'tools/misc/setup.sh', str(python), str(folder)]
    subprocess.run(command, cwd=ROOT, env=env, check=True)
    return str(python)


def run_tests(python: str, folder: Path, arguments: List[str]) -> Path:
    """Runs the tests, output into a log; returns pytest's report in XML."""
    report, log = (folder.with_name(f'{folder.name}.{kind}') for kind in ('xml', 'log'))
    report.unlink(missing_ok=True)
    command = ['-m', 'pytest', '-n', '2', '--dist', 'worksteal', f'--junitxml={report}', *arguments]
    env = dict(os.environ, OMP_NUM_THREADS='1')
    print(f'[matrix] {folder.name}: tests, see {log}', flush=True)
    with log.open('w') as file:
        subprocess.run([python, *command], cwd=ROOT, env=env, stdout=file, stderr=file)
    return report


def read(report: Path) -> Tuple[Dict[str, int], List[str], Counter]:
    """Numbers of outcomes, names of failed tests, reasons of skipped ones."""
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('names', nargs='*', metavar='NAME', help=', '.join(ENVIRONMENTS))
    parser.add_argument('--folder', type=Path, default=ROOT / 'build' / 'matrix')
    parser.add_argument('--python', nargs='+', default=[], help='interpreters to make them with')
    parser.add_argument('--pytest', nargs=argparse.REMAINDER, default=[], help='last: for pytest')
    args = parser.parse_args()
    unknown = set(args.names) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f'unknown environment {", ".join(unknown)}; known: {", ".join(ENVIRONMENTS)}')
    pythons = [shutil.which(python) or python for python in args.python]
    args.folder.mkdir(parents=True, exist_ok=True)
    reports = {}
    for name in args.names or ENVIRONMENTS:
        folder = args.folder.resolve() / name
        reports[name] = run_tests(set_up(name, folder, pythons), folder, args.pytest)
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
    table = '| environment | passed | failed | skipped |\n| --- | ---: | ---: | ---: |\n'
    table += '\n'.join(rows) + '\n\n' + '\n'.join(notes) + '\n'
    (args.folder / 'table.md').write_text(table)
    print(table)
    return int(failures > 0)


if __name__ == '__main__':
    sys.exit(main())
