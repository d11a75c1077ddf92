#!/usr/bin/env bash
# dist_train.sh CONFIG GPUS [tools/train.py options]
set -euo pipefail
. "$(dirname "$0")/misc/python.sh"
CONFIG=$1 GPUS=$2
PYTHONPATH="$(dirname "$0")/..:${PYTHONPATH:-}" "$PYTHON" -m torch.distributed.run \
  --nnodes="${NNODES:-1}" --node_rank="${NODE_RANK:-0}" \
  --master_addr="${MASTER_ADDR:-127.0.0.1}" --master_port="${PORT:-29500}" \
  --nproc_per_node="$GPUS" \
  "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "${@:3}"
