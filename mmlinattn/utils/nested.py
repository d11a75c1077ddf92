"""Walk over nested configs."""

from typing import Any, Iterator, Tuple


def nodes(node: Any, place: str = '') -> Iterator[Tuple[str, Any]]:
    """Yield a config and all values inside its dicts, lists and tuples, each with its place.

    Example:
        >>> [place for place, _ in nodes(dict(model=[dict(type='RAVLT')]))]
        ['', 'model', 'model[0]', 'model[0].type']
    """
    yield place, node
    if isinstance(node, dict):
        for key, value in node.items():
            yield from nodes(value, f'{place}.{key}' if place else str(key))
    elif isinstance(node, (list, tuple)):
        for i, value in enumerate(node):
            yield from nodes(value, f'{place}[{i}]')


def dicts(node: Any) -> Iterator[Tuple[str, dict]]:
    """Yield the dicts of :func:`nodes`."""
    return ((where, value) for where, value in nodes(node) if isinstance(value, dict))


def type_name(node: dict, default: str = '') -> str:
    """Return the name of a node's type, a name or an object, without its scope.

    Example:
        >>> type_name(dict(type='mmdet.RandomFlip')), type_name(dict(type=dict)), type_name({})
        ('RandomFlip', 'dict', '')
    """
    kind = node.get('type') or default
    return (kind if isinstance(kind, str) else getattr(kind, '__name__', '')).rpartition('.')[2]


def key_of(place: str) -> str:
    """Return the key of a place in its dict, without the indices of lists.

    Example:
        >>> key_of('model.neck[0]')
        'neck'
    """
    return place.rpartition('.')[2].partition('[')[0]
