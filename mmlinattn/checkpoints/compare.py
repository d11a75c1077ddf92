"""Checks that a checkpoint fits a model, run before training or testing starts."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from torch import Tensor, nn

from ..utils.suggest import shorten
from .convert import source_of
from .errors import CheckpointError
from .finite import check_finite, constants
from .read import read_checkpoint, weights_of
from .write import PathLike

Mismatch = Tuple[str, Tuple[int, ...], Tuple[int, ...]]

# Tensors that may differ between backbones of the same architecture and size: attention, output
# norms, class tokens and position embeddings.
MAY_DIFFER = re.compile(
    r'(?:.*\.attn\.|backbone\.(?:(?:out_)?norms?\.|cls_token$|embed\.(?:cls_token|pos_\w+)$'
    r'|patch_embeds\.\d+\.(?:row_embed|column_embed|extra_embed|extra_tokens)$))'
)


@dataclass
class LoadReport:
    """Comparison of the names and shapes in a checkpoint and in a model.

    Attributes:
        matched: names with equal shapes.
        missing: names of the model that the file lacks.
        unexpected: names of the file that the model lacks.
        mismatched: (name, shape in the file, shape in the model).
    """

    matched: List[str] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    unexpected: List[str] = field(default_factory=list)
    mismatched: List[Mismatch] = field(default_factory=list)

    def raise_on_mismatch(self, where: str = '') -> None:
        """Raise CheckpointError with the keys and both shapes if any shape differs.

        Args:
            where: prefix of the message, for example the file name.
        """
        if self.mismatched:
            text = self._mismatches() + self._cure()
            raise CheckpointError(f'{where}{": " if where else ""}{text}')

    def raise_on_other_backbone(self, where: str = '') -> None:
        """Raise CheckpointError if the backbones of file and model differ in architecture or size.

        Attention, output norms, class tokens and position embeddings may be in only one of the
        two: backbones of the same size may differ there.

        Args:
            where: prefix of the message, for example the config.
        """
        problems = []
        for what, names in (
            ('missing in the file', self.missing),
            ('not in the model', self.unexpected),
        ):
            names = [n for n in names if n.startswith('backbone.') and not MAY_DIFFER.match(n)]
            if names:
                problems.append(f'{len(names)} {what} ({shorten(names)})')
        if problems:
            total = sum(name.startswith('backbone.') for name in self.matched)
            raise CheckpointError(
                f'{where}{": " if where else ""}the backbone of the model is not that of the file: '
                f'{total} keys match, {", ".join(problems)}'
            )

    def _mismatches(self) -> str:
        shapes = [f'{n} is {f} in the file and {m} in the model' for n, f, m in self.mismatched]
        return f'{len(shapes)} keys of another shape: {shorten(shapes)}{self._gate_hint()}'

    def _cure(self) -> str:
        """Return what to change if other shapes are an error, '' if the gate is the cause."""
        if self._gate_hint():
            return ''
        if all('.attn.' in f'.{name}' for name, *_ in self.mismatched):
            return (
                '. These weights are of another attention: give that of the model the options they '
                'were trained with, or take another one'
            )
        return '. The file may be of another arch: give the one that it was trained with'

    def _gate_hint(self) -> str:
        """Return what loads weights of an attention without a gate, '' if that is not the cause."""
        gated = [
            3 * model[0] == 4 * file[0]
            for name, file, model in self.mismatched
            if re.search(r'\.in_proj\.(weight|bias)$', name)
        ]
        if len(gated) < len(self.mismatched) or not all(gated):
            return ''
        return (
            '. The model has a gate beside queries, keys and values, the file has none: add '
            "gate=None to attn_cfg, as in attn_cfg=dict(type='RALA', gate=None)"
        )

    def __str__(self) -> str:
        parts = [f'{len(self.matched)} keys match']
        if self.missing:
            parts.append(f'{len(self.missing)} missing in the file: {shorten(self.missing)}')
        if self.unexpected:
            parts.append(f'{len(self.unexpected)} unexpected: {shorten(self.unexpected)}')
        if self.mismatched:
            parts.append(self._mismatches())
        return '\n'.join(parts)


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
    report.missing = [
        name
        for name in model_state
        if name not in converted and not name.endswith('num_batches_tracked')
    ]
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
        read: function that reads the checkpoint, for example :meth:`CheckpointCache.read`.

    Returns:
        the report; missing and unexpected names are no error.

    Raises:
        FileNotFoundError, CheckpointError: see :func:`read_checkpoint`.
        CheckpointError: a shape differs, no name has the prefix, or no name is in both; the weights
            are of a release and fit after :func:`convert`, which is then said. Also if
            one side has integers where the other has floats (another precision is accepted), or
            if weights are NaN or infinite.

    Example:
        >>> import os, tempfile
        >>> from mmlinattn.checkpoints import save_checkpoint
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> save_checkpoint(path, {'head.weight': nn.Linear(2, 3).weight}, {})
        >>> print(check_fits(path, nn.Linear(2, 3), prefix='head.'))
        1 keys match
        1 missing in the file: bias
    """
    loaded = state_dict = weights_of(read(source), source)
    if prefix:
        prefix = prefix if prefix.endswith('.') else f'{prefix}.'
        state_dict = {k[len(prefix) :]: v for k, v in loaded.items() if k.startswith(prefix)}
    _run_load_hooks(module, state_dict, source)
    report = compare(module.state_dict(), state_dict)
    _check_types(module.state_dict(), state_dict, report.matched, source)
    if report.missing or not report.matched:
        release = source_of(loaded, module.state_dict(), len(report.matched))
        if release:
            if release == 'rala' and 'proj.weight' not in loaded:
                release = 'rala (RAVLT) or --source mala (MAViT)'
            raise CheckpointError(
                f'{source} has the names of a release, of which {len(report.matched)} of '
                f'{len(loaded)} are names of {type(module).__name__}. Convert it first: '
                f'mmlinattn convert {source} checkpoints/NAME.pth --source {release}'
            )
    if prefix and not state_dict:
        starts = shorten(list(dict.fromkeys(name.partition('.')[0] for name in loaded)))
        raise CheckpointError(
            f'{source} has no keys that begin with {prefix!r}; theirs begin with {starts}: change '
            'the prefix of init_cfg, or leave it out'
        )
    strict = [item for item in report.mismatched if not item[0].startswith(tuple(may_differ))]
    LoadReport(mismatched=strict).raise_on_mismatch(str(source))
    if not report.matched:
        LoadReport(mismatched=report.mismatched).raise_on_mismatch(str(source))
        theirs, ours = shorten(report.unexpected, 3), shorten(report.missing, 3)
        raise CheckpointError(
            f'{source}: not one key is of {type(module).__name__}; the file has {theirs}, '
            f'the model {ours}{_prefix_hint(module, loaded)}'
        )
    check_finite(source, {name: state_dict[name] for name in report.matched}, constants(module))
    return report


