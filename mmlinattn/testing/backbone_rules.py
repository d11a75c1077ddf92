"""Rules of a backbone with an attention, each with a check on a small model."""

from functools import cached_property
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ..models.backbones import Backbone, CvT, HierarchicalBackbone, ViL, ViT
from ..models.layers import AttnCfg, BaseAttention, build_attention
from .rules import Case, RuleBroken, Rules, Unsupported, compare, require, require_finite

BACKBONE_RULES = Rules()
BUILT = ('constructor',)
SMALL = dict(embed_dims=(16, 16, 32, 32), depths=1, num_heads=(1, 2, 2, 4))
NO_SUPPORT = 'does not support extra tokens'


def small_options(cls: type, image_size: Tuple[int, int]) -> dict:
    """Return options with which a backbone has few channels and layers and no extra tokens."""
    if not issubclass(cls, HierarchicalBackbone):
        if issubclass(cls, ViT):
            arch = dict(embed_dims=16, num_heads=2, depth=4, patch_size=8)
            return dict(arch=arch, out_indices=(0, 3), img_size=image_size, with_cls_token=False)
        return {}
    count = cls.num_stages
    arch = {k: v[:count] if isinstance(v, tuple) else v for k, v in SMALL.items()}
    if issubclass(cls, ViL):
        return dict(arch=dict(arch, global_tokens=0), img_size=image_size)
    return dict(arch=arch, with_cls_token=False) if issubclass(cls, CvT) else dict(arch=arch)


class BackboneCase(Case):
    """Backbone under test, with an attention in all stages.

    Args:
        cls: :class:`Backbone`, or another module that is called as ``cls(attn_cfg=..., **options)``
            and maps images to a sequence of tensors.
        attn_cfg: class, name or config of the attention.
        options: further arguments of the constructor.
        image_size: (height, width) of the images.
    """

    def __init__(
        self, cls: type, attn_cfg: AttnCfg, options: dict, image_size: Tuple[int, int]
    ) -> None:
        self.cls, self.attn_cfg, self.image_size = cls, attn_cfg, image_size
        self.is_backbone = issubclass(cls, Backbone)
        self.options = {**small_options(cls, image_size), **options}
        self.attention = type(build_attention(attn_cfg, 16, 2))
        self.name = f'{cls.__name__} with {self.attention.__name__}'

    def build(self, attn_cfg=None, **options) -> Any:
        attn_cfg = self.attn_cfg if attn_cfg is None else attn_cfg
        self.given = ', '.join(
            f'{name}={value!r}'
            for name, value in dict(attn_cfg=attn_cfg, **self.options, **options).items()
        )
        return self.cls(attn_cfg=attn_cfg, **self.options, **options)

    @cached_property
    def model(self) -> Any:
        """The model of rules that do not change parameters or buffers."""
        return self.build()

    @cached_property
    def other(self) -> Any:
        """A second model, whose parameters and buffers rules may change."""
        torch.manual_seed(1)  # other initial values than those of ``model``
        return self.build(**(dict(with_cp=True, drop_path_rate=0.3) if self.is_backbone else {}))

    @cached_property
    def expected(self) -> Sequence[Tensor]:
        """The outputs of ``model`` in evaluation mode."""
        return self.evaluate(self.model)

    @cached_property
    def images(self) -> Tensor:
        return torch.randn(2, 3, *self.image_size)

    def run(self, model: nn.Module, note: str = '') -> Sequence[Tensor]:
        self.given = f'images {tuple(self.images.shape)}' + (note and f', {note}')
        return model(self.images)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, note: str = '') -> Sequence[Tensor]:
        outs = self.run(model.eval(), note)
        model.train()
        return outs

    def gradients(self, model: nn.Module, note: str = '') -> Dict[str, Optional[Tensor]]:
        """Return the gradients of all parameters by name, the same for the same model."""
        model.zero_grad(set_to_none=True)
        torch.manual_seed(2)
        losses = [(out.float() ** 2).mean() for out in self.run(model, note)]
        torch.stack(losses).sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}


