"""Description that an exported file carries: its task, classes, outputs and sizes."""

import json
from dataclasses import asdict, dataclass, fields
from reprlib import repr as short_repr
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

# Metadata key of the description in a file, as JSON.
METADATA = 'mmlinattn'

TASKS = ('classification', 'segmentation', 'detection')
BOXES = {'boxes', 'scores', 'labels', 'count'}
# Sets of outputs that a file may have, by task and ``raw``; raw detectors have any.
OUTPUTS: Dict[Tuple[str, bool], Sequence[set]] = {
    ('classification', False): ({'scores'},),
    ('classification', True): ({'logits'},),
    ('segmentation', False): ({'labels'},),
    ('segmentation', True): ({'logits'},),
    ('detection', False): (BOXES, BOXES | {'masks'}),
}


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _names(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(name) is str for name in value)


def _colour(value: Any) -> bool:
    numbers = isinstance(value, tuple) and all(type(x) in (int, float) for x in value)
    return numbers and len(value) == 3 and all(abs(x) < 1e6 for x in value)  # not NaN


# Predicate of each field, and its description for the error message.
CHECKS: Dict[str, Tuple[Callable[[Any], bool], str]] = {
    'task': (lambda x: x in TASKS, f'one of {", ".join(TASKS)}'),
    'classes': (_names, 'a list of names'),
    'outputs': (lambda x: _names(x) and 0 < len({*x}) == len(x), 'a list of different names'),
    'raw': (lambda x: type(x) is bool, 'true or false'),
    'stride': (_positive, 'a positive integer'),
    'dynamic': (lambda x: type(x) is bool, 'true or false'),
    'shape': (
        lambda x: isinstance(x, tuple) and len(x) == 2 and all(map(_positive, x)),
        'two positive integers',
    ),
    'least': (_positive, 'a positive integer'),
    'batch': (lambda x: x is None or _positive(x), 'a positive integer or null'),
    'fp16': (lambda x: type(x) is bool, 'true or false'),
    'padding': (_colour, 'three numbers'),
}


@dataclass(frozen=True)
class FileMetadata:
    """Description that an exported file carries.

    Attributes:
        task: 'classification', 'segmentation' or 'detection'.
        classes: names of the classes.
        outputs: names of the outputs.
        raw: True if the outputs are those of the heads, see :class:`.models.Deployable`.
        stride: both sides of an image must be multiples of it.
        dynamic: True if the file takes any such size, False if it takes ``shape`` alone.
        shape: (H, W) of the export.
        least: smallest side that the file takes.
        batch: number of images of a call; None for any number.
        fp16: True if weights and maps have half precision.
        padding: colour (RGB, 0..255) to pad images with below and to the right.

    Raises:
        ValueError: a field of another type or out of range; the message names it.

    Example:
        >>> metadata = FileMetadata(
        ...     'classification', ('cat', 'dog'), ('scores',), False, 32, True, (64, 64), 64, 1,
        ...     False, (0, 0, 0))
        >>> FileMetadata.from_json(metadata.to_json()) == metadata
        True
        >>> FileMetadata.from_json(metadata.to_json().replace('32', '0'))
        Traceback (most recent call last):
            ...
        ValueError: stride must be a positive integer, got 0
    """

    task: str
    classes: Tuple[str, ...]
    outputs: Tuple[str, ...]
    raw: bool
    stride: int
    dynamic: bool
    shape: Tuple[int, int]
    least: int
    batch: Optional[int]
    fp16: bool
    padding: Tuple[float, float, float]

    def __post_init__(self) -> None:
        for name, (valid, wanted) in CHECKS.items():
            value = getattr(self, name)
            if not valid(value):
                raise ValueError(f'{name} must be {wanted}, got {short_repr(value)}')
        for name, sides in (('shape', self.shape), ('least', (self.least,))):
            if any(side % self.stride for side in sides):
                raise ValueError(
                    f'{name} must be a multiple of the stride {self.stride}, '
                    f'got {getattr(self, name)!r}'
                )
        known = OUTPUTS.get((self.task, self.raw), ({*self.outputs},))
        if {*self.outputs} not in known:
            raise ValueError(
                f'outputs of {self.task} (raw: {self.raw}) must be {sorted(known[-1])}, '
                f'got {short_repr(self.outputs)}'
            )

    @classmethod
    def from_json(cls, text: str) -> 'FileMetadata':
        """Parse the untrusted JSON text of a file.

        Names that are not fields are ignored.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f'the text is no JSON: {error}') from None
        if not isinstance(found, dict):
            raise ValueError(f'the text must be an object, got {short_repr(found)}')
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f'{", ".join(missing)} missing')
        known = ((name, found[name]) for name in names)
        values: Dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known}
        return cls(**values)

    def to_json(self) -> str:
        """Return the text that :meth:`from_json` reads."""
        return json.dumps(asdict(self))