def _prefix_hint(module: nn.Module, names: Iterable[str]) -> str:
    """Return the prefix behind which the file has most names of the module, or ''."""
    ours = set(module.state_dict())
    parts = [name.partition('.') for name in names]
    found = Counter(prefix for prefix, _, rest in parts if rest in ours)
    for prefix, count in found.most_common(1):
        if 2 * count >= len(ours):
            return f"; they are behind {prefix!r}: init_cfg needs prefix='{prefix}.'"
    return ''


def _check_types(
    model_state: Mapping[str, Tensor],
    state_dict: Mapping[str, Tensor],
    names: Sequence[str],
    source: PathLike,
) -> None:
    """Raise CheckpointError if integers would be loaded as floats or floats as integers.

    torch converts silently: 0.7 to 0, quantised steps to weights of 100.
    """

    def kind(value: Tensor) -> Tuple[bool, bool]:
        return value.is_floating_point(), value.is_complex()

    other = [
        f'{name} is {state_dict[name].dtype} in the file and {model_state[name].dtype} in the model'
        for name in names
        if kind(state_dict[name]) != kind(model_state[name])
        and not name.endswith('num_batches_tracked')  # model.half() converts it, too
    ]
    if other:
        raise CheckpointError(f'{source}: {len(other)} keys of another type: {shorten(other)}')


def _run_load_hooks(module: nn.Module, state_dict: Dict[str, Tensor], source: PathLike) -> None:
    """Run the load hooks, which may resize tensors such as position embeddings."""
    for name, part in module.named_modules():
        for hook in part._load_state_dict_pre_hooks.values():
            try:
                hook(state_dict, f'{name}.' if name else '', {}, True, [], [], [])
            except ValueError as error:
                raise CheckpointError(f'{source}: {error}') from error