rule = BACKBONE_RULES.add


@rule(
    'The backbone is built with the attention, or says that the attention does not support its '
    'extra tokens.',
    'Call self.finish() at the end of the constructor: it checks extra tokens. Options other than '
    'attn_cfg need defaults, or pass them to check_backbone.',
)
def constructor(case: BackboneCase) -> None:
    try:
        model = case.model
    except ValueError as error:
        if case.attention.supports_extra_tokens or NO_SUPPORT not in str(error):
            raise
        raise Unsupported from error
    if case.is_backbone and not case.attention.supports_extra_tokens:
        extra = [model.num_extra_tokens(i) for i in range(model.num_built)]
        require(not any(extra), f'it is built, with {extra} extra tokens per stage')


@rule(
    'One contiguous output (B, C, H, W), or (B, C), per entry of out_indices.',
    'Return self.format_output(tokens, hw_shape, num_extra_tokens).',
    requires=BUILT,
)
def outputs(case: BackboneCase) -> None:
    if not case.is_backbone:
        return
    outs = case.expected
    count, dims = len(case.model.out_indices), 4 if case.model.out_type == 'featmap' else 2
    require(len(outs) == count, f'{len(outs)} outputs, expected {count}')
    for i, out in enumerate(outs):
        require(out.dim() == dims, f'output {i} has shape {tuple(out.shape)}')
        require(out.is_contiguous(), f'output {i} is not contiguous')
        require_finite(out, f'output {i}')


@rule(
    'Every parameter gets a finite gradient that is not zero.',
    'Drop parameters that the forward pass does not use, and stages after the last of out_indices.',
    requires=(*BUILT, 'outputs'),
)
def parameters_learn(case: BackboneCase) -> None:
    buffers = {name: value.clone() for name, value in case.model.named_buffers()}
    found = case.gradients(case.model)
    for name, value in case.model.named_buffers():  # batch-norm statistics
        value.copy_(buffers[name])
    require(found, 'the model has no parameters')
    # If only the class token is returned, positions in the last attention have no effect.
    attentions = [n for n, m in case.model.named_modules() if isinstance(m, BaseAttention)]
    spared = attentions[-1] if getattr(case.model, 'out_type', '') == 'cls_token' else None
    for name, gradient in found.items():
        if gradient is None:
            raise RuleBroken(f'{name} is not used: its gradient is None')
        require_finite(gradient, f'gradient of {name}')
        if spared is None or not name.startswith(f'{spared}.'):
            require(gradient.any(), f'the gradient of {name} is zero everywhere')


@rule(
    'Under bfloat16 autocast the outputs are close to float32.',
    'Compute norms and sums in float32. ReLU features are often 0 for a whole query: enlarge eps, '
    'or take features that are positive, such as elu(x) + 1.',
    requires=(*BUILT, 'outputs'),
)
def bfloat16(case: BackboneCase) -> None:
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = case.evaluate(case.model, 'bfloat16 autocast')
    for i, (a, b) in enumerate(zip(half, case.expected)):
        require_finite(a, f'output {i}')
        error = float((a.float() - b).norm() / b.norm())
        require(error < 0.04, f'relative error {error:.2g} of output {i}, allowed 0.04')


@rule(
    'In evaluation mode each image is computed by itself.',
    'Sum over tokens, never over the batch. BatchNorm belongs in eval mode.',
    requires=(*BUILT, 'outputs'),
)
def images_are_independent(case: BackboneCase) -> None:
    expected, case.given = case.expected, 'image 0 alone'
    with torch.no_grad():
        alone = case.model.eval()(case.images[:1])
    case.model.train()
    for i, (a, b) in enumerate(zip(alone, expected)):
        compare(a, b[:1], f'output {i} of image 0 alone', 1e-4, 1e-5, dims=())


