"""Grids in YAML: the product of their axes, seeds and learning rates as runs."""

import copy
import functools
import hashlib
import itertools
import json
import math
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import yaml
from mmengine.config import Config, DictAction

from mmlinattn.checkpoints.checkpoint_uri import package_weights
from mmlinattn.checkpoints.download import sha256_of
from mmlinattn.cli import arguments
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import build_model
from mmlinattn.engine.preflight.run import check_run
from mmlinattn.linearize import plan_student
from mmlinattn.utils.command_line import error_text
from mmlinattn.utils.suggest import did_you_mean

from .checks import CHOOSING, NAME, GridError, check_content, check_mapping, check_strings

ROOT = Path(__file__).resolve().parents[2]
GRIDS = Path(__file__).with_name('grids')
DATA = 'data/'  # folder of the data sets in the configs
LOG_INTERVAL = 'default_hooks.logger.interval'
COST = dict(shape=[224, 224], batch=1, rounds=15)


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses a name that occurs twice in a mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        names = [self.construct_object(key) for key, _ in node.value if key.value != '<<']
        for name in names:
            if names.count(name) > 1:
                line = node.start_mark.line + 1
                raise GridError(f'{name!r} occurs twice in the mapping of line {line}')
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Metric:
    """Number that a run is judged by.

    Args:
        name: heading of its column.
        split: ``'test'``, ``'val'`` or another split of the grid, or ``'train'``.
        key: its name in the result of the split.
        factor: the page shows the number times this factor.
        digits: decimal places on the page.
        higher_is_better: the learning rate with the largest value on ``val`` is chosen, else
            that with the smallest.
        optional: a run may have no such number.
    """

    name: str
    key: str
    split: str = 'test'
    factor: float = 1.0
    digits: int = 1
    higher_is_better: bool = True
    optional: bool = False


