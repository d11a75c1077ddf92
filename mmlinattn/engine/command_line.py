"""How the command lines end: errors that a user can cause are one line, not a traceback."""

import sys
from contextlib import contextmanager
from typing import Iterator, Tuple, Type

EXIT_CODE = 2


@contextmanager
def errors_in_one_line(
    debug: bool, kinds: Tuple[Type[Exception], ...] = (Exception,)
) -> Iterator[None]:
    """Prints an exception of these kinds as one line to stderr and exits with code 2.

    Args:
        debug: leave the exception and its traceback as they are (``--debug``).
        kinds: the exceptions; others pass.

    Raises:
        SystemExit: code 2, in place of the exception.
    """
    try:
        yield
    except kinds as error:
        if debug:
            raise
        # A KeyError's text is the repr of its message.
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        text = ' '.join(str(text).split()) or 'no message'
        print(
            f'error: {type(error).__name__}: {text} (--debug shows the traceback)', file=sys.stderr
        )
        raise SystemExit(EXIT_CODE) from None
