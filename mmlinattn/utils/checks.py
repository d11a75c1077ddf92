"""Checks of arguments."""

import math
from numbers import Integral, Real
from typing import Any


def check_integer(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int.

    Args:
        name: name of the argument, for the message.
        value: an integer, also one of numpy, no bool.
        least: minimal value.

    Raises:
        ValueError: ``value`` is no integer, or below ``least``.

    Example:
        >>> check_integer('num_heads', 4)
        4
        >>> check_integer('num_heads', 2.0)
        Traceback (most recent call last):
            ...
        ValueError: num_heads must be a positive integer, got 2.0
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        kind = 'a positive integer' if least == 1 else f'an integer of at least {least}'
        raise ValueError(f'{name} must be {kind}, got {value!r}')
    return int(value)


def check_number(name: str, value: Any, least: float = 0.0, above: bool = False) -> float:
    """Return ``value`` as a float.

    Args:
        name: name of the argument, for the message.
        value: a finite number, no bool.
        least: minimal value.
        above: exclude ``least``.

    Raises:
        ValueError: ``value`` is no finite number, or too small.

    Example:
        >>> check_number('eps', 1e-6)
        1e-06
        >>> check_number('power', 0, above=True)
        Traceback (most recent call last):
            ...
        ValueError: power must be a finite number above 0, got 0
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least or (above and value == least):
        kind = 'above' if above else 'of at least'
        raise ValueError(f'{name} must be a finite number {kind} {least:g}, got {value!r}')
    return float(value)
