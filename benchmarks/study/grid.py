"""Grids in YAML: the product of their axes, seeds and learning rates as runs."""

import copy
import functools
import hashlib
import itertools
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import yaml
from mmengine.config import Config

from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import build_model
from mmlinattn.engine.preflight.run import check_run
from mmlinattn.linearize import plan_student
from mmlinattn.utils.command_line import error_text
from mmlinattn.utils.suggest import did_you_mean

ROOT = Path(__file__).resolve().parents[2]
GRIDS = Path(__file__).with_name('grids')
NAME = re.compile(r'[\w.+-]+')  # of a point: the name of a file
CHOOSING = 'val'  # split whose score chooses the learning rate
# What a name on an axis may have, and what a page.
ENTRY = {'title', 'config', 'options', 'search_options', 'linearize'}
PAGE = {'rows', 'columns', 'groups', 'quantities', 'charts', 'named'}


class GridError(ValueError):
    """Mistake in a grid, said in one line before anything is trained."""


@dataclass(frozen=True)
class Metric:
    """Number that a run is judged by.

    Args:
        name: heading of its column.
        split: split of the grid whose test gives it.
        key: its name in the result of the split.
        factor: the page shows the number times this factor.
        digits: decimal places on the page.
    """

    name: str
    key: str
    split: str = 'test'
    factor: float = 1.0
    digits: int = 1


