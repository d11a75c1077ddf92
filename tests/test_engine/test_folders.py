"""Folders that appear when they are complete."""

import os

import pytest

from mmlinattn.utils import staged_folder


def test_a_staging_folder_that_a_killed_process_has_left_is_replaced(tmp_path):
    left = tmp_path / f'.set.partial-{os.getpid()}'
    left.mkdir()
    (left / 'old').touch()
    with staged_folder(tmp_path / 'set') as staging:
        (staging / 'new').touch()
    with pytest.raises(KeyError), staged_folder(tmp_path / 'other'):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ['set']
    assert [path.name for path in (tmp_path / 'set').iterdir()] == ['new']
