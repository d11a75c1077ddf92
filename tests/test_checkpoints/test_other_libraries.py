"""Weights of timm and transformers: names by rule, outputs where the library is installed."""

import contextlib
import io

import pytest
import torch
from mmengine.hub import get_config
from torch import nn
from torch.nn.functional import linear

from mmlinattn.checkpoints import (
    CheckpointError,
    check_fits,
    compare,
    load_state_dict,
    save_checkpoint,
)
from mmlinattn.checkpoints.converters import convert, kind_of
from mmlinattn.engine import build_model
from mmlinattn.models.backbones import MixTransformer, Swin, ViT
from tests.foundation_models import renamed
from tests.recordings import assert_near, below

ARCH = dict(embed_dims=32, num_heads=2, depth=3, patch_size=8)
MIT = dict(embed_dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))
SWIN = dict(embed_dims=(8, 16, 32, 64), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8))
CONVIT = [dict(type=f'{kind}Attention', qkv_bias=False) for kind in ('GatedPositional', 'Softmax')]


def randomise(model: nn.Module) -> nn.Module:
    for name, value in model.named_parameters():
        nn.init.normal_(value, float(value.dim() == 1 and name.endswith('weight')), 0.2)
    for name, value in model.named_buffers():
        if name.endswith('running_var'):
            value.uniform_(0.5, 1.5)
    return model.eval()


def split_qkv(state_dict: dict, name: str, parts: list) -> dict:
    """Replace each fused projection by those of queries, keys and values."""
    found = {}
    for key, value in state_dict.items():
        before, fused, after = key.rpartition(name)
        pieces = value.chunk(3) if fused else [value]
        names = [before + part + after for part in parts] if fused else [key]
        found.update(zip(names, pieces))
    return found


