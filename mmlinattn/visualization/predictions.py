"""Figures of predictions beside ground truth."""

from pathlib import Path
from typing import List, Sequence, Tuple, Union

import cv2
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS
from mmengine.structures import BaseDataElement

from ..engine.model import load_model
from .files import save_figure

Color = Tuple[float, float, float]


@torch.no_grad()
def predict(cfg: Config, checkpoint: str, indices: Sequence[int]) -> List[BaseDataElement]:
    """Return data samples of test images with ground truth and prediction.

    Args:
        cfg, checkpoint: see :func:`mmlinattn.engine.model.load_model`, also for exceptions.
        indices: indices into the test dataset.
    """
    model, _ = load_model(cfg, checkpoint)
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    return [model.test_step(pseudo_collate([dataset[i]]))[0] for i in indices]


def semantic_panels(sample: BaseDataElement, image: np.ndarray) -> List[tuple]:
    """Return panels of :func:`comparison`: labels of an image (H, W, 3), true and predicted."""
    maps = (sample.gt_sem_seg, sample.pred_sem_seg)
    return [(image, labels.data[0].numpy()) for labels in maps]


def instance_panels(
    sample: BaseDataElement, image: np.ndarray, min_score: float = 0.5, first_label: int = 0
) -> List[tuple]:
    """Return panels of :func:`comparison`: objects of an image (H, W, 3), true and predicted.

    Args:
        sample: data sample of MMDetection, with masks.
        image: (H, W, 3) uint8 RGB.
        min_score: predictions with a lower score are left out.
        first_label: palette index of class 0; 1 if the palette begins with a background.
    """
    found = sample.pred_instances
    panels = []
    for instances in (sample.gt_instances, found[found.scores > min_score]):
        boxes, masks = instances.bboxes, instances.masks
        content = dict(
            labels=instances.labels.numpy() + first_label,
            boxes=getattr(boxes, 'tensor', boxes).numpy(),
            masks=np.asarray(getattr(masks, 'masks', masks)).astype(bool),
            scores=instances.get('scores'),
        )
        panels.append((image, content))
    return panels


def blend_semantic(image: np.ndarray, labels: np.ndarray, palette: Sequence) -> np.ndarray:
    """Overlay an image with the colours of its classes.

    Args:
        image: (H, W, 3) uint8 RGB.
        labels: (H, W) integer class indices; pixels with 255 are not changed.
        palette: one RGB triple in 0..255 per class.

    Returns:
        (H, W, 3) uint8.

    Example:
        >>> grey = np.full((2, 2, 3), 100, np.uint8)
        >>> blend_semantic(grey, np.zeros((2, 2), int), [(200, 0, 0)])[0, 0].tolist()
        [160, 40, 40]
    """
    table = np.zeros((256, 3), np.float32)
    table[: len(palette)] = palette
    colored = 0.4 * image + 0.6 * table[labels]
    return np.where((labels == 255)[..., None], image, colored).astype(np.uint8)


def draw_instances(axes, image: np.ndarray, instances: dict, palette: Sequence) -> None:
    """Draw masks, boxes and scores over an image.

    Args:
        axes: matplotlib axes.
        image: (H, W, 3) uint8 RGB.
        instances: ``labels`` (n,), ``boxes`` (n, 4) as x1, y1, x2, y2 in pixels, ``masks``
            (n, H, W) bool or None, ``scores`` (n,) or None.
        palette: one RGB triple in 0..255 per class.
    """
    canvas = image.astype(np.float32)
    masks = instances.get('masks')
    for i, label in enumerate(instances['labels']):
        if masks is not None:
            canvas[masks[i]] = 0.5 * canvas[masks[i]] + 0.5 * np.asarray(palette[label])
    axes.imshow(canvas.astype(np.uint8))
    scores = instances.get('scores')
    for i, (label, box) in enumerate(zip(instances['labels'], instances['boxes'])):
        x1, y1, x2, y2 = box
        color = _unit(palette[label])
        axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=color, lw=1.5))
        if scores is not None:
            axes.text(x1 + 1, y1 + 1, f'{scores[i]:.2f}', color='white', fontsize=6, va='top',
                      bbox=dict(facecolor=color, lw=0, pad=0.5))  # fmt: skip


