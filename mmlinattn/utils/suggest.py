"""Names in messages: suggestions for misspelt ones, short lists, options of constructors."""

import difflib
import inspect
from typing import Dict, FrozenSet, Iterable, List, Sequence, Set

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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


def option_names(cls: type) -> FrozenSet[str]:
    """Return the arguments of a constructor, and those of parents to which it passes others on.

    Example:
        >>> class A:
        ...     def __init__(self, a=1, **kwargs): ...
        >>> class B(A):
        ...     def __init__(self, b=2, **kwargs): ...
        >>> sorted(option_names(B))
        ['a', 'b']
    """
    names: Set[str] = set()
    for init in (vars(owner)['__init__'] for owner in cls.__mro__ if '__init__' in vars(owner)):
        parameters = inspect.signature(init).parameters.values()
        names.update(p.name for p in parameters if p.kind in NAMED and p.name != 'self')
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return frozenset(names)


def unknown_option(cls: type, name: str) -> str:
    """Return the message for an option that a constructor does not take.

    Example:
        >>> class A:
        ...     def __init__(self, eps=1, power=2): ...
        >>> unknown_option(A, 'pover')
        "A has no option 'pover'; did you mean power? It has eps, power"
    """
    known = sorted(option_names(cls))
    meant = did_you_mean(name, known) or '.'
    return f'{cls.__name__} has no option {name!r}{meant} It has {", ".join(known)}'