QKV = ['query.', 'key.', 'value.']
TRANSFORMERS_VIT = (
    (r'^embed\.proj', 'vit.embeddings.patch_embeddings.projection'),
    (r'^embed\.cls_token', 'vit.embeddings.cls_token'),
    (r'^embed\.pos_embed', 'vit.embeddings.position_embeddings'),
    (r'^layers\.(\d+)\.', r'vit.encoder.layer.\1.'),
    (r'attn\.in_proj\.', 'attention.attention.in_proj.'),
    (r'attn\.proj\.', 'attention.output.dense.'),
    (r'norm1\.', 'layernorm_before.'), (r'norm2\.', 'layernorm_after.'),
    (r'ffn\.fc1\.', 'intermediate.dense.'), (r'ffn\.fc2\.', 'output.dense.'),
    (r'^norm\.', 'vit.layernorm.'), (r'^head\.fc', 'classifier'),
)  # fmt: skip
TIMM_VIT = (
    (r'^embed\.proj', 'patch_embed.proj'), (r'^embed\.', ''), (r'^layers\.', 'blocks.'),
    (r'attn\.in_proj', 'attn.qkv'), (r'ffn\.', 'mlp.'), (r'^head\.fc', 'head'),
)  # fmt: skip
MMPRETRAIN_VIT = (
    (r'^embed\.proj', 'backbone.patch_embed.projection'), (r'^embed\.', 'backbone.'),
    (r'^layers\.', 'backbone.layers.'), (r'attn\.in_proj', 'attn.qkv'),
    (r'ffn\.fc1', 'ffn.layers.0.0'), (r'ffn\.fc2', 'ffn.layers.1'),
    (r'norm([12])\.', r'ln\1.'), (r'^norm\.', 'backbone.ln1.'),
    (r'gamma1$', 'attn.gamma1.weight'), (r'gamma2$', 'ffn.gamma2.weight'),
    (r'^head\.fc', 'head.layers.head'),
)  # fmt: skip
TRANSFORMERS_MIT = (
    (r'^patch_embeds\.(\d)\.proj', r'segformer.encoder.patch_embeddings.\1.proj'),
    (r'^patch_embeds\.(\d)\.norm', r'segformer.encoder.patch_embeddings.\1.layer_norm'),
    (r'^norms\.', 'segformer.encoder.layer_norm.'),
    (r'^stages\.(\d)\.(\d+)\.', r'segformer.encoder.block.\1.\2.'),
    (r'\.norm([12])\.', r'.layer_norm_\1.'),
    (r'attn\.(in_proj|sr)\.', r'attention.self.\1.'),
    (r'attn\.norm\.', 'attention.self.layer_norm.'),
    (r'attn\.proj\.', 'attention.output.dense.'),
    (r'ffn\.fc([12])\.', r'mlp.dense\1.'), (r'ffn\.dwconv\.', 'mlp.dwconv.dwconv.'),
    (r'^head\.fc', 'classifier'),
)  # fmt: skip
TRANSFORMERS_SWIN = (
    (r'^patch_embed\.proj', 'swin.embeddings.patch_embeddings.projection'),
    (r'^patch_embed\.norm', 'swin.embeddings.norm'),
    (r'^merges\.(\d)\.', r'swin.encoder.layers.\1.downsample.'),
    (r'^stages\.(\d)\.(\d+)\.', r'swin.encoder.layers.\1.blocks.\2.'),
    (r'attn\.in_proj\.', 'attention.self.in_proj.'), (r'attn\.proj\.', 'attention.output.dense.'),
    (r'attn\.relative_bias', 'attention.self.relative_position_bias_table'),
    (r'norm1\.', 'layernorm_before.'), (r'norm2\.', 'layernorm_after.'),
    (r'ffn\.fc1\.', 'intermediate.dense.'), (r'ffn\.fc2\.', 'output.dense.'),
    (r'^out_norms\.3\.', 'swin.layernorm.'), (r'^head\.fc', 'classifier'),
)  # fmt: skip
RELEASED_SWIN = (
    (r'^stages\.(\d)\.(\d+)\.', r'layers.\1.blocks.\2.'), (r'attn\.in_proj', 'attn.qkv'),
    (r'ffn\.', 'mlp.'), ('relative_bias', 'relative_position_bias_table'),
    (r'^out_norms\.3\.', 'norm.'),
)  # fmt: skip
SKIPPED_BUFFERS = {
    'layers.0.blocks.0.attn.relative_position_index': torch.zeros(49, 49),
    'layers.0.blocks.1.attn_mask': torch.zeros(4, 49, 49),
}
# Model, source, rules from its names to those of the library, names of its projections.
NAMED = {
    'transformers ViT': (lambda: ViT(ARCH, img_size=48), 'vit', TRANSFORMERS_VIT,
                         ('attention.attention.in_proj.', 'attention.attention.')),
    'transformers SegFormer': (lambda: MixTransformer(MIT), 'mit', TRANSFORMERS_MIT,
                               ('self.in_proj.', 'self.')),
    'transformers Swin': (lambda: Swin(SWIN, window_size=3, out_indices=(3,)), 'swin',
                          TRANSFORMERS_SWIN, ('self.in_proj.', 'self.')),
    'Swin': (lambda: Swin(SWIN, out_indices=(3,)), 'swin',
             (*RELEASED_SWIN, (r'^merges\.(\d)', r'layers.\1.downsample'),
              (r'^head\.fc', 'head')), None),
    # timm counts merging with the next stage.
    'timm Swin': (lambda: Swin(SWIN, out_indices=(3,)), 'swin',
                  (*RELEASED_SWIN, (r'^merges\.0', 'layers.1.downsample'),
                   (r'^merges\.1', 'layers.2.downsample'),
                   (r'^merges\.2', 'layers.3.downsample')), None),
    'timm ViT': (lambda: ViT(ARCH, img_size=48), 'vit', TIMM_VIT, None),
    'timm DeiT': (lambda: ViT(ARCH, img_size=48), 'deit', TIMM_VIT, None),
    'DINOv2 of timm': (lambda: ViT(ARCH, img_size=48, layer_scale_init=1e-5), 'vit',
                       (*TIMM_VIT, (r'gamma([12])$', r'ls\1.gamma')), None),
    'DeiT III': (lambda: ViT(ARCH, img_size=48, layer_scale_init=1e-4), 'deit',
                 (*TIMM_VIT, (r'gamma([12])$', r'gamma_\1')), None),
    'MMPretrain': (lambda: ViT(ARCH, img_size=48, layer_scale_init=1e-4), 'vit',
                   MMPRETRAIN_VIT, None),
    'ConViT': (lambda: ViT(ARCH, [CONVIT[0], CONVIT[0], CONVIT[1]], 48, cls_token_from=2), 'convit',
               (*TIMM_VIT, (r'attn\.gates', 'attn.gating_param'),
                (r'attn\.positions', 'attn.pos_proj.weight')), None),
}  # fmt: skip