@rule(
    'The state dict has tensors only, and another model that loads it gives the same outputs.',
    'Keep everything that the output depends on in parameters or persistent buffers.',
    requires=(*BUILT, 'outputs'),
)
def weights(case: BackboneCase) -> None:
    state = case.model.state_dict()
    for name, value in state.items():
        require(isinstance(value, Tensor), f'{name} is no tensor: {type(value).__name__}')
    case.other.load_state_dict(state)
    outs = case.evaluate(case.other, 'loaded weights')
    for i, (a, b) in enumerate(zip(outs, case.expected)):
        compare(a, b, f'output {i}', 0, 0, dims=())


@rule(
    'with_cp=True gives the same gradients and batch-norm statistics.',
    'Call blocks with self.run_block(block, tokens, *args); pass **kwargs to super().__init__.',
    requires=(*BUILT, 'outputs'),
)
def activation_checkpointing(case: BackboneCase) -> None:
    if not case.is_backbone:
        return
    model = case.other
    model.with_cp = True
    start = {name: value.clone() for name, value in model.named_buffers()}
    recomputed = case.gradients(model, 'with_cp=True')
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


@rule(
    'init_weights() initialises the projections of an attention and none of its other parameters.',
    'Implement init_layer() instead of init_weights(). List in `projections` of the attention the '
    'layers that a backbone may initialise.',
    requires=BUILT,
)
def initial_weights(case: BackboneCase) -> None:
    if not case.is_backbone:
        return
    model = case.other
    before = {name: value.clone() for name, value in model.named_parameters()}
    model.init_weights()
    for prefix, module in model.named_modules():
        if isinstance(module, BaseAttention):
            for name, value in module.named_parameters():
                changed = not torch.equal(value, before[f'{prefix}.{name}'])
                expected = name.split('.')[0] in module.projections
                word = 'unchanged' if expected else 'changed'
                require(changed == expected, f'{prefix}.{name} is {word} by init_weights()')


@rule(
    'init_cfg of an attention is applied after the initialisation of the backbone.',
    'Hold blocks in MMEngine modules (BaseModule, ModuleList), not in those of torch.nn.',
    requires=BUILT,
)
def attention_init_cfg(case: BackboneCase) -> None:
    attn_cfg = case.attn_cfg if isinstance(case.attn_cfg, dict) else dict(type=case.attn_cfg)
    starting = dict(type='Constant', val=0.5, layer='Linear')
    model = case.build(dict(attn_cfg, init_cfg=starting))
    model.init_weights()
    attentions = [(n, m) for n, m in model.named_modules() if isinstance(m, BaseAttention)]
    require(attentions, 'the model has no attention')
    for name, attn in attentions:
        require((attn.in_proj.weight == 0.5).all(), f'{name}.in_proj.weight is not 0.5')


@rule(
    'attn_cfg takes one attention per stage (per layer in a ViT).',
    'Give stage i self.attn_cfgs[i], a list where its layers differ (build_stage does).',
    requires=BUILT,
)
def attention_per_stage(case: BackboneCase) -> None:
    if not case.is_backbone:
        return
    other = 'RALA' if case.attention.__name__ != 'RALA' else 'SoftmaxAttention'
    count = case.model.count_stages()
    cfgs: List[AttnCfg] = [case.attn_cfg if i % 2 else other for i in range(count)]
    model = case.build(cfgs)
    for i in range(model.num_built):
        modules = [m for p in model.stage_parts(i) if isinstance(p, nn.Module) for m in p.modules()]
        found = {type(m).__name__ for m in modules if isinstance(m, BaseAttention)}
        expected = {case.attention.__name__ if i % 2 else other}
        require(found == expected, f'stage {i} has {found or "no attention"}, expected {expected}')
    try:
        case.build(cfgs[:-1])
    except ValueError as error:
        require(str(count) in str(error), f'the message does not contain {count}: {error}')
    else:
        require(False, f'{count - 1} attentions for {count} stages raise no ValueError')
