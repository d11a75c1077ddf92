"""Check for misspelt options in a config before a run starts.

Many classes of the frameworks ignore unknown options; others fail at the first checkpoint or score.

An unknown name is an error where all supported names are known. Elsewhere custom code may read it,
and it is an error only if it is one letter away from a known name.
"""

import inspect
import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

import mmengine.registry
from mmengine.config import Config
from mmengine.model import BaseModule
from mmengine.registry import Registry
from mmengine.runner import LogProcessor, Runner
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

from ...models.layers import BaseAttention, registered_subclasses
from ...utils import dicts, key_of, type_name
from ...utils.suggest import did_you_mean, option_names, shorten

Names = FrozenSet[str]


def _parameters(*functions: Callable) -> Names:
    return frozenset(name for f in functions for name in inspect.signature(f).parameters)


LOADER = _parameters(DataLoader) | {'num_batch_per_epoch'}
TEST = frozenset({'nms', 'nms_pre', 'min_bbox_size', 'score_thr', 'max_per_img'})
# Options of dicts, by the last keys of their place in the config. These lists are complete.
ALL: Dict[str, Names] = {
    'train_dataloader': LOADER,
    'val_dataloader': LOADER,
    'test_dataloader': LOADER,
    'randomness': _parameters(Runner.set_randomness),
    'log_processor': _parameters(LogProcessor),
    'auto_scale_lr': frozenset({'enable', 'base_batch_size'}),
    'env_cfg': frozenset({'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'}),
    'env_cfg.mp_cfg': frozenset({'mp_start_method', 'opencv_num_threads'}),
    'optim_wrapper.clip_grad': _parameters(clip_grad_norm_, clip_grad_value_),
}
# These have the options that the frameworks read; custom code may read others.
KNOWN: Dict[str, Names] = {
    'default_hooks': frozenset(
        {'runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint',
         'visualization', 'report'}
    ),
    'optim_wrapper.paramwise_cfg': frozenset(
        {'custom_keys', 'bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'flat_decay_mult',
         'dwconv_decay_mult', 'dcn_offset_lr_mult', 'bypass_duplicate', 'layer_decay_rate'}
    ),
    'dataset.filter_cfg': frozenset({'filter_empty_gt', 'min_size'}),
    'dataset.metainfo': frozenset({'classes', 'palette'}),
    'dataset.data_prefix': frozenset(
        {'img', 'img_path', 'img_path2', 'seg', 'seg_map_path', 'video'}
    ),
    'model.train_cfg': frozenset(
        {'rpn', 'rpn_proposal', 'rcnn', 'assigner', 'sampler', 'augments'}
    ),
    'model.test_cfg': TEST | {'rpn', 'rcnn', 'mode', 'crop_size', 'stride'},
    'train_cfg.rpn_proposal': TEST,
    'train_cfg.rcnn': frozenset({'assigner', 'sampler', 'mask_size', 'pos_weight', 'debug'}),
    'test_cfg.rcnn': TEST | {'mask_thr_binary'},
    'test_cfg.rpn': TEST,
}  # fmt: skip
NUMBER = re.compile(r'[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?')
LOGGERS = ('visualizer', 'vis_backends')  # with texts of the user's
# Options that are numbers wherever else they occur.
NUMBERS = frozenset(
    {'base_batch_size', 'batch_size', 'begin', 'end', 'eta_max', 'eta_min', 'in_channels',
     'interval', 'lr', 'max_epochs', 'max_iters', 'max_keep_ckpts', 'momentum', 'num_classes',
     'num_workers', 'power', 'seed', 'start_factor', 'total_steps', 'val_interval', 'weight_decay'}
)  # fmt: skip
# Those of a training that are at least 1.
COUNTS = {'base_batch_size', 'batch_size', 'max_epochs', 'max_iters', 'val_interval'}
# Options of every dict with a type, read by registries, builders and the merging of configs.
BUILDERS = {'type', '_scope_', '_delete_', 'convert_to_iter_based', 'override'}
PARTS = ('backbone', 'neck', 'encoder', 'decoder', 'decode_head', 'bbox_head', 'roi_head')
POPPED = {'pretrained'}  # by models of the frameworks, from the config of a part
# Dicts whose type can only be registered. Other dicts may name, in small letters, no class.
BUILT = ('model', 'backbone', 'init_cfg', 'optimizer')
# Names that MMEngine's Runner or the commands read.
TOP_LEVEL = {
    'work_dir', 'load_from', 'resume', 'randomness', 'auto_scale_lr', 'train_cfg', 'val_cfg',
    'test_cfg', 'train_dataloader', 'val_dataloader', 'test_dataloader', 'val_evaluator',
    'test_evaluator', 'optim_wrapper', 'param_scheduler', 'default_hooks', 'custom_hooks',
    'visualizer', 'log_processor', 'log_level', 'launcher', 'env_cfg', 'experiment_name',
    'default_scope', 'data_preprocessor', 'model_wrapper_cfg', 'find_unused_parameters', 'compile',
    'runner_type', 'strategy', 'sync_bn', 'activation_checkpointing', 'efficient_conv_bn_eval',
    'model', 'tta_model', 'tta_pipeline', 'custom_imports',
}  # fmt: skip


