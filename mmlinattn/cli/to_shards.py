"""Write the data sets of a config as shards."""

import argparse
from typing import Any

from ..datasets.shards.write import MIB, write_shards
from ..engine.config import load_config
from ..engine.preflight.data import built_dataset, check_data, dataset_configs
from ..utils.command_line import errors_in_one_line, plain_console, progress_bars


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug), progress_bars(plain_console(stderr=True)) as bars:
        cfg = load_config(args.config, args.cfg_options)
        for split in args.splits:
            task = bars.add_task(split, total=None)
            check_data(cfg, f'{split}_dataloader')
            (config,) = dataset_configs(cfg[f'{split}_dataloader'])
            dataset = built_dataset(dict(config, pipeline=[]))

            def show(done: int, total: int, task: Any = task) -> None:
                bars.update(task, completed=done, total=total)

            path = write_shards(
                dataset, args.out, split, args.shard_mib * MIB, show,
                seed=0 if split == 'train' and not args.in_order else None,
            )  # fmt: skip
            bars.console.print(f'{path}: {len(dataset)} samples')
    return 0
