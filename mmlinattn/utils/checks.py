"""Checks of arguments."""

from typing import Any


def check_positive_integers(**values: Any) -> None:
    """Raise ValueError, which names the argument, for a value that is no integer above 0."""
    for name, value in values.items():
        if type(value) is not int or value < 1:
            raise ValueError(f'{name} must be a positive integer, got {value!r}')