def check_options(cfg: Config) -> None:
    """Raise an error for misspelt options of a config whose ``custom_imports`` are imported.

    Raises:
        TypeError: an option is misspelt, a number is in quotes, or a part of the model is beside
            ``model``; the message gives its place and what to write.
        ValueError: a value is out of its range, or a type is misspelt.
    """
    used = {type_name(node) for _, node in dicts(cfg.get('model') or {}) if 'type' in node}
    for name in PARTS:
        part = cfg.get(name)
        if isinstance(part, dict) and 'type' in part and type_name(part) not in used:
            raise TypeError(
                f'{name} of the config, type={type_name(part)!r}, is outside of model, where '
                f'nothing reads it: write model=dict({name}=dict(...))'
            )
    scope = cfg.get('default_scope') or 'mmengine'
    kinds: Dict[str, Set[Any]] = {}  # found in this call; more types may be registered later
    is_installed = cfg.get('default_scope') in {r.scope for r in _registries(scope)}
    scoped: List[str] = []  # places whose types are of another framework
    for place, node in dicts(cfg._cfg_dict.to_dict()):
        if not place:
            continue
        if not place.startswith(LOGGERS):
            _check_values(place, node)
        found = _accepted(place, node, scope, kinds)
        name = node['type'] if isinstance(node.get('type'), str) else ''
        scoped += [place] if node.get('_scope_', scope) != scope else []
        is_read = re.split(r'\W', place)[0] in TOP_LEVEL and not place.startswith(tuple(scoped))
        if name and kinds.get(name) == set() and is_installed and is_read:
            _check_type(place, name, scope)
        if found and (unknown := sorted({str(key) for key in node} - found[0])):
            _check_architecture(place, unknown, kinds.get(name, ()))
            _check_unknown(place, node, unknown, *found)


def _check_type(place: str, kind: str, scope: str) -> None:
    """Raise ValueError if a type that is not registered is misspelt."""
    key = key_of(place)
    found = [r for r in _registries(scope) if key != 'optimizer' or r.name == key]
    names = {name for registry in found for name in registry.module_dict}
    meant = nearest(kind, names) if key in BUILT or kind[:1].isupper() else None
    if meant:
        raise ValueError(f'{place}.type of the config is {kind!r}; did you mean {meant}?')


def _check_values(place: str, node: dict) -> None:
    for name, value in node.items():
        option = re.sub(r'\[(\d+)\]', r'.\1', f'{place}.{name}')
        if name in NUMBERS and isinstance(value, str):
            cure = f'{option}={value}' if NUMBER.fullmatch(value) else 'a number'
            raise TypeError(f'{option} of the config is the text {value!r}: write {cure}')
        if name in COUNTS and isinstance(value, (int, float)) and value < 1:
            raise ValueError(f'{option} of the config is {value}, but at least 1 is needed')
    levels: List[Any] = [node.get(name) for name in ('in_channels', 'in_index')]
    if all(isinstance(each, (list, tuple)) for each in levels) and len({*map(len, levels)}) > 1:
        raise ValueError(
            f'{place}.in_channels of the config is {levels[0]}, {place}.in_index {levels[1]}: give '
            'one number of channels for each index'
        )
    if node.get('mode') == 'slide' and place == 'model.test_cfg':
        for name in ('crop_size', 'stride'):
            sides = node.get(name)
            pair = sides if isinstance(sides, (list, tuple)) else ()
            if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
                raise ValueError(
                    f"{place}.{name} of the config is {sides}: mode='slide' needs "
                    f'{name}=(height, width)'
                )
        crop, stride = tuple(node['crop_size']), tuple(node['stride'])
        if any(step > side for step, side in zip(stride, crop)):
            raise ValueError(
                f'{place}.stride of the config is {stride}, larger than {place}.crop_size={crop}: '
                'pixels between the windows would have no label'
            )


def _check_architecture(place: str, unknown: Sequence[str], kinds: Iterable[Any]) -> None:
    """Raise TypeError if the unknown option of a backbone is a key of its architecture."""
    for kind, name in product(kinds, unknown if len(unknown) == 1 else ()):
        if name in (*getattr(kind, 'arch_required', ()), *getattr(kind, 'arch_defaults', ())):
            raise TypeError(
                f'{place} of the config has no option {name!r}, which is a key of '
                f'arch=dict({name}=..., ...)'
            )


