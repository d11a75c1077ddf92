#!/usr/bin/env python
"""Tests a checkpoint: mAP for detectors, mIoU for segmentors, accuracy for classifiers."""

import argparse
import os

from mmengine.config import DictAction

from mmlinattn.engine import launch


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--work-dir', help='where the log and metrics go')
    parser.add_argument('--out', help='write the predictions to this .pkl file')
    parser.add_argument('--show-dir', help='write pictures: ground truth beside predictions')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        help='override settings of the config, as a.b.c=value ...',
    )
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)
    args = parser.parse_args()
    if args.out is not None and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out must end with .pkl or .pickle, got {args.out!r}')
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def main() -> None:
    args = parse_args()
    cfg = launch.load_config(args.config, args.cfg_options)
    launch.set_work_dir(cfg, args.config, args.work_dir)
    launch.set_launcher(cfg, args.launcher)
    launch.set_pictures(cfg, args.show_dir)
    launch.set_predictions_file(cfg, args.out)
    cfg.load_from = args.checkpoint
    launch.check_data(cfg, 'test_dataloader', 'test_evaluator')
    runner = launch.PluginRunner.from_cfg(cfg)
    launch.check_weights(runner, cfg, testing=True)
    runner.test()
    launch.leave_process_group()


if __name__ == '__main__':
    main()
