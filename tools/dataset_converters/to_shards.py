"""Write the data sets of a config as shards: OUT/SPLIT-000000.tar, ... and OUT/SPLIT.json.

The training set is written in random order. Run the command again to continue after an
interruption.
"""

from pathlib import Path

from mmlinattn.datasets.shards.write import MIB, write_shards
from mmlinattn.engine.config import load_config
from mmlinattn.engine.preflight.data import single_dataset
from mmlinattn.utils.command_line import Parser, errors_in_one_line, plain_console, progress_bars


def main() -> None:
    parser = Parser(cfg_options=True, description=__doc__)
    add = parser.add_argument
    add('config', help='config file, of any of the three frameworks')
    add('out', type=Path, help='folder of the shards')
    add('--splits', nargs='+', choices=('train', 'val', 'test'), default=('train', 'val'))
    add('--shard-mib', type=int, default=256, help='size of a shard in MiB')
    add('--in-order', action='store_true', help='the training set, too, in its own order')
    args = parser.parse_args()
    with errors_in_one_line(args.debug), progress_bars(plain_console(stderr=True)) as bars:
        cfg = load_config(args.config, args.cfg_options)
        for split in args.splits:
            task = bars.add_task(split, total=None)
            dataset = single_dataset(cfg, f'{split}_dataloader')
            path = write_shards(
                dataset, args.out, split, args.shard_mib * MIB,
                lambda done, total, task=task: bars.update(task, completed=done, total=total),
                seed=0 if split == 'train' and not args.in_order else None,
            )  # fmt: skip
            bars.console.print(f'{path}: {len(dataset)} samples')


if __name__ == '__main__':
    main()
