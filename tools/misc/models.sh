#!/usr/bin/env bash
# Train the models whose weights the package brings, and publish them into mmlinattn/weights. The
# segmentor stops before its last two trainings (configs/nuclei/README.md): 84.6 in place of 84.8.
# An interrupted training goes on. Usage: models.sh PYTHON; the nuclei are in data/nuclei.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1

[ -d data/nuclei ] || { echo "data/nuclei does not exist: configs/nuclei/README.md" >&2; exit 2; }
for name in mask-rcnn_ravlt-nano-linear_nuclei semantic-fpn_ravlt-nano-linear_nuclei; do
    folder=work_dirs/models/$name
    options=({train,val,test}_dataloader.dataset.data_root=data/nuclei/)
    train() {  # CONFIG FOLDER [OPTION ...]
        "$python" -m mmlinattn train "$1" --amp --work-dir "$2" --resume --cfg-options "${options[@]}" "${@:3}"
    }
    if [[ $name == mask-rcnn* ]]; then
        options+=({val,test}_evaluator.ann_file=data/nuclei/annotations/val.json)
        # The second training draws images by their area, at half the learning rate.
        train "$name" "$folder/first"
        train "$name" "$folder/second" load_from="$folder/first/iter_8000.pth" train_cfg.max_iters=6000 \
            param_scheduler.0.{total_steps=6000,eta_max=4e-4} optim_wrapper.optimizer.lr=4e-4 \
            train_dataloader.sampler.{_delete_=True,type=AreaSampler}
        folder+=/second
    else
        # At native size, then on doubled images in two cycles. The second ends at 1,500 of 1,800.
        train "$name-256x256" "$folder"
        for part in '605 605' '1800 1500'; do
            read -r cycle end <<< "$part"
            from=$folder/$(basename "$(cat "$folder/last_checkpoint")")
            folder=work_dirs/models/$name/$cycle
            train "$name" "$folder" load_from="$from" train_dataloader.batch_size=16 \
                train_cfg.max_iters="$end" param_scheduler.0.total_steps="$cycle"
        done
    fi
    # last_checkpoint has the path of the time; the checkout may have moved.
    "$python" tools/model_converters/publish_model.py \
        "$name" "$folder/$(basename "$(cat "$folder/last_checkpoint")")" mmlinattn/weights \
        --dataset 'nuclei, 110 validation images' --license 'CC0, as the data' --force \
        --cfg-options "${options[@]}"
done
