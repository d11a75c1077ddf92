"""Suggestions for misspelt names in error messages."""

import difflib
from typing import Iterable


def did_you_mean(name: str, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> str:
    """Return '; did you mean X or Y?' with the most similar known names, or ''.

    Args:
        name: the name that is not known.
        known: the names that are.
        count: maximum number of suggestions.
        cutoff: least similarity, from 0 to 1.

    Example:
        >>> did_you_mean('RALVT', ['RAVLT', 'Swin'])
        '; did you mean RAVLT?'
    """
    close = difflib.get_close_matches(name, list(known), count, cutoff)
    return f'; did you mean {" or ".join(close)}?' if close else ''
