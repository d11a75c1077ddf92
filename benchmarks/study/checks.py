"""Checks of the content of a grid file."""

import json
import math
import re
import reprlib
import string
from pathlib import Path
from typing import Collection, List

from mmlinattn.utils.suggest import did_you_mean

from .costs import COSTS

NAME = re.compile(r'[\w.+-]+')
KEYS = (
    'name', 'title', 'axes', 'metrics', 'page', 'config', 'options', 'splits', 'seeds',
    'more_seeds', 'learning_rates', 'search_options', 'cost', 'checkpoint', 'load_from',
    'linearize', 'rank', 'skip_unsupported', 'notes', 'command',
)  # fmt: skip
REQUIRED = KEYS[:5]
# ``teacher`` is a name of the same axis, the others are options of the command.
LINEARIZE = (
    'teacher', 'attn', 'attn_options', 'keep_softmax', 'iters_a', 'iters_b', 'lr_a', 'lr_b',
    'batch_size', 'crop_size',
)  # fmt: skip
ENTRY = (
    'config', 'options', 'search_options', 'shape', 'device', 'title', 'load_from', 'linearize',
)  # fmt: skip
RANK = ('images', 'num_images', 'tolerance')  # options of the command
TRAIN = 'train'  # split of the metrics of the training
RANK_SPLITS = ('rank_start', 'rank')  # splits of the ranks at the start and of the trained model
CHOOSING = 'val'  # split that chooses the learning rates
PLACES = ('rows', 'columns', 'tables')
CHARTS = ('ranking', 'latency', 'curves', 'columns', 'spectra', 'layers', 'ring_weights')


DOCS = Path(__file__).resolve().parents[2] / 'docs'


class GridError(ValueError):
    """Error of a grid file; the message names the place and the cure."""


def check_content(content: dict) -> None:
    """Check the types and the names in a grid file.

    Args:
        content: content of the file without empty values, with ``splits``.

    Raises:
        GridError: a key, a type, an axis or a name is invalid.
    """
    check_keys('the grid', content, KEYS)
    for key in REQUIRED:
        if not content.get(key):
            raise GridError(f'the grid has no {key}')
    for key in ('name', 'title', 'config', 'checkpoint', 'load_from', 'command'):
        _check_type(key, content.get(key, ''), str, 'a string')
    if not NAME.fullmatch(content['name']):
        raise GridError(f'name is {content["name"]!r}: use letters, digits and . + - _ only')
    for key in ('axes', 'metrics', 'page', 'splits', 'more_seeds', 'cost', 'rank'):
        check_mapping(key, content.get(key, {}))
    _check_options('options', content.get('options', {}))
    _check_linearize('linearize', content.get('linearize', {}))
    skip = content.get('skip_unsupported', False)
    _check_type('skip_unsupported', skip, bool, 'true or false')
    check_strings('notes', content.get('notes', []))
    _check_axes(content['axes'])
    for name, options in content['splits'].items():
        if name in (TRAIN, *RANK_SPLITS) or not NAME.fullmatch(name):
            raise GridError(f'splits: {name!r} is no name of a split, use one such as test')
        _check_options(f'splits.{name}', {} if options is None else options)
    _check_metrics(content)
    _check_seeds(content)
    _check_rates(content)
    _check_cost(content.get('cost', {}))
    _check_rank(content)
    _check_students(content)
    _check_page(content['page'], content['axes'], content['metrics'])
    _check_placeholders('config', content.get('config', ''), [*content['axes']])
    for key in ('checkpoint', 'load_from'):
        _check_placeholders(key, content.get(key, ''), [*content['axes'], 'seed'])
    for axis, names in content['axes'].items():
        for name, entry in names.items():
            for key, known in (('config', []), ('load_from', ['seed'])):
                text = (entry or {}).get(key, '')
                _check_placeholders(f'{axis} {name!r}: {key}', text, [*content['axes'], *known])


