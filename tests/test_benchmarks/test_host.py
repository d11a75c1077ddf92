"""Host costs of calls, of a process that fakes a GPU."""

import subprocess
import sys

MOST_CALLS = 160  # 150 with Python 3.11; ripple attention has a feature map, weights and tiles


def test_layers_make_few_python_calls(root):
    """Calls of the forward pass; the operators launch on a faked GPU, so all their code runs."""
    command = [sys.executable, str(root / 'benchmarks' / 'host.py'), '--seconds', '0']
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    tables = [
        {line.split(' | ')[0][2:]: line.split(' | ') for line in table.splitlines()[2:]}
        for table in done.stdout.replace(',', '').split('\n\n')
        if table.startswith('| ')
    ]
    operators, layers, backbones, optimizers = tables
    merged = optimizers['merged in the step']
    assert int(merged[1]) == 2 and 4 * int(merged[2]) < int(optimizers["MMEngine's groups"][2])
    for name in ('RAVLT-S', 'DINOv3-S'):  # half types in an autograd.Function with a vmap rule: 2x
        assert int(backbones[name][1]) < 9000, backbones
    operators = {name: int(row[2]) for name, row in operators.items()}
    layers = {name: int(row[1]) for name, row in layers.items()}
    assert len(layers) == 7 and len(operators) == 7 and 'Swin-T' in backbones
    assert layers.pop('RippleAttention') <= 250
    assert max(layers.values()) <= MOST_CALLS, layers
    assert max(operators.values()) <= 140, operators  # some 40 of which read addresses
