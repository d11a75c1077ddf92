import numpy as np
import pytest

from mmlinattn.utils import check_integer


@pytest.mark.parametrize('value, least', [(1, 1), (np.int64(7), 1), (0, 0), (np.uint8(3), 3)])
def test_integers(value, least):
    found = check_integer('size', value, least)
    assert found == value and type(found) is int


@pytest.mark.parametrize(
    'value, least, kind',
    [
        (0, 1, 'a positive integer'),
        (True, 1, 'a positive integer'),
        (np.float32(2), 2, 'an integer of at least 2'),
        (31, 32, 'an integer of at least 32'),
    ],
)
def test_other_values(value, least, kind):
    with pytest.raises(ValueError) as caught:
        check_integer('size', value, least)
    assert str(caught.value) == f'size must be {kind}, got {value!r}'
