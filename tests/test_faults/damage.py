"""Damage by a seed: the same seed does the same."""

import copy
import random
import signal
import time
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Tuple

from tests.sizes import size

# What a leaf of a config or of annotations may become.
STRANGE = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, 0.5, -1e9, float('nan'), float('inf'), '',
    'x', 'nan', '../..', '\x00', [], [1], [[]], {}, {'type': 'x'}, {'a': [None]}, [1.5, 'x'], (),
)  # fmt: skip
HANGS_AFTER_S = 60


class Hang(BaseException):
    """No Exception: what is tested must not take it for damage and refuse cleanly."""


def seeds(*known: int, short: int) -> List[int]:
    """Seeds to try; ``known`` are those that once found a fault."""
    return [*dict.fromkeys([*known, *range(size(short, 2000))])]


@contextmanager
def no_hang(seed: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Hang(f'seed {seed} hangs')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS_AFTER_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def damaged_bytes(data: bytes, dice: random.Random) -> bytes:
    """A few bytes flipped, the end cut off, a part gone, doubled or overwritten."""
    out = bytearray(data)
    how = dice.choice(('flip', 'flip', 'flip', 'cut', 'lose', 'double', 'overwrite'))
    start = dice.randrange(len(out))
    stop = min(start + dice.randint(1, 64), len(out))
    if how == 'flip':
        for _ in range(dice.choice((1, 1, 2, 8))):
            out[dice.randrange(len(out))] ^= 1 << dice.randrange(8)
    elif how == 'cut':
        del out[start:]
    elif how == 'lose':
        del out[start:stop]
    elif how == 'double':
        out[start:start] = out[start:stop]
    else:
        out[start:stop] = dice.choice((b'\x00', b'\xff')) * (stop - start)
    return bytes(out)


def leaves(node: Any, path: Tuple = ()) -> Iterator[Tuple]:
    """Paths of everything inside dicts and lists."""
    items: Any = ()
    if isinstance(node, dict):
        items = node.items()
    elif isinstance(node, (list, tuple)):
        items = enumerate(node)
    for key, value in items:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def damaged_tree(tree: Any, dice: random.Random) -> Tuple[Any, str]:
    """One thing inside deleted, renamed, doubled or of another type; and what was done."""
    tree = copy.deepcopy(tree)
    path = dice.choice([*leaves(tree)])
    owner = tree
    for key in path[:-1]:
        owner = owner[key]
    key = path[-1]
    if isinstance(owner, tuple):  # all of it becomes something else
        return damaged_tree(tree, dice)
    how = dice.choice(('delete', 'rename', 'double', 'change', 'change'))
    if how == 'rename' and isinstance(owner, dict):
        owner[f'{key}x'] = owner.pop(key)
    elif how == 'double' and isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    elif how == 'delete':
        del owner[key]
    else:
        value = owner[key]
        near = [value * -1, value + 1, value * 1000] if type(value) in (int, float) else []
        owner[key] = copy.deepcopy(dice.choice([*STRANGE, *near]))
        how = f'changed to {owner[key]!r}'
    return tree, f'{".".join(map(str, path))} {how}'


def try_all(case: Callable[[int], str], tried: List[int]) -> None:
    """Runs every seed; prints how often each outcome came."""
    outcomes: dict = {}
    failed = []
    for seed in tried:
        began = time.monotonic()
        try:
            with no_hang(seed):
                outcome = case(seed)
            # Where the alarm was caught, or could not break in.
            took = time.monotonic() - began
            assert took < HANGS_AFTER_S, f'took {took:.0f} s'
        except (AssertionError, Hang) as error:
            failed.append(f'seed {seed}: {str(error)[:500]}')
            outcome = 'FAULT'
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f'{len(tried)} tried: {outcomes}')
    assert not failed, '\n'.join([f'{len(failed)} of {len(tried)}', *failed[:20]])
