"""What a command sets before it imports other packages."""

import os
import subprocess
import sys

import pytest

from mmlinattn.utils import environment

NAMES = ('LOGNAME', 'USER', 'LNAME', 'USERNAME')
# torch sets it when it has asked for the name; a child process then does not ask.
ASKED = ('TORCHINDUCTOR_CACHE_DIR',)
# onnxruntime sends no reports where one of these is set.
QUIET = ('CI', 'ORT_DISABLE_TELEMETRY', 'ORT_RUNNING_UNIT_TESTS')

# As a user id without a name, as in `docker run --user 12345`.
NAMELESS = """
import pwd
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
import sys
sys.argv = ['mmlinattn', 'train', 'nowhere.py']
from mmlinattn.__main__ import main
try:
    main()
except SystemExit as end:
    assert end.code == 2
import torch._dynamo
import onnx, onnxruntime
from onnx import TensorProto as T, helper
image = helper.make_tensor_value_info('image', T.FLOAT, [1])
out = helper.make_tensor_value_info('out', T.FLOAT, [1])
graph = helper.make_graph([helper.make_node('Relu', ['image'], ['out'])], 'g', [image], [out])
opsets = [helper.make_opsetid('', 17)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
onnxruntime.InferenceSession(model.SerializeToString())
"""


def test_a_user_id_without_a_name_and_no_reports(root, tmp_path):
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    env = {name: value for name, value in os.environ.items() if name not in NAMES + ASKED + QUIET}
    env.update(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), PYTHONPATH=str(root))
    command = [sys.executable, '-c', NAMELESS]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The identifier that onnxruntime sends with its reports.
    assert not list(tmp_path.rglob('deviceid'))


@pytest.mark.parametrize('encoding, started', [('ANSI_X3.4-1968', True), ('UTF-8', False)])
def test_text_is_utf8_in_every_locale(monkeypatch, encoding, started):
    calls = []
    monkeypatch.delenv('PYTHONUTF8', raising=False)
    monkeypatch.setattr(environment.locale, 'getpreferredencoding', lambda _: encoding)
    monkeypatch.setattr(os, 'execv', lambda *call: calls.append((*call, os.environ['PYTHONUTF8'])))
    monkeypatch.setattr(sys, 'orig_argv', ['python', '-m', 'mmlinattn', 'train', 'c.py'])
    environment.use_utf8()
    again = [sys.executable, '-m', 'mmlinattn', 'train', 'c.py']
    assert calls == ([(sys.executable, again, '1')] if started else [])
    environment.use_utf8()  # the process that was started does not start another
    assert len(calls) == started
