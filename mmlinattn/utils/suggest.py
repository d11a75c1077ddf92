"""Names in messages: suggestions for misspelt ones, and short lists."""

import difflib
from typing import Dict, Iterable, List, Sequence


def did_you_mean(name: str, known: Iterable[str], count: int = 1) -> str:
    """Return '; did you mean X or Y?' with the most similar known names in any case, or ''.

    Args:
        name: the name that is not known.
        known: the names that are.
        count: maximum number of suggestions.

    Example:
        >>> did_you_mean('RALVT', ['Ravlt', 'Swin'])
        '; did you mean Ravlt?'
    """
    spelt: Dict[str, List[str]] = {}
    for other in known:
        spelt.setdefault(other.lower(), []).append(other)
    matches = difflib.get_close_matches(name.lower(), spelt, count)
    close = [other for match in matches for other in spelt[match]][:count]
    return f'; did you mean {" or ".join(close)}?' if close else ''


def shorten(names: Sequence[str], limit: int = 5) -> str:
    """Return the first names in one line, followed by the number of the remaining ones.

    Example:
        >>> shorten(['a', 'b', 'c'], limit=2)
        'a, b and 1 more'
    """
    more = len(names) - limit
    return ', '.join(names[:limit]) + (f' and {more} more' if more > 0 else '')
