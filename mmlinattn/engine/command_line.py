"""How the command lines end: errors that a user can cause are one line, not a traceback."""

import sys
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, Optional, Tuple, Type

EXIT_CODE = 2


@contextmanager
def errors_in_one_line(
    debug: bool, kinds: Tuple[Type[Exception], ...] = (Exception,), log_dir: Optional[str] = None
) -> Iterator[None]:
    """Prints an exception of these kinds as one line to stderr and exits with code 2.

    Args:
        debug: leave the exception and its traceback as they are (``--debug``).
        kinds: the exceptions; others pass.
        log_dir: where the traceback is kept, as ``error.txt``, if that can be.

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
        where = '--debug shows the traceback'
        if log_dir is not None:
            with suppress(OSError):
                path = Path(log_dir) / 'error.txt'
                path.write_text(
                    ''.join(traceback.format_exception(None, error, error.__traceback__))
                )
                where = f'the traceback is in {path}'
        print(f'error: {type(error).__name__}: {text} ({where})', file=sys.stderr)
        raise SystemExit(EXIT_CODE) from None
