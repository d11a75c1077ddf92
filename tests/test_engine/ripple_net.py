"""A model with ripple attention on padded tokens, and the definition of what its hook logs."""

import math
from typing import Dict, List

import numpy as np
import torch
from mmengine.model import BaseModel
from scipy import stats
from scipy.spatial.distance import jensenshannon

from mmlinattn.models.layers import RippleAttention

SHAPE, EXTRA, DIMS, R = (3, 4), 1, 8, 3
LOGGED = ('first', 'block.attn')


class RippleNet(BaseModel):
    """Two ripple attentions that learn weights and one that does not, with a class token."""

    def __init__(self, spread: float = 1.0) -> None:
        super().__init__()
        self.first = RippleAttention(DIMS, 2, R)
        self.block = torch.nn.Module()
        self.block.attn = RippleAttention(DIMS, 2, R, weights='truncated', proj_drop=0.5)
        self.fixed = RippleAttention(DIMS, 2, R, weights='fixed')
        for attn in (self.first, self.block.attn):
            torch.nn.init.normal_(attn.units, std=spread)

    def forward(self, inputs, mode='tensor'):
        """inputs: (B, 1 + 12, 8); tokens whose first channel exceeds 1 are padding."""
        mask = inputs[..., 0] > 1
        x = inputs
        for attn in (self.first, self.block.attn, self.fixed):
            x = x + attn(x, SHAPE, key_padding_mask=mask, num_extra_tokens=EXTRA)
        return dict(loss=x.square().mean()) if mode == 'loss' else x


def stick(logits) -> List[float]:
    """The weights of one token, as the paper's equations 4 and 5 define them."""
    weights, left = [], 1.0
    for r in range(1, R + 1):
        s = 1 / (1 + (R - r + 1) * math.exp(-logits[r - 1]))
        weights.append(left * s)
        left *= 1 - s
    return [*weights, left]


def definition(model: RippleNet, inputs: torch.Tensor) -> Dict[str, float]:
    """What is logged for one batch, by loops over images, heads and tokens of the map."""
    fixed = [0.5**r for r in (1, 2, 3, 3)]
    values, handles = {}, []
    for name in LOGGED:
        attn = model.get_submodule(name)

        def keep(layer, args, out, name=name) -> None:
            values[name] = args[0].detach().double()  # [B, heads, N, d]

        handles.append(attn.weight_proj.register_forward_hook(keep))
    with torch.no_grad():
        model(inputs)
    for handle in handles:
        handle.remove()
    found = {}
    for name, v in values.items():
        attn = model.get_submodule(name)
        proj, units = attn.weight_proj, attn.units.detach().double().numpy()
        weight, bias = proj.weight.detach().double().numpy(), proj.bias.detach().double().numpy()
        rows = []
        for image, head, token in np.ndindex(*v.shape[:3]):
            if inputs[image, EXTRA + token, 0] > 1:
                continue
            hidden = weight @ v[image, head, token].numpy() + bias
            p = np.array(stick([hidden @ unit for unit in units[head]]))
            if name == 'block.attn':  # truncated
                p = p[:-1].tolist() + [0.0]
                p = np.array(p) / sum(p)
            rows.append(
                (jensenshannon(p, fixed) ** 2, jensenshannon(p, [0.25] * 4) ** 2, stats.entropy(p))
            )
        for measure, mean in zip(('js_fixed', 'js_uniform', 'entropy'), np.mean(rows, 0)):
            found[f'ripple/{measure}/{name}'] = float(mean)
    return found
