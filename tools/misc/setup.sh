#!/usr/bin/env bash
# Usage: setup.sh PYTHON VENV. Sets up an environment; does nothing if it is up to date.
#
# Environment variables:
#   MMCV         lite: mmcv-lite, no compiler needed; compiled: OneDL's mmcv from source;
#                unset: keep an installed compiled mmcv if it loads, else mmcv-lite
#   MMCV_CUDA=1  compiled, with CUDA operators (minutes to an hour, needs nvcc)
#   STACK        onedl (default) or original: whose mmengine, mmdet, mmsegmentation, mmpretrain
#   CONSTRAINTS  file of pinned versions, requirements/constraints.txt by default
#   HASHES       folder of required file hashes, requirements/hashes by default
#                (tools/misc/hashes.sh writes it); empty: check versions only, as with another
#                STACK or CONSTRAINTS
#   BASE_PYTHON  interpreter that creates VENV; by default the first supported one
# shellcheck disable=SC2086,SC2046  # lists of names
set -euo pipefail
python=$1 venv=$2
stack=${STACK:-onedl} constraints=${CONSTRAINTS:-requirements/constraints.txt}
hashes=
[ "$stack:$constraints" = onedl:requirements/constraints.txt ] && hashes=${HASHES-requirements/hashes}
mmcv=${MMCV:-}
[ "${MMCV_CUDA:-0}" = 1 ] && mmcv=compiled
say() { echo "[setup] $*"; }
die() { say "$*" >&2; exit 2; }
case $mmcv in '' | lite | compiled) ;; *) die "MMCV must be lite or compiled, got '$mmcv'" ;; esac
case $stack in onedl | original) ;; *) die "STACK must be onedl or original, got '$stack'" ;; esac
[ -z "$hashes" ] || [ -f "$hashes/default.txt" ] || die "HASHES: no $hashes/default.txt"

