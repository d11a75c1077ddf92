#!/usr/bin/env bash
# Usage, on every machine: dist_train.sh CONFIG GPUS [tools/train.py options], see docs/distributed.md
# NNODES (a number or MIN:MAX), MASTER_ADDR, PORT, RUN_ID and MAX_RESTARTS may be set in the
# environment.
set -euo pipefail
. "$(dirname "$0")/misc/python.sh"
USAGE='usage: dist_train.sh CONFIG GPUS [tools/train.py options]'
CONFIG=${1:?$USAGE} GPUS=${2:?$USAGE}
[[ $GPUS =~ ^[1-9][0-9]*$ ]] || { echo "error: GPUS must be a number above 0, got $GPUS; $USAGE" >&2; exit 2; }
# Otherwise restarted processes would read the addresses of ended ones from the agents' store.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
if [ "${NNODES:-1}" = 1 ]; then
  MEET=(--standalone)
else
  : "${MASTER_ADDR:?of the first machine}" "${PORT:=29500}"
  # torch waits forever, without a message, if another program listens at the port.
  if timeout 10 bash -c ": </dev/tcp/$MASTER_ADDR/$PORT" 2>/dev/null &&
    ! timeout 60 "$PYTHON" -c 'import sys, torch.distributed as dist
dist.TCPStore(sys.argv[1], int(sys.argv[2]), wait_for_workers=False)' "$MASTER_ADDR" "$PORT"; then
    echo "error: another program than torchrun listens at $MASTER_ADDR:$PORT; choose a port with PORT=" >&2
    exit 2
  fi
  MEET=(--nnodes="$NNODES" --rdzv-backend=c10d --rdzv-id="${RUN_ID:-$CONFIG}"
    --rdzv-endpoint="$MASTER_ADDR:$PORT")
fi
PYTHONPATH="$(dirname "$0")/..:${PYTHONPATH:-}" exec "$PYTHON" -m torch.distributed.run \
  "${MEET[@]}" --nproc-per-node="$GPUS" --max-restarts="${MAX_RESTARTS:-0}" \
  "$(dirname "$0")/train.py" "$CONFIG" --launcher pytorch "${@:3}"
