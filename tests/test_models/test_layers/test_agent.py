import itertools
import math

import pytest
import torch

from mmlinattn.models.layers import AgentAttention


def resize(values, size):
    """Resize the last dim linearly, with the ends of both axes aligned by half a step."""
    old, out = values.shape[-1], []
    for i in range(size):
        place = min(max((i + 0.5) * old / size - 0.5, 0), old - 1)
        low, share = math.floor(place), place - math.floor(place)
        out.append((1 - share) * values[..., low] + share * values[..., min(low + 1, old - 1)])
    return torch.stack(out, -1)


def resize_map(maps, hw):
    return resize(resize(maps, hw[1]).mT, hw[0]).mT


def cells(size, count):
    return [slice(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]


@pytest.mark.parametrize(
    'hw, options',
    [
        ((4, 5), dict(num_agents=4, map_size=(4, 5))),
        ((6, 5), dict(num_agents=9, map_size=(3, 4), agent_grid=(2, 4))),
        ((3, 3), dict(num_agents=16, map_size=5)),  # cells overlap
        ((2, 9), dict(num_agents=1, map_size=3, agent_grid=3)),
    ],
)
def test_equals_its_definition(hw, options, layer_defined_by, depthwise, dims):
    attn = AgentAttention(**dims, **options)
    side, grid = math.isqrt(options['num_agents']), attn.agent_grid

    def bias(name, h):
        """Return (agents, H, W): resized over the map, then over the agents."""
        table, rows, columns = (
            getattr(attn, f'{name}_bias_{part}')[h] for part in ('table', 'rows', 'columns')
        )
        cross = rows[:, :, None] + columns[:, None]
        placed = resize_map(table, hw) + resize_map(cross, hw)
        placed = resize_map(
            placed.reshape(side, side, -1).permute(2, 0, 1), grid
        )  # [N, rows, columns]
        return placed.flatten(1).T.reshape(-1, *hw)

    def definition(x, real):
        q, k, v = (x @ attn.in_proj.weight.T + attn.in_proj.bias).chunk(3, -1)
        heads = []
        for h in range(2):
            q_h, k_h, v_h = (t[..., 8 * h : 8 * h + 8] for t in (q, k, v))
            agents, used = [], []
            for m, cell in enumerate(itertools.product(*map(cells, hw, grid))):
                if real[cell].any():
                    agents.append(q_h[cell][real[cell]].mean(0))
                    used.append(m)
            agents = torch.stack(agents)
            logits = agents @ k_h[real].T / 8**0.5 + bias('key', h)[used][:, real]
            collected = logits.softmax(-1) @ v_h[real]
            logits = q_h.flatten(0, 1) @ agents.T / 8**0.5 + bias('query', h)[used].flatten(1).T
            heads.append(logits.softmax(-1) @ collected)
        local = depthwise(v, real, attn.lepe.weight[:, 0]) + attn.lepe.bias
        out = torch.cat(heads, -1).view(x.shape) + local
        return out @ attn.proj.weight.T + attn.proj.bias

    layer_defined_by(attn, definition, hw)


def test_a_larger_grid_has_the_weights_of_a_smaller():
    """Test the releases: detection has more agents, with the weights of ImageNet."""
    small, large = AgentAttention(32, 2, 9), AgentAttention(32, 2, 9, agent_grid=12)
    large.load_state_dict(small.state_dict())
    x = torch.randn(1, 20 * 30, 32)
    assert large(x, (20, 30)).shape == x.shape
