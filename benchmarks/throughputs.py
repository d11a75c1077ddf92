"""Images a second of whole models beside published speeds, for docs/benchmarks.md.

    python benchmarks/throughputs.py            # all models with a published speed, and others
    python benchmarks/run.py --redraw throughput

Each model is measured by ``mmlinattn analyze throughput`` in a process of its own. Let nothing else run.
The result goes into docs/benchmarks/throughput.json and the page. If a model fails, both stay as
they were.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

import torch
from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.machine import commit, machine
from mmlinattn.analysis.throughput import published_speed
from mmlinattn.engine.config import package_configs

NAME = 'throughput'
OTHERS = [
    'ravlt-t_8xb128_in1k',
    'ravlt-s_8xb128_in1k',
    'ravlt-b_8xb128_in1k',
    'mavit-t_8xb128_in1k',
    'mlla-t_8xb128_in1k',
    'deit-t_8xb64_cifar100',
]


def names() -> List[str]:
    """Return the configs of the table; those of 108 epochs have the models of 50 epochs."""
    found = [name for name, path in package_configs().items() if published_speed(path)]
    return [*OTHERS, *sorted(name for name in found if '108e' not in name)]


def measured(name: str, threads: int) -> dict:
    """Return the record of ``mmlinattn analyze throughput``; a batch over its limit is left out."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'found.json'
        words = [name, '--threads', str(threads), '--json', str(file)]
        if 'coco' in name:
            words += ['--batch-size', '1']  # as published
        command = [sys.executable, '-m', 'mmlinattn', 'throughput', *words]
        code = subprocess.run(command).returncode
        if not file.is_file():  # code 1 is that of a batch over the limit
            raise SystemExit(f'mmlinattn analyze throughput {name} ended with exit code {code}')
        return json.loads(file.read_text())


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--threads', type=int, default=os.cpu_count(), metavar='N')
    args = parser.parse_args(argv)
    try:
        report.check_place(NAME)
    except ValueError as error:
        parser.error(str(error))
    speeds = {}
    for name in track(names(), 'images a second'):
        speeds[name] = dict(
            measured(name, args.threads), commit=commit(), processor=machine(torch.device('cpu'))
        )
    command = shlex.join(['python', 'benchmarks/throughputs.py', *argv])
    report.publish(NAME, dict(command=command, speeds=speeds))
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
