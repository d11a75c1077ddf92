"""Write the weights of a trained model for others."""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Dict, List, Optional

import yaml
from mmengine.config import Config
from torch import Tensor

from ..checkpoints import (
    CheckpointError,
    check_complete,
    check_fits,
    load_state_dict,
    non_finite,
    save_checkpoint,
)
from ..checkpoints.converters.key_mapping import shorten
from ..checkpoints.download import sha256_of
from ..engine import build_model
from ..engine.config import load_config
from ..engine.preflight.run import check_run
from ..utils import atomic_write
from ..utils.atomic_file import check_writable
from ..utils.command_line import errors_in_one_line
from . import arguments
from .test import known_errors, prepare

TASKS = {
    'mmdet': 'Object Detection',
    'mmseg': 'Semantic Segmentation',
    'mmpretrain': 'Image Classification',
}
LENGTHS = {'epoch': 'Epochs', 'iter': 'Iterations'}  # in meta information and entry


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug):
        cfg = load_config(args.config, args.cfg_options)
        name = args.name or Path(args.config).stem
        entry = args.out / f'{name}.yml'
        if entry.exists() and not args.force:
            raise FileExistsError(f'{entry} is there already; --force replaces it')
        check_writable(entry)
        previous = published(entry)
        if not args.no_score:
            check_run(cfg, 'test')
        check_complete(args.checkpoint, check_fits(args.checkpoint, build_model(cfg)))
        state, meta = load_state_dict(args.checkpoint)
        if args.precision == 'fp16':
            state = in_half_precision(args.checkpoint, state)
    with (
        errors_in_one_line(args.debug, known_errors(args)),
        tempfile.TemporaryDirectory(dir=args.out) as folder,
    ):
        path = Path(folder) / f'{name}.pth'
        # No more of the meta information: it may name folders.
        kept = {key: meta[key] for key in ('dataset_meta', *LENGTHS) if key in meta}
        save_checkpoint(path, state, kept)
        scores = None if args.no_score else scored(args, path)
        sha256 = sha256_of(path)
        path = path.replace(args.out / f'{name}-{sha256[:8]}.pth')
        with atomic_write(entry) as file:
            content = dict(Models=[described(cfg, args, name, path, sha256, meta, scores)])
            file.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
        for old in previous:
            if old != path:
                old.unlink(missing_ok=True)
    print(f'{path}: {path.stat().st_size / 1e6:.1f} MB, sha256 {sha256}')
    print(f'{entry}: {scores or "not scored"}')
    return 0


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
            '--precision fp32'
        )
    return found


def scored(args: argparse.Namespace, path: Path) -> Dict[str, float]:
    """Return the scores of a file on the test data, as ``mmlinattn test`` finds them."""
    test_args = arguments.test([args.config, str(path), '--work-dir', str(path.parent)])
    test_args.cfg_options = args.cfg_options
    found = prepare(test_args).test()
    return {name: round(float(value), 4) for name, value in found.items()}


def published(entry: Path) -> List[Path]:
    """Return the files of weights that an earlier entry names."""
    if not entry.is_file():
        return []
    models = yaml.safe_load(entry.read_text())['Models']
    return [entry.parent / os.path.basename(model['Weights']) for model in models]


def described(
    cfg: Config, args: argparse.Namespace, name: str, path: Path, sha256: str, meta: dict,
    scores: Optional[Dict[str, float]],
) -> dict:  # fmt: skip
    """Return the entry of a metafile, in the layout of OpenMMLab's model index."""
    dataset = args.dataset or cfg.get('test_dataloader', {}).get('dataset', {}).get('type', '')
    parameters = sum(p.numel() for p in build_model(cfg).parameters())
    metadata = {
        'Parameters (M)': round(parameters / 1e6, 2),
        'File Size (MB)': round(path.stat().st_size / 1e6, 1),
        'Precision': dict(fp16='float16', fp32='float32')[args.precision],
        **{title: meta[key] for key, title in LENGTHS.items() if meta.get(key)},
        'sha256': sha256,
    }
    if args.license:
        metadata['License'] = args.license
    entry = dict(Name=name, Config=args.config, Weights=path.name, Metadata=metadata)
    if scores:
        task = TASKS.get(cfg.get('default_scope', ''), '')
        entry['Results'] = [dict(Task=task, Dataset=dataset, Metrics=scores)]
    return entry
