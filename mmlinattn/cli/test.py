"""Test a checkpoint or an exported file: mAP for detectors, mIoU for segmentors, accuracy for
classifiers."""

import argparse
from typing import List, Optional

from mmengine.model import is_model_wrapper

from ..checkpoints import CheckpointError
from ..deployment import FileError, check_classes, is_exported, use_exported
from ..engine import config
from ..engine.distributed import launch
from ..engine.hooks.fuse_conv_bn_hook import check_fusion
from ..engine.preflight import data as data_checks
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginRunner
from ..utils.command_line import Parser, errors_in_one_line, parse_run


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(cfg_options=True, description=__doc__)
    parser.add_argument('config', help='config file, or the name of one of this package')
    parser.add_argument('checkpoint', help='checkpoint file, or .onnx, .xml, .pt2')
    parser.add_argument('--out', help='write the predictions to this .pkl file')
    parser.add_argument('--show-dir', help='write pictures: ground truth beside predictions')
    parser.add_argument(
        '--fuse-conv-bn', action='store_true', help='batch norms become part of convolutions'
    )
    args = parse_run(parser, argv)
    if args.out is not None and not args.out.endswith(('.pkl', '.pickle')):
        parser.error(f'--out must end with .pkl or .pickle, got {args.out!r}')
    if args.fuse_conv_bn and is_exported(args.checkpoint):
        parser.error(f'--fuse-conv-bn needs a checkpoint, got {args.checkpoint!r}')
    return args


def prepare(args: argparse.Namespace) -> PluginRunner:
    """Check config, data and weights, and return the runner of the test."""
    cfg = config.load_config(args.config, args.cfg_options)
    config.set_work_dir(cfg, args.config, args.work_dir)
    launch.set_launcher(cfg, args.launcher)
    options = ('checkpoint', 'out', 'show_dir', 'fuse_conv_bn')
    launch.check_same(cfg, **{f'--{name}': getattr(args, name) for name in options})
    config.set_pictures(cfg, args.show_dir)
    config.set_predictions_file(cfg, args.out)
    config.set_fusion(cfg, args.fuse_conv_bn)
    cfg.load_from = args.checkpoint
    data_checks.check_data(cfg, 'test_dataloader', 'test_evaluator')
    exported = is_exported(args.checkpoint)
    if exported:
        use_exported(cfg, args.checkpoint)
    runner = PluginRunner.from_cfg(cfg)
    if not exported:
        check_weights(runner, cfg, testing=True)
    if args.fuse_conv_bn:
        check_fusion(runner)
    metainfo = getattr(runner.test_loop.dataloader.dataset, 'metainfo', {})
    if exported and metainfo.get('classes'):
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        check_classes(model.file, metainfo['classes'])
    return runner


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    with errors_in_one_line(args.debug):
        runner = prepare(args)
    known = (CheckpointError, FileError, data_checks.DataError, OSError)
    with errors_in_one_line(args.debug, known, runner.log_dir):
        runner.test()
    launch.leave_process_group()
    return 0