def _check_unknown(
    place: str, node: dict, unknown: Sequence[str], known: Set[str], is_complete: bool
) -> None:
    """Raise TypeError for unknown options, if all are known or one is a letter away."""
    replaced = ''
    if is_complete and 'type' in node:
        kind = node['type'] if isinstance(node['type'], str) else type_name(node)
        # An element of a list is replaced by an option of the command line alone.
        name = re.sub(r'\[(\d+)\]$', r'.\1', place) if place.endswith(']') else key_of(place)
        replacement = f"{name}=dict(_delete_=True, type='{kind}', ...)"
        replaced = f' (if from a base config, replace it: {replacement})'
        if len(unknown) > 1:
            raise TypeError(
                f'{place} of the config has options that {kind} does not take: '
                f'{", ".join(unknown)}{replaced}'
            )
    for name in unknown:
        meant = nearest(name, known)
        hint = f'; did you mean {meant}?' if meant else ''
        if is_complete and not meant:
            attentions = registered_subclasses(BaseAttention)
            of_others = [other for other, kind in attentions.items() if name in option_names(kind)]
            if of_others and type_name(node) in attentions:
                others = shorten(of_others, 3)
                hint = f', which {others} have; {type_name(node)} has {sorted(known)}'
            else:
                hint = did_you_mean(name, known) or f', it has {sorted(known)}'
            hint += replaced
        if hint:
            raise TypeError(f'{place} of the config has no option {name!r}{hint}')


def _accepted(
    place: str, node: dict, scope: str, found: Dict[str, Set[Any]]
) -> Optional[Tuple[Set[str], bool]]:
    """Return the known options of a dict and if they are complete, or None if none are known."""
    ends = ['.'.join(place.split('.')[-depth:]) for depth in (2, 1)]
    for table, end in product((ALL, KNOWN), ends):
        if end in table:
            return {*table[end], *BUILDERS}, table is ALL
    kind = node.get('type')
    if kind is None:
        return None
    if isinstance(kind, str) and kind not in found:
        found[kind] = _registered(kind, scope)
    # The place does not tell the registry, so a name may be of several objects.
    kinds = found[kind] if isinstance(kind, str) else {kind}
    takes = [names for each in kinds if (names := _arguments(each)) is not None]
    if not kinds or len(takes) < len(kinds):
        return None
    # The frameworks' builders take some options out of other dicts before they call a class.
    as_given = place.startswith('param_scheduler') or key_of(place) == 'init_cfg'
    is_complete = as_given or all(map(_is_built_as_given, kinds))
    popped = set() if all(map(_is_own, kinds)) else POPPED
    return BUILDERS.union(popped, *takes), is_complete


def _is_built_as_given(kind: Any) -> bool:
    """Return True for modules of a model whose arguments are all that their constructors name."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModule)):
        return False
    options = inspect.signature(kind).parameters.values()
    return _is_own(kind) or all(option.kind is not option.VAR_KEYWORD for option in options)


def _is_own(kind: Any) -> bool:
    return getattr(kind, '__module__', '').startswith('mmlinattn.')


def nearest(name: str, names: Iterable[str]) -> Optional[str]:
    """Return the name that differs by one letter (added, removed, replaced) or one swap, or None.

    Capitals and small letters are the same.

    Example:
        >>> nearest('iou_metric', ['prefix', 'iou_metrics'])
        'iou_metrics'
    """
    near = (other for other in names if _one_letter_away(name, other))
    return min(near, key=lambda other: (other.lower() != name.lower(), other), default=None)


def _one_letter_away(a: str, b: str) -> bool:
    a, b = a.lower(), b.lower()
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return max(len(a), len(b)) <= 1 or (len(a) == 2 and a == b[::-1])


@cache
def _registries(scope: str) -> Tuple[Registry, ...]:
    """Return the registries of a framework and their parents, MMEngine's."""
    module = mmengine.registry
    with suppress(ModuleNotFoundError):  # reported when the model is built
        module = import_module(f'{scope}.registry')
    own = [r for r in vars(module).values() if isinstance(r, Registry)]
    for registry in own:
        registry.import_from_location()
    return tuple(dict.fromkeys([*own, *(r.parent for r in own if r.parent is not None)]))


def _registered(name: str, scope: str) -> Set[Any]:
    """Return all objects that a name of a type may mean."""
    # Registry.get is slow for an unknown name: half a second for all types of a config.
    registries = _registries(scope)
    found = [r.get(name) if '.' in name else r.module_dict.get(name) for r in registries]
    return {*found} - {None}


@cache
def _arguments(kind: Any) -> Optional[Names]:
    """Return the arguments of a function or of a class and its parents; None if unknown."""
    try:
        return option_names(kind) if isinstance(kind, type) else _parameters(kind)
    except (TypeError, ValueError):  # a class implemented in C
        return None
