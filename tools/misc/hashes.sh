#!/usr/bin/env bash
# Writes requirements/hashes/, the sha256 of all files of the releases that the default environment
# pins. tools/misc/setup.sh installs only files with these hashes. Run it after a change of the
# dependencies in pyproject.toml or of requirements/constraints.txt. It takes seconds and requires uv
# (pip install uv) and the package index. It also writes requirements/docs.txt for `make docs`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=requirements/hashes
command -v uv >/dev/null || { echo 'uv is not there: pip install uv' >&2; exit 2; }

# compile FILE PYTHON ARGUMENT...: adds markers for this Python and newer ([tool.uv] of pyproject.toml).
compile() {
  local file=$1 python=$2
  shift 2
  uv pip compile --quiet --universal --python-version "$python" --no-python-downloads \
    --generate-hashes --no-annotate --no-header --constraint requirements/constraints.txt "$@" \
    --output-file "$file" >/dev/null
  echo "$file: $(grep -c '^[a-z]' "$file") releases, $(grep -c -- --hash "$file") files"
}
write() { compile "$folder/$1.txt" 3.10 --upgrade "${@:2}"; } # oldest Python of setup.sh

mkdir -p $folder
write tools - <<<$'pip\nsetuptools\nwheel'
write default pyproject.toml --extra all --extra test
write mmcv-lite --no-deps - <<<mmcv-lite
write compiler --no-deps - <<<$'ninja\npsutil'
write mmcv-compiled --no-deps - <<<onedl-mmcv
# Without --upgrade, uv keeps the versions in the file (uv --upgrade-package NAME). The tools need 3.11.
compile requirements/docs.txt 3.11 --group docs