@pytest.mark.parametrize('case', NAMED)
def test_names(case, tmp_path):
    build, source, rules, projections = NAMED[case]
    model = randomise(build())
    state = dict(model.state_dict(), **{'head.fc.weight': torch.randn(9, 8)})
    theirs = renamed({k: v for k, v in state.items() if not k.endswith('pos_grid')}, *rules)
    if projections:
        fused, prefix = projections
        theirs = split_qkv(theirs, fused, [prefix + part for part in QKV])
    if case == 'ConViT':
        for i in (0, 1):
            value = theirs.pop(f'blocks.{i}.attn.qkv.weight')
            theirs[f'blocks.{i}.attn.qk.weight'], theirs[f'blocks.{i}.attn.v.weight'] = (
                value[:64], value[64:]
            )  # fmt: skip
            theirs[f'blocks.{i}.attn.pos_proj.bias'] = torch.zeros(2)
    if 'Swin' in case and not projections:
        theirs.update(SKIPPED_BUFFERS)
    expected = {k if k.startswith('head') else f'backbone.{k}': v for k, v in state.items()}
    torch.testing.assert_close(convert(theirs, source=source), expected, rtol=0, atol=0)
    # Given without conversion, the message has the source.
    save_checkpoint(tmp_path / 'a.pth', theirs, {})
    whole = nn.ModuleDict(dict(backbone=model))
    known = {'deit', 'vit'} if source in ('deit', 'vit') else {source}
    for call in (dict(module=whole), dict(module=model, prefix='backbone.')):
        with pytest.raises(CheckpointError, match='Convert it first') as found:
            check_fits(tmp_path / 'a.pth', **call)
        assert str(found.value).rpartition(' ')[2] in known
    save_checkpoint(tmp_path / 'b.pth', convert(theirs, source=source), {})
    assert not check_fits(tmp_path / 'b.pth', whole).missing


@pytest.mark.parametrize(
    'rules, head', [(TIMM_VIT, 'head_dist'), (MMPRETRAIN_VIT, 'head.layers.head_dist')]
)
def test_distilled_deit_loses_its_distillation_token(rules, head, capsys):
    state = dict(randomise(ViT(ARCH, img_size=48)).state_dict())
    expected = {f'backbone.{name}': value for name, value in state.items()}
    del state['embed.pos_grid']
    first, places = state['embed.pos_embed'].split([1, 36], 1)
    state['embed.pos_embed'] = torch.cat([first, torch.zeros_like(first), places], 1)
    state['embed.dist_token'] = torch.zeros(1, 1, 32)
    theirs = {**renamed(state, *rules), f'{head}.weight': torch.zeros(9, 32)}
    torch.testing.assert_close(convert(theirs, source='deit'), expected, rtol=0, atol=0)
    assert 'left out 2 parts of the distillation' in capsys.readouterr().out


def test_a_class_token_without_position():
    model = randomise(ViT(ARCH, img_size=48, layer_scale_init=1e-4))
    with torch.no_grad():
        model.embed.pos_embed[:, 0] = 0
    theirs = renamed(model.state_dict(), *TIMM_VIT, (r'gamma([12])$', r'ls\1.gamma'))
    theirs.pop('pos_grid')
    theirs['pos_embed'] = theirs['pos_embed'][:, 1:]  # timm's no_embed_class
    assert torch.equal(
        below(convert(theirs, 'vit'), 'backbone.')['embed.pos_embed'], model.embed.pos_embed
    )


