"""What finds faults has to find them."""

import time
from contextlib import suppress

import pytest

from mmlinattn.checkpoints import CheckpointError
from tests.test_faults import damage


def refuses_cleanly(read) -> str:
    """As the cases do, of a reader that takes any error of the system for damage."""
    try:
        try:
            read()
        except Exception as error:
            raise CheckpointError('damaged') from error
    except CheckpointError:
        return 'refused'
    return 'read'


def catches_all() -> None:
    with suppress(BaseException):
        time.sleep(30)


@pytest.mark.parametrize('reader', [lambda: time.sleep(30), catches_all])
def test_a_reader_that_sleeps_fails(monkeypatch, reader):
    monkeypatch.setattr(damage, 'HANGS_AFTER_S', 1)
    began = time.monotonic()
    with pytest.raises(AssertionError, match='1 of 2\nseed 7'):
        damage.try_all(lambda seed: refuses_cleanly(reader if seed == 7 else list), [3, 7])
    assert time.monotonic() - began < 20


def test_clean_refusals_and_faults(capsys):
    def damaged() -> None:
        raise OSError('cut')

    damage.try_all(lambda seed: refuses_cleanly(damaged if seed else list), [0, 1, 2])
    assert "3 tried: {'read': 1, 'refused': 2}" in capsys.readouterr().out

    def wrong(seed: int) -> str:
        assert seed != 2, 'wrong values'
        return 'read'

    with pytest.raises(AssertionError, match='seed 2: wrong values'):
        damage.try_all(wrong, [1, 2])
