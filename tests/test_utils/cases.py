"""Inputs of the operators: small, awkward, repeatable."""

import torch


def boxes_with_ties(seed: int):
    """Boxes (N, 4), scores (N,), classes (N,), threshold: equal boxes, scores and exact IoUs."""
    g = torch.Generator().manual_seed(seed)
    n = int(torch.randint(0, 120, (), generator=g))
    if seed % 2:  # whole pixels: the IoU of many pairs is just the threshold
        corners = torch.randint(0, 12, (n, 2), generator=g).float()
        sizes = torch.randint(0, 8, (n, 2), generator=g).float()
    else:
        corners = torch.rand(n, 2, generator=g) * 60
        sizes = torch.rand(n, 2, generator=g) * 40
    boxes = torch.cat([corners, corners + sizes], 1)
    if n:
        boxes = boxes[torch.randint(0, n, (n,), generator=g)]
    scores = torch.randint(0, 9, (n,), generator=g) / 10
    classes = torch.randint(0, 4, (n,), generator=g)
    return boxes, scores, classes, (0.3, 0.5, 0.6, 0.7, 1 / 3)[seed % 5]


def rois_case(seed: int, dtype=torch.float32):
    """Features (2, 3, 9, 11) and regions (7, 5): inside, outside, larger, without area."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, 9, 11, generator=g, dtype=dtype)
    low = torch.rand(7, 2, generator=g, dtype=dtype) * 60 - 10
    high = low + torch.rand(7, 2, generator=g, dtype=dtype) * 50
    low[0], high[0] = -20, 200
    high[1] = low[1]
    low[2], high[2] = 300, 320
    index = torch.randint(0, 2, (7, 1), generator=g).to(dtype)
    return x, torch.cat([index, low, high], 1)


def attention_case(dtype=torch.float32):
    """value, shapes, starts, locations, weights of two maps; some locations are outside."""
    g = torch.Generator().manual_seed(0)
    shapes = torch.tensor([[6, 5], [3, 2]])
    starts = torch.tensor([0, 30])
    value = torch.randn(2, 36, 3, 4, generator=g, dtype=dtype)
    locations = torch.rand(2, 7, 3, 2, 5, 2, generator=g, dtype=dtype) * 1.4 - 0.2
    weights = torch.rand(2, 7, 3, 2, 5, generator=g, dtype=dtype)
    return value, shapes, starts, locations, weights