@dataclass(frozen=True)
class Run:
    """One training with its tests, or the tests of a checkpoint.

    Args:
        values: name on each axis.
        seed: seed of the training.
        rate: learning rate of a search, or None for that of the config.
        config: path or name of the config.
        options: overrides of the config by dotted name.
        splits: overrides for the test of each split.
        cost: image ``shape``, ``batch`` and ``rounds`` of the measured costs.
        device: ``'cuda'`` if the run needs a GPU.
        checkpoint: file of weights that are tested instead of a training.
        load_from: file of weights that the training starts from.
        data_root: folder that replaces ``data/`` of the configs.
        required: split and key of the metrics that the result must have.
        linearize: options of the command ``linearize``, for a run that is no training.
        rank: options of the command ``rank``, empty for none.
        teacher: run whose model is turned to linear cost.
        search: True for a shorter training that only chooses the learning rate.
    """

    values: Dict[str, str]
    seed: int
    rate: Optional[float]
    config: str
    options: Dict[str, object]
    splits: Dict[str, dict]
    cost: dict
    device: Optional[str] = None
    checkpoint: Optional[str] = None
    load_from: Optional[str] = None
    data_root: str = DATA
    required: Tuple[Tuple[str, str], ...] = ()
    linearize: Optional[dict] = None
    rank: Dict[str, object] = field(default_factory=dict)
    teacher: Optional['Run'] = None
    search: bool = False

    @property
    def point(self) -> str:
        """Name without learning rate and seed."""
        return '_'.join(self.values.values())

    @property
    def trains(self) -> bool:
        """True if the command ``train`` makes the weights."""
        return not self.checkpoint and not self.teacher

    @property
    def name(self) -> str:
        """Name of the run, unique in its grid."""
        rate = '' if self.rate is None else f'_lr{self.rate:g}'
        return f'{self.point}{rate}_{"search" if self.search else f"seed{self.seed}"}'

    def load(self, split: Optional[str] = None, placed: bool = True) -> Config:
        """Return the config of the training, or of the test of a split.

        Args:
            split: name of the split, None for the training.
            placed: replace ``data/`` by the folder of the data.
        """
        split = split or (None if self.trains else next(iter(self.splits)))
        options = {**self.options, **(self.splits[split] if split else {})}
        cfg = copy.deepcopy(_loaded(self.config, json.dumps(options)))
        if self.linearize:
            options = _parsed(self.linearize.get('attn_options', {}))
            attn_cfg = dict(options, type=self.linearize['attn'])
            cfg = plan_student(cfg, attn_cfg, self.linearize.get('keep_softmax', ())).cfg
        if not split:
            cfg.merge_from_dict(self._training_options(cfg))
            if placed and self.load_from:
                cfg.load_from = self.load_from
        return Config(in_folder(cfg.to_dict(), self.data_root)) if placed else cfg

    def _training_options(self, cfg: Config) -> Dict[str, object]:
        found: Dict[str, object] = {'randomness.seed': self.seed, LOG_INTERVAL: 5}
        if self.rate is not None:
            found['optim_wrapper.optimizer.lr'] = self.rate
            for i, scheduler in enumerate(cfg.get('param_scheduler') or []):
                if 'eta_max' in scheduler:
                    found[f'param_scheduler.{i}.eta_max'] = self.rate
        return found

    def has_weights(self) -> bool:
        """Return True if the files of weights that it tests or starts from are there."""
        return all(Path(path).is_file() for path in filter(None, (self.checkpoint, self.load_from)))

    def settings(self, weights: bool = True) -> str:
        """Return a hash of all that the result depends on, except the code of this package.

        Args:
            weights: False leaves out the content of files of weights, as for costs.
        """
        parts = [None, *self.splits] if self.trains else [*self.splits]
        configs = [self.load(split, placed=False).to_dict() for split in parts]
        found = dict(configs=configs, cost=self.cost, torch=torch.__version__)
        if self.rank:
            found['rank'] = self.rank
        for key, path in (('checkpoint', self.checkpoint), ('load_from', self.load_from)):
            if path:
                found[key] = sha256_of(Path(path)) if weights and Path(path).is_file() else None
        if self.teacher:
            found.update(linearize=self.linearize, teacher=self.teacher.settings(), seed=self.seed)
        text = json.dumps(found, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Grid:
    """A study: its runs and how the page shows them.

    Args:
        name: name of the study and of its folder.
        title: heading of the page.
        axes: for each axis its names, each with ``config``, ``options``, ``search_options``,
            ``shape``, ``device``, ``load_from`` or ``linearize``.
        metrics: numbers by heading; the first decides the search for a learning rate.
        seeds: number of seeds.
        more_seeds: number of seeds of some names of an axis, by axis and name.
        learning_rates: rates of the search, empty for those of the configs.
        search_options: options of shorter trainings that only choose the learning rates; without
            them those of seed 0 choose.
        page: axes of ``rows``, ``columns`` and ``tables``, and ``charts``.
        checkpoint: file of weights that are tested instead of a training, or ``mmlinattn://NAME``
            of weights of the package.
        load_from: file of weights that a training starts from, or such a name.
        linearize: options of the command ``linearize`` that its runs share.
        rank: ``images``, ``num_images`` and ``tolerance`` of the command ``rank``, which measures
            each model at the start and trained; the metrics are in two splits of these names.
        command: command of the run, for the page.
        data_root: folder that replaces ``data/`` of the configs.
        weights_root: folder where the paths of ``checkpoint`` and ``load_from`` begin.
    """

    name: str
    title: str
    axes: Dict[str, Dict[str, dict]]
    metrics: List[Metric]
    page: dict
    config: str = ''
    options: Dict[str, object] = field(default_factory=dict)
    splits: Dict[str, dict] = field(default_factory=lambda: dict(val={}, test={}))
    seeds: int = 1
    more_seeds: Dict[str, Dict[str, int]] = field(default_factory=dict)
    learning_rates: List[float] = field(default_factory=list)
    search_options: Dict[str, object] = field(default_factory=dict)
    cost: dict = field(default_factory=dict)
    checkpoint: str = ''
    load_from: str = ''
    linearize: Dict[str, object] = field(default_factory=dict)
    rank: Dict[str, object] = field(default_factory=dict)
    skip_unsupported: bool = False
    notes: List[str] = field(default_factory=list)
    command: str = ''
    data_root: str = DATA
    weights_root: str = ''

    def points(self) -> Iterator[Dict[str, str]]:
        """Yield the names on all axes, the last axis fastest."""
        for names in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, names))

    def run(self, values: Dict[str, str], seed: int = 0, rate: Optional[float] = None) -> Run:
        """Return the run of these names."""
        options, cost, device, config = dict(self.options), {**COST, **self.cost}, None, self.config
        linearize, teacher, start = None, None, self.load_from
        for axis, name in values.items():
            entry = self.axes[axis][name]
            if 'linearize' in entry:
                linearize = {'attn': 'MALA', **self.linearize, **entry['linearize']}
                of_teacher = {**values, axis: linearize.pop('teacher')}
                teacher = self.run(of_teacher, seed, rate)
                entry = self.axes[axis][of_teacher[axis]]
            options.update(entry.get('options', {}))
            cost['shape'] = entry.get('shape', cost['shape'])
            device, config = entry.get('device', device), entry.get('config', config)
            start = entry.get('load_from', start)
        tested, start = (
            self._weights_file(path.format(seed=seed, **values)) if path else None
            for path in (self.checkpoint, '' if self.checkpoint else start)
        )
        return Run(
            values, seed, rate, config.format(**values), options, self.splits, cost, device,
            tested, start, self.data_root, self.required(), linearize, self.rank, teacher,
        )  # fmt: skip

    def _weights_file(self, path: str) -> str:
        zoo, _, name = path.partition('://')
        if zoo != 'mmlinattn':
            return os.path.join(self.weights_root, path)
        found = package_weights()
        if name not in found:
            raise GridError(f'{path}: the package has the weights {sorted(found)}')
        return found[name]

    def required(self) -> Tuple[Tuple[str, str], ...]:
        """Return split and key of the metrics that each run must have."""
        found = [(of.split, of.key) for of in self.metrics if not of.optional]
        if self.learning_rates:
            found.append((CHOOSING, self.metrics[0].key))
        return tuple(found)

    def search(self) -> List[Run]:
        """Return the runs that choose the learning rates: all rates, seed 0."""
        return [run for values in self.points() for run in self.search_of(values)]

    def search_of(self, values: Dict[str, str]) -> List[Run]:
        """Return the runs that choose the learning rate of a point."""
        runs = [self.run(values, 0, rate) for rate in self.learning_rates]
        options = dict(self.search_options)
        for axis, name in values.items():
            options.update(self.axes[axis][name].get('search_options', {}))
        if not options:
            return runs
        return [
            replace(
                run,
                options={**run.options, **options},
                splits={CHOOSING: run.splits[CHOOSING]},
                required=((CHOOSING, self.metrics[0].key),),
                search=True,
            )
            for run in runs
        ]

    def runs(self, rates: Optional[Dict[str, float]] = None) -> List[Run]:
        """Return the runs of the result, by seed: early results already allow a comparison.

        Args:
            rates: chosen learning rate of each point.
        """
        found = []
        for seed in range(max([self.seeds, *self._more()])):
            for values in self.points():
                run = self.run(values, seed, (rates or {}).get('_'.join(values.values())))
                if seed < self.seeds_of(values):
                    found.append(run)
        return found

    def seeds_of(self, values: Dict[str, str]) -> int:
        """Return the number of seeds of a point."""
        more = (self.more_seeds.get(axis, {}).get(name, 0) for axis, name in values.items())
        return max(self.seeds, *more)

    def _more(self) -> List[int]:
        return [number for numbers in self.more_seeds.values() for number in numbers.values()]

    def refusals(self) -> Dict[str, str]:
        """Check every point and return why models refuse some, by point.

        Raises:
            GridError: a point cannot run; with ``skip_unsupported`` a model may refuse.
        """
        refused, checked = {}, set()
        for run in map(self.run, self.points()):
            if run.linearize:
                _check_arguments(run.linearize)
        for values in self.points():
            run = self.run(values)
            try:
                cfg = run.load()
                images = in_folder(run.rank.get('images', run.data_root), run.data_root)
                if run.rank and not Path(str(images)).is_dir():
                    raise FileNotFoundError(f'rank.images: there is no folder {images}')
                hooks = [hook.get('type') for hook in cfg.get('custom_hooks') or []]
                if 'ring_weights' in self.page.get('charts', []) and (
                    'RippleWeightsHook' not in hooks
                ):
                    raise ValueError('the chart ring_weights needs RippleWeightsHook as a hook')
                why = refusal(cfg) if self.skip_unsupported else ''
                if why or (run.device == 'cuda' and not torch.cuda.is_available()):
                    refused[run.point] = why or 'needs a GPU'
                    continue
                # Other sizes of the same model and data need no other check.
                key = f'{cfg.model} {cfg.test_dataloader.dataset.get("data_root")}'
                if key not in checked:
                    check_run(cfg, *(['train', 'val'] if run.trains else []))
                    for split in self.splits:
                        check_run(run.load(split), 'test')
                checked.add(key)
            except Exception as error:  # configs can fail in any way
                raise GridError(f'{run.point}: {error_text(error)}') from error
        return refused

    def check_weights(self) -> None:
        """Raise GridError if weights that a run tests or starts from are missing."""
        own = {run.name: run.values for run in self.runs()}
        for values in self.points():
            for seed in range(self.seeds_of(values)):
                run = self.run(values, seed)
                for path in filter(None, (run.checkpoint, run.load_from)):
                    if not Path(path).is_file():
                        cure = 'train its study first, with --weights if it is done'
                        if Path(path).parts[-3:-2] == (self.name,) and Path(path).stem in own:
                            names = own[Path(path).stem].items()
                            only = ' '.join(f'{axis}={name}' for axis, name in names)
                            cure = f'train it first, with --only {only}'
                        raise GridError(f'{run.point}: {path} does not exist: {cure}')


