"""Attention of one token, drawn over the input of the network."""

from typing import List, NamedTuple, Optional, Tuple

import cv2
import numpy as np
import torch
from mmengine.model import BaseModel
from mmengine.registry import DefaultScope

from ..apis import Predictor
from ..apis.pipeline import as_bgr
from ..models.layers import BaseAttention, LinearCrossAttention
from ..models.layers.attend_calls import calls_of
from ..visualization.key_weights import key_weights, overlay, reach, stride_of

SHOWN = 512  # approximate minimum of the longer side of a shown picture, in pixels


class Attention(NamedTuple):
    """Attention map of a token."""

    picture: np.ndarray  # [H, W, 3] uint8 RGB, the input of the network, see enlarged
    text: str  # description of the picture, with numbers


def attention_layers(model: BaseModel) -> List[str]:
    """Return the names of the attentions of a model that :func:`attention_of` draws.

    Those between object queries are left out, because object queries have no place in the image.
    """
    decoder = getattr(model, 'decoder', None)
    inside = {*decoder.modules()} if decoder is not None else set()
    inside |= {m.attn for m in model.modules() if isinstance(m, LinearCrossAttention)}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, BaseAttention) and module not in inside
    ]


def attention_of(
    predictor: Predictor, image: np.ndarray, layer: str, pixel: Optional[Tuple[int, int]] = None
) -> Attention:
    """Draw the weights of all keys for the token at a pixel, as the mean over the heads.

    Args:
        predictor: predictor with the model.
        image: pixels, from ``predictor.read``.
        layer: one of :func:`attention_layers`.
        pixel: (x, y) in the returned picture; its middle by default.

    Raises:
        ValueError: the pixel is outside of the picture, or the model reads the image in crops.
    """
    attn = predictor.model.get_submodule(layer)
    batch, scope = predictor.batch_of(image), predictor.cfg.default_scope
    with DefaultScope.overwrite_default_scope(scope), torch.no_grad(), calls_of(attn) as calls:
        data = predictor.model.data_preprocessor(batch, False)
        predictor.model._run_forward(data, mode='predict')
    if len(calls) != 1:
        raise ValueError(
            f'{layer} ran {len(calls)} times: attention is drawn for models that read the image at '
            "once (test_cfg.mode='whole')"
        )
    # The network's input, in the colours before normalisation, with its padding in grey.
    inputs = as_bgr(batch['inputs'][0].permute(1, 2, 0).numpy())
    height, width = data['inputs'][0].shape[-2:]
    pad = (0, height - inputs.shape[0], 0, width - inputs.shape[1])
    seen = cv2.copyMakeBorder(inputs, *pad, cv2.BORDER_CONSTANT, value=(114,) * 3)
    rows, columns = calls[0].tokens.hw_shape  # a backbone may pad the image to whole tokens
    stride = stride_of(predictor.model, attn, (height, width), (rows, columns))
    pad = (0, max(rows * stride - height, 0), 0, max(columns * stride - width, 0))
    seen = enlarged(cv2.copyMakeBorder(seen, *pad, cv2.BORDER_CONSTANT, value=(114,) * 3))
    height, width = seen.shape[:2]
    x, y = pixel or (width // 2, height // 2)
    if not (0 <= x < width and 0 <= y < height):
        raise ValueError(f'pixel {x} {y} is not on the input of {width} x {height}')
    row, column = y * rows // height, x * columns // width
    weights = key_weights(attn, calls[0], (row, column)).mean(0)
    picture = overlay(seen, weights)
    for color, thickness in ((0, 4), (255, 2)):
        cv2.circle(picture, (x, y), max(width, height) // 60, (color,) * 3, thickness, cv2.LINE_AA)
    text = (
        f'{type(attn).__name__}: the token in row {row + 1}, column {column + 1} of {rows} x '
        f'{columns}. Red adds, blue takes away. Half of all weight is in '
        f'{100 * reach(weights):.1f}% of the keys; 50% would be uniform.'
    )
    return Attention(picture, text)


def enlarged(image: np.ndarray) -> np.ndarray:
    """Return an image (H, W, 3) enlarged by an integer factor if it is too small to look at."""
    factor = max(1, SHOWN // max(image.shape[:2]))
    return image.repeat(factor, 0).repeat(factor, 1)
