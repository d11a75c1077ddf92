"""Data-loader workers at the limits of the system."""

import resource

import pytest
from torch.utils.data import Dataset

from mmlinattn.engine.runner.data_workers import MOST_OPEN_FILES, allow_open_files
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.utils.command_line import errors_in_one_line


class Unsent:
    """An object that cannot leave its process, as a tensor when shared memory is full."""

    def __reduce__(self):
        raise RuntimeError('unable to allocate shared memory')


class Images(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return Unsent()


def test_a_batch_that_cannot_be_sent_is_an_error(capsys):
    loader = PluginRunner.build_dataloader(
        dict(
            dataset=Images(),
            batch_size=1,
            num_workers=1,
            sampler=dict(type='DefaultSampler', shuffle=False),
            timeout=20,  # else this test would hang where no error comes
        )
    )
    with pytest.raises(SystemExit, match='^2$'), errors_in_one_line(debug=False):
        next(iter(loader))
    said = capsys.readouterr().err
    assert said.startswith('error: DataError: a data-loader worker cannot send a batch: unable to ')
    assert '/dev/shm has ' in said and 'num_workers=0' in said and said.count('\n') == 1


def test_as_many_open_files_as_the_hard_limit_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    many = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (many, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
