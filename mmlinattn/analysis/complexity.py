"""Parameters and multiply-accumulates of a model and of each module.

Papers use two conventions, which differ much for attention at high resolution. ``conv_linear``
counts convolutions and linear layers only (the RALA paper). ``total`` counts every matrix product,
including those inside attention. ``extended`` adds norms, resizing and adaptive pooling with the
numbers of fvcore (the RWGKA paper). One multiplication with its addition counts as one.
Activations, softmax and other elementwise operators are never counted.

The model runs once on fake tensors, which have a shape but no memory. A dispatch mode records every
operator, including those inside composite functions, and the formulas of
``torch.utils.flop_counter`` count it. ``FlopCounterMode`` itself does not tell the conventions
apart: docs/design.md.
"""

import copy
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from inspect import signature
from typing import Any, Callable, ContextManager, Dict, List, Sequence, Set, Tuple

import torch
from mmengine.model import BaseModel, BaseModule
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop
from torch.utils.hooks import RemovableHandle

from ..ops import use_backend

aten = torch.ops.aten
MIN_SIZE = 32
# Proposals per image in the heads of a two-stage detector, as counted by MMDetection 2.x.
BOX_PROPOSALS, MASK_PROPOSALS = 1000, 100


@dataclass(frozen=True)
class Cost:
    """Parameters and multiply-accumulates of a model or a module.

    Args:
        params: number of parameters; shared parameters count once.
        conv_linear: multiply-accumulates of convolutions and linear layers.
        total: multiply-accumulates of all matrix products.
        extended: ``total`` plus norms, resizing and adaptive pooling, as fvcore counts them.
    """

    params: int
    conv_linear: int
    total: int
    extended: int


@dataclass(frozen=True)
class Complexity(Cost):
    """Result of :func:`analyse`: the :class:`Cost` of the model and of its submodules.

    Args:
        shape: (H, W) of the input.
        by_module: :class:`Cost` of each submodule by dotted name, parents before children.
        uncounted: number of calls of each operator that may contain matrix products but could not
            be counted; empty if the count is complete.
    """

    shape: Tuple[int, int]
    by_module: Dict[str, Cost] = field(repr=False)
    uncounted: Dict[str, int] = field(default_factory=dict)

    def modules(self, depth: int) -> Dict[str, Cost]:
        """Return submodules with parameters or products, at most ``depth`` levels deep."""
        return {
            name: cost
            for name, cost in self.by_module.items()
            if name.count('.') < depth and (cost.params or cost.total)
        }

    def to_dict(self) -> dict:
        """Return the fields as built-in types, for JSON."""
        return asdict(self)


def analyse(model: nn.Module, shape: Sequence[int]) -> Complexity:
    """Count the multiply-accumulates of one image, on fake tensors where the operators allow it.

    Detectors and segmentors are counted as in inference, without pre- and post-processing:
    auxiliary heads have parameters but no products. Two-stage detectors are counted with 1000
    proposals in each box head and 100 in each mask head.

    Args:
        model: a model of MMDetection, MMSegmentation or MMPretrain, or any module that takes
            (1, 3, H, W). It is not modified.
        shape: (H, W) of the image.

    Raises:
        ValueError: ``shape`` is not two integers of at least 32.

    Example:
        >>> from torch import nn
        >>> cost = analyse(nn.Conv2d(3, 8, 3, padding=1), (32, 64))
        >>> cost.params, cost.total == 8 * 27 * 32 * 64
        (224, True)
    """
    shape = check_shape(shape)
    try:
        counter = _count(model, shape, FakeTensorMode(allow_non_fake_inputs=True))
    except RuntimeError:
        # An operator has no fake implementation. The values of the real tensors do not matter.
        counter = _count(model, shape, nullcontext())
    costs = {}
    for name, module in model.named_modules():
        inner = f'model.{name}' if name else ''
        params = sum(p.numel() for p in module.parameters())
        counts = counter.conv_linear[inner], counter.total[inner], counter.extended[inner]
        costs[name] = Cost(params, *counts)
    whole = vars(costs.pop(''))
    return Complexity(**whole, shape=shape, by_module=costs, uncounted=dict(counter.uncounted))


