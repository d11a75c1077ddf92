"""The pseudo-inverse between landmarks, which all forms share."""

import torch
from torch import Tensor


def iterative_inverse(x: Tensor, iterations: int) -> Tensor:
    """Approximate pseudo-inverse of (..., M, M) by a third-order iteration (equation 14)::

        Z <- Z (13 I - X Z (15 I - X Z (7 I - X Z))) / 4,    Z = X^T / (|X|_1 |X|_inf) at first

    The start is scaled for each matrix by itself, so that an image does not change another.

    Example:
        >>> x = torch.eye(3) + 0.1
        >>> torch.allclose(iterative_inverse(x, 6) @ x, torch.eye(3), atol=1e-5)
        True
    """
    size = x.abs()
    scale = size.sum(-2).amax(-1) * size.sum(-1).amax(-1)
    z = x.transpose(-2, -1) / scale[..., None, None]
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    for _ in range(iterations):
        product = x @ z
        z = z @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return z
