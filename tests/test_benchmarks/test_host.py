"""Host costs of calls, of a process that fakes a GPU."""

import subprocess
import sys

MOST_CALLS = 160  # 150 with Python 3.11; ripple attention has a feature map, weights and tiles


def test_layers_make_few_python_calls(root):
    """Calls of the forward pass; the operators launch on a faked GPU, so all their code runs."""
    command = [sys.executable, str(root / 'benchmarks' / 'host.py'), '--seconds', '0']
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-2000:]
    kinds = ('operator', 'layer')  # other lines are logs
    rows = [x.rsplit(maxsplit=4) for x in done.stdout.splitlines() if x.startswith(kinds)]
    calls = {row[0].strip(): float(row[2]) for row in rows}
    layers = {name: count for name, count in calls.items() if name.startswith('layer')}
    operators = {name: count for name, count in calls.items() if name.startswith('operator')}
    assert len(layers) == 7 and len(operators) == 7 and 'backbone  Swin-T' in done.stdout
    assert layers.pop('layer     RippleAttention') <= 250
    assert max(layers.values()) <= MOST_CALLS, layers
    assert max(operators.values()) <= 140, operators  # some 40 of which read addresses
