#!/usr/bin/env bash
# Usage: slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [tools/train.py options]
# GPUS, GPUS_PER_NODE, CPUS_PER_TASK and SRUN_ARGS may be set in the environment.
set -euo pipefail
. "$(dirname "$0")/misc/python.sh"
USAGE='usage: slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR [tools/train.py options]'
PARTITION=${1:?$USAGE} JOB_NAME=${2:?$USAGE} CONFIG=${3:?$USAGE} WORK_DIR=${4:?$USAGE}
GPUS=${GPUS:-8} GPUS_PER_NODE=${GPUS_PER_NODE:-8} CPUS_PER_TASK=${CPUS_PER_TASK:-5}
# shellcheck disable=SC2086  # SRUN_ARGS holds several words
PYTHONPATH="$(dirname "$0")/..:${PYTHONPATH:-}" srun -p "$PARTITION" --job-name="$JOB_NAME" \
  --gres=gpu:"$GPUS_PER_NODE" --ntasks="$GPUS" --ntasks-per-node="$GPUS_PER_NODE" \
  --cpus-per-task="$CPUS_PER_TASK" --kill-on-bad-exit=1 ${SRUN_ARGS:-} \
  "$PYTHON" -u "$(dirname "$0")/train.py" "$CONFIG" --work-dir "$WORK_DIR" --launcher slurm "${@:5}"
