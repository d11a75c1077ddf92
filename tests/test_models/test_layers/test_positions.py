import math

import pytest
import torch

from mmlinattn.models.layers import LinearAttention, build_position
from mmlinattn.models.layers import positions as module

HW = (3, 4)


def test_rotary_position_rotates_features_in_the_numerator_only(defined_by, dims):
    attn = LinearAttention(**dims, feature_map='elu+1', position='RotaryPosition')
    speeds = torch.tensor([1.0, 1e-4], dtype=torch.float64)  # 8 channels

    def definition(q, k, v, places):
        q, k = (x.clamp(max=0).exp() + x.clamp(min=0) for x in (q, k))
        total = (q @ k.mT).sum(-1, keepdim=True) + 1e-6
        way = places[:, None] - places[None]  # [n, n, 2]
        angles = (way[..., None] * speeds).flatten(2)  # [n, n, 4] pairs
        even_q, odd_q, even_k, odd_k = (x[..., i::2] for x in (q, k) for i in range(2))
        cos, sin = angles.cos(), angles.sin()
        same = even_q[:, :, None] * even_k[:, None] + odd_q[:, :, None] * odd_k[:, None]
        cross = even_q[:, :, None] * odd_k[:, None] - odd_q[:, :, None] * even_k[:, None]
        kernel = (same * cos + cross * sin).sum(-1)
        return kernel @ v / total

    defined_by(attn, definition)


def test_features_are_permuted_once_per_row_and_column(defined_by, dims):
    attn = LinearAttention(
        **dims, feature_map='elu+1', position=dict(type='PermutationPosition', seed=3)
    )
    # The permutations of one step down and of one step to the right.
    order = attn.position.feature_index((2, 2), 8, torch.device('cpu'))  # [2, 4, 8]
    start, right, down, both = order.unbind(1)
    assert (start == torch.arange(8)).all()
    assert (right[:, :4] == start[:, :4]).all() and (down[:, 4:] == start[:, 4:]).all()
    assert torch.equal(both, torch.cat([down[:, :4], right[:, 4:]], -1))
    assert not torch.equal(order[0], order[1])  # heads differ

    def definition(q, k, v, places):
        def moved(x):
            x = x.clamp(max=0).exp() + x.clamp(min=0)
            rows = []
            for i, (y, place) in enumerate(places.int().tolist()):
                features = x[:, i]
                for step, times in ((down, y), (right, place)):
                    for _ in range(times):
                        features = features.gather(-1, step)
                rows.append(features)
            return torch.stack(rows, 1)

        kernel = moved(q) @ moved(k).mT
        return kernel @ v / (kernel.sum(-1, keepdim=True) + 1e-6)

    defined_by(attn, definition)


@pytest.mark.parametrize('map_size', [(4, 5), (3, 4)])
def test_learned_position_is_added_to_the_keys(map_size, defined_by, dims):
    """Where the map has another size the positions are resized, each channel by itself."""
    attn = LinearAttention(
        **dims, feature_map='elu+1', position=dict(type='LearnedKeyPosition', map_size=map_size)
    )
    embedding = attn.position.embedding
    assert embedding.shape == (1, 2, math.prod(map_size), 8) and not embedding.any()
    torch.nn.init.normal_(embedding)

    def definition(q, k, v, places):
        channels = attn.position.embedding[0].mT.reshape(1, 16, *map_size)
        maps = torch.nn.functional.interpolate(channels, (4, 5), mode='bicubic')
        rows, columns = places.long().unbind(1)
        k = k + maps.view(2, 8, 4, 5)[:, :, rows, columns].mT
        q, k = (x.clamp(max=0).exp() + x.clamp(min=0) for x in (q, k))
        kernel = q @ k.mT
        return kernel @ v / (kernel.sum(-1, keepdim=True) + 1e-6)

    defined_by(attn, definition)


def wave_kernel(position, way):
    """Return P_d of an offset for each head and channel, [h, d]."""
    gains = (1 + position.gains.exp()).log()
    y, x = (position.frequencies.sigmoid() / 2).unbind(-1)
    signs = torch.tensor([1, -1, 1])  # of three waves
    phase = 2 * math.pi * (y * way[0] + signs * x * way[1]) + position.phases
    return (gains**2 * phase.cos()).mean(-1) / 2


