"""Decoders of SMCA, DINO and Mask2Former with linear attention, and their training on Shapes."""

import pytest
import torch
from mmcv.cnn.bricks.transformer import MultiheadAttention
from mmdet.models import DETR
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.optim import OptimWrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope

from mmlinattn.app import attention_layers
from mmlinattn.models.detectors import DETRWithAttention
from mmlinattn.models.detectors.detr_attention import Mask2FormerHeadWithAttention
from mmlinattn.models.detectors.smca_decoder import Memory, SMCADecoder
from mmlinattn.models.layers import LinearCrossAttention
from mmlinattn.visualization.attention_maps import record
from tests.sizes import size

C, HEADS = 32, 4
LINEAR = dict(type='LinearCrossAttention', attn_cfg='MALA')
CONFIGS = {
    'smca-mala': 'decoder.layers.{}.cross_attn',
    'dino-mala': 'decoder.layers.{}.self_attn',
    'mask2former-mala': 'panoptic_head.transformer_decoder.layers.{}.self_attn',
    'mask2former-mala-unmasked': 'panoptic_head.transformer_decoder.layers.{}.cross_attn',
}


def load(root, shapes_root, name):
    cfg = Config.fromfile(root / f'configs/linear_decoders/{name}_nano_shapes.py')
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
        model.init_weights()
        dataset = dict(cfg.train_dataloader.dataset, data_root=f'{shapes_root}/coco/')
        dataset['pipeline'] = [t for t in dataset['pipeline'] if t['type'] != 'RandomFlip']
        dataset = DATASETS.build(dataset)
    return model, dataset


@pytest.mark.parametrize('name', CONFIGS)
@pytest.mark.long
def test_training_on_shapes(root, shapes_root, name):
    """Losses fall, every parameter learns, and predictions are finite."""
    torch.manual_seed(0)
    model, dataset = load(root, shapes_root, name)
    for i in range(3):
        assert type(model.get_submodule(CONFIGS[name].format(i))) is LinearCrossAttention
    before = {name: value.clone() for name, value in model.named_parameters()}
    wrapper = OptimWrapper(
        torch.optim.AdamW(model.parameters(), lr=5e-4), clip_grad=dict(max_norm=1.0)
    )
    losses = []
    for _ in range(size(6, 60)):
        torch.manual_seed(1)  # the same noise on denoising queries, the same points of masks
        batch = pseudo_collate([dataset[i] for i in range(2)])
        losses.append(model.train_step(batch, wrapper)['loss'].item())
    assert losses[-1] < size(95, 75) / 100 * losses[0], losses
    still = [name for name, value in model.named_parameters() if value.equal(before[name])]
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    assert still == frozen
    batch = pseudo_collate([dataset[0]])
    batch['data_samples'][0].set_metainfo(dict(scale_factor=(1.0, 1.0)))
    results = model.eval().test_step(batch)
    assert results[0].pred_instances.scores.isfinite().all()


def test_masks_of_mask2former_are_refused(root):
    cfg = Config.fromfile(root / 'configs/linear_decoders/mask2former_nano_shapes.py')
    cfg.model.panoptic_head.type = 'Mask2FormerHeadWithAttention'
    cfg.model.panoptic_head.transformer_decoder.layer_cfg.cross_attn_cfg.update(LINEAR)
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
    sample = DetDataSample(metainfo=dict(batch_input_shape=(64, 64), img_shape=(64, 64)))
    with pytest.raises(ValueError, match='Replace self_attn_cfg only, or set ignore_attn_mask'):
        model.eval()._forward(torch.zeros(1, 3, 64, 64), [sample])


def dino(root, **layer_cfg):
    cfg = Config.fromfile(root / 'configs/linear_decoders/dino_nano_shapes.py')
    decoder = dict(layer_cfg=layer_cfg)
    cfg.merge_from_dict(dict(model=dict(type='DINOWithAttention', decoder=decoder)))
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(cfg.model)


def test_only_an_attention_with_a_type_changes(root):
    assert type(dino(root).decoder.layers[0].self_attn) is MultiheadAttention
    layer = dino(root, self_attn_cfg=dict(LINEAR, dropout=0.1)).decoder.layers[2]
    assert type(layer.self_attn) is LinearCrossAttention
    assert layer.self_attn.dropout[1].p == 0.1
    with pytest.raises(TypeError, match='MultiScaleDeformableAttention there, which cannot be'):
        dino(root, cross_attn_cfg=LINEAR)


@pytest.mark.parametrize('attn_cfg', ['RWGKA', 'LinearAttention', 'PolaFormerAttention'])
@pytest.mark.parametrize('name', ['dino-mala', 'mask2former-mala'])
def test_initial_weights_of_attentions(root, name, attn_cfg):
    """MMDetection's Xavier distribution of all matrices is that of projections alone."""
    cfg = Config.fromfile(root / f'configs/linear_decoders/{name}_nano_shapes.py')
    place = CONFIGS[name].format('0')
    decoder = cfg.model.get('panoptic_head', cfg.model)
    decoder = decoder.get('transformer_decoder') or decoder.decoder
    decoder.layer_cfg.self_attn_cfg.attn_cfg = attn_cfg
    with DefaultScope.overwrite_default_scope('mmdet'):
        model = MODELS.build(cfg.model)
        attn = model.get_submodule(place).attn
        before = {name: value.clone() for name, value in attn.named_parameters()}
        model.init_weights()
    changed = {n for n, value in attn.named_parameters() if not value.equal(before[n])}
    assert changed == {'in_proj.weight', 'proj.weight'} and len(before) > 4


