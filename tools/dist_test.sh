#!/usr/bin/env bash
# Usage: dist_test.sh CONFIG CHECKPOINT GPUS [tools/test.py options]
set -euo pipefail
. "$(dirname "$0")/misc/python.sh"
USAGE='usage: dist_test.sh CONFIG CHECKPOINT GPUS [tools/test.py options]'
CONFIG=${1:?$USAGE} CHECKPOINT=${2:?$USAGE} GPUS=${3:?$USAGE}
[[ $GPUS =~ ^[1-9][0-9]*$ ]] || { echo "error: GPUS must be a number above 0, got $GPUS; $USAGE" >&2; exit 2; }
PYTHONPATH="$(dirname "$0")/..:${PYTHONPATH:-}" "$PYTHON" -m torch.distributed.run \
  --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
  --nproc_per_node="$GPUS" \
  "$(dirname "$0")/test.py" "$CONFIG" "$CHECKPOINT" --launcher pytorch "${@:4}"
