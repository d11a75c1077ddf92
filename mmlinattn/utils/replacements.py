"""Everything that this package replaces in other packages at run time, with its undo."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, MutableMapping, Tuple

_ABSENT = object()


@dataclass(frozen=True)
class Replacement:
    """One replaced or added entry in a table of another package.

    Args:
        what: the entry, such as ``"MMEngine's file backend 'http'"``.
        by: the value that has taken its place.
    """

    what: str
    by: str
    undo: Callable[[], Any] = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f'{self.what}: {self.by}'


_done: Dict[Tuple[int, Any], Tuple[MutableMapping, Any, Replacement]] = {}


def replace_entry(
    table: MutableMapping,
    key: Any,
    value: Any,
    what: str,
    after: Callable[[], Any] = lambda: None,
) -> None:
    """Set ``table[key] = value`` so that :func:`undo_replacements` can restore the entry.

    Args:
        table: mapping of another package.
        key, value: the entry.
        what: description of the entry.
        after: called after the change and after its undo, to clear caches.
    """
    # The table itself is kept as well: the id of a deleted one could be reused.
    before = _done[id(table), key][1] if (id(table), key) in _done else table.get(key, _ABSENT)

    def undo() -> None:
        if before is _ABSENT:
            table.pop(key, None)
        else:
            table[key] = before
        after()

    table[key] = value
    after()
    _done[id(table), key] = table, before, Replacement(what, described(value), undo)


def described(value: Any) -> str:
    """Return a plain value as Python writes it, else the full name of the object or its class."""
    if isinstance(value, (str, int, float, complex, type(None))):
        return repr(value)
    named = value if hasattr(value, '__qualname__') else type(value)
    return f'{named.__module__}.{named.__qualname__}'


def list_replacements() -> List[Replacement]:
    """Return what this package has replaced in other packages so far in this process.

    Example:
        >>> import mmlinattn.datasets
        >>> for entry in list_replacements():
        ...     if 'file backend' in entry.what and 'http' in entry.what:
        ...         print(entry)
        MMEngine's file backend 'http': mmlinattn.datasets.file_backends.http.HTTPFileBackend
        MMEngine's file backend of http://: mmlinattn.datasets.file_backends.http.HTTPFileBackend
        MMEngine's file backend of https://: mmlinattn.datasets.file_backends.http.HTTPFileBackend
    """
    found = [entry for _, _, entry in _done.values()]
    return found


def undo_replacements() -> None:
    """Restore what :func:`list_replacements` lists, in this process.

    Files are then read by MMEngine's own rules again, which may run code from checkpoints, pickles
    and YAML. Objects created before, such as data sets and imported modules, keep what they have.
    ``mmlinattn.checkpoints.replace_mmengine_readers`` and
    ``mmlinattn.datasets.file_backends.register_file_backends`` replace the entries again.
    """
    for entry in reversed(list_replacements()):
        entry.undo()
    _done.clear()