def filter_kernel(position, way):
    """Return the correlation of both filters for an offset, [h, d]."""
    of_queries, of_keys = position.filters[:, 0].chunk(2)
    (rows, columns), (y, x) = position.kernel_size, way
    total = 0
    for i in range(rows):
        for j in range(columns):
            if 0 <= i + y < rows and 0 <= j + x < columns:
                total = total + of_queries[:, i, j] * of_keys[:, i + y, j + x]
    return (total + 0 * of_queries[:, 0, 0]).view(2, 4)


SPE = {
    'sine': (dict(type='SineSPE', num_sines=3), wave_kernel),
    'conv': (dict(type='ConvSPE', kernel_size=(2, 3)), filter_kernel),
}


@pytest.mark.parametrize('cfg, kernel', SPE.values(), ids=SPE.keys())
def test_expected_products_equal_the_kernel(cfg, kernel):
    position = build_position(dict(cfg, num_realizations=30000), 4, 2).eval()
    with torch.no_grad():
        for parameter in position.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        q, k = torch.randn(2, 1, 2, 12, 4).unbind()
        new_q, new_k = position.before_feature_map(q, k, HW)
        products = (new_q @ new_k.mT)[0]  # [2, 12, 12]
        gate = position.gates.sigmoid().squeeze(-1)
        expected = torch.zeros_like(products)
        for i in range(12):
            for j in range(12):
                way = (i // 4 - j // 4, i % 4 - j % 4)
                weights = gate + (1 - gate) * kernel(position, way)
                expected[:, i, j] = (q[0, :, i] * k[0, :, j] * weights).sum(-1)
        expected *= (30000 / 4) ** 0.5  # realisations over channels
    # Standard errors of means of 30,000 draws are at most 1.4 of this; 4 of them bound 288 means.
    error = new_q.norm(dim=-1)[0, :, :, None] * new_k.norm(dim=-1)[0, :, None] / 30000**0.5
    assert ((products - expected).abs() / error).max() < 5.7
    assert (expected.abs() / error).max() > 40  # the signal exceeds the noise


def test_initial_values_of_the_release():
    wave = build_position(dict(type='SineSPE', num_sines=10), 64, 16)
    for values, mean, std in (
        (wave.frequencies, -4, 1), (wave.phases, 0, 1), (wave.gates, 0, 1),
        # 2 x / sqrt(|x|) for ten normal numbers x: the mean of |x| is 3.08.
        (wave.gains, 0, 2 * (3.08 / 10) ** 0.5),
    ):  # fmt: skip
        assert abs(values.mean() - mean) < 0.1 and abs(values.std() - std) < 0.1
    filters = build_position('ConvSPE', 16, 4).filters
    assert filters.min() >= 0 and filters.max() <= 0.1  # sqrt(2 / 200)
    assert abs(filters.mean() - 0.05) < 1e-3 and abs(filters.std() - 0.1 / 12**0.5) < 1e-3


@pytest.mark.parametrize('cfg', [cfg for cfg, _ in SPE.values()], ids=SPE.keys())
def test_realisations_are_drawn_in_training_and_fixed_in_evaluation(cfg):
    position = build_position(cfg, 4, 2)
    x = torch.randn(1, 2, 12, 4)
    first, second = (position.before_feature_map(x, x, HW)[0] for _ in range(2))
    assert not torch.equal(first, second)
    position.eval()
    assert torch.equal(
        position.before_feature_map(x, x, HW)[0], position.before_feature_map(x, x, HW)[0]
    )
    other = build_position(dict(cfg, seed=1), 4, 2).eval()
    other.load_state_dict(position.state_dict())
    assert not torch.equal(
        position.before_feature_map(x, x, HW)[0], other.before_feature_map(x, x, HW)[0]
    )


@pytest.mark.parametrize('cfg', [cfg for cfg, _ in SPE.values()], ids=SPE.keys())
def test_noise_of_the_default_seed_is_not_in_the_tail(cfg, monkeypatch):
    """Test the first numbers: the hash maps seed 0 and coordinate 0 to -5.3."""
    numbers, normal = [], module.counter_based_normal
    monkeypatch.setattr(
        module, 'counter_based_normal', lambda *args: numbers.append(normal(*args)) or numbers[-1]
    )
    build_position(cfg, 4, 2).eval().before_feature_map(*torch.randn(2, 1, 2, 12, 4), HW)
    assert len(numbers) >= 2 and max(x.abs().max() for x in numbers) < 4.5


@pytest.mark.parametrize('cfg', [cfg for cfg, _ in SPE.values()], ids=SPE.keys())
def test_noise_depends_on_the_position_not_on_the_map(cfg):
    position = build_position(cfg, 4, 2).double().eval()
    x = torch.randn(1, 2, 5, 7, 4, dtype=torch.float64)
    large = position.before_feature_map(x.flatten(2, 3), x.flatten(2, 3), (5, 7))
    part = x[:, :, :3, :4].flatten(2, 3)
    for a, b in zip(large, position.before_feature_map(part, part, HW)):
        torch.testing.assert_close(a.unflatten(2, (5, 7))[:, :, :3, :4].flatten(2, 3), b)


@pytest.mark.parametrize('cfg', [cfg for cfg, _ in SPE.values()], ids=SPE.keys())
def test_gradients_of_saturated_gates(cfg):
    position = build_position(cfg, 4, 2)
    for gate in (-104, -20, 20, 104):
        position.gates.data.fill_(gate)
        q, k = position.before_feature_map(*torch.randn(2, 1, 2, 12, 4), HW)
        (gradient,) = torch.autograd.grad((q + k).square().sum(), position.gates)
        assert q.isfinite().all() and gradient.isfinite().all()


def test_noise_is_finite_for_extreme_hashes():
    """Test coordinates whose bits are nearly all ones, and all zeros."""
    ends = module.counter_based_normal(torch.tensor(0), torch.tensor([15340575, 0]))
    assert 5 < ends[0] < 6 and -6 < ends[1] < -5
    assert (ends[0] + ends[1]).abs() < 0.1


def test_noise_is_standard_normal_and_independent():
    y, x, c = torch.arange(40)[:, None, None] - 20, torch.arange(40)[:, None], torch.arange(50)
    numbers = module.counter_based_normal(torch.tensor(7), y, x, c)
    assert numbers.shape == (40, 40, 50) and torch.isfinite(numbers).all()
    assert abs(numbers.mean()) < 0.015 and abs(numbers.std() - 1) < 0.01
    assert abs((numbers**4).mean() - 3) < 0.1
    for axis in range(3):
        assert abs((numbers * numbers.roll(1, axis)).mean()) < 0.015
    assert abs((numbers * module.counter_based_normal(torch.tensor(8), y, x, c)).mean()) < 0.015


@pytest.mark.parametrize(
    'cfg, message',
    [
        ('Sine', r"position must be one of \['ConvSPE', .*'SineSPE'\], got 'Sine'"),
        ('RALA', "position must be one of .*, got 'RALA'"),
        (dict(num_sines=3), 'position must be one of .*, got None'),
        (dict(type='SineSPE', num_sines=0), 'num_sines .* 0'),
        (dict(type='SineSPE', num_realizations=-2), 'num_realizations .* -2'),
        (dict(type='LearnedKeyPosition', map_size=0), 'map_size .* 0'),
        (dict(type='ConvSPE', kernel_size=(3, 0)), 'kernel_size .* 0'),
        (dict(type='ConvSPE', kernel_size=(3, 3, 3)), r'integer, or two.* got \(3, 3, 3\)'),
    ],
)
def test_bad_options(cfg, message):
    with pytest.raises(ValueError, match=message):
        build_position(cfg, 8, 2)


@pytest.mark.parametrize(
    'cfg, message',
    [
        ('LearnedKeyPosition', r"^position=dict\(type='LearnedKeyPosition', ...\) needs map_size$"),
        (dict(type='SineSPE', num_waves=9), "^position: SineSPE has no option 'num_waves'"),
    ],
)
def test_wrong_names_of_options(cfg, message):
    with pytest.raises(TypeError, match=message):
        build_position(cfg, 8, 2)


def test_rotary_position_needs_a_multiple_of_four_features(dims):
    attn = LinearAttention(12, 2, feature_map='elu+1', position='RotaryPosition')
    with pytest.raises(ValueError, match='multiple of 4 .* got 6'):
        attn(torch.randn(1, 4, 12), (2, 2))