def test_encoder_and_decoder_of_detr(monkeypatch):
    sizes = dict(embed_dims=C, num_heads=HEADS)
    ffn = dict(embed_dims=C, feedforward_channels=48)
    attention = dict(sizes, **dict(LINEAR, attn_cfg='RWGKA'))
    detr = DETRWithAttention.__new__(DETRWithAttention)
    torch.nn.Module.__init__(detr)
    detr.positional_encoding, detr.num_queries = dict(num_feats=C // 2), 5
    detr.encoder = dict(num_layers=1, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn))
    layer = dict(self_attn_cfg=sizes, cross_attn_cfg=attention, ffn_cfg=ffn)
    detr.decoder = dict(num_layers=1, layer_cfg=layer)
    detr._init_layers()
    assert type(detr.encoder.layers[0].self_attn) is LinearCrossAttention
    assert type(detr.decoder.layers[0].self_attn) is MultiheadAttention
    assert type(detr.decoder.layers[0].cross_attn) is LinearCrossAttention
    # MMDetection's changes every matrix.
    monkeypatch.setattr(
        DETR, 'init_weights', lambda self: [p.data.zero_() for p in self.parameters()]
    )
    detr.init_weights()
    for layer in (detr.encoder.layers[0].self_attn, detr.decoder.layers[0].cross_attn):
        assert layer.attn.anchors_q.any() and not layer.attn.in_proj.weight.any()


@pytest.mark.parametrize('name', ['smca-mala', 'dino-mala'])
def test_queries_of_a_decoder_have_no_view(root, shapes_root, name):
    model, _ = load(root, shapes_root, name)
    assert not [name for name in attention_layers(model) if 'decoder' in name]
    message = 'no maps to draw|must be an SMCA detector, .*key-weights'
    with pytest.raises((TypeError, ValueError), match=message):
        record(model).__enter__()


def test_smca_builds_cross_attention_as_detr_layers_do():
    sizes = dict(embed_dims=C, num_heads=HEADS, feedforward_channels=48)
    mmcv = SMCADecoder(1, dict(sizes, cross_attn_cfg=dict(type='MultiheadAttention')))
    memory = Memory(torch.randn(2, 30, C), (5, 6), torch.randn(2, 30, C))
    states, _ = mmcv(*torch.randn(2, 2, 6, C), memory, torch.full((2, 2), 160.0))
    assert states.shape == (1, 2, 6, C)
    for wrong in ('RALA', dict(type='RALA'), dict(attn_cfg='RALA')):
        with pytest.raises(TypeError, match='cross_attn_cfg must .*LinearCrossAttention.*, got'):
            SMCADecoder(1, dict(sizes, cross_attn_cfg=wrong))


def test_smca_without_modulation_ignores_padding():
    sizes = dict(embed_dims=C, num_heads=HEADS, feedforward_channels=48, dropout=0.0)
    decoder = SMCADecoder(2, dict(sizes, cross_attn_cfg=LINEAR)).double().eval()
    assert not [name for name, _ in decoder.named_parameters() if 'offset' in name]
    query, query_pos = torch.randn(2, 2, 6, C).double()
    tokens, pos = torch.randn(2, 2, 30, C).double()
    mask = torch.zeros(2, 5, 6, dtype=torch.bool)
    mask[1, :, 4:] = True
    image_sizes = torch.tensor([[192.0, 160.0], [128.0, 160.0]]).double()
    states, points = decoder(
        query, query_pos, Memory(tokens, (5, 6), pos, mask.flatten(1)), image_sizes
    )
    real = ~mask[1].flatten()
    alone = Memory(tokens[1:, real], (5, 4), pos[1:, real])
    expected = decoder(query[1:], query_pos[1:], alone, image_sizes[1:])
    torch.testing.assert_close(states[:, 1:], expected[0])
    torch.testing.assert_close(points[1:], expected[1])


def test_masks_are_compared_in_float32(monkeypatch):
    """AmpOptimWrapper has the whole loss in float16; the costs of a mask sum 12,544 points."""
    given = []
    base = next(c for c in Mask2FormerHeadWithAttention.__mro__[2:] if 'loss_by_feat' in vars(c))
    monkeypatch.setattr(base, 'loss_by_feat', lambda self, *args: given.extend(args))
    head = Mask2FormerHeadWithAttention.__new__(Mask2FormerHeadWithAttention)
    x = torch.zeros(1, 5, 8, dtype=torch.float16)
    head.loss_by_feat([x], [x, x], 'instances', 'metas')
    scores, masks, *rest = given
    assert {t.dtype for t in (*scores, *masks)} == {torch.float32}
    assert rest == ['instances', 'metas']
