#!/usr/bin/env bash
# Train the models whose weights the package brings, and publish them into mmlinattn/weights.
# An interrupted training goes on. Usage: models.sh PYTHON; BCCD is in data/bccd.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1

model() {  # config, data set, terms, options of the test
    local name=$1 dataset=$2 license=$3 folder=work_dirs/models/$1
    shift 3
    "$python" -m mmlinattn train "$name" --work-dir "$folder" --resume
    # last_checkpoint has the path of the time; the checkout may have moved.
    "$python" tools/model_converters/publish_model.py "$name" "$folder/$(basename "$(cat "$folder/last_checkpoint")")" \
        mmlinattn/weights \
        --dataset "$dataset" --license "$license" --force "$@"
}

[ -d data/bccd ] || { echo "data/bccd does not exist: docs/datasets.md#bccd" >&2; exit 2; }
[ -d data/shapes ] || "$python" -m mmlinattn shapes data/shapes
model semantic-fpn_ravlt-nano_shapes 'Shapes, validation split' Apache-2.0
model faster-rcnn_ravlt-nano-linear_bccd 'BCCD, test split' 'MIT, as the data (copyright 2017 shenggan)' \
    --cfg-options test_dataloader.dataset.ann_file=annotations/test.json