def check_shape(shape: Sequence[int]) -> Tuple[int, int]:
    """Return ``shape`` as (H, W); raise ValueError unless it is two integers of at least 32."""
    values = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if len(values) != 2 or any(type(value) is not int or value <= 0 for value in values):
        raise ValueError(f'shape must be (height, width), two positive integers, got {shape!r}')
    if min(values) < MIN_SIZE:
        raise ValueError(f'shape must be at least {MIN_SIZE}x{MIN_SIZE} pixels, got {values}')
    return values


class Forward(nn.Module):
    """Module that runs a model on images (B, 3, H, W) without pre- and post-processing.

    Args:
        model: a model of an OpenMMLab framework, or any module that takes such images.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> object:
        """Return the outputs of the model: tensors in containers of any kind."""
        if not isinstance(self.model, BaseModel):
            return self.model(images)
        if getattr(self.model, 'with_roi_head', False):
            return self._two_stage(images)
        # The image metadata that some detectors read.
        names = ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape')
        metainfo = dict(dict.fromkeys(names, tuple(images.shape[-2:])), scale_factor=(1.0, 1.0))
        samples = [BaseDataElement(metainfo=metainfo) for _ in images]
        head = getattr(self.model, 'decode_head', None)
        if head is not None and 'batch_data_samples' in signature(head.forward).parameters:
            # Segmentors call their head without samples in this mode, which Mask2Former's needs.
            return head(self.model.extract_feat(images), samples)
        return self.model(images, samples, mode='tensor')

    def _two_stage(self, images: Tensor) -> list:
        """Run the heads on zero RoI features: NMS and RoIAlign have no products to count."""
        model: BaseModel = self.model
        feats, roi_head = model.extract_feat(images), model.roi_head
        outs = [feats, model.rpn_head(feats)] if model.with_rpn else [feats]
        for kind, num in (('bbox', BOX_PROPOSALS), ('mask', MASK_PROPOSALS)):
            if not getattr(roi_head, f'with_{kind}', False):
                continue
            # A mask head without its own extractor uses that of the box head.
            extractor = getattr(roi_head, f'{kind}_roi_extractor', None)
            extractors = _as_list(extractor or roi_head.bbox_roi_extractor)
            for i, head in enumerate(_as_list(getattr(roi_head, f'{kind}_head'))):
                extractor = extractors[min(i, len(extractors) - 1)]
                size = extractor.roi_layers[0].output_size
                rois = images.new_zeros(len(images) * num, extractor.out_channels, *size)
                if getattr(roi_head, 'with_shared_head', False):
                    rois = roi_head.shared_head(rois)
                outs.append(head(rois))
        return outs


def _as_list(module: BaseModule) -> List[BaseModule]:
    return list(module) if isinstance(module, nn.ModuleList) else [module]


def _count(model: nn.Module, shape: Tuple[int, int], mode: ContextManager) -> '_Counter':
    runner = Forward(_copy_without_values(model, mode)).eval()
    counter = _Counter(runner)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # The fast path calls one opaque operator per attention layer.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Not the backend of the user: the copy is on the CPU.
        with use_backend('torch'), torch.no_grad(), mode, counter:
            runner(torch.zeros(1, 3, *shape))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return counter


def _copy_without_values(model: nn.Module, mode: ContextManager) -> nn.Module:
    """Return a copy on the CPU with the same shapes and all parameters and buffers zero."""
    memo = {}
    for tensor in (*model.parameters(), *model.buffers()):
        with mode:
            new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()
        if isinstance(tensor, nn.Parameter):
            new = nn.Parameter(new, tensor.requires_grad)
        memo[id(tensor)] = new
    return copy.deepcopy(model, memo)


class _Counter(TorchDispatchMode):
    """Dispatch mode that counts the products of each operator for its module and all parents."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        # Products by module, and calls by operator.
        self.conv_linear: Counter[str] = Counter()
        self.total: Counter[str] = Counter()
        self.extended: Counter[str] = Counter()
        self.uncounted: Counter[str] = Counter()
        self._parameters = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
        self._running = ['']
        self._names = {module: name for name, module in model.named_modules()}
        self._hooks: List[RemovableHandle] = []

    def __enter__(self) -> '_Counter':
        # Hooks of all modules, since a projection with hooks of its own may run more than once.
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*error)

    def _enter_module(self, module: nn.Module, _: Any) -> None:
        self._running.append(self._names.get(module, self._running[-1]))

    def _leave_module(self, *_: Any) -> None:
        self._running.pop()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, count = func._schema.name.removesuffix('_'), 0
        if func.overloadpacket in PRODUCTS:
            # torch counts a multiplication and its addition as two.
            count = PRODUCTS[func.overloadpacket](*args, **kwargs, out_val=out) // 2
        elif SUSPICIOUS.match(name):
            self.uncounted[name] += 1
        elementwise = ELEMENTWISE.get(func.overloadpacket)
        extended = count if elementwise is None else elementwise(args, out)
        conv_linear = count if count and self._has_weight(func, args) else 0
        for module in self._modules() if extended else ():
            self.total[module] += count
            self.extended[module] += extended
            self.conv_linear[module] += conv_linear
        return out

    def _has_weight(self, func: OpOverload, args: tuple) -> bool:
        """Return True for a convolution or a product with a parameter; attention has none."""
        # addmm, baddbmm and addmv take the summand first.
        factors = args[1:3] if 'add' in func._schema.name else args[:2]
        return func is aten.convolution.default or any(
            StorageWeakRef(factor.untyped_storage()) in self._parameters for factor in factors
        )

    def _modules(self) -> Set[str]:
        """Return the names of the running module and its parents."""
        parts = self._running[-1].split('.')
        return {'', *('.'.join(parts[:i]) for i in range(1, len(parts) + 1))}


