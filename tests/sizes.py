"""How much is tried: a little in `make test`, all of it in `make test-long`."""

import os
from typing import Iterable

LONG = os.environ.get('MMLINATTN_TEST_LONG') == '1'


def some(cases: Iterable, every: int = 3) -> list:
    """One of so many cases, the first included; all of them in the long version."""
    return list(cases) if LONG else list(cases)[::every]


def size(short: int, long: int) -> int:
    return long if LONG else short
