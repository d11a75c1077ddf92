"""Checks of arguments."""

from numbers import Integral
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
