"""How much is tried: a little in `make test`, all of it in `make test-long`."""

import os

LONG = os.environ.get('MMLINATTN_TEST_LONG') == '1'


def size(short: int, long: int) -> int:
    return long if LONG else short
