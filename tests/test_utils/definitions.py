"""What the operators are, in float64 and plain loops."""

import math
from typing import List

import numpy as np
import torch
from torch import Tensor


def iou(a: np.ndarray, b: np.ndarray) -> float:
    """IoU of two boxes, in float32 as mmcv: a threshold is met exactly or not."""
    area_a = (a[2] - a[0]) * (a[3] - a[1])
    area_b = (b[2] - b[0]) * (b[3] - b[1])
    width = max(np.float32(0), min(a[2], b[2]) - max(a[0], b[0]))
    height = max(np.float32(0), min(a[3], b[3]) - max(a[1], b[1]))
    shared = width * height
    union = area_a + area_b - shared
    return shared / union if union else 0.0


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> List[int]:
    order, kept = scores.sort(0, descending=True)[1].tolist(), []
    rows = boxes.numpy()
    for i in order:
        if not any(iou(rows[j], rows[i]) > np.float32(threshold) for j in kept):
            kept.append(i)
    return kept


def axis_weights(start, size, bins, pixels, sampling_ratio) -> Tensor:
    """(bins, pixels): how much each pixel of an axis counts in each bin of RoIAlign."""
    weights = torch.zeros(bins, pixels, dtype=torch.float64)
    samples = sampling_ratio if sampling_ratio > 0 else math.ceil(size / bins)
    for i in range(bins):
        for k in range(samples):
            at = start + (i + (k + 0.5) / samples) * size / bins
            if -1 <= at <= pixels:
                at = min(max(at, 0), pixels - 1)
                low = int(at)
                weights[i, low] += (1 - (at - low)) / samples
                weights[i, min(low + 1, pixels - 1)] += (at - low) / samples
    return weights


def roi_align(x, rois, height, width, scale, sampling_ratio, aligned) -> Tensor:
    out = []
    for index, *corners in rois.tolist():
        x1, y1, x2, y2 = (corner * scale - 0.5 * aligned for corner in corners)
        least = 0 if aligned else 1
        rows = axis_weights(y1, max(y2 - y1, least), height, x.shape[2], sampling_ratio)
        columns = axis_weights(x1, max(x2 - x1, least), width, x.shape[3], sampling_ratio)
        out.append(rows @ x[int(index)] @ columns.T)
    return torch.stack(out)


def focal_loss(x, target, weight, gamma, alpha) -> Tensor:
    loss = torch.zeros_like(x)
    for i in range(len(x)):
        for c in range(x.shape[1]):
            p = torch.sigmoid(x[i, c])
            if target[i] == c:
                loss[i, c] = -alpha * (1 - p) ** gamma * p.log()
            else:
                loss[i, c] = -(1 - alpha) * p**gamma * (1 - p).log()
        if weight is not None and 0 <= target[i] < x.shape[1]:
            loss[i] = loss[i] * weight[target[i]]
    return loss
