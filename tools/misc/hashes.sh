#!/usr/bin/env bash
# Writes requirements/hashes/: the sha256 of every file of every release that the default environment
# pins, which tools/misc/setup.sh installs by. Run it after a change of the dependencies in
# pyproject.toml or of requirements/constraints.txt; it takes seconds, needs uv (pip install uv) and
# the package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=requirements/hashes
command -v uv >/dev/null || { echo 'uv is not there: pip install uv' >&2; exit 2; }

# write SET ARGUMENT...: with markers for all Pythons that setup.sh takes ([tool.uv] of pyproject.toml).
write() {
  local file=$folder/$1.txt
  shift
  uv pip compile --quiet --upgrade --universal --python-version 3.10 --no-python-downloads \
    --generate-hashes --no-annotate --no-header --constraint requirements/constraints.txt "$@" \
    --output-file "$file" >/dev/null
  echo "$file: $(grep -c '^[a-z]' "$file") releases, $(grep -c -- --hash "$file") files"
}

mkdir -p $folder
write tools - <<<$'pip\nsetuptools\nwheel'
write default pyproject.toml --extra all --extra test
write mmcv-lite --no-deps - <<<mmcv-lite
write compiler --no-deps - <<<$'ninja\npsutil'
write mmcv-compiled --no-deps - <<<onedl-mmcv
