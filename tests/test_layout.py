"""Which part of the package may import which, and that the operators need torch alone."""

import ast
import subprocess
import sys

# Part: what it may import, besides what those may and OPEN. A part without a row is an error.
MAY_IMPORT = {
    'ops.common': [],
    'ops.learnt_features': ['ops.common'],
    'ops.additive': ['ops.common'],
    'ops.random_walk': ['ops.common'],
    'ops.linear': ['ops.common'],
    'ops.ripple': ['ops.common'],
    'ops': [
        'ops.learnt_features',
        'ops.additive',
        'ops.random_walk',
        'ops.linear',
        'ops.ripple',
    ],
    'models.layers': ['ops'],
    'models.backbones': ['models.layers'],
    'models.necks': ['models.layers'],
    'models.detectors': ['models.layers'],
    'models.decode_heads': ['models.layers'],
    'models.segmentors': ['models.backbones'],
    'models': [
        'models.backbones',
        'models.detectors',
        'models.necks',
    ],
    'testing': ['models'],
    'checkpoints': ['utils'],  # backbones declare the names of released weights
    'datasets': ['utils'],
    'engine': ['models', 'checkpoints', 'datasets'],
    'evaluation': ['engine'],
    'analysis': ['engine'],
    'visualization': ['analysis'],
    'deployment': ['visualization'],
    'apis': ['deployment'],
    'app': ['apis'],
    'linearize': ['apis', 'evaluation'],
    'cli': ['app', 'linearize'],
    '__main__': ['cli'],
    'projects': ['engine'],  # and nothing imports projects
}
OPEN = {'utils', 'version'}  # everything may import these; they import nothing of the package


def allowed(part):
    """All that a part may import, itself included."""
    return {part, *OPEN}.union(*map(allowed, MAY_IMPORT[part])) if part in MAY_IMPORT else {part}


def part_of(module):
    """The part that a module of mmlinattn belongs to; '' for the package itself."""
    names = module.split('.')[1:3]
    return '.'.join(names) if '.'.join(names) in MAY_IMPORT else '.'.join(names[:1])


def imported(path, root):
    """Modules that a file imports, absolute, wherever in the file."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            lead = package[: len(package) - node.level + 1] if node.level else ()
            base = '.'.join([*lead, *filter(None, [node.module])])
            yield from (f'{base}.{alias.name}' for alias in node.names)


def climbing(root):
    """Arrows of the package below ``root`` that the table does not have: 'file -> module'."""
    for path in sorted((root / 'mmlinattn').rglob('*.py')):
        module = '.'.join(path.relative_to(root).with_suffix('').parts)
        part = part_of(module.removesuffix('.__init__'))
        for name in imported(path, root):
            if name.split('.')[0] == 'mmlinattn' and part and part_of(name) not in allowed(part):
                yield f'{path.relative_to(root)} -> {name}'


def test_no_arrow_climbs(root):
    package = root / 'mmlinattn'
    files = [
        *package.glob('*/__init__.py'),
        *package.glob('ops/*/__init__.py'),
        *package.glob('models/*/__init__.py'),
    ]
    parts = {'.'.join(path.parent.relative_to(package).parts) for path in files}
    assert 'ops.linear' in parts and parts <= {*MAY_IMPORT, *OPEN}
    assert not [*climbing(root)]


def test_operators_import_only_torch_and_kernels_no_torch_impl(root):
    for path in sorted((root / 'mmlinattn' / 'ops').rglob('*.py')):
        kernels = path.stem in (
            'triton_helpers',
            'kv_state',
            'launch',
            'reduction',
            'triton_kernels',
        )
        allowed = ('mmlinattn', 'torch', *(['triton'] if kernels else []))
        known = {*allowed, *sys.stdlib_module_names}
        names = [name.split('.') for name in imported(path, root)]
        assert {name[0] for name in names} <= known, path
        assert not kernels or not any('torch_impl' in name for name in names), path


ALONE = """
import sys
sys.modules['mmengine'] = sys.modules['mmcv'] = None
import torch
import mmlinattn.ops as ops
q, k, v = torch.rand(3, 1, 2, 12, 8).requires_grad_()
w, anchors = torch.rand(2, 2, 8), torch.rand(2, 3, 8)
learnt = torch.rand(8, 8), torch.rand(8, 16), torch.rand(8)
for out in (
    ops.adaptive_features(q, k, *learnt)[1],
    ops.additive_attention(q, k, v, *w),
    ops.linear_attention(q, k, v),
    ops.unnormalised_attention(q, k, v),
    ops.nystrom_attention(q, k, v, anchors, anchors),
    ops.rala_attention(q, k, v),
    ops.random_walk_attention(q, k, v, anchors, anchors),
    ops.ripple_attention(q, k, v, torch.rand(1, 2, 12, 3), hw_shape=(3, 4)),
):
    out.sum().backward()
for ask in ('mmlinattn.models', 'mmlinattn.nothing'):
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
    assert layers.startswith('ImportError mmlinattn.models needs MMEngine and mmcv')
    assert nothing.startswith('AttributeError')
