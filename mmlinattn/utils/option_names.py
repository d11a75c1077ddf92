"""Names of the options that constructors take."""

import inspect
from typing import FrozenSet, Set

from .suggest import did_you_mean

NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


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
