"""The projects are registered by the configs that name them, and by nothing else."""

import subprocess
import sys

CODE = """
import sys
import mmlinattn
from mmengine.config import Config
from mmengine.registry import MODELS
assert not [name for name in sys.modules if name.startswith('mmlinattn.projects')]
for config in (None, *sys.argv[1:]):
    if config:
        Config.fromfile(config)
    print([name for name in ('TimeSformer', 'ViTVQGAN') if name in MODELS])
"""


def test_configs_register_their_project_alone(root):
    configs = [
        'configs/timesformer/timesformer-nano-joint_moving-shapes.py',
        'configs/vqgan/vit-vqgan-nano_shapes.py',
    ]
    done = subprocess.run(
        [sys.executable, '-c', CODE, *configs], cwd=root, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()[-3:]
    assert lines == ['[]', "['TimeSformer']", "['TimeSformer', 'ViTVQGAN']"]
