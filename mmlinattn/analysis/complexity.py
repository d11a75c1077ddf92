"""Parameters and multiply-accumulates of a model and of each module.

Papers use two conventions, which differ much for attention at high resolution. ``conv_linear``
counts convolutions and linear layers only (the RALA paper). ``total`` counts every matrix product,
including those inside attention. ``extended`` adds norms, resizing and adaptive pooling with the
numbers of fvcore (the RWGKA paper). One multiplication with its addition counts as one.
Activations, softmax and other elementwise operators are never counted.

The model runs once on fake tensors, which have a shape but no memory. A dispatch mode records every
operator, including those inside composite functions.
"""

import copy
import math
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Callable, ContextManager, Dict, List, Sequence, Set, Tuple

import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

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
        counter = _run(model, shape, FakeTensorMode(allow_non_fake_inputs=True))
    except RuntimeError:
        # An operator has no fake implementation: run on real tensors, whose values do not matter.
        counter = _run(model, shape, nullcontext())
    costs = {}
    for name, module in model.named_modules():
        inner = f'model.{name}' if name else ''
        costs[name] = Cost(
            params=sum(p.numel() for p in module.parameters()),
            conv_linear=counter.conv_linear[inner],
            total=counter.total[inner],
            extended=counter.extended[inner],
        )
    whole = costs.pop('')
    return Complexity(
        **vars(whole), shape=shape, by_module=costs, uncounted=dict(counter.uncounted)
    )


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
        proposals: proposals per image in the box heads and the mask heads of two-stage detectors.
    """

    def __init__(
        self, model: nn.Module, proposals: Tuple[int, int] = (BOX_PROPOSALS, MASK_PROPOSALS)
    ) -> None:
        super().__init__()
        self.model, self.proposals = model, proposals

    def forward(self, images: Tensor) -> object:
        """Return the outputs of the model: tensors in containers of any kind."""
        if not isinstance(self.model, BaseModel):
            return self.model(images)
        if getattr(self.model, 'with_roi_head', False):
            return self._two_stage(images)
        return self.model(images, [self._sample(images) for _ in images], mode='tensor')

    @staticmethod
    def _sample(images: Tensor) -> BaseDataElement:
        """Return a data sample with the image metadata that some detectors read."""
        size = tuple(images.shape[-2:])
        return BaseDataElement(
            metainfo=dict(
                img_shape=size,
                ori_shape=size,
                pad_shape=size,
                batch_input_shape=size,
                scale_factor=(1.0, 1.0),
            )
        )

    def _two_stage(self, images: Tensor) -> list:
        """Run the heads on zero RoI features: NMS and RoIAlign have no products to count."""
        feats = self.model.extract_feat(images)
        outs = [feats]
        if self.model.with_rpn:
            outs.append(self.model.rpn_head(feats))
        roi_head = self.model.roi_head
        for kind, num in zip(('bbox', 'mask'), self.proposals):
            if not getattr(roi_head, f'with_{kind}', False):
                continue
            heads = _as_list(getattr(roi_head, f'{kind}_head'))
            # A mask head without its own extractor uses that of the box head.
            extractors = _as_list(
                getattr(roi_head, f'{kind}_roi_extractor', None) or roi_head.bbox_roi_extractor
            )
            for i, head in enumerate(heads):
                extractor = extractors[min(i, len(extractors) - 1)]
                size = extractor.roi_layers[0].output_size
                rois = images.new_zeros(len(images) * num, extractor.out_channels, *size)
                if getattr(roi_head, 'with_shared_head', False):
                    rois = roi_head.shared_head(rois)
                outs.append(head(rois))
        return outs


def _as_list(module: nn.Module) -> List[nn.Module]:
    return list(module) if isinstance(module, nn.ModuleList) else [module]


def _run(model: nn.Module, shape: Tuple[int, int], mode: ContextManager) -> '_Counter':
    runner = Forward(copy_without_values(model, mode)).eval()
    counter = _Counter(runner)
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # The fast path calls one opaque operator per attention layer.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), mode, counter:
            runner(torch.zeros(1, 3, *shape))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return counter


def copy_without_values(model: nn.Module, mode: ContextManager) -> nn.Module:
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
    """Dispatch mode that counts the products of each operator for its module and all parents.

    A product with a parameter as factor is counted as a linear layer; attention multiplies
    activations.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.conv_linear, self.total, self.extended = Counter(), Counter(), Counter()
        self.uncounted = Counter()
        self._parameters = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
        self._running = ['']
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._running.append(name))
            module.register_forward_hook(lambda *_: self._running.pop() and None)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removesuffix('_')  # in-place variants have the same products
        if name in COUNTS:
            products = COUNTS[name](args, out)
            # addmm, baddbmm and addmv take the summand first.
            factors = args[1:3] if 'add' in name else args[:2]
            linear = name == CONVOLUTION or any(
                StorageWeakRef(factor.untyped_storage()) in self._parameters for factor in factors
            )
            for module in self._modules():
                self.total[module] += products
                self.extended[module] += products
                self.conv_linear[module] += products if linear else 0
        elif name in ELEMENTWISE:
            for module in self._modules():
                self.extended[module] += ELEMENTWISE[name](args, out)
        elif SUSPICIOUS.match(name):
            self.uncounted[name] += 1
        return out

    def _modules(self) -> Set[str]:
        """Return the names of the running module and its parents."""
        parts = self._running[-1].split('.')
        return {'', *('.'.join(parts[:i]) for i in range(1, len(parts) + 1))}


