import pytest
import torch

from mmlinattn.models.layers import PolaFormerAttention


@pytest.mark.parametrize('alpha, map_size', [(4, None), (2.5, (4, 5))])
def test_equals_its_definition(alpha, map_size, layer_defined_by, depthwise, dims):
    attn = PolaFormerAttention(**dims, alpha=alpha, map_size=map_size)

    def definition(x, real):
        q, k, v, gate = (x @ attn.in_proj.weight.T + attn.in_proj.bias).chunk(4, -1)
        heads, features = [], attn.feature_map
        for h in range(2):
            part = slice(8 * h, 8 * h + 8)
            q_h, k_h, v_h = (t[..., part] for t in (q, k, v))
            if map_size:
                k_h = k_h + attn.position.embedding[0, h].view(4, 5, 8)
            scale = (1 + features.scale[h, 0].exp()).log()
            power = 1 + alpha / (1 + (-features.power[h, 0]).exp())

            def phi(y, sign, scale=scale, power=power):
                y = sign * y / scale
                return (y.where(y > 0, 1) ** power).where(y > 0, 0)

            plus, minus = (phi(q_h, sign).flatten(0, 1) for sign in (1, -1))
            keys_plus, keys_minus = (phi(k_h[real], sign) for sign in (1, -1))
            for j, similarity in enumerate(
                (
                    plus @ keys_plus.T + minus @ keys_minus.T,
                    minus @ keys_plus.T + plus @ keys_minus.T,
                )
            ):
                below = similarity.sum(1, keepdim=True) + real.sum() * 1e-6
                heads.append(similarity / below @ v_h[real][:, 4 * j : 4 * j + 4])
        kernel = attn.lepe.weight[:, 0].repeat(2, 1, 1)
        local = depthwise(v, real, kernel) + attn.lepe.bias.repeat(2)
        out = (torch.cat(heads, -1).view(x.shape) + local) * gate
        return out @ attn.proj.weight.T + attn.proj.bias

    layer_defined_by(attn, definition)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_cubes_that_exceed_float16(dtype):
    attn = PolaFormerAttention(32, 2)
    x = (60 * torch.randn(1, 20, 32)).requires_grad_()
    exact = attn(x, (4, 5))
    with torch.autocast('cpu', dtype=dtype):
        out = attn(x, (4, 5))
    gradients = torch.autograd.grad(out.float().sum(), [x, *attn.parameters()])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert (out.float() - exact).norm() < 0.03 * exact.norm()