fits='import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))'
version() { "$1" --version 2>/dev/null || echo 'not there'; }
# An environment without pip comes from an interrupted venv.
has_pip() { "$1" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("pip"))' 2>/dev/null; }
if [ "$python" = "$venv/bin/python" ] && ! has_pip "$python"; then
  for base in ${BASE_PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
    "$base" -c "import ensurepip, venv; $fits" 2>/dev/null || continue
    say "$venv, of $("$base" --version)"
    "$base" -m venv "$venv" || die "$venv cannot be made: the checkout must be writable"
    break
  done
  has_pip "$python" || die "${BASE_PYTHON:+BASE_PYTHON=$BASE_PYTHON is $(version "$BASE_PYTHON"): }no Python" \
    "3.10 to 3.13 with venv (Debian: apt install python3-venv); BASE_PYTHON=/path/to/python names one"
fi
command -v "$python" >/dev/null || die "PYTHON=$python is not there"
"$python" -c "$fits" || die "PYTHON=$python is $(version "$python"): not Python 3.10 to 3.13"

# The stamp, a file in the environment, records its inputs and the kind of mmcv.
prefix=$("$python" -c 'import sys; print(sys.prefix)')
stamp="$prefix/.mmlinattn-setup" log="$prefix/mmlinattn-setup.log"
# The physical path: a checkout may be entered through a symbolic link.
wanted="$(pwd -P) $stack $(cat setup.py pyproject.toml mmlinattn/utils/mmcv_ops.py "$constraints" "$0" ${hashes:+"$hashes"/*.txt} | cksum)"
if [ -f "$stamp" ]; then
  { read -r made && read -r has; } <"$stamp" || true
  [ "$made" = "$wanted" ] && [ "${MMCV_CUDA:-0}" = 0 ] && [ "${mmcv:-$has}" = "$has" ] && exit 0
  rm "$stamp"
fi

[ "$mmcv" != compiled ] || command -v c++ >/dev/null ||
  die 'compiled mmcv needs a C++ compiler (c++); MMCV=lite needs none'

# stage NAME COMMAND...: logs the output; a terminal shows the seconds and the last line of the log.
stage() {
  local name=$1 start=$SECONDS
  shift
  printf '\n## %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null &
  local job=$!
  while [ -t 1 ] && kill -0 $job 2>/dev/null; do
    printf '\r\033[K[setup] %s %d s  %.50s' "$name" $((SECONDS - start)) "$(tail -n 1 "$log" | tr -d "\r")"
    sleep 0.5
  done
  [ -t 1 ] && printf '\r\033[K'
  if ! wait $job; then
    tail -n 15 "$log" >&2
    ! tail -n 15 "$log" | grep -q 'Retry(total=0' ||
      say "the package index did not answer: check the network, the proxy and PIP_INDEX_URL" >&2
    die "$name failed; all of it: $log"
  fi
  say "$name: $((SECONDS - start)) s"
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT # Ctrl-C does not reach background jobs

pip() { "$python" -m pip --disable-pip-version-check "$@"; }
# Byte code is written at the first import; most files are never imported.
install() { pip install --progress-bar off --no-compile "$@"; }
# get SET OPTIONS PACKAGE...: installs the files in the hashes of SET; without hashes, the packages.
get() {
  local set=$1 options=$2
  shift 2
  if [ -n "$hashes" ]; then
    install $options --require-hashes --requirement "$hashes/$set.txt"
  else
    install $options --constraint "$constraints" "$@"
  fi
}
# installed NAME...: prints those of these distributions that are installed.
installed() {
  "$python" - "$@" <<'EOF'
import sys
from importlib.metadata import distributions

found = {(d.metadata['Name'] or '').lower() for d in distributions()}
print(*[name for name in sys.argv[1:] if name in found])
EOF
}

: 2>/dev/null >"$log" || die "$log cannot be written: the environment of $python must be writable"
onedl='onedl-mmengine onedl-mmdetection onedl-mmsegmentation onedl-mmpretrain'
original='mmengine mmdet mmsegmentation mmpretrain'
mmcvs='mmcv-lite onedl-mmcv mmcv mmcv-full'
others=$original extra=all
[ "$stack" = original ] && others=$onedl extra=original
# Both stacks install into the same folders, so both are removed before one is installed.
if [ -n "$(installed $others)" ]; then
  stage 'the other frameworks go' pip uninstall --yes $(installed $onedl $original)
fi

stage 'build tools' get tools --upgrade pip 'setuptools>=77,<81' wheel
stage "torch and the frameworks (gigabytes the first time)" \
  get default --no-build-isolation torch torchvision --editable ".[$extra,test]"
# Offline: fails only if the hashes are older than pyproject.toml.
[ -z "$hashes" ] ||
  stage 'mmlinattn' install --no-build-isolation --no-index --editable ".[$extra,test]"

have=$(installed $mmcvs)
case $mmcv:$have in
  lite:* | : | :mmcv-lite) package=mmcv-lite ;;
  compiled:*) package=onedl-mmcv ;;
  *)
    package=$have
    if "$python" -c 'import torch, mmcv._ext' >>"$log" 2>&1; then
      say "the compiled mmcv that is there stays (MMCV=lite replaces it)"
    else
      package=mmcv-lite
    fi
    ;;
esac
if [ -n "$have" ] && { [ "$have" != "$package" ] || [ "${MMCV_CUDA:-0}" = 1 ]; }; then
  stage "$have goes" pip uninstall --yes $have
  have=
fi
if [ "$package" = mmcv-lite ]; then
  # Without its requirements: the original mmengine would overwrite OneDL's.
  stage 'mmcv-lite' get mmcv-lite --no-deps mmcv-lite
elif [ -z "$have" ]; then
  stage 'tools of the compiler' get compiler --no-deps ninja psutil
  how=(CUDA_VISIBLE_DEVICES=) cache=
  # A cached wheel may have been built without CUDA operators.
  [ "${MMCV_CUDA:-0}" = 1 ] && how=(FORCE_CUDA=1) cache=--no-cache-dir
  export MMCV_WITH_OPS=1 CFLAGS="${CFLAGS:--O2 -g0 -w}" MAX_JOBS="${MAX_JOBS:-2}" "${how[@]}"
  stage 'mmcv from source (about 7 minutes on 2 cores the first time)' \
    get mmcv-compiled "--no-build-isolation --no-deps $cache" onedl-mmcv
fi

# Writes byte code of the main modules. Container images often set PYTHONDONTWRITEBYTECODE, and then
# each start of Python compiles some thousand files again.
stage 'check' env -u PYTHONDONTWRITEBYTECODE "$python" -c 'import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)' torchvision mmlinattn mmdet.apis mmseg.apis mmpretrain.apis \
  torch._dynamo torch._inductor.compile_fx torch.onnx onnx pytest hypothesis yapf.yapflib.yapf_api
flavour=compiled
[ "$package" = mmcv-lite ] && flavour=lite
printf '%s\n' "$wanted" $flavour >"$stamp"