def check_keys(place: str, content: dict, known: Collection[str]) -> None:
    """Check that a mapping has known keys alone."""
    for key in content:
        if key not in known:
            hint = did_you_mean(str(key), known) or f'; known are {", ".join(known)}'
            raise GridError(f'{place} has the unknown key {key!r}{hint}')


def check_mapping(place: str, value: object) -> None:
    """Check that a value is a mapping whose keys are strings."""
    _check_type(place, value, dict, 'a mapping')
    assert isinstance(value, dict)
    for key in value:
        if not isinstance(key, str):
            raise GridError(f'{place}: the key {key!r} must be a string, write it in quotes')


def check_strings(place: str, value: object) -> None:
    """Check that a value is a list of strings."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise GridError(f'{place} must be a list of strings, got {reprlib.repr(value)}')


def _has(content: dict, key: str) -> bool:
    """Return True if the grid or an entry of its axes gives a key."""
    entries = [of or {} for names in content['axes'].values() for of in names.values()]
    return any(of.get(key) for of in (content, *entries))


def _check_type(place: str, value: object, kind: type, text: str) -> None:
    if not isinstance(value, kind):
        raise GridError(f'{place} must be {text}, got {reprlib.repr(value)}')


def _check_options(place: str, options: object) -> None:
    check_mapping(place, options)
    try:
        json.dumps(options)
    except (TypeError, ValueError) as error:
        raise GridError(f'{place}: {error}; write the value in quotes') from error


def _check_positive(place: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise GridError(f'{place} must be a positive integer, got {reprlib.repr(value)}')


def _check_axes(axes: dict) -> None:
    for axis, names in axes.items():
        if not isinstance(names, dict) or not names:
            raise GridError(f'axis {axis} has no names')
        if not NAME.fullmatch(axis) or axis in ('seed', 'quantity', 'self'):
            raise GridError(f'axes: {axis!r} is no name of an axis, use one such as model')
        for name, entry in names.items():
            if entry is not None:
                _check_entry(f'{axis} {name!r}', entry)
        for name, entry in names.items():
            if 'linearize' in (entry or {}):
                _check_teacher(f'{axis} {name!r}: linearize', entry['linearize'], names)


def _check_entry(place: str, entry: object) -> None:
    check_mapping(place, entry)
    assert isinstance(entry, dict)
    check_keys(place, entry, ENTRY)
    for key in ('config', 'title', 'load_from'):
        _check_type(f'{place}: {key}', entry.get(key, ''), str, 'a string')
    for key in ('options', 'search_options'):
        if entry.get(key) is not None:
            _check_options(f'{place}: {key}', entry[key])
    if 'linearize' in entry:
        check_keys(f'{place} is a linearised model, which', entry, ('linearize', 'title'))
        _check_linearize(f'{place}: linearize', entry['linearize'])
    if 'shape' in entry:
        _check_shape(f'{place}: shape', entry['shape'])
    if entry.get('device', 'cpu') not in ('cpu', 'cuda'):
        raise GridError(f'{place}: device must be cpu or cuda, got {entry["device"]!r}')


def _check_teacher(place: str, options: dict, names: dict) -> None:
    teacher = options.get('teacher')
    trained = [name for name, entry in names.items() if 'linearize' not in (entry or {})]
    if teacher not in trained:
        hint = did_you_mean(str(teacher), trained) or f'; known are {", ".join(trained)}'
        raise GridError(
            f'{place}: teacher {teacher!r} is no trained name of this axis (with --only, name it, '
            f'too){hint}'
        )


def _check_students(content: dict) -> None:
    students = {
        name: axis
        for axis, names in content['axes'].items()
        for name, entry in names.items()
        if 'linearize' in (entry or {})
    }
    if not students:
        return
    name = next(iter(students))
    refused = 'learning_rates checkpoint load_from more_seeds skip_unsupported rank'
    for key in refused.split():
        if _has(content, key):
            raise GridError(
                f'{name!r} is linearised from the weights of its teacher with the same seed: '
                f'leave out {key}'
            )
    if len({*students.values()}) > 1:
        raise GridError(f'linearised models must be on one axis, not {", ".join(students)}')
    if not content['splits']:
        raise GridError('splits is empty, but a linearised model needs a split for its test')


def _check_linearize(place: str, options: object) -> None:
    _check_options(place, options)
    assert isinstance(options, dict)
    check_keys(place, options, LINEARIZE)
    _check_type(f'{place}: attn', options.get('attn', 'MALA'), str, 'a string')
    keep = options.get('keep_softmax', [])
    _check_type(f'{place}: keep_softmax', keep, list, "a list such as [0, 3] or ['last4']")
    _check_type(f'{place}: attn_options', options.get('attn_options', {}), dict, 'a mapping')
    for key in ('iters_a', 'iters_b'):
        value = options.get(key, 0)
        if type(value) is not int or value < 0:
            raise GridError(f'{place}: {key} must be an integer from 0, got {value!r}')


def _check_shape(place: str, shape: object) -> None:
    if not isinstance(shape, list) or len(shape) != 2:
        raise GridError(f'{place} must be [height, width], got {reprlib.repr(shape)}')
    for size in shape:
        _check_positive(place, size)


def _check_cost(cost: dict) -> None:
    check_keys('cost', cost, ('shape', 'batch', 'rounds'))
    for key, value in cost.items():
        if key == 'shape':
            _check_shape('cost.shape', value)
        else:
            _check_positive(f'cost.{key}', value)


def _check_rank(content: dict) -> None:
    options = content.get('rank', {})
    check_keys('rank', options, RANK)
    if options and not isinstance(options.get('images'), str):
        raise GridError('rank has no images: name a folder such as data/shapes/imagenet/val')
    if options and content.get('checkpoint'):
        raise GridError('rank needs a training, but a checkpoint is given: remove one')
    if options and _has(content, 'load_from'):
        raise GridError('rank is of initial weights, too, but load_from is given: remove one')
    _check_positive('rank.num_images', options.get('num_images', 1))
    tolerance = options.get('tolerance', 0.01)
    if type(tolerance) is not float or not 0 < tolerance < 1:
        raise GridError(f'rank.tolerance must be between 0 and 1, got {tolerance!r}')
    for chart in {'spectra', 'layers'} & {*content['page'].get('charts', [])}:
        if not options or len(content['axes']) > 1:
            raise GridError(f'page.charts: {chart!r} needs rank and a single axis')


def _check_metrics(content: dict) -> None:
    splits = [*content['splits']] + ([] if content.get('checkpoint') else [TRAIN])
    splits += RANK_SPLITS if content.get('rank') else ()
    for name, metric in content['metrics'].items():
        place = f'metrics: {name}'
        check_mapping(place, metric)
        known = ('key', 'split', 'factor', 'digits', 'higher_is_better', 'optional')
        check_keys(place, metric, known)
        if not isinstance(metric.get('key'), str) or not metric['key']:
            raise GridError(f'{place} has no key: name a number of the result such as mIoU')
        if metric.get('split', 'test') not in splits:
            split = metric.get('split', 'test')
            raise GridError(f'{place}: no split {split!r}; known are {", ".join(splits)}')
        factor, digits = metric.get('factor', 1.0), metric.get('digits', 1)
        if type(factor) not in (int, float) or not math.isfinite(factor):
            raise GridError(f'{place}: factor must be a finite number, got {factor!r}')
        if type(digits) is not int or digits < 0:
            raise GridError(f'{place}: digits must be an integer from 0, got {digits!r}')
        for key in ('higher_is_better', 'optional'):
            _check_type(f'{place}: {key}', metric.get(key, False), bool, 'true or false')
        if name in [cost.name for cost in COSTS]:
            raise GridError(f'{place}: the name is that of a measured cost, use another')
    if content.get('checkpoint') and content.get('load_from'):
        raise GridError('checkpoint is tested and load_from is trained: remove one')
    if content.get('checkpoint') and not content['splits']:
        raise GridError('splits is empty, but a checkpoint needs a split for its test')


def _check_seeds(content: dict) -> None:
    _check_positive('seeds', content.get('seeds', 1))
    for axis, numbers in content.get('more_seeds', {}).items():
        if axis not in content['axes']:
            raise GridError(f'more_seeds: no axis {axis!r}; known are {", ".join(content["axes"])}')
        check_mapping(f'more_seeds.{axis}', numbers)
        check_keys(f'more_seeds.{axis}', numbers, [*content['axes'][axis]])
        for name, number in numbers.items():
            _check_positive(f'more_seeds.{axis}.{name}', number)


def _check_rates(content: dict) -> None:
    rates = content.get('learning_rates', [])
    valid = isinstance(rates, list) and all(
        isinstance(rate, float) and math.isfinite(rate) and rate > 0 for rate in rates
    )
    if not valid or len({*rates}) < len(rates):
        raise GridError(
            f'learning_rates must be different numbers such as 1.0e-3, finite and positive, '
            f'got {reprlib.repr(rates)}'
        )
    if rates and CHOOSING not in content['splits']:
        raise GridError(f'learning_rates are chosen on the split {CHOOSING}: add it to splits')
    name, first = next(iter(content['metrics'].items()))
    if rates and first.get('split') == TRAIN:
        raise GridError(
            f'metrics: {name} is the first and of the training, but learning_rates are chosen on '
            f'{CHOOSING}: put a metric of a split first'
        )
    _check_options('search_options', content.get('search_options', {}))
    if 'learning_rates' not in content and _has(content, 'search_options'):
        raise GridError('search_options are of the search for learning_rates: add these')
    if rates and content.get('checkpoint'):
        raise GridError('learning_rates need a training, but a checkpoint is given: remove one')


def _check_page(page: dict, axes: dict, metrics: dict) -> None:
    check_keys('page', page, (*PLACES, 'charts', 'quantities', 'document'))
    document = page.get('document', 'studies.md')
    if not isinstance(document, str) or not (DOCS / document).is_file() or '/' in document:
        raise GridError(f'page.document must be a file in docs/, got {document!r}')
    if 'rows' not in page:
        raise GridError(f'page has no rows: name one of the axes {", ".join(axes)}')
    shown: List[str] = []
    for place in PLACES:
        if place in page:
            if not isinstance(page[place], str) or page[place] not in axes:
                raise GridError(f'page.{place}: no axis {page[place]!r}')
            if page[place] in shown:
                raise GridError(f'page.{place}: the axis {page[place]!r} is shown already')
            shown.append(page[place])
    for axis in axes:
        if axis not in shown:
            raise GridError(f'page shows no axis {axis!r}: add it as rows, columns or tables')
    quantities = [cost.name for cost in COSTS] + [*metrics]
    for key, known in (('charts', CHARTS), ('quantities', quantities)):
        check_strings(f'page.{key}', page.get(key, []))
        for name in page.get(key, []):
            if name not in known:
                hint = did_you_mean(name, known) or f'; known are {", ".join(known)}'
                raise GridError(f'page.{key}: {name!r} is unknown{hint}')
    if 'columns' in page.get('charts', []) and ('columns' not in page or 'tables' in page):
        raise GridError("page.charts: 'columns' needs page.columns, without page.tables")
    if 'ring_weights' in page.get('charts', []) and any(len(of) > 1 for of in axes.values()):
        raise GridError("page.charts: 'ring_weights' is of one model, so each axis needs one name")


def _check_placeholders(place: str, text: str, known: List[str]) -> None:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise GridError(f'{place} is {text!r}: {error}') from error
    for name in names:
        if name not in known:
            raise GridError(f'{place} has the unknown {{{name}}}; known are {", ".join(known)}')
