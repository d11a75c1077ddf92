#!/usr/bin/env bash
# Usage: docs.sh PYTHON. Builds the site with the tools of requirements/docs.txt, in a separate
# environment .venv-docs. It sees the packages of PYTHON, because the reference imports mmlinattn.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=$1 venv=.venv-docs
stamp=$venv/.mmlinattn-docs
wanted="$("$python" -c 'import sys; print(sys.prefix, sys.version)') $(cksum <requirements/docs.txt)"
if [ "$(cat $stamp 2>/dev/null)" != "$wanted" ]; then
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo 'the site needs Python 3.11 or newer' >&2; exit 2; }
  echo "[docs] tools of the site, into $venv"
  "$python" -m venv --clear $venv
  $venv/bin/python -m pip --quiet --disable-pip-version-check install --no-deps --require-hashes \
    --requirement requirements/docs.txt
  "$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' \
    >"$($venv/bin/python -c 'import site; print(site.getsitepackages()[0])')/of_the_project.pth"
  echo "$wanted" >$stamp
fi
rm -rf build/site # removes old pages
$venv/bin/python -m sphinx --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/site
echo 'build/site/index.html'