@functools.cache
def _loaded(config: str, options: str) -> Config:
    """Return a config with options: seeds and rates share it, for checks take half a second."""
    path = ROOT / config
    # Options are merged by load_config, which keeps the evaluator's annotation file that of the
    # loader.
    return load_config(str(path) if path.is_file() else config, _parsed(json.loads(options)))


def linearize_options(options: dict) -> List[str]:
    """Return arguments of the command ``linearize``."""
    found = ['--resolutions']
    for key, value in options.items():
        if value in ([], {}):
            continue
        found.append(f'--{key.replace("_", "-")}')
        if key == 'keep_softmax':
            found.append(','.join(map(str, value)))
        elif key == 'attn_options':
            found += [f'{name}={option}' for name, option in value.items()]
        else:
            found += map(str, value if isinstance(value, list) else [value])
    return found


def _check_arguments(options: dict) -> None:
    words = linearize_options(options)
    try:
        arguments.linearize(['CONFIG', 'CHECKPOINT', '--out', 'DIR', *words])
    except SystemExit as error:  # it has printed why
        raise GridError(f'linearize {" ".join(words[1:])}: see the error above') from error


def refusal(cfg: Config) -> str:
    """Return why the backbone of a config refuses its attention, or '' if it accepts it."""
    try:
        build_model(Config(dict(model=cfg.model.backbone)))
    except ValueError as error:
        return str(error)
    return ''