def _product(left: int) -> Callable:
    """Return a counter of matrix products whose left factor (..., K) is argument ``left``."""

    def count(args: tuple, out: Tensor) -> int:
        return out.numel() * args[left].shape[-1]

    return count


def _convolution(args: tuple, out: Tensor) -> int:
    """Count a convolution.

    Arguments: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups.
    """
    x, weight, transposed = args[0], args[1], args[6]
    positions = (x if transposed else out).shape[2:]
    return x.shape[0] * math.prod(positions) * weight.numel()


def _attention(args: tuple, out: Tuple[Tensor, ...]) -> int:
    """Count Q K^T and its product with V: (..., N, d), (..., M, d), (..., M, e) to (..., N, e)."""
    query, key, out = args[0], args[1], out[0]
    return math.prod(out.shape[:-1]) * key.shape[-2] * (query.shape[-1] + out.shape[-1])


CONVOLUTION = 'aten::convolution'
COUNTS = {
    CONVOLUTION: _convolution,
    'aten::mm': _product(0),
    'aten::bmm': _product(0),
    'aten::mv': _product(0),
    'aten::dot': _product(0),
    'aten::addmm': _product(1),
    'aten::baddbmm': _product(1),
    'aten::addmv': _product(1),
    'aten::_scaled_dot_product_flash_attention_for_cpu': _attention,
    'aten::_scaled_dot_product_flash_attention': _attention,
    'aten::_scaled_dot_product_efficient_attention': _attention,
    'aten::_scaled_dot_product_cudnn_attention': _attention,
}


def _per_input(amount: int) -> Callable:
    return lambda args, out: amount * args[0].numel()


def _batch_norm(args: tuple, out: Tuple[Tensor, ...]) -> int:
    """Count the scale and, if the norm has weights, the shift, both with running statistics."""
    return args[0].numel() * (1 if args[1] is None else 2)


ELEMENTWISE = {
    'aten::native_layer_norm': _per_input(5),
    'aten::native_group_norm': _per_input(5),
    'aten::native_batch_norm': _batch_norm,
    'aten::_native_batch_norm_legit_no_training': _batch_norm,
    'aten::cudnn_batch_norm': _batch_norm,
    'aten::upsample_bilinear2d': lambda args, out: 4 * out.numel(),
    'aten::_adaptive_avg_pool2d': _per_input(1),
}
# Operators that contain matrix products, and operators of other libraries, which may.
SUSPICIOUS = re.compile(
    r'(?!aten::|prim::|profiler::)|aten::(linalg_(?!vector_norm)\w*|\w*'
    r'(mm|mv|dot|matmul|linear|einsum|conv\w*|attention\w*|transformer\w*|rnn\w*|cdist\w*|inverse)'
    r')$'
)
