#!/usr/bin/env bash
# Sets the environment up: setup.sh PYTHON VENV. Does nothing when it is up to date.
# MMCV_CUDA=1 compiles mmcv's CUDA operators too (minutes to an hour, needs nvcc).
set -euo pipefail
python=$1 venv=$2

if [ "$python" = "$venv/bin/python" ] && [ ! -x "$python" ]; then
  echo "[setup] creating $venv"
  python3 -m venv "$venv"
fi
command -v "$python" >/dev/null || { echo "[setup] PYTHON=$python is not there" >&2; exit 2; }

command -v c++ >/dev/null || { echo "[setup] a C++ compiler is needed (c++)" >&2; exit 2; }

# The stamp holds what the environment was made from; it lives in the environment.
prefix=$("$python" -c 'import sys; print(sys.prefix)')
stamp="$prefix/.mmlinattn-setup"
wanted="$(pwd) ${MMCV_CUDA:-0} $(cat setup.py pyproject.toml requirements/constraints.txt "$0" | sha256sum)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi

pip() {
  "$python" -m pip install --quiet --disable-pip-version-check \
    --constraint requirements/constraints.txt "$@"
}

echo "[setup] build tools"
pip --upgrade pip 'setuptools>=77,<81' wheel ninja psutil
echo "[setup] torch (a large download the first time)"
pip torch torchvision
if [ "${MMCV_CUDA:-0}" = 1 ] || ! "$python" -c 'import mmcv.ops' 2>/dev/null; then
  if command -v nvidia-smi >/dev/null && [ "${MMCV_CUDA:-0}" != 1 ]; then
    echo "[setup] GPU found. mmcv is compiled without CUDA operators; RetinaNet and Mask R-CNN"
    echo "[setup] need them on a GPU. Prebuilt, into this environment, before make setup:"
    echo "[setup]   $python -m pip install onedl-mim && $python -m mim install onedl-mmcv"
    echo "[setup] Or compile them here: MMCV_CUDA=1 make setup"
  fi
  echo "[setup] mmcv from source, about 7 minutes on 2 cores the first time"
  how=(CUDA_VISIBLE_DEVICES=) again=()
  if [ "${MMCV_CUDA:-0}" = 1 ]; then
    # A wheel without CUDA operators may be installed or cached.
    how=(FORCE_CUDA=1) again=(--force-reinstall --no-deps --no-cache-dir)
  fi
  env "${how[@]}" MMCV_WITH_OPS=1 CFLAGS="${CFLAGS:--O2 -g0 -w}" MAX_JOBS="${MAX_JOBS:-2}" \
    "$python" -m pip install --quiet --disable-pip-version-check --no-build-isolation \
    --constraint requirements/constraints.txt "${again[@]}" onedl-mmcv
fi
echo "[setup] the OpenMMLab packages and this one"
pip --no-build-isolation --editable '.[all,test]'
"$python" -c 'import mmlinattn; print("[setup] done: mmlinattn", mmlinattn.__version__)'
echo "$wanted" >"$stamp"
