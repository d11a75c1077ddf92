"""Convert released weights to a file that MMEngine loads."""

import argparse
from pathlib import Path
from typing import Dict, List, Optional

from torch import Tensor, nn

from ..checkpoints import (
    SOURCES,
    CheckpointError,
    Report,
    check_fits,
    convert,
    kind_of,
    load_state_dict,
    save_checkpoint,
)
from ..engine import build_model
from ..engine.preflight.weights import HEADS
from ..utils import redacted
from ..utils.command_line import Parser, errors_in_one_line


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    parser.add_argument('src', metavar='SRC', help='released file: a path or an https address')
    parser.add_argument('dst', metavar='DST', type=Path, help='file to write (.pth, .safetensors)')
    parser.add_argument('--source', choices=sorted(SOURCES), default='rala', help='the release')
    parser.add_argument('--config', help='config of the model that the weights are for')
    parser.add_argument(
        '--partial',
        action='store_true',
        help='with --config: convert weights that fit only a part of the model',
    )
    parser.add_argument('--force', action='store_true', help='overwrite DST')
    args = parser.parse_args(argv)
    if args.partial and not args.config:
        parser.error('--partial needs --config, the model that the weights fit in part')
    return args


def built(config: str) -> nn.Module:
    """Build the model of a config without memory for its weights."""
    try:
        return build_model(config)
    except Exception as error:
        raise CheckpointError(f'--config {config}: {type(error).__name__}: {error}') from error


def check_config(config: str, tensors: Dict[str, Tensor], partial: bool = False) -> None:
    """Print how the weights fit the model of a config.

    Raises:
        CheckpointError: no tensor fits; or, unless ``partial``, the backbone has another type or
            size, or a tensor outside the heads has another shape.
    """
    where = f'--config {config}'
    report = check_fits(
        where, built(config), may_differ=('',), read=lambda _: dict(state_dict=tensors)
    )
    if not partial:
        strict = [item for item in report.mismatched if not item[0].startswith(HEADS)]
        try:
            Report(mismatched=strict).raise_on_mismatch(where)
            report.raise_on_other_backbone(where)
        except CheckpointError as error:
            raise CheckpointError(
                f'{error}; give the config of the same model, or --partial to convert all the same'
            ) from None
    print(f'against {config}: {report}')


def usage(kind: str, dst: Path) -> str:
    if dst.suffix == '.safetensors':
        return "for this package's tools; MMEngine by itself reads .pth only"
    lines = [
        "as the backbone of any model: init_cfg=dict(type='Pretrained', "
        f"checkpoint='{dst}', prefix='backbone.')"
    ]
    if kind != 'backbone':
        lines.append(f"as the whole {kind}: load_from='{dst}', or tools/test.py CONFIG {dst}")
    return '\n'.join(lines)


def run(args: argparse.Namespace) -> None:
    if '://' not in args.src and Path(args.src).resolve() == args.dst.resolve():
        raise CheckpointError(f'SRC and DST are the same file {args.dst}')
    if args.dst.exists() and not args.force:
        raise CheckpointError(f'{args.dst} is there already; --force overwrites it')
    state_dict, meta = load_state_dict(args.src)
    try:
        tensors = convert(state_dict, args.source)
    except CheckpointError as error:
        raise CheckpointError(f'{args.src}: {error}') from error
    if args.config:
        check_config(args.config, tensors, args.partial)
    save_checkpoint(args.dst, tensors, meta)
    kind = kind_of(tensors)
    count = sum(value.numel() for value in tensors.values())
    print(f'{redacted(args.src)}: {kind} of {args.source}')
    print(f'{args.dst}: {len(tensors)} tensors, {count / 1e6:.2f} M values')
    print(usage(kind, args.dst))


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    with errors_in_one_line(args.debug, (ValueError, OSError)):
        run(args)
    return 0
