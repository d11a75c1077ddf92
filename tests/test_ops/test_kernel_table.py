"""Kernels compiled for GPUs that are not there: what they take is what the table says.

All of the table, for half an hour: ``MMLINATTN_WHOLE_TABLE=1``.
"""

import json
import os
import pwd
import subprocess
import sys

import pytest
import torch

from mmlinattn.ops.anchors import triton_kernels as anchors
from mmlinattn.ops.common import dispatch, launch_table
from mmlinattn.ops.common.launch_table import Config
from tests.sizes import LONG

if dispatch.TRITON_PROBLEM:
    pytest.skip(dispatch.TRITON_PROBLEM, allow_module_level=True)

from mmlinattn.ops.adaptive import triton_kernels as adaptive
from mmlinattn.ops.common.tuning import candidates, sizes_of
from mmlinattn.ops.linear import triton_kernels as linear
from mmlinattn.ops.ripple import triton_kernels as ripple

MODULES = (adaptive, anchors, linear, ripple)
NAMES = {
    *linear.RALA_KERNELS,
    *linear.MALA_KERNELS,
    *(name for module in MODULES for name in module.KERNELS),
}
# Bytes of stack a thread that an entry may have, and why.
WHY = {
    128: 4096,  # 128 channels or anchors: matrices of 128 rows are most of the registers
    'float': 4096,  # parts of three TF32 products
    'sm_80': 1100,  # its tensor cores have both operands in registers, not in shared memory
    'anchor_solver_backward': 16,  # four matrices of 64 x 64 in float32
}
# What has no kernel: float32, 128 channels and anchors at once, or ripple attention's 128 channels;
# on sm_80 no random walk trains in float32, whose gradients took 14 KiB of stack a thread.
GAPS = {
    ('sm_80', 'anchor_solver', 'half'): {'128x128'},
    ('sm_80', 'anchor_solver_backward', 'half'): {'128x128'},
    **{
        ('sm_80', f'anchor_{name}', 'float'): {'128x128'}
        for name in ('output', 'output_backward', 'solver', 'solver_backward', 'state')
    },
    ('sm_80', 'anchor_backward', 'float'): {
        '32x64', '32x128', '64x64', '64x128', '128x64', '128x128',
    },
    **{
        ('sm_80', f'ripple{name}', 'float'): {'128'}
        for name in ('', '_key_backward', '_query_backward', '_weight_backward')
    },
    ('sm_90', 'anchor_backward', 'float'): {'128x128'},
    ('sm_90', 'ripple_key_backward', 'float'): {'128'},
}  # fmt: skip


@pytest.fixture(scope='module')
def shipped():
    return launch_table.read(launch_table.SHIPPED)


def entries(shipped):
    for arch, table in shipped.items():
        for name, kinds in table.items():
            for kind, sizes in kinds.items():
                for size, config in sizes.items():
                    yield arch, name, kind, size, config


def test_the_table_has_every_kernel(shipped):
    """But for the gaps above, which docs/design.md names: nothing loses its kernel unseen."""
    assert set(shipped) == {'sm_80', 'sm_90'}
    for arch, table in shipped.items():
        assert set(table) == NAMES
        for name, kinds in table.items():
            for kind in ('half', 'float'):
                missing = set(sizes_of(name)) - set(kinds.get(kind, ()))
                assert missing == GAPS.get((arch, name, kind), set()), (arch, name, kind)


def test_a_compiler_takes_an_entry_as_a_constant():
    """It cannot follow the reading of a file; on a GPU each call of an operator asks."""
    expected = Config(block=64, warps=4, stages=2, registers=100, shared=1000)
    table = {'kv_state': {'half': {'64': expected}}}

    def call(x):
        config = launch_table.entry(0, 'kv_state', 'half', '64')
        return x if config is None else x + config.block

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_table, 'table', lambda index: table)
        compiled = torch.compile(call, fullgraph=True, backend='eager')
        assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), 64.0))


def test_a_broken_table_of_the_user_is_named_and_left_out(tmp_path, monkeypatch, shipped):
    monkeypatch.setattr(launch_table, 'cache_path', lambda: tmp_path / 'kernels.json')
    monkeypatch.setattr(launch_table, 'architecture', lambda index: 'sm_90')
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda index: 'Some GPU')
    for text in (
        '{"Some GPU": {"key_su',
        '{"Some GPU": {"kv_state": {"half": {"64": [1]}}}}',
        '[]',
    ):
        (tmp_path / 'kernels.json').write_text(text)
        launch_table.table.cache_clear()
        with pytest.warns(UserWarning, match=r'kernels\.json is not a kernel table'):
            assert launch_table.table(0) == shipped['sm_90']
    launch_table.table.cache_clear()


def test_a_table_that_cannot_be_read_is_left_out(tmp_path, monkeypatch, shipped):
    path = tmp_path / ('x' * 300) / 'kernels.json'  # stands for a home directory of somebody else
    monkeypatch.setattr(launch_table, 'cache_path', lambda: path)
    monkeypatch.setattr(launch_table, 'architecture', lambda index: 'sm_90')
    launch_table.table.cache_clear()
    with pytest.warns(UserWarning, match='File name too long'):
        assert launch_table.table(0) == shipped['sm_90']
    launch_table.table.cache_clear()