@pytest.mark.parametrize(
    'name, model',
    [
        ('layers.0.blocks.0.attn.logit_scale', 'Swin V2'), ('fc_norm.weight', 'after the mean'),
        ('blocks.0.attn.q_bias', 'BEiT or EVA'), ('blocks.0.attn.rel_pos_h', 'SAM'),
        ('patch_embed.backbone.conv1.weight', 'hybrid'), ('blocks.0.attn.proj_l.weight', 'CaiT'),
    ],
)  # fmt: skip
@pytest.mark.parametrize('source', ['vit', 'swin'])
def test_models_that_are_not_supported(name, model, source):
    theirs = {'cls_token': torch.zeros(1, 1, 8), name: torch.zeros(8)}
    with pytest.raises(CheckpointError, match=rf'it has {name}: .*{model}.*docs/weights\.md'):
        convert(theirs, source=source)


@pytest.mark.parametrize(
    'name, source',
    [
        ('layers.0.blocks.0.norm1.norm.weight', 'rala'), ('norm_pre.weight', 'clip'),
        ('attn_pool.latent', 'clip'), ('storage_tokens', 'dinov3'), ('reg_token', 'dinov3'),
    ],
)  # fmt: skip
def test_the_wrong_source_is_named(name, source):
    weights = {name: torch.zeros(1, 1, 8)}
    message = f'not those of --source vit, but of --source {source}'
    with pytest.raises(CheckpointError, match=message):
        convert(weights, source='vit')


@pytest.mark.parametrize('names', [['norm.weight', 'attn_pool.latent'], ['pos_embed']])
def test_a_perception_encoder_is_refused(names):
    theirs = {name: torch.zeros(1, 1, 8) for name in ('norm_pre.weight', *names)}
    for source in ('clip', 'siglip'):
        with pytest.raises(CheckpointError, match='of a Perception Encoder, whose rotary'):
            convert(theirs, source=source)


def test_rotary_models_of_timm_are_refused():
    token, layer = torch.zeros(1, 1, 8), {'blocks.0.attn.qkv.weight': torch.zeros(24, 8)}
    for source, error in (('deit3', 'token, but no pos_embed'), ('dinov3', 'has no registers')):
        with pytest.raises(CheckpointError, match=error):
            convert(dict(layer, cls_token=token), source=source)


# Outputs


def classify(converted, model, image):
    model.load_state_dict(below(converted, 'backbone.'))
    (features,) = model.eval()(image)
    features = features if features.dim() == 2 else features.mean((2, 3))
    return linear(features, converted['head.fc.weight'], converted['head.fc.bias'])


SIZES = dict(img_size=48, patch_size=8, embed_dim=32, depth=3, num_heads=2, num_classes=9)


@torch.no_grad()
@pytest.mark.parametrize('final_norm', [False, True])
@pytest.mark.parametrize('side', [(48, 48), (61, 75)])
def test_outputs_of_vit_in_mmsegmentation(final_norm, side):
    vit = pytest.importorskip(
        'mmseg.models.backbones.vit', reason='MMSegmentation comes with the extra "seg"'
    )
    sizes = dict(img_size=48, patch_size=8, embed_dims=32, num_layers=3, num_heads=2)
    layers, eps = (0, 2), dict(type='LN', eps=1e-6)
    released = vit.VisionTransformer(
        **sizes, out_indices=layers, norm_cfg=eps, final_norm=final_norm
    )
    randomise(released)  # its `train` returns None
    weights = {f'backbone.{name}': w for name, w in released.state_dict().items()}
    weights['decode_head.conv_seg.weight'] = torch.randn(19, 32, 1, 1)
    converted = convert(weights, 'vit')
    assert torch.equal(
        converted['decode_head.conv_seg.weight'], weights['decode_head.conv_seg.weight']
    )
    arch = dict(ARCH, patch_bias=False, final_norm=final_norm)
    model = ViT(arch, img_size=48, out_indices=layers).eval()
    model.load_state_dict(below(converted, 'backbone.'), strict=True)
    image = torch.randn(2, 3, *side)
    assert_near(model(image), released(image), 1e-6)