def read(path: Path, quick: bool = False, parents: Sequence[Path] = ()) -> dict:
    """Return the content of a grid file.

    An axis given as the name of another grid file is the whole axis of the same name there. Where
    ``only`` names an axis, these names alone are kept; ``quick`` may keep others.

    Args:
        path: YAML file.
        quick: apply its section ``quick``.
        parents: files that name this one.

    Raises:
        GridError: the file is missing, is no YAML, names itself, or a name occurs twice.
    """
    try:
        content = yaml.load(path.read_text(), _Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, GridError) as error:
        raise GridError(f'{path}: {error_text(error)}') from error
    if not isinstance(content, dict) or not isinstance(content.get('axes'), dict):
        raise GridError(f'{path}: a grid is a mapping with axes, see docs/studies.md')
    for axis, names in content['axes'].items():
        if isinstance(names, str):
            other, files = path.parent / names, [*parents, path]
            if other.resolve() in [file.resolve() for file in files]:
                raise GridError(f'{path}: axis {axis} names {names}, which needs this file itself')
            content['axes'][axis] = read(other, parents=files)['axes'].get(axis)
    only = content.pop('only', None) or {}
    check_mapping('only', only)
    short = content.pop('quick', None) or {}
    check_mapping('quick', short)
    if quick:
        for key in ('axes', 'options'):
            check_mapping(f'quick.{key}', short.get(key, {}))
        check_mapping('options', content.get('options') or {})
        content['options'] = content.get('options') or {}
        select(content, {**only, **short.pop('axes', {})})
        content['options'].update(short.pop('options', {}))
        content.update(short, name=f'{content.get("name")}-quick')
    elif not parents:
        select(content, only)
    return content


def select(content: dict, names: Dict[str, Sequence[str]]) -> None:
    """Keep only these names of some axes, in this order.

    Raises:
        GridError: there is no such axis or name.
    """
    for axis, wanted in names.items():
        known = content['axes'].get(axis)
        if known is None:
            raise GridError(f'no axis {axis!r}; known are {", ".join(map(str, content["axes"]))}')
        check_mapping(f'axis {axis}', known)
        check_strings(f'the names of axis {axis}', wanted)
        for name in wanted:
            if name not in known:
                hint = did_you_mean(name, known) or f'; known are {", ".join(known)}'
                raise GridError(f'{axis} {name!r} is unknown{hint}')
        content['axes'][axis] = {name: known[name] for name in wanted}
        more = content.get('more_seeds')
        if isinstance(more, dict) and isinstance(more.get(axis), dict):
            kept = {name: number for name, number in more[axis].items() if name in wanted}
            content['more_seeds'] = {**more, axis: kept}


