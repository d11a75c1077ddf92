"""Rules of the attentions and backbones of this package, beside those of mmlinattn.testing."""

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmlinattn.models.backbones import CvT, HierarchicalBackbone, ViL, ViT
from mmlinattn.models.layers import BaseAttention, SoftmaxAttention
from mmlinattn.models.layers.build import build_attention
from mmlinattn.testing.attention import SMALL_RAVLT, AttentionCase
from mmlinattn.testing.backbone import BackboneCase, refuses_extra_tokens
from mmlinattn.testing.rules import Rules, compare, require

ATTENTION_RULES, BACKBONE_RULES = Rules(), Rules()
SMALL = SMALL_RAVLT
HALF_MAP, MEDIUM_MAP = (24, 48), (48, 48)
LARGE_MAP = (256, 512)  # an image of 2048 pixels width and 1024 height at stride 4


def check_attention(cls, *, rules=None, expected_failures=None, **options) -> None:
    """Check the rules of this module."""
    case = AttentionCase(dict(options, type=cls), (5, 6))
    ATTENTION_RULES.check(str(cls), case, rules, expected_failures)


def check_backbone(cls, attentions, **options) -> None:
    """Check the rules of this module."""
    for attn_cfg in attentions:
        case = BackboneCase(cls, attn_cfg, (64, 80), **options)
        if not refuses_extra_tokens(case):
            BACKBONE_RULES.check(f'{cls.__name__} with {attn_cfg}', case, None)


def small_options(cls: type, image_size=(64, 80)) -> dict:
    """Return options with which a backbone has few channels and layers and no extra tokens."""
    if issubclass(cls, ViT):
        arch = dict(embed_dims=16, num_heads=2, depth=4, patch_size=8)
        return dict(arch=arch, out_indices=(0, 3), img_size=image_size, with_cls_token=False)
    if not issubclass(cls, HierarchicalBackbone):
        return {}
    count = cls.num_stages
    arch = {k: v[:count] if isinstance(v, tuple) else v for k, v in SMALL.items()}
    if issubclass(cls, ViL):
        return dict(arch=dict(arch, global_tokens=0), img_size=image_size)
    return dict(arch=arch, with_cls_token=False) if issubclass(cls, CvT) else dict(arch=arch)


class LargestTensor(TorchDispatchMode):
    """Number of elements in memory of the largest tensor that an operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        sizes = [t.untyped_storage().nbytes() // t.element_size() for t in tensors]
        self.numel = max([self.numel, *sizes])
        return out


def quadratic(case: AttentionCase) -> bool:
    """Return True if a call makes a tensor of N x N elements that grows faster than N."""
    attn, sizes = case.clone(torch.float32), []
    for height, width in (HALF_MAP, MEDIUM_MAP):
        x = case.tokens(height * width, batch=1).float()
        with torch.no_grad(), LargestTensor() as largest:
            attn(x, (height, width))
        sizes.append(largest.numel)
    return sizes[1] >= (MEDIUM_MAP[0] * MEDIUM_MAP[1]) ** 2 and sizes[1] >= 3 * sizes[0]


@ATTENTION_RULES.add
def meta_device(case: AttentionCase) -> None:
    """A layer without memory gets all that it needs from a state dict."""
    with torch.device('meta'):
        other = build_attention(case.attn_cfg, 32, 2).double().eval()
    other.to_empty(device='cpu')
    for x in (*other.parameters(), *other.buffers()):
        x.data.zero_()
    other.load_state_dict(case.attn.state_dict())
    x = case.tokens()
    compare(other(x, case.hw_shape), case.run(x), 'output')


@ATTENTION_RULES.add
def memory(case: AttentionCase) -> None:
    """No tensor has N x N elements."""
    require(not quadratic(case), 'a tensor has N x N elements')


@ATTENTION_RULES.add
def large_map(case: AttentionCase) -> None:
    """131,072 tokens, or 2,304 with large values, stay finite under float16 autocast."""
    sizes, attn = [(MEDIUM_MAP, 4)], case.attn
    slow = isinstance(attn, SoftmaxAttention) and not hasattr(attn, 'window_size')
    if not slow and not quadratic(case):
        sizes.append((LARGE_MAP, 1))
    for (height, width), scale in sizes:
        attn, x = case.clone(torch.float32), scale * case.tokens(height * width, batch=1).float()
        with torch.no_grad(), torch.autocast('cpu', dtype=torch.float16):
            out = attn(x, (height, width))
        require(out.isfinite().all(), f'not finite at {height}x{width}')


@BACKBONE_RULES.add
def activation_checkpointing(case: BackboneCase) -> None:
    """with_cp=True gives the same gradients and batch-norm statistics."""
    model = case.build(with_cp=True, drop_path_rate=0.3)
    start = {name: value.clone() for name, value in model.named_buffers()}
    recomputed = case.gradients(model)
    statistics = {name: value.clone() for name, value in model.named_buffers()}
    for name, value in model.named_buffers():
        value.copy_(start[name])
    model.with_cp = False
    for name, gradient in case.gradients(model).items():
        other = recomputed[name]
        same = gradient is other if gradient is None or other is None else gradient.equal(other)
        require(same, f'the gradient of {name} differs')
    for name, value in model.named_buffers():
        require(torch.equal(value, statistics[name]), f'{name} is updated twice')


@BACKBONE_RULES.add
def initial_weights(case: BackboneCase) -> None:
    """init_weights() initialises the projections of an attention and no other parameter of it."""
    model = case.build()
    before = {name: value.clone() for name, value in model.named_parameters()}
    model.init_weights()
    for prefix, module in model.named_modules():
        if isinstance(module, BaseAttention):
            for name, value in module.named_parameters():
                changed = not torch.equal(value, before[f'{prefix}.{name}'])
                expected = name.split('.')[0] in module.projections
                require(changed == expected, f'{prefix}.{name}: changed is {changed}')


@BACKBONE_RULES.add
def attention_init_cfg(case: BackboneCase) -> None:
    """init_cfg of an attention is applied after the initialisation of the backbone."""
    starting = dict(type='Constant', val=0.5, layer='Linear')
    model = case.build(attn_cfg=dict(type=case.attn_cfg, init_cfg=starting))
    model.init_weights()
    attentions = [(n, m) for n, m in model.named_modules() if isinstance(m, BaseAttention)]
    require(attentions, 'the model has no attention')
    for name, attn in attentions:
        require((attn.in_proj.weight == 0.5).all(), f'{name}.in_proj.weight is not 0.5')


@BACKBONE_RULES.add
def attention_per_stage(case: BackboneCase) -> None:
    """attn_cfg takes one attention per stage (per layer in a ViT)."""
    other = 'RALA' if case.attention.__name__ != 'RALA' else 'SoftmaxAttention'
    count = len(case.model.drop_paths)
    cfgs = [case.attn_cfg if i % 2 else other for i in range(count)]
    model = case.build(attn_cfg=cfgs)
    for i in range(model.num_built):
        modules = [m for p in model.stage_parts(i) if isinstance(p, nn.Module) for m in p.modules()]
        found = {type(m).__name__ for m in modules if isinstance(m, BaseAttention)}
        expected = {case.attention.__name__ if i % 2 else other}
        require(found == expected, f'stage {i} has {found or "no attention"}, expected {expected}')
    case_error = None
    try:
        case.build(attn_cfg=cfgs[:-1])
    except ValueError as error:
        case_error = str(error)
    require(str(count) in str(case_error), f'{count - 1} attentions for {count}: {case_error}')
