import pytest

from mmlinattn.models.layers import NystromAttention


@pytest.mark.parametrize('number', [0, -4, 10])
def test_bad_landmarks(number, dims):
    with pytest.raises(ValueError, match=f'num_landmarks must be a square number, got {number}'):
        NystromAttention(**dims, num_landmarks=number)
