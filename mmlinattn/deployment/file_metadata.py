"""Description that an exported file carries: its task, classes, outputs and sizes."""

import json
from dataclasses import asdict, dataclass, fields
from reprlib import repr as short_repr
from typing import Any, Callable, Dict, Optional, Tuple

METADATA = 'mmlinattn'  # key of the description in a file, as JSON
TASKS = ('classification', 'segmentation', 'detection')


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _names(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(name) is str for name in value)


def _colour(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e6  # not NaN


CHECKS: Dict[str, Callable[[Any], bool]] = {
    'task': lambda x: x in TASKS,
    'classes': _names,
    'outputs': lambda x: _names(x) and 0 < len({*x}) == len(x),
    'stride': _positive,
    'dynamic': lambda x: type(x) is bool,
    'shape': lambda x: isinstance(x, tuple) and len(x) == 2 and all(map(_positive, x)),
    'least': _positive,
    'batch': lambda x: x is None or _positive(x),
    'padding': lambda x: isinstance(x, tuple) and len(x) == 3 and all(map(_colour, x)),
}


@dataclass(frozen=True)
class FileMetadata:
    """Description that an exported file carries.

    Attributes:
        task: 'classification', 'segmentation' or 'detection'.
        classes: names of the classes.
        outputs: names of the outputs.
        stride: both sides of an image must be multiples of it.
        dynamic: True if the file takes any such size, False if it takes ``shape`` alone.
        shape: (H, W) of the export.
        least: smallest side that the file takes.
        batch: number of images of a call; None for any number.
        padding: colour (RGB, 0..255) to pad images with below and to the right.

    Raises:
        ValueError: a field of another type or out of range; the message names it.

    Example:
        >>> metadata = FileMetadata(
        ...     'classification', ('cat', 'dog'), ('scores',), 32, True, (64, 64), 64, 1,
        ...     (0, 0, 0))
        >>> FileMetadata.from_json(metadata.to_json()) == metadata
        True
        >>> FileMetadata.from_json(metadata.to_json().replace('32', '0'))
        Traceback (most recent call last):
            ...
        ValueError: stride is 0, which no export writes
    """

    task: str
    classes: Tuple[str, ...]
    outputs: Tuple[str, ...]
    stride: int
    dynamic: bool
    shape: Tuple[int, int]
    least: int
    batch: Optional[int]
    padding: Tuple[float, float, float]

    def __post_init__(self) -> None:
        for name, is_valid in CHECKS.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise ValueError(f'{name} is {short_repr(value)}, which no export writes')

    @classmethod
    def from_json(cls, text: str) -> 'FileMetadata':
        """Parse the untrusted JSON text of a file; names that are not fields are ignored."""
        try:
            found = json.loads(text)
            known: Dict[str, Any] = {field.name: found[field.name] for field in fields(cls)}
        except KeyError as error:
            raise ValueError(f'{error} is missing') from None
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f'the text is no JSON object: {error}') from None
        known = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        return cls(**known)

    def to_json(self) -> str:
        """Return the text that :meth:`from_json` reads."""
        return json.dumps(asdict(self))