@pytest.mark.parametrize(
    'config',
    ['mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e', 'dino/dino-5scale_swin-l_8xb2-12e'],
)
def test_names_of_detectors_with_queries(config):
    """The parts behind the backbone keep their names."""
    pytest.importorskip('mmdet', reason='the detectors are those of MMDetection')
    cfg = get_config(f'mmdet::{config}_coco.py')
    converted = convert(build_model(cfg).state_dict(), 'swin')
    swin = cfg.model.backbone
    arch = dict(embed_dims=[swin.embed_dims * 2**i for i in range(4)], num_heads=swin.num_heads)
    indices = dict(out_indices=swin.out_indices, window_size=swin.window_size)
    cfg.model.backbone = dict(type='Swin', arch=dict(arch, depths=swin.depths), **indices)
    report = compare(build_model(cfg).state_dict(), converted)
    assert not report.missing + report.unexpected + report.mismatched
    assert kind_of(converted) == 'detector'


def saved(model, tmp_path):
    """The names of files differ from those of the models in transformers 5."""
    with contextlib.redirect_stderr(io.StringIO()):
        randomise(model).save_pretrained(tmp_path)
    return load_state_dict(tmp_path / 'model.safetensors')[0]


@torch.no_grad()
def test_outputs_of_transformers(tmp_path):
    """Norms have eps 1e-12 (ViT) and 1e-5 (SegFormer) there, 1e-6 here."""
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    sizes = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, image_size=48,
                 patch_size=8, num_labels=9)  # fmt: skip
    cfg = transformers.ViTConfig(**sizes, intermediate_size=128)
    theirs, image = transformers.ViTForImageClassification(cfg), torch.randn(2, 3, 48, 48)
    converted = convert(saved(theirs, tmp_path), 'vit')
    model = ViT(ARCH, img_size=48, out_type='cls_token')
    assert_near(classify(converted, model, image), theirs(image).logits, 1e-4)

    cfg = transformers.SwinConfig(
        embed_dim=8, depths=SWIN['depths'], num_heads=SWIN['num_heads'], image_size=96,
        window_size=3, num_labels=9,
    )  # fmt: skip
    theirs, image = transformers.SwinForImageClassification(cfg), torch.randn(2, 3, 96, 96)
    converted = convert(saved(theirs, tmp_path), 'swin')
    model = Swin(SWIN, window_size=3, out_indices=(3,))
    assert_near(classify(converted, model, image), theirs(image).logits, 1e-4)


@torch.no_grad()
def test_outputs_of_segformer_in_transformers(tmp_path):
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    pytest.importorskip('mmseg', reason='the head is derived from MMSegmentation')
    from mmlinattn.models.decode_heads import AllMLPHead

    cfg = transformers.SegformerConfig(
        hidden_sizes=MIT['embed_dims'], depths=MIT['depths'], decoder_hidden_size=24,
        num_attention_heads=MIT['num_heads'], num_labels=9,
    )  # fmt: skip
    theirs, image = transformers.SegformerForSemanticSegmentation(cfg), torch.randn(2, 3, 70, 90)
    converted = convert(saved(theirs, tmp_path), 'mit')
    model = MixTransformer(MIT).eval()
    model.load_state_dict(below(converted, 'backbone.'))
    head = AllMLPHead(in_channels=MIT['embed_dims'], in_index=[0, 1, 2, 3], channels=24,
                      num_classes=9, norm_cfg=dict(type='BN')).eval()  # fmt: skip
    head.load_state_dict(below(converted, 'decode_head.'))
    assert_near(head(model(image)), theirs(image).logits, 1e-4)
    theirs = transformers.SegformerForImageClassification(cfg)
    converted = convert(saved(theirs, tmp_path), 'mit')
    model = MixTransformer(MIT, out_indices=(3,))
    assert_near(classify(converted, model, image), theirs(image).logits, 1e-4)
