"""Checks that a checkpoint fits a model, and loading without MMEngine's runner."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Container, Dict, List, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from ..utils.messages import log_warning
from ..utils.suggest import shorten
from .errors import CheckpointError
from .read import read_checkpoint, weights_of
from .write import PathLike

Mismatch = Tuple[str, Tuple[int, ...], Tuple[int, ...]]  # name, shapes in the file and the model
COMPILED = '_orig_mod.'  # torch.compile puts it before the names of a module
RUNNING_STATISTICS = ('running_mean', 'running_var')
# Blocks of a stage, and those of a backbone without stages.
BLOCK = re.compile(r'(?:backbone\.)?(stages\.\d+(?:\.blocks)?|layers)\.(\d+)\.')
# Parts whose shapes depend on the number of classes.
HEADS = (
    'bbox_head.', 'roi_head.', 'rpn_head.', 'mask_head.', 'panoptic_head.', 'dn_query_generator.',
    'decode_head.', 'auxiliary_head.', 'head.',
)  # fmt: skip


@dataclass
class LoadReport:
    """Comparison of the names and shapes in a checkpoint and in a model."""

    matched: List[str] = field(default_factory=list)  # names with equal shapes
    missing: List[str] = field(default_factory=list)  # names of the model that the file lacks
    unexpected: List[str] = field(default_factory=list)  # names of the file that the model lacks
    mismatched: List[Mismatch] = field(default_factory=list)

    def __str__(self) -> str:
        parts = [f'{len(self.matched)} keys match']
        if self.missing:
            parts.append(f'{len(self.missing)} missing in the file: {shorten(self.missing)}')
        if self.unexpected:
            parts.append(f'{len(self.unexpected)} unexpected: {shorten(self.unexpected)}')
        if self.mismatched:
            parts.append(other_shapes(self.mismatched))
        return '\n'.join(parts)


def other_shapes(mismatched: Sequence[Mismatch]) -> str:
    """Return what differs between the shapes of a file and of a model, and what to change."""
    shapes = [f'{name} is {file} in the file and {model} in the model'
              for name, file, model in mismatched]  # fmt: skip
    if all(name.endswith(('.in_proj.weight', '.in_proj.bias')) and 3 * model[0] == 4 * file[0]
           for name, file, model in mismatched):  # fmt: skip
        cure = (
            'The model has a gate beside queries, keys and values, the file has none: add '
            "gate=None to attn_cfg, as in attn_cfg=dict(type='RALA', gate=None)"
        )
    elif len(mismatched) == 1 and (channels := _input_channels(*mismatched[0][1:])):
        theirs, ours = channels
        cure = f'The file is for images of {theirs} channels, the model for {ours} (in_channels)'
    elif all(name.startswith(HEADS) for name, *_ in mismatched):
        cure = (
            'For other classes name the file in load_from: a training then starts these anew '
            '(docs/fine_tune.md). Otherwise give the config that it was trained with'
        )
    elif all('.attn.' in f'.{name}' for name, *_ in mismatched):
        cure = 'Give the attention the options that the weights were trained with'
    else:
        cure = 'Give the arch that the file was trained with'
    return f'{len(shapes)} keys of another shape: {shorten(shapes)}. {cure}'


def _input_channels(file: Sequence[int], model: Sequence[int]) -> Sequence[int]:
    """Return the input channels of two first convolutions that differ in them alone, else ()."""
    same = len(file) == len(model) == 4 and (file[0], *file[2:]) == (model[0], *model[2:])
    return (file[1], model[1]) if same and 3 in (file[1], model[1]) else ()


def other_depth(report: LoadReport) -> str:
    """Return which stage of a backbone has another number of blocks in a file, '' if none.

    A backbone may be built without its last stages, and one without stages without its last blocks.
    """
    theirs = _blocks(report.matched + report.unexpected)
    ours = _blocks(report.matched + report.missing)
    for stage in [stage for stage in ours if stage in theirs]:
        more = theirs[stage] - ours[stage] if stage != 'layers' else ()
        if ours[stage] - theirs[stage] or more:
            counts = f'{len(theirs[stage])} blocks in the file, {len(ours[stage])} in the model'
            return f'{stage} has {counts}. Give the arch that it was trained with'
    return ''


def _blocks(names: Sequence[str]) -> Dict[str, set]:
    """Return the numbers of the blocks that the names belong to, by stage."""
    found: Dict[str, set] = defaultdict(set)
    for match in filter(None, map(BLOCK.match, names)):
        found[match[1]].add(match[2])
    return found


def compare(model_state: Mapping[str, Tensor], converted: Mapping[str, Tensor]) -> LoadReport:
    """Compare the names and shapes of a model and of a file.

    Args:
        model_state: ``model.state_dict()``; may be on the meta device.
        converted: name -> tensor of the file.

    Returns:
        the report. A missing ``num_batches_tracked`` is ignored, as in MMEngine.

    Example:
        >>> print(compare(nn.Linear(2, 3).state_dict(), nn.Linear(2, 3, bias=False).state_dict()))
        1 keys match
        1 missing in the file: bias
    """
    report = LoadReport()
    for name, value in converted.items():
        if name not in model_state:
            report.unexpected.append(name)
        elif value.shape != model_state[name].shape:
            shapes = tuple(value.shape), tuple(model_state[name].shape)
            report.mismatched.append((name, *shapes))
        else:
            report.matched.append(name)
    absent = (name for name in model_state if name not in converted)
    report.missing = [name for name in absent if not name.endswith('num_batches_tracked')]
    return report


def check_fits(
    source: PathLike,
    module: nn.Module,
    prefix: Optional[str] = None,
    may_differ: Sequence[str] = (),
    read: Callable[[PathLike], Mapping] = read_checkpoint,
) -> LoadReport:
    """Check that a checkpoint can be loaded into a module, without modifying the module.

    MMEngine only logs a shape mismatch and keeps the initial values.

    Args:
        source: the checkpoint, see :func:`read_checkpoint`.
        module: the model, or the submodule that ``prefix`` selects.
        prefix: as in ``init_cfg=dict(type='Pretrained', checkpoint=path, prefix='backbone.')``:
            use only the names with this prefix, and strip it.
        may_differ: prefixes of names whose shapes may differ. MMEngine keeps the initial values
            of such tensors, for example of heads when fine-tuning to other classes.
        read: function that reads the checkpoint.

    Returns:
        the report; other missing and unexpected names are no error.

    Raises:
        FileNotFoundError, CheckpointError: see :func:`read_checkpoint`.
        CheckpointError: a shape differs, a stage has another number of blocks, no name has the
            prefix, or no name is in both; weights are NaN or infinite; or the weights fit after
            :func:`.converters.convert`.

    Example:
        >>> import os, tempfile
        >>> from mmlinattn.checkpoints import save_checkpoint
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> save_checkpoint(path, {'head.weight': nn.Linear(2, 3).weight}, {})
        >>> print(check_fits(path, nn.Linear(2, 3), prefix='head.'))
        1 keys match
        1 missing in the file: bias
    """
    loaded = weights_of(read(source), source)
    prefix = prefix if not prefix or prefix.endswith('.') else f'{prefix}.'
    state_dict = {k.removeprefix(prefix or ''): v for k, v in loaded.items()
                  if k.startswith(prefix or '')}  # fmt: skip
    _run_load_hooks(module, state_dict, source)
    model_state = module.state_dict()
    report = compare(model_state, state_dict)
    other = [
        name
        for name in report.matched
        if state_dict[name].is_floating_point() != model_state[name].is_floating_point()
        and not name.endswith('num_batches_tracked')
    ]
    if other:  # torch would convert them: 0.7 to 0, quantised steps to weights of 100
        raise CheckpointError(f'{source}: only the file or only the model has floats as '
                              f'{shorten(other)}')  # fmt: skip
    if report.missing or not report.matched:
        from .converters import fitting_source  # the mappings of all releases, for a message

        release = fitting_source(loaded, model_state, len(report.matched))
        if release == 'rala' and 'proj.weight' not in loaded:
            release = 'rala (RAVLT) or --source mala (MAViT)'
        if release:
            raise CheckpointError(
                f'{source} has the names of a release. Convert it first: mmlinattn convert '
                f'{source} checkpoints/NAME.pth --source {release}'
            )
    if any(name.replace(COMPILED, '') in report.missing for name in report.unexpected):
        raise CheckpointError(
            f'{source} has the names of a model of torch.compile, such as {report.unexpected[0]}: '
            f"mmlinattn convert {source} checkpoints/NAME.pth --prefix '' writes them without "
            f'{COMPILED!r}'
        )
    if prefix and not state_dict:
        starts = shorten(list(dict.fromkeys(name.partition('.')[0] for name in loaded)))
        cure = _prefix_hint(source, model_state, loaded)
        raise CheckpointError(
            f'{source} has no keys that begin with {prefix!r}; theirs begin with {starts}'
            f'{cure or ": change the prefix of init_cfg, or leave it out"}'
        )
    strict = [item for item in report.mismatched if not item[0].startswith(tuple(may_differ))]
    if strict or (report.mismatched and not report.matched):
        raise CheckpointError(f'{source}: {other_shapes(strict or report.mismatched)}')
    if not report.matched:
        theirs, ours = shorten(report.unexpected, 3), shorten(report.missing, 3)
        cure = _prefix_hint(source, model_state, loaded)
        raise CheckpointError(
            f'{source}: not one key is of {type(module).__name__}'
            f'{cure or f"; the file has {theirs}, the model {ours}"}'
        )
    depth = other_depth(report)
    if depth:
        raise CheckpointError(f'{source}: {depth}')
    # Other buffers, such as masks, may be infinite.
    buffers = [name for name, _ in module.named_buffers() if not name.endswith(RUNNING_STATISTICS)]
    wrong = non_finite({name: state_dict[name] for name in report.matched}, buffers)
    if wrong:
        raise CheckpointError(
            f'{source} has {len(wrong)} weights that are NaN or infinite: {shorten(wrong)}; its '
            'training has diverged, take an earlier checkpoint'
        )
    return report


def non_finite(weights: Mapping[str, Tensor], may_be_infinite: Container[str] = ()) -> List[str]:
    """Return the names of weights that contain NaN, or infinity unless in ``may_be_infinite``.

    Tensors without values (meta device) are skipped.

    Example:
        >>> import torch
        >>> non_finite(dict(a=torch.tensor([0.0, float('nan')]), b=torch.ones(2)))
        ['a']
    """
    found = []
    for name, value in weights.items():
        if not isinstance(value, Tensor) or value.is_meta or not value.is_floating_point():
            continue
        value = value.float() if value.element_size() == 1 else value  # float8 has no isfinite
        finite = value.isfinite()
        if name in may_be_infinite:
            finite |= value.isinf()
        if not finite.all():
            found.append(name)
    return found


def check_complete(source: PathLike, report: LoadReport) -> None:
    """Raise CheckpointError if the model has weights that the checkpoint lacks.

    Weights that the model lacks are logged, except those of heads: a test needs no auxiliary one.
    """
    more = [name for name in report.unexpected if not name.startswith((*HEADS, 'ema_'))]
    if more:
        log_warning(
            f'{source} has weights that the model lacks, which are left out: {shorten(more)}. Give '
            'the config it was trained with'
        )
    if report.missing:
        text = '; '.join(str(report).splitlines())
        cure = 'give the config it was trained with'
        if all(name.startswith('backbone.') for name in (*report.matched, *report.unexpected)):
            cure = 'it has weights of a backbone, from which a training can start '
            cure += '(model.backbone.init_cfg); give a checkpoint of the whole model'
        raise CheckpointError(f'{source} is not of this whole model ({text}): {cure}')


def load_checkpoint(model: nn.Module, source: PathLike) -> Dict[str, Any]:
    """Load all weights of a model from a checkpoint, without MMEngine's runner.

    Args:
        model: modified in place.
        source: see :func:`read_checkpoint`.

    Returns:
        the checkpoint's meta information.

    Raises:
        FileNotFoundError, CheckpointError: see :func:`read_checkpoint` and :func:`check_fits`;
            also if the checkpoint lacks a weight of the model.
    """
    content = read_checkpoint(source)
    check_complete(source, check_fits(source, model, read=lambda _: content))
    model.load_state_dict(weights_of(content, source), strict=False)
    return content['meta']


def _prefix_hint(
    source: PathLike, model_state: Mapping[str, Tensor], names: Mapping[str, Tensor]
) -> str:
    """Return the prefix behind which the file has the names of the module or its backbone, or ''.

    Two prefixes, such as those of teacher and student, may have equally many.
    """
    for part in ('', 'backbone.'):
        wanted = {name.removeprefix(part) for name in model_state if name.startswith(part)}
        found: Counter = Counter()
        for name in names:
            parts = name.split('.')
            for i in range(len(parts)):
                found['.'.join([*parts[:i], ''])] += '.'.join(parts[i:]) in wanted
        most = max(found.values(), default=0)
        if not most or 2 * most < len(wanted):
            continue
        prefixes = [prefix for prefix, count in found.items() if count == most]
        init = f"dict(type='Pretrained', checkpoint='{source}', prefix={prefixes[0]!r})"
        init = init.replace(", prefix=''", '')
        if part:
            return (
                '. They are of its backbone. A test or prediction needs a checkpoint of the whole '
                f'model; a training starts from them by model.backbone.init_cfg={init}'
            )
        if prefixes == ['']:
            return '. They have no prefix: leave that of init_cfg out'
        behind = ' or '.join(map(repr, prefixes))
        return (
            f'. They are behind {behind}: set init_cfg={init}, or write a file without it: '
            f'mmlinattn convert {source} checkpoints/NAME.pth --prefix {prefixes[0]}'
        )
    return ''


def _run_load_hooks(module: nn.Module, state_dict: Dict[str, Tensor], source: PathLike) -> None:
    """Run the load hooks, which may resize tensors such as position embeddings."""
    for name, part in module.named_modules():
        for hook in part._load_state_dict_pre_hooks.values():
            try:
                hook(state_dict, f'{name}.' if name else '', {}, True, [], [], [])
            except ValueError as error:
                raise CheckpointError(f'{source}: {error}') from error
