"""Checks of arguments."""

import math
from numbers import Integral, Real
from typing import Any


def check_integer(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int.

    Args:
        name: name of the argument, for the message.
        value: an integer, also one of numpy; True and False are none.
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


def check_number(name: str, value: Any, least: float = 0.0) -> float:
    """Return ``value`` as a float.

    Raises:
        ValueError: ``value`` is no finite number, or below ``least``; True and False are none.

    Example:
        >>> check_number('eps', 1e-6)
        1e-06
        >>> check_number('eps', '1e-6')
        Traceback (most recent call last):
            ...
        ValueError: eps must be a number of at least 0, got '1e-6'
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < least:
        raise ValueError(f'{name} must be a number of at least {least:g}, got {value!r}')
    return float(value)
