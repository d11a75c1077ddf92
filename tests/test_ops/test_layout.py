"""Which file may import which, and that the operators need torch alone."""

import ast
import subprocess
import sys

# Operator: other operators that it may import.
OPERATORS = dict(additive=(), linear=(), rala=('linear',), random_walk=(), ripple=())


def imported(path, package):
    """Modules that a file imports, absolute; ``package`` is the one that it lies in."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split('.')
            lead = parents[: len(parents) - node.level + 1] if node.level else []
            base = '.'.join([*lead, *filter(None, [node.module])])
            yield from (f'{base}.{alias.name}' for alias in node.names)


def test_no_arrow_climbs(root):
    files = sorted((root / 'mmlinattn' / 'ops').glob('*/*.py'))
    assert {path.parent.name for path in files} == {'common', *OPERATORS}
    for path in files:
        folder = path.parent.name
        allowed = ('common', folder, *OPERATORS.get(folder, ()))
        for name in imported(path, f'mmlinattn.ops.{folder}'):
            if not name.startswith('mmlinattn'):
                kernels = path.stem in ('triton', 'key_sums', 'kernels')
                known = ('torch', 'triton') if kernels else ('torch',)
                top = name.split('.')[0]
                assert top in known or top in sys.stdlib_module_names, (path, name)
                continue
            parts = name.split('.')
            assert parts[1] == 'ops' and parts[2] in allowed, (path, name)
            assert not (path.stem == 'fused' and 'portable' in parts), (path, name)


ALONE = """
import sys
sys.modules['mmengine'] = sys.modules['mmcv'] = None
import torch
import mmlinattn.ops as ops
q, k, v = torch.rand(3, 1, 2, 12, 8).requires_grad_()
w, anchors = torch.rand(2, 2, 8), torch.rand(2, 3, 8)
for out in (
    ops.additive_attention(q, k, v, *w),
    ops.linear_attention(q, k, v),
    ops.rala_attention(q, k, v),
    ops.random_walk_attention(q, k, v, anchors, anchors),
    ops.ripple_attention(q, k, v, torch.rand(1, 2, 12, 3), hw_shape=(3, 4)),
):
    out.sum().backward()
for ask in ('mmlinattn.layers', 'mmlinattn.nothing'):
    try:
        eval(ask, dict(mmlinattn=sys.modules['mmlinattn']))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_operators_run_with_torch_alone(root):
    done = subprocess.run(
        [sys.executable, '-c', ALONE], cwd=root, capture_output=True, text=True, check=True
    )
    layers, nothing = done.stdout.splitlines()
    assert layers.startswith('ImportError mmlinattn.layers needs MMEngine and mmcv')
    assert nothing.startswith('AttributeError')
