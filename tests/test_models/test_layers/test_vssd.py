import pytest
import torch
import torch.nn.functional as F

from mmlinattn.models.layers import VSSDAttention


@pytest.mark.parametrize('groups, expand', [(1, 2), (2, 1)])
def test_equals_its_definition(groups, expand, layer_defined_by, depthwise):
    heads, inner, state = 4, 16 * expand, 6
    attn = VSSDAttention(
        16, heads, expand=expand, state_dims=state, num_groups=groups, qkv_bias=True
    )

    def definition(x, real):
        widths = [inner, inner, groups * state, groups * state, heads]
        z, v, k, q, dt = (x @ attn.in_proj.weight.T + attn.in_proj.bias).split(widths, -1)
        vkq = torch.cat([v, k, q], -1)
        vkq = depthwise(vkq, real, attn.conv.weight[:, 0]) + attn.conv.bias
        v, k, q = (vkq / (1 + (-vkq).exp())).split(widths[1:4], -1)
        dim, parts = inner // heads, []
        for h in range(heads):
            v_h = v[..., h * dim : h * dim + dim]
            group = slice(h % groups * state, h % groups * state + state)
            step = (1 + (dt[..., h] + attn.dt_bias[h]).exp()).log() * attn.A_log[h].exp()
            weights = q[..., group].flatten(0, 1) @ k[real][:, group].T * step[real]
            parts.append(weights @ v_h[real] + attn.D[h] * v_h.flatten(0, 1))
        y = F.layer_norm(torch.cat(parts, -1), (inner,), attn.norm.weight, attn.norm.bias)
        return (y * z.flatten(0, 1) @ attn.proj.weight.T).view(x.shape)

    layer_defined_by(attn, definition)


def test_initial_steps_and_decays():
    attn = VSSDAttention(64, 32)
    step, decay = F.softplus(attn.dt_bias), attn.A_log.exp()
    assert step.min() >= 0.99e-3 and step.max() <= 0.101 and step.std() > 0
    assert decay.min() >= 1 and decay.max() <= 16 and (attn.D == 1).all()


def test_large_sums_under_float16():
    """Test sums beyond 65,504, which the norm takes back."""
    attn, x = VSSDAttention(32, 2), 8 * torch.randn(1, 4096, 32)
    attn.A_log.data.fill_(5)
    exact = attn(x, (64, 64))
    with torch.autocast('cpu', dtype=torch.float16):
        out = attn(x, (64, 64))
    assert (out.float() - exact).norm() < 1e-2 * exact.norm()
