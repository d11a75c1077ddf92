"""Convert released weights to a file that MMEngine loads."""

import argparse
import re
from pathlib import Path
from typing import Dict, Iterable, Tuple

from torch import Tensor

from ..checkpoints import CheckpointError, check_fits, load_state_dict, save_checkpoint
from ..checkpoints.checkpoint_uri import local_path
from ..checkpoints.compare import COMPILED, HEADS, non_finite
from ..checkpoints.converters import convert, detect_source, hidden_source, kind_of
from ..utils import check_writable, redacted
from ..utils.messages import log_warning
from ..utils.suggest import shorten


def check_config(config: str, tensors: Dict[str, Tensor]) -> bool:
    """Print how the weights fit the model of a config; return True if all are there."""
    from ..engine import build_model
    from ..engine.config import load_config

    source, content = f'--config {config}', dict(state_dict=tensors)
    try:
        model = build_model(load_config(config))  # without memory for its weights
    except Exception as error:
        raise CheckpointError(f'{source}: {type(error).__name__}: {error}') from error
    report = check_fits(source, model, may_differ=HEADS, read=lambda _: content)
    print(f'against {config}: {report}')
    may_lack = re.compile(r'(?!backbone\.)|backbone\.(out_norms\.|.*\.attn\.)')
    lost = [name for name in report.missing if not may_lack.match(name)]
    if lost:
        log_warning(
            f'{len(lost)} weights of the backbone would start untrained, such as {lost[0]}: give '
            f'{config} the options that the file was trained with'
        )
    return not (report.missing or report.mismatched)


def usage(kind: str, dst: Path, names: Iterable[str], is_whole: bool) -> str:
    if dst.suffix == '.safetensors':
        return f"for this package's commands; in configs of other tools: 'safe://{dst}'"
    prefix = ", prefix='backbone.'" if any(name.startswith('backbone.') for name in names) else ''
    init_cfg = f"init_cfg=dict(type='Pretrained', checkpoint='{dst}'{prefix})"
    lines = [f'as the backbone of any model: {init_cfg}']
    if is_whole and kind not in ('backbone', 'unknown'):
        lines.append(f"as the whole {kind}: load_from='{dst}', or mmlinattn test CONFIG {dst}")
    return '\n'.join(lines)


def renamed(
    args: argparse.Namespace, state_dict: Dict[str, Tensor]
) -> Tuple[Dict[str, Tensor], str]:
    """Return the weights by their new names, and where they come from."""
    prefix = args.prefix or ''
    found = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    if not found:
        raise CheckpointError(f'no name begins with --prefix {prefix!r}')
    if prefix and any(name.startswith(f'{prefix}.') for name in found):
        raise CheckpointError(f'--prefix {prefix!r} lacks the dot after it: --prefix {prefix}.')
    tensors = {
        re.sub(r'^(module\.)+', '', name.removeprefix(prefix).replace(COMPILED, '')): value
        for name, value in found.items()
    }
    if prefix and not args.source and not args.any_attention:
        start, known = hidden_source(tensors)
        hint = f'; for models of this package add --source {known}' if known and not start else ''
        return tensors, f'behind {prefix!r}{hint}'
    try:
        source = args.source or detect_source(tensors)
        return convert(tensors, source, args.any_attention), f'of {source}'
    except ValueError as error:
        start, known = hidden_source(found)
        if not known or not hidden_source(tensors)[0]:
            raise
        known = args.source if args.source in re.findall(r'\w+', known) else known
        cure = f'convert with --prefix {start} --source {known}'
        cure += ' --any-attention' * args.any_attention
        raise CheckpointError(f'its names stand behind {start!r}: {cure}') from error


def main(args: argparse.Namespace) -> int:
    source = local_path(args.src)
    if source is not None and source.resolve() == args.dst.resolve():
        raise CheckpointError(f'SRC and DST are the same file {args.dst}')
    if args.dst.exists() and not args.force:
        raise CheckpointError(f'{args.dst} is there already; --force overwrites it')
    check_writable(args.dst)
    state_dict, meta = load_state_dict(args.src)
    try:
        tensors, origin = renamed(args, state_dict)
    except CheckpointError as error:
        raise CheckpointError(f'{args.src}: {error}') from error
    wrong = non_finite(tensors, may_be_infinite=tensors)
    if wrong:
        raise CheckpointError(
            f'{args.src} has {len(wrong)} weights that are NaN: {shorten(wrong)}; its training has '
            'diverged, take an earlier checkpoint'
        )
    is_whole = check_config(args.config, tensors) if args.config else True
    save_checkpoint(args.dst, tensors, meta)
    kind, count = kind_of(tensors), sum(value.numel() for value in tensors.values())
    print(f'{redacted(args.src)}: {kind} {origin}')
    print(f'{args.dst}: {len(tensors)} tensors, {count / 1e6:.2f} M values')
    print(usage(kind, args.dst, tensors, is_whole))
    return 0