def _matrix_vector(matrix: int) -> Callable:
    return lambda *args, **kwargs: 2 * args[matrix].numel()


PRODUCTS = {
    # torch has a formula for it from 2.15 on.
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    **flop_registry,
    aten.addmm_: flop_registry[aten.addmm],
    aten.baddbmm_: flop_registry[aten.baddbmm],
    aten.dot: _matrix_vector(0),
    aten.mv: _matrix_vector(0),
    aten.addmv: _matrix_vector(1),
    aten.addmv_: _matrix_vector(1),
}


def _batch_norm(args: tuple, out: Any) -> int:
    """Count the scale and, if the norm has weights, the shift, both with running statistics."""
    return args[0].numel() * (1 if args[1] is None else 2)


ELEMENTWISE = {
    aten.native_layer_norm: lambda args, out: args[0].numel() * (4 if args[2] is None else 5),
    aten.native_group_norm: lambda args, out: args[0].numel() * (4 if args[1] is None else 5),
    aten.native_batch_norm: _batch_norm,
    aten._native_batch_norm_legit_no_training: _batch_norm,
    aten.upsample_nearest2d: lambda args, out: out.numel(),
    aten.upsample_bilinear2d: lambda args, out: 4 * out.numel(),
    aten._adaptive_avg_pool2d: lambda args, out: args[0].numel(),
}
# Operators that contain matrix products, and operators of other libraries, which may.
SUSPICIOUS = re.compile(
    r'(?!aten::|prim::|profiler::)|aten::(linalg_(?!vector_norm)\w*|\w*'
    r'(mm|mv|dot|matmul|linear|einsum|conv\w*|attention\w*|transformer\w*|rnn\w*|cdist\w*|inverse)'
    r')$'
)
