#!/usr/bin/env python
"""Trains a detector, segmentor or classifier from a config."""

import argparse
import os

from mmengine.config import DictAction

from mmlinattn.engine import launch


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('--work-dir', help='where logs and checkpoints go')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        help='checkpoint to resume from; without a value, the newest in the work directory',
    )
    parser.add_argument('--amp', action='store_true', help='mixed precision')
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help="scale the learning rate to the batch size, from the config's auto_scale_lr",
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config, as a.b.c=value ...',
    )
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def main() -> None:
    args = parse_args()
    cfg = launch.load_config(args.config, args.cfg_options)
    launch.set_work_dir(cfg, args.config, args.work_dir)
    launch.set_launcher(cfg, args.launcher)
    launch.set_resume(cfg, args.resume)
    launch.use_amp(cfg, args.amp)
    if args.auto_scale_lr:
        launch.scale_lr(cfg)
    launch.check_data(cfg, 'train_dataloader', 'val_dataloader', 'val_evaluator')
    runner = launch.PluginRunner.from_cfg(cfg)
    launch.check_weights(runner, cfg)
    runner.train()
    launch.leave_process_group()


if __name__ == '__main__':
    main()
