#!/usr/bin/env python
"""Write the weights of a trained model for others, with an entry for a metafile.

The published file itself is scored on the test data of the config.
"""

import argparse
import hashlib
import re
import tempfile
from pathlib import Path
from typing import Dict, Optional

import yaml
from mmengine.config import Config
from torch import Tensor

from mmlinattn.checkpoints import (
    CheckpointError,
    check_complete,
    check_fits,
    load_state_dict,
    non_finite,
    save_checkpoint,
)
from mmlinattn.cli.arguments import runs
from mmlinattn.cli.test import prepare
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.config_files import package_configs
from mmlinattn.utils import check_writable, write_text
from mmlinattn.utils.command_line import Overrides, errors_in_one_line
from mmlinattn.utils.suggest import shorten

TASKS = {
    'mmdet': 'Object Detection',
    'mmseg': 'Semantic Segmentation',
    'mmpretrain': 'Image Classification',
}
LENGTHS = {'epoch': 'Epochs', 'iter': 'Iterations'}  # in meta information and entry


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('config', help='config file, or the name of one of this package')
    add('checkpoint', help='checkpoint: a file or an address')
    add('out', metavar='DIR', type=Path, help='writes DIR/NAME-SHA256.pth and DIR/NAME.yml')
    add('--keep-precision', action='store_true', help='of the weights, instead of float16')
    add('--dataset', metavar='TEXT', help='name of the test data in the entry; default: its class')
    add('--license', metavar='TEXT', help='terms of the weights; the data may have terms, too')
    add('--force', action='store_true', help='replace the model of this name in DIR')
    add('--cfg-options', nargs='+', action=Overrides, metavar='KEY=VALUE')
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    with errors_in_one_line():
        cfg = load_config(args.config, args.cfg_options)
        name = Path(args.config).stem
        entry = args.out / f'{name}.yml'
        check_writable(entry)
        previous = published(entry, name, args.force)
        check_complete(args.checkpoint, check_fits(args.checkpoint, build_model(cfg)))
        state, meta = load_state_dict(args.checkpoint)
        if not args.keep_precision:
            state = in_half_precision(args.checkpoint, state)
        with tempfile.TemporaryDirectory(dir=args.out) as folder:
            path = Path(folder) / f'{name}.pth'
            # No more of the meta information: it may name folders.
            kept = {key: meta[key] for key in ('dataset_meta', *LENGTHS) if key in meta}
            save_checkpoint(path, state, kept)
            scores = scored(args, path)
            found = described(cfg, args, name, path, meta, state)
            found['Results'] = [
                dict(
                    Task=TASKS.get(cfg.get('default_scope') or '', ''),
                    Dataset=args.dataset or str(cfg.test_dataloader.dataset.type),
                    Metrics=scores,
                )
            ]
            text = yaml.safe_dump(dict(Models=[found]), sort_keys=False, allow_unicode=True)
            path = path.replace(args.out / found['Weights'])
            write_text(entry, text)
            if previous not in (None, path):
                previous.unlink(missing_ok=True)
    print(f'{path}: {path.stat().st_size / 1e6:.1f} MB, sha256 {found["Metadata"]["sha256"]}')
    print(f'{entry}: {scores}')


def in_half_precision(source: str, state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Return the weights with floating-point tensors as float16.

    Raises:
        CheckpointError: a weight is beyond the range of float16.
    """
    found = {
        name: value.half() if value.is_floating_point() else value for name, value in state.items()
    }
    beyond = {*non_finite(found)} - {*non_finite(state)}
    if beyond:
        raise CheckpointError(
            f'{source}: {shorten(sorted(beyond))} is beyond the range of float16 (65504): add '
            '--keep-precision'
        )
    return found


def scored(args: argparse.Namespace, path: Path) -> Dict[str, float]:
    """Return the scores of a file on the test data, as ``mmlinattn test`` finds them."""
    test_args = runs.test([args.config, str(path), '--work-dir', str(path.parent)])
    test_args.cfg_options = args.cfg_options
    found = prepare(test_args).test()
    return {name: round(float(value), 4) for name, value in found.items()}


def published(entry: Path, name: str, replace: bool) -> Optional[Path]:
    """Return the file of weights that an earlier entry names, None without an entry.

    Raises:
        FileExistsError: there is an entry and it is not to be replaced, or it has other models.
    """
    if not entry.exists():
        return None
    try:
        content = yaml.safe_load(entry.read_text())
        models = content['Models']
        same = [of['Name'] for of in models] == [name]
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, KeyError):
        same = False
    if not same:
        raise FileExistsError(f'{entry} is no entry of {name} alone: choose another DIR')
    if not replace:
        raise FileExistsError(f'{entry} is there already; --force replaces it')
    weights = str(models[0].get('Weights'))
    return entry.parent / weights if re.fullmatch(rf'{re.escape(name)}-\w+\.pth', weights) else None


def described(
    cfg: Config, args: argparse.Namespace, name: str, path: Path, meta: dict,
    state: Dict[str, Tensor],
) -> dict:  # fmt: skip
    """Return the entry of a model, with the keys of OpenMMLab's model index."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    dtypes = {str(v.dtype).split('.')[1] for v in state.values() if v.is_floating_point()}
    metadata = {
        'Parameters (M)': round(sum(p.numel() for p in build_model(cfg).parameters()) / 1e6, 2),
        'File Size (MB)': round(path.stat().st_size / 1e6, 1),
        'Precision': ', '.join(sorted(dtypes)),
        **{title: meta[key] for key, title in LENGTHS.items() if meta.get(key)},
        'sha256': sha256,
    }
    if cfg.get('default_scope'):
        metadata['Framework'] = cfg.default_scope
    if args.license:
        metadata['License'] = args.license
    # The folders of this machine are of no use to others.
    options = {key: str(value) for key, value in (args.cfg_options or {}).items()}
    options = {key: text for key, text in options.items() if not Path(text).is_absolute()}
    if options:
        metadata['Options'] = options
    config = args.config if args.config in package_configs() else Path(args.config).name
    return dict(Name=name, Config=config, Weights=f'{name}-{sha256[:8]}.pth', Metadata=metadata)


if __name__ == '__main__':
    main()
