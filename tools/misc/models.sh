#!/usr/bin/env bash
# Train the models whose weights the package brings, and publish them into mmlinattn/weights.
# An interrupted training goes on. Usage: models.sh PYTHON; the nuclei are in data/nuclei.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1

[ -d data/nuclei ] || { echo "data/nuclei does not exist: configs/nuclei/README.md" >&2; exit 2; }
for name in mask-rcnn_ravlt-nano-linear_nuclei semantic-fpn_ravlt-nano-linear_nuclei; do
    folder=work_dirs/models/$name
    options=({train,val,test}_dataloader.dataset.data_root=data/nuclei/)
    train() {  # FOLDER [OPTION ...]
        "$python" -m mmlinattn train "$name" --amp --work-dir "$1" --resume --cfg-options "${options[@]}" "${@:2}"
    }
    if [[ $name == mask-rcnn* ]]; then
        options+=({val,test}_evaluator.ann_file=data/nuclei/annotations/val.json)
        # The second training draws images by their area, at half the learning rate.
        train "$folder/first"
        folder+=/second
        train "$folder" load_from="${folder%/*}/first/iter_8000.pth" train_cfg.max_iters=6000 \
            param_scheduler.0.{total_steps=6000,eta_max=4e-4} optim_wrapper.optimizer.lr=4e-4 \
            train_dataloader.sampler.{_delete_=True,type=AreaSampler}
    else
        train "$folder"
    fi
    # last_checkpoint has the path of the time; the checkout may have moved.
    "$python" tools/model_converters/publish_model.py \
        "$name" "$folder/$(basename "$(cat "$folder/last_checkpoint")")" mmlinattn/weights \
        --dataset 'nuclei, 110 validation images' --license 'CC0, as the data' --force \
        --cfg-options "${options[@]}"
done
