"""Freed memory stays with the process: the same pages are used again."""

import platform
import resource

import pytest

from tests.programs import Program

SCRIPT = """
import resource, sys
import torch
from mmlinattn.engine.runner.allocator import keep_freed_memory

if sys.argv[1] == 'keep':
    assert keep_freed_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.full((48, 2**20 // 4), 1.0)  # 48 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

for _ in range(3):  # until small tensors have found their places between the large ones
    faults()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='another C library than glibc')
def test_no_page_is_cleared_twice(root, tmp_path):
    script, counts = tmp_path / 'faults.py', {}
    script.write_text(SCRIPT)
    for how in ('keep', 'return'):
        program = Program(script, [how], tmp_path / f'{how}.out', [root])
        assert program.end() == 0, program.text()
        counts[how] = int(program.text().split()[-1])
    pages = 48 * 2**20 // resource.getpagesize()
    assert counts['keep'] < pages / 10 and counts['return'] >= 5 * pages / 512  # large pages
