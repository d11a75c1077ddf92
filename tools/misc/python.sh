# Sets PYTHON for the launchers that source it: the active environment, else .venv.
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python
  own="$(dirname "${BASH_SOURCE[0]}")/../../.venv/bin/python"
  if [ -z "${VIRTUAL_ENV:-}${CONDA_PREFIX:-}" ] && [ -x "$own" ]; then PYTHON=$own; fi
fi
