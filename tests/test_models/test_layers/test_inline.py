import pytest
import torch
import torch.nn.functional as F

from mmlinattn.models.layers import InLineAttention

FEATURES = dict(
    identity=lambda x: x,
    relu=lambda x: x.clamp(min=0),
    leaky_relu=lambda x: x.where(x > 0, x / 100),
    exp=lambda x: (x / 5).exp(),
)


@pytest.mark.parametrize('feature_map', FEATURES)
def test_equals_its_definition(feature_map, layer_defined_by, depthwise, dims):
    attn, phi = InLineAttention(**dims, feature_map=feature_map), FEATURES[feature_map]

    def definition(x, real):
        count = int(real.sum())
        q, k, v = (x @ attn.in_proj.weight.T + attn.in_proj.bias).chunk(3, -1)
        heads = []
        for h in range(2):
            part = slice(8 * h, 8 * h + 8)
            q_h, k_h, v_h = phi(q[..., part]).flatten(0, 1), phi(k[real][:, part]), v[real][:, part]
            similarity = q_h @ k_h.T / 8**0.5 / count
            weights = similarity - similarity.mean(1, keepdim=True) + 1 / count
            heads.append(weights @ v_h)
        first, _, second = attn.local_weights
        mean = x[real].mean(0).view(2, 8)  # two groups of channels
        hidden = torch.einsum('hi,hoi->ho', mean, first.weight.view(2, 8, 8)) + first.bias.view(
            2, 8
        )
        kernel = torch.einsum('hi,hoi->ho', F.gelu(hidden), second.weight.view(2, 72, 8))
        kernel = (kernel + second.bias.view(2, 72)).reshape(16, 3, 3)
        out = torch.cat(heads, -1).view(x.shape) + depthwise(v, real, kernel)
        return out @ attn.proj.weight.T + attn.proj.bias

    layer_defined_by(attn, definition)
