#!/usr/bin/env bash
# Usage: sbatch [sbatch options] tools/cluster/slurm.sh CONFIG WORK_DIR [tools/train.py options]
# Run it in the folder of the repository. All machines must see this folder and WORK_DIR.
# Before the time limit the training saves its state and the job is requeued: docs/distributed.md
# GPUS, MAX_RESTARTS and PORT may be set in the environment.
#SBATCH --job-name=mmlinattn
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --output=slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
set -euo pipefail
USAGE='usage: sbatch tools/cluster/slurm.sh CONFIG WORK_DIR [tools/train.py options]'
CONFIG=${1:?$USAGE} WORK_DIR=${2:?$USAGE}
GPUS=${GPUS:-${SLURM_GPUS_ON_NODE:?$USAGE}}

told=
stop() {
  told=1
  # scancel signals the training only, which saves its state after the iteration and ends.
  scancel --signal=TERM "$SLURM_JOB_ID" || true
}
trap stop USR1

NNODES=$SLURM_NNODES
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
RUN_ID=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
MAX_RESTARTS=${MAX_RESTARTS:-3}
export NNODES MASTER_ADDR RUN_ID MAX_RESTARTS

# Since Slurm 22.05 srun does not inherit --cpus-per-task from sbatch.
srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
  tools/dist_train.sh "$CONFIG" "$GPUS" --resume --work-dir "$WORK_DIR" \
  "${@:3}" &
code=0
wait $! || code=$?
if [ -n "$told" ]; then
  # The signal interrupted the first wait.
  code=0
  wait $! || code=$?
  if [ "$code" != 0 ]; then
    echo "The time is nearly over: job $SLURM_JOB_ID queues again and goes on from $WORK_DIR."
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
  fi
fi
exit "$code"