def test_a_user_without_a_home_directory_has_no_table(monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    for name in ('HOME', 'XDG_CACHE_HOME', launch_table.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, 'getpwuid', unknown)
    assert not launch_table.cache_path().exists()


def test_nothing_spills_but_what_is_named(shipped):
    for arch, name, kind, size, config in entries(shipped):
        reasons = {arch, name, kind, 128 if '128' in size else 64}
        allowed = max(WHY.get(reason, 0) for reason in reasons)
        assert config.stack <= allowed, (arch, name, kind, size, config)
    # What matters most: half types on an H200.
    spilling = [
        name
        for arch, name, kind, size, config in entries(shipped)
        if (arch, kind) == ('sm_90', 'half') and '128' not in size and config.stack
    ]
    assert spilling == ['anchor_solver_backward']


def test_the_learnt_feature_map_never_spills(shipped):
    found = [e for e in entries(shipped) if e[1] in adaptive.KERNELS]
    assert len(found) == 16 and not any(config.stack for *_, config in found)


def test_half_types_fit_the_gpus_that_the_table_is_for(shipped):
    largest = {'sm_80': 163 << 10, 'sm_90': 227 << 10}
    for arch, name, kind, size, config in entries(shipped):
        if kind == 'half' and '128' not in size:
            assert config.shared <= largest[arch], (arch, name, size, config)


def test_a_measured_table_comes_first(tmp_path, monkeypatch):
    path = tmp_path / 'folder' / 'kernels.json'
    monkeypatch.setenv(launch_table.VARIABLE, str(path))
    assert launch_table.cache_path() == path
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda index: 'GPU of a test')
    monkeypatch.setattr(launch_table, 'architecture', lambda index: 'sm_90')
    fastest = launch_table.Config(128, 8, 3, 99, 12345)
    launch_table.write(
        path, {'GPU of a test': {'kv_state': {'half': {'64': fastest}}}, 'another': {}}
    )
    before = launch_table.read(launch_table.SHIPPED)['sm_90']
    table = launch_table.table.__wrapped__(0)
    assert table['kv_state']['half']['64'] == fastest
    assert table['kv_state']['half']['32'] == before['kv_state']['half']['32']
    assert table['query_output'] == before['query_output']
    path.unlink()
    assert launch_table.table.__wrapped__(0) == before


def test_tuning_takes_the_fastest(tmp_path, monkeypatch):
    """With a clock and a GPU of this test's own: the third candidate is the fastest."""
    from mmlinattn.ops.common import triton_helpers, tuning

    table = launch_table.read(launch_table.SHIPPED)['sm_90']
    monkeypatch.setattr(launch_table, 'table', lambda index: table)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda index: 'GPU of a test')
    before = table['kv_state']['half']['64']
    best = candidates('kv_state', '64', 'half')[2]

    class Event:
        def __init__(self, enable_timing):
            self.config = table['kv_state']['half']['64']

        def elapsed_time(self, last):
            return 1.0 if self.config[:3] == best[:3] else 2.0

        record = synchronize = lambda self: None

    class Compiled:
        n_regs, n_spills = 77, 0
        metadata = type('', (), dict(shared=4096))

    monkeypatch.setattr(torch.cuda, 'Event', Event)
    found = tuning.tune(
        ['kv_state'], '64', 'half', lambda: triton_helpers.around_launch('kv_state', Compiled)
    )
    assert found == {'kv_state': {'half': {'64': launch_table.Config(*best[:3], 77, 4096, 0)}}}
    assert table['kv_state']['half']['64'] == before
    tuning.save(tmp_path / 'kernels.json', found)
    assert tuning.load(tmp_path / 'kernels.json') == found
    with pytest.raises(ValueError, match="run does not launch the kernel 'query_output'"):
        tuning.tune(['query_output'], '64', 'half', lambda: None)


def compile_kernels(root, folder, *tasks):
    """Names of the kernels that each task of compile_kernels.py has compiled."""
    env = dict(os.environ, PYTHONPATH=str(root), TRITON_CACHE_DIR=str(folder))
    env.pop('TRITON_INTERPRET', None)
    script = root / 'tests/test_ops/compile_kernels.py'
    command = [sys.executable, str(script), *' + '.join(tasks).split()]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    known, found = {*NAMES, 'local_gate', 'gate_backward'}, []
    for name, *_ in filter(None, map(str.split, done.stdout.splitlines())):
        if name == 'task':
            found.append([])
        elif name in known:  # not a framework's log
            found[-1].append(name)
    return found


# Each kernel with the flags that take the most.
WORST = (
    'rala_kv_state', 'rala_query_output', 'query_backward', 'rala_key_backward', 'query_mean',
    'anchor_state', 'anchor_output', 'anchor_output_backward', 'anchor_solver_backward',
    'anchor_backward',
    'ripple', 'ripple_weight_backward', 'ripple_query_backward', 'ripple_far_backward',
    'ripple_key_backward', 'adaptive', 'adaptive_backward',
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.long
def test_kernels_compile(root, tmp_path):
    """For sizes of 1, which Triton hands a kernel as constants without a type to convert. Those
    without an entry never spill; what others take is what the table says.

    The interpreter takes what the compiler refuses, too: types of loop variables, blocks.
    """
    worst = WORST if LONG else WORST[::5]
    check = 'check --first --sizes 64 --kinds {} --archs {} --names {}'
    fixed, *entries, units = compile_kernels(
        root, tmp_path, 'fixed --kinds half', check.format('half', 90, ' '.join(worst)),
        check.format('float', 80, 'query_backward'), 'units',
    )  # fmt: skip
    assert len(units) >= 14 and len(fixed) == 4
    assert entries == [[*worst], ['query_backward']]


@pytest.mark.skipif(
    not os.environ.get('MMLINATTN_WHOLE_TABLE'), reason='half an hour: MMLINATTN_WHOLE_TABLE=1'
)
def test_the_whole_table(root, tmp_path, shipped):
    assert len(*compile_kernels(root, tmp_path, 'check')) == len([*entries(shipped)])


def test_the_table_is_one_line_an_entry():
    """Changes can be read."""
    text = launch_table.SHIPPED.read_text()
    assert json.loads(text) and max(map(len, text.splitlines())) < 80