def build(content: dict, data_root: str = DATA, weights_root: str = '') -> Grid:
    """Return the grid of the content of a file.

    Args:
        content: what ``read`` returns.
        data_root: folder that replaces ``data/`` of the configs.
        weights_root: folder where the paths of ``checkpoint`` and ``load_from`` begin.

    Raises:
        GridError: a key, a type, an axis or a name is invalid.
    """
    try:
        return _build(content, data_root, weights_root)
    except (AttributeError, KeyError, TypeError) as error:
        raise GridError(f'the grid is invalid: {error_text(error)}') from error


def _build(content: dict, data_root: str, weights_root: str) -> Grid:
    content = {key: value for key, value in content.items() if value is not None}
    content.setdefault('splits', dict(val={}, test={}))
    if isinstance(content.get('axes'), dict):  # YAML reads a name such as 2 as a number
        content['axes'] = {
            axis: {str(key): of for key, of in names.items()} if isinstance(names, dict) else names
            for axis, names in content['axes'].items()
        }
    check_content(content)
    content['axes'] = {
        axis: {name: {**(of or {}), 'options': (of or {}).get('options') or {}}
               for name, of in names.items()}
        for axis, names in content['axes'].items()
    }  # fmt: skip
    content['splits'] = {name: of or {} for name, of in content['splits'].items()}
    metrics = [Metric(name, **of) for name, of in content['metrics'].items()]
    root = f'{data_root.rstrip("/")}/'
    content.update(metrics=metrics, data_root=root, weights_root=weights_root)
    grid = Grid(**content)
    for point in [run.point for run in map(grid.run, grid.points())]:
        if not NAME.fullmatch(point):
            raise GridError(f'{point!r} is no name of a file: use letters, digits and . + - _ only')
    names = [run.name for run in [*grid.search(), *grid.runs()]]
    for name, number in Counter(names).items():
        if number > 1:
            raise GridError(f'{name!r} is the name of two runs: rename one')
    return grid


def _parsed(options: dict) -> dict:
    """Return options with strings such as '(240, 180)' read as ``--cfg-options`` reads them."""

    def parse(value: object) -> object:
        if isinstance(value, dict):
            return {key: parse(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [parse(inner) for inner in value]
        tuple_like = isinstance(value, str) and value.startswith('(')
        return DictAction._parse_iterable(value) if tuple_like else value

    return {key: parse(value) for key, value in options.items()}


def in_folder(node: object, root: str) -> object:
    """Return a config in which paths below ``data/`` are below another folder."""
    if isinstance(node, str):
        return root + node.removeprefix(DATA) if node.startswith(DATA) else node
    if isinstance(node, dict):
        return {key: in_folder(value, root) for key, value in node.items()}
    return type(node)(in_folder(v, root) for v in node) if isinstance(node, (list, tuple)) else node


def score(record: dict, split: str, key: str) -> Optional[float]:
    """Return a number of a record, or None if it is missing or not finite."""
    number = record.get('metrics', {}).get(split, {}).get(key)
    return number if isinstance(number, (int, float)) and math.isfinite(number) else None


def choosing_score(grid: Grid, record: dict) -> Optional[float]:
    """Return the number of a record that chooses the learning rate, or None without one."""
    return score(record, CHOOSING, grid.metrics[0].key)


def chosen_rates(grid: Grid, records: Dict[str, dict]) -> Dict[str, Tuple[float, List[dict]]]:
    """Return the learning rate of each point and the records of its search.

    The rate with the best first metric on the validation split with seed 0 is chosen. A point whose
    searches have all failed is left out.
    """
    found = {}
    sign = 1 if grid.metrics[0].higher_is_better else -1
    for values in grid.points():
        runs = grid.search_of(values)
        numbers = [(choosing_score(grid, records.get(run.name, {})), run.name) for run in runs]
        tried = [(sign * number, records[name]) for number, name in numbers if number is not None]
        if tried:
            _, best = max(tried, key=lambda pair: pair[0])
            found['_'.join(values.values())] = best['rate'], [record for _, record in tried]
    return found
