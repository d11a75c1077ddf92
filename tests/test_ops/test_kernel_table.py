"""Launch table against kernels that are compiled for GPUs that are not there.

All of the table, for half an hour: ``MMLINATTN_WHOLE_TABLE=1``.
"""

import os
import subprocess
import sys

import pytest
import torch

from mmlinattn.ops import learnt_features, linear, random_walk, ripple
from mmlinattn.ops.common import dispatch, launch_table
from mmlinattn.ops.common.launch_table import TABLE, Config
from tests.sizes import LONG

if dispatch.TRITON_PROBLEM:
    pytest.skip(dispatch.TRITON_PROBLEM, allow_module_level=True)

NAMES = {
    *(name for names in linear.KERNELS.values() for name in names),
    *random_walk.KERNELS,
    *learnt_features.KERNELS,
    *ripple.KERNELS,
}
LARGEST = {'sm_80': 163, 'sm_90': 227}  # KiB of a program


def entries():
    for arch, table in TABLE.items():
        for row, cells in table.items():
            for width, cell in zip(launch_table.WIDTHS, cells):
                if cell is not None:
                    yield arch, row, width, Config(*cell)


def test_half_types_have_every_kernel():
    """But for walks of 128 anchors with more than 32 channels, and wide learnt features."""
    missing = {
        (arch, name, width, num_anchors)
        for arch in TABLE
        for name in NAMES
        for num_anchors in ((64, 128) if name.startswith('anchor') else (0,))
        for width in launch_table.WIDTHS
        if launch_table.find(arch, name, torch.half, width, num_anchors) is None
    }
    assert missing == {
        *((arch, name, width, 128) for arch in TABLE for width in (64, 128)
          for name in ('anchor_solver', 'anchor_solver_backward')),
        *((arch, name, 128, 0) for arch in TABLE for name in learnt_features.KERNELS),
    }  # fmt: skip
    assert {row.split(',')[0] for table in TABLE.values() for row in table} == NAMES


@pytest.mark.parametrize('arch', TABLE)
@pytest.mark.parametrize('name', ['kv_state', 'rala_key_backward', 'ripple_far_backward'])
def test_float32_has_a_kernel_at_every_width(arch, name):
    for width in (16, 20, 64, 128):
        assert launch_table.find(arch, name, torch.float32, width)


def test_half_types_fit_the_gpus_that_the_table_is_for():
    for arch, row, width, config in entries():
        if 'half' in row and width <= 64 and not row.endswith('128'):
            assert config.shared <= LARGEST[arch], (arch, row, width)


def compile_kernels(root, folder, *tasks):
    """Return the names of the kernels that each task of compile_kernels.py has compiled."""
    env = dict(os.environ, PYTHONPATH=str(root), TRITON_CACHE_DIR=str(folder))
    env.pop('TRITON_INTERPRET', None)
    script = root / 'tests/test_ops/compile_kernels.py'
    command = [sys.executable, str(script), *' + '.join(tasks).split()]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = []
    for name, *_ in filter(None, map(str.split, done.stdout.splitlines())):
        if name == 'task':
            found.append([])
        elif name in NAMES:  # not a framework's log
            found[-1].append(name)
    return found


# Each kernel with the flags that take the most.
WORST = (
    'rala_kv_state', 'rala_query_output', 'query_backward', 'rala_key_backward', 'query_mean',
    'anchor_state', 'anchor_output', 'anchor_output_backward', 'anchor_solver_backward',
    'anchor_backward',
    'ripple', 'ripple_query_backward', 'ripple_far_backward',
    'ripple_key_backward', 'adaptive', 'adaptive_backward',
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_kernels_compile(root, tmp_path):
    """The interpreter takes what the compiler refuses: types of loop variables, blocks."""
    worst = WORST if LONG else WORST[::5]
    check = 'check --widths 64 --dtypes {} --archs {} --names {}'
    half, single, others = compile_kernels(
        root, tmp_path, check.format('half', 90, ' '.join(worst)),
        check.format('float', 80, 'query_backward'), 'others',
    )  # fmt: skip
    assert set(half) == set(worst) and single == ['query_backward']
    assert len(others) >= 14


@pytest.mark.skipif(
    not os.environ.get('MMLINATTN_WHOLE_TABLE'), reason='half an hour: MMLINATTN_WHOLE_TABLE=1'
)
def test_the_whole_table(root, tmp_path):
    (found,) = compile_kernels(root, tmp_path, 'check')
    assert len(found) == len([*entries()])