def draw_prediction(
    image: np.ndarray,
    sample: BaseDataElement,
    classes: Sequence[str],
    palette: Sequence,
    min_score: float = 0.3,
    enlarge: int = 1,
) -> np.ndarray:
    """Draw a prediction over an image, fast enough for videos.

    Args:
        image: (H, W, 3) uint8 RGB.
        sample: prediction of MMDetection, MMSegmentation, MMPretrain or ViT-VQGAN, on the CPU.
        classes, palette: names and RGB triples in 0..255.
        min_score: objects with a lower score are left out.
        enlarge: factor F that makes text on small images readable.

    Returns:
        (F * H, F * W, 3) uint8 RGB; of ViT-VQGAN the input (h, w) of the model beside its
        reconstruction, (F * h, 2 * F * w, 3).
    """
    if 'pred_img' in sample:
        both = torch.cat([sample.gt_img, sample.pred_img], 2)
        return enlarged(both.permute(1, 2, 0).numpy(), enlarge)
    image = enlarged(image, enlarge)
    if 'pred_sem_seg' in sample:
        labels = sample.pred_sem_seg.data[0].numpy()
        return blend_semantic(image, _repeated(labels, enlarge), palette)
    if 'pred_instances' not in sample:
        best = sample.pred_score.topk(min(3, len(classes)))
        canvas = image.copy()
        y = 2
        for score, label in zip(best.values.tolist(), best.indices.tolist()):
            text = f'{classes[label]} {score:.2f}'
            y += _write(canvas, text, (2, y), palette[label])
        return canvas
    found = sample.pred_instances[sample.pred_instances.scores >= min_score]
    canvas = image.astype(np.float32)
    if 'masks' in found:
        for mask, label in zip(found.masks.numpy(), found.labels.tolist()):
            inside = _repeated(mask, enlarge)
            canvas[inside] = 0.5 * canvas[inside] + 0.5 * np.asarray(palette[label])
    canvas = canvas.astype(np.uint8)
    width = max(min(image.shape[:2]) // 300, 1)
    corners = (enlarge * found.bboxes).round().int().tolist()
    boxes = zip(corners, found.labels.tolist(), found.scores.tolist())
    for (left, top, right, bottom), label, score in boxes:
        cv2.rectangle(canvas, (left, top), (right, bottom), palette[label], width)
        text = f'{classes[label]} {score:.2f}'
        _write(canvas, text, (left, top), palette[label], above=True)
    return canvas


def enlarged(image: np.ndarray, factor: int) -> np.ndarray:
    """Return a uint8 image (H, W, 3) enlarged ``factor`` times by bilinear interpolation."""
    if factor == 1:
        return image
    return cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)


def _repeated(labels: np.ndarray, factor: int) -> np.ndarray:
    return labels.repeat(factor, 0).repeat(factor, 1)


def _write(
    canvas: np.ndarray, text: str, at: Tuple[int, int], color: Sequence[int], above: bool = False
) -> int:
    """Write a line of text on a filled box with a corner at ``at`` (x, y) and return its height.

    The box stays inside the image; the font size depends on the image size.
    """
    font, size = cv2.FONT_HERSHEY_SIMPLEX, min(max(min(canvas.shape[:2]) / 900, 0.3), 0.9)
    (width, height), below = cv2.getTextSize(text, font, size, 1)
    x = max(min(at[0], canvas.shape[1] - width - 2), 0)
    y = max(min(at[1] - (height + below + 2) * above, canvas.shape[0] - height - below - 2), 0)
    cv2.rectangle(canvas, (x, y), (x + width + 2, y + height + below + 2), tuple(color), -1)
    light = sum(color) > 420
    ink = (0, 0, 0) if light else (255, 255, 255)
    cv2.putText(canvas, text, (x + 1, y + height + 1), font, size, ink, 1, cv2.LINE_AA)
    return height + below + 2


def comparison(
    path: Union[str, Path],
    rows: Sequence[Sequence[tuple]],
    titles: Sequence[str],
    classes: Sequence[str],
    palette: Sequence,
) -> Path:
    """Write a grid of images with a legend of the classes; return the path.

    Args:
        path: PNG file to write.
        rows: rows of panels: ``(image,)`` without overlay, ``(image, labels)`` with semantic
            labels, or ``(image, instances)`` with a dict for :func:`draw_instances`.
        titles: one per column.
        classes, palette: names and RGB triples in 0..255 for the legend and all panels.

    Raises:
        ValueError: a row does not have one panel per title.
    """
    for i, row in enumerate(rows):
        if len(row) != len(titles):
            raise ValueError(f'rows[{i}] has {len(row)} panels for {len(titles)} titles')
    figure = Figure(figsize=(2.6 * len(titles), 2.6 * len(rows) + 0.9), dpi=110)
    grid = figure.subplots(len(rows), len(titles), squeeze=False)
    for i, row in enumerate(rows):
        for axes, panel, name in zip(grid[i], row, titles):
            _draw_panel(axes, panel, palette)
            axes.set_axis_off()
            if i == 0:
                axes.set_title(name, fontsize=10)
    handles: List[Patch] = [
        Patch(color=_unit(color), label=name) for name, color in zip(classes, palette)
    ]
    figure.legend(handles=handles, loc='lower center', ncols=min(len(handles), 6), fontsize=9)
    figure.tight_layout(rect=(0, 0.45 / figure.get_figheight(), 1, 1))
    return save_figure(figure, path)


def _draw_panel(axes, panel: tuple, palette: Sequence) -> None:
    image, *content = panel
    if content and isinstance(content[0], dict):
        draw_instances(axes, image, content[0], palette)
    else:
        axes.imshow(blend_semantic(image, content[0], palette) if content else image)


def _unit(color: Sequence[int]) -> Color:
    red, green, blue = color[:3]
    return red / 255, green / 255, blue / 255