@dataclass(frozen=True)
class Run:
    """One training, or one distillation of a trained model, with its tests.

    Args:
        values: name on each axis.
        seed: seed of the training.
        rate: learning rate of a search, or None for that of the config.
        config: path or name of the config.
        options: overrides of the config by dotted name.
        splits: overrides for the test of each split.
        required: split and key of the metrics that the result must have.
        linearize: options of the command ``linearize``, for a run that is no training.
        teacher: run whose model is turned to linear cost.
        search: True for a shorter training that only chooses the learning rate.
    """

    values: Dict[str, str]
    seed: int
    rate: Optional[float]
    config: str
    options: Dict[str, object]
    splits: Dict[str, dict]
    required: Tuple[Tuple[str, str], ...]
    linearize: Optional[dict] = None
    teacher: Optional['Run'] = None
    search: bool = False

    @property
    def point(self) -> str:
        """Name without learning rate and seed."""
        return '_'.join(self.values.values())

    @property
    def name(self) -> str:
        """Name of the run, unique in its grid."""
        rate = '' if self.rate is None else f'_lr{self.rate:g}'
        return f'{self.point}{rate}_{"search" if self.search else f"seed{self.seed}"}'

    def load(self, split: Optional[str] = None) -> Config:
        """Return the config of the training, or of the test of a split."""
        options = {**self.options, **(self.splits[split] if split else {})}
        cfg = copy.deepcopy(_loaded(self.config, json.dumps(options)))
        if self.linearize:
            attn_cfg = dict(self.linearize.get('attn_options', {}), type=self.linearize['attn'])
            return plan_student(cfg, attn_cfg, self.linearize.get('keep_softmax', ())).cfg
        if not split:
            cfg.merge_from_dict({'randomness.seed': self.seed, 'default_hooks.logger.interval': 5})
            if self.rate is not None:
                cfg.optim_wrapper.optimizer.lr = self.rate
                for scheduler in cfg.get('param_scheduler') or []:
                    if 'eta_max' in scheduler:
                        scheduler.eta_max = self.rate
        return cfg

    @functools.cached_property
    def settings(self) -> str:
        """Hash of all that the result depends on, except the code of this package."""
        configs = [self.load(split).to_dict() for split in (None, *self.splits)]
        found = [configs, torch.__version__, self.linearize, self.seed]
        found.append(self.teacher and self.teacher.settings)
        text = json.dumps(found, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Grid:
    """A study: its runs and how the page shows them.

    Args:
        name: name of the study and of its folder.
        title: heading of the page.
        axes: for each axis its names, each with ``title``, ``config``, ``options``,
            ``search_options`` or ``linearize``.
        metrics: arguments of :class:`Metric` by heading; the first decides the search for a
            learning rate.
        page: axes of ``rows``, ``columns`` and ``groups`` of columns; ``quantities``, ``charts``,
            and the rows that are ``named`` in the chart ``latency`` (all).
        seeds: number of seeds.
        more_seeds: number of seeds of some names of an axis, by axis and name.
        learning_rates: rates of the search, empty for those of the configs.
        search_options: options of shorter trainings that only choose the learning rates; without
            them those of seed 0 choose.
        cost: image ``shape``, ``batch`` and ``rounds`` of the measured costs.
        linearize: options of the command ``linearize`` that its runs share.
        prepare: for each folder of data the words after ``python`` that make it if it is missing.
        skip_unsupported: leave out what a model refuses, and say why.
        notes: lines below the table.
        command: command of the study, for the page.
    """

    name: str
    title: str
    axes: Dict[str, Dict[str, dict]]
    metrics: Dict[str, dict]
    page: dict
    config: str = ''
    options: Dict[str, object] = field(default_factory=dict)
    splits: Dict[str, dict] = field(default_factory=lambda: dict(val={}, test={}))
    seeds: int = 1
    more_seeds: Dict[str, Dict[str, int]] = field(default_factory=dict)
    learning_rates: Sequence[float] = ()
    search_options: Dict[str, object] = field(default_factory=dict)
    cost: dict = field(default_factory=dict)
    linearize: Dict[str, object] = field(default_factory=dict)
    prepare: Dict[str, str] = field(default_factory=dict)
    skip_unsupported: bool = False
    notes: Sequence[str] = ()
    command: str = ''

    def __post_init__(self) -> None:
        self.refused: Dict[str, str] = {}
        self.cost = {**dict(shape=[224, 224], batch=1, rounds=15), **self.cost}
        self.numbers = [Metric(name, **of) for name, of in self.metrics.items()]
        self.axes = {
            axis: {name: entry or {} for name, entry in names.items()}
            for axis, names in self.axes.items()
        }
        entries = {f'{axis} {name}': of for axis, n in self.axes.items() for name, of in n.items()}
        for place, entry in {**entries, 'page': self.page}.items():
            unknown = {*entry} - (PAGE if place == 'page' else ENTRY)
            if unknown:
                raise GridError(f'{place}: unknown {", ".join(sorted(unknown))}')
        for key in ('rows', 'columns', 'groups'):
            if key in self.page and self.page[key] not in self.axes:
                raise GridError(f'page.{key}: no axis {self.page[key]!r}')
        for run in map(self.run, self.points()):
            if not NAME.fullmatch(run.point):
                raise GridError(f'{run.point!r} is no name of a file')
        if self.learning_rates and CHOOSING not in self.splits:
            raise GridError(f'learning_rates need the split {CHOOSING}')

    def points(self) -> Iterator[Dict[str, str]]:
        """Yield the names on all axes, the last axis fastest."""
        for names in itertools.product(*self.axes.values()):
            yield dict(zip(self.axes, names))

    def run(self, values: Dict[str, str], seed: int = 0, rate: Optional[float] = None) -> Run:
        """Return the run of these names."""
        options, config, linearize, teacher = dict(self.options), self.config, None, None
        for axis, name in values.items():
            entry = self.axes[axis][name]
            if 'linearize' in entry:
                linearize = {'attn': 'MALA', **self.linearize, **entry['linearize']}
                of_teacher = {**values, axis: linearize.pop('teacher')}
                teacher = self.run(of_teacher, seed, rate)
                entry = self.axes[axis][of_teacher[axis]]
            options.update(entry.get('options', {}))
            config = entry.get('config', config)
        required = [(of.split, of.key) for of in self.numbers]
        if self.learning_rates:
            required.append((CHOOSING, self.numbers[0].key))
        return Run(
            values, seed, rate, config.format(**values), options, self.splits, (*required,),
            linearize, teacher,
        )  # fmt: skip

    def search(self, values: Dict[str, str]) -> List[Run]:
        """Return the runs that choose the learning rate of a point."""
        runs = [self.run(values, 0, rate) for rate in self.learning_rates]
        options = dict(self.search_options)
        for axis, name in values.items():
            options.update(self.axes[axis][name].get('search_options', {}))
        if not options:
            return runs
        short: Dict[str, Any] = dict(splits={CHOOSING: self.splits[CHOOSING]}, search=True)
        short.update(required=((CHOOSING, self.numbers[0].key),))
        return [replace(run, options={**run.options, **options}, **short) for run in runs]

    def searches(self) -> List[Run]:
        """Return the runs that choose the learning rates of all points that are not refused."""
        runs = [run for values in self.points() for run in self.search(values)]
        return [run for run in runs if run.point not in self.refused]

    def runs(self, rates: Dict[str, float]) -> List[Run]:
        """Return the runs of the result, by seed: early results already allow a comparison.

        Args:
            rates: chosen learning rate of each point; points without one are left out if there is
                a search.
        """
        found = []
        for values in self.points():
            more = [self.more_seeds.get(axis, {}).get(name, 0) for axis, name in values.items()]
            point = '_'.join(values.values())
            rate = rates.get(point)
            if point not in self.refused and (rate or not self.learning_rates):
                found += [self.run(values, seed, rate) for seed in range(max(self.seeds, *more))]
        return sorted(found, key=lambda run: run.seed)

    def check(self) -> None:
        """Check config and data of every point; ``refused`` gets why models refuse some, by point.

        Raises:
            GridError: a point cannot run; with ``skip_unsupported`` a model may refuse.
        """
        checked = set()
        for run in map(self.run, self.points()):
            try:
                cfg = run.load()
                if self.skip_unsupported:
                    try:
                        build_model(Config(dict(model=cfg.model.backbone)))
                    except ValueError as error:
                        self.refused[run.point] = str(error)
                        continue
                if str(cfg.model) not in checked:
                    checked.add(str(cfg.model))
                    check_run(cfg, 'train', 'val')
                    for split in self.splits:
                        check_run(run.load(split), 'test')
            except Exception as error:  # configs can fail in any way
                raise GridError(f'{run.point}: {error_text(error)}') from error


@functools.cache
def _loaded(config: str, options: str) -> Config:
    """Return a config with options: seeds and rates share it, for checks take half a second."""
    path = ROOT / config
    return load_config(str(path) if path.is_file() else config, json.loads(options))


def read(path: Path, quick: bool = False) -> dict:
    """Return the content of a grid file.

    ``base`` names another grid file, whose content this one changes: its axes and options are
    extended, all else is replaced. Where ``only`` names an axis, these names alone are kept.

    Args:
        path: YAML file.
        quick: apply its section ``quick``.

    Raises:
        GridError: the file is missing or no YAML.
    """
    content = _read(path)
    only, short = content.pop('only', {}), content.pop('quick', {})
    if quick:
        only = {**only, **short.pop('axes', {})}
        content = _merged(content, {**short, 'name': f'{content.get("name")}-quick'})
    select(content, only)
    return content


def _read(path: Path) -> dict:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise GridError(f'{path}: {error_text(error)}') from error
    if not isinstance(content, dict) or not ({'axes', 'base'} & content.keys()):
        raise GridError(f'{path}: a grid is a mapping with axes, see docs/studies.md')
    base = content.pop('base', None)
    if base is None:
        return content
    folder = path.parent if (path.parent / base).is_file() else GRIDS
    return _merged(_read(folder / base), content)


def _merged(content: dict, changes: dict) -> dict:
    found = {**content, **changes}
    found['options'] = {**content.get('options', {}), **changes.get('options', {})}
    found['axes'] = dict(content.get('axes', {}))
    for axis, names in changes.get('axes', {}).items():
        found['axes'][axis] = {**found['axes'].get(axis, {}), **names}
    return found


def select(content: dict, names: Dict[str, Sequence[str]]) -> None:
    """Keep only these names of some axes, in this order.

    Raises:
        GridError: there is no such axis or name.
    """
    for axis, wanted in names.items():
        known = content['axes'].get(axis)
        if known is None:
            raise GridError(f'no axis {axis!r}; known are {", ".join(content["axes"])}')
        for name in wanted:
            if name not in known:
                hint = did_you_mean(name, known) or f'; known are {", ".join(known)}'
                raise GridError(f'{axis} {name!r} is unknown{hint}')
        content['axes'][axis] = {name: known[name] for name in wanted}


def build(content: dict) -> Grid:
    """Return the grid of the content of a file.

    Raises:
        GridError: a key or a type is invalid.
    """
    try:
        return Grid(**content)
    except (AttributeError, KeyError, TypeError) as error:
        raise GridError(f'the grid is invalid: {error_text(error)}') from error
