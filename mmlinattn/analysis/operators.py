"""Operators of a training step with their products and bytes, recorded on fake tensors."""

import weakref
from dataclasses import dataclass
from functools import partial
from typing import (
    Callable,
    ContextManager,
    Iterator,
    List,
    MutableMapping,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..models.layers.activation_checkpointing import checkpoint_forward
from ..utils.suggest import did_you_mean
from .complexity import Forward, check_shape, copy_without_values, run_without_values
from .formulas import may_have_products, products

# Samples per image of the standard assigners in training, in the heads of a two-stage detector.
SAMPLED_BOXES, SAMPLED_MASKS = 512, 128


@dataclass(frozen=True)
class Operator:
    """One call of an operator.

    Args:
        name: torch's name, such as ``aten::mm``.
        products: multiply-accumulates.
        nbytes: bytes read and written, each input and each output once; 0 for a view.
        backward: True in the backward pass.
    """

    name: str
    products: int
    nbytes: int
    backward: bool


@dataclass(frozen=True)
class TrainingStep:
    """Result of :func:`training_step`.

    Args:
        operators: operators in execution order.
        saved: bytes that the forward pass saves for the backward pass, without parameters.
        peak: peak bytes of both passes, without parameters and their gradients. With activation
            checkpointing it includes the recomputed activations of one module.
        uncounted: names of operators that may contain products and were not counted.
    """

    operators: List[Operator]
    saved: int
    peak: int
    uncounted: Set[str]

    @property
    def products(self) -> int:
        """Multiply-accumulates of all operators."""
        return sum(operator.products for operator in self.operators)


def training_step(
    model: nn.Module,
    shape: Sequence[int],
    batch: int = 1,
    dtype: Optional[torch.dtype] = None,
    checkpointing: Sequence[str] = (),
) -> TrainingStep:
    """Record the forward and backward pass of a model on tensors with shapes but no values.

    Losses, target assignment, augmentation and auxiliary heads are not included. Each operator has
    its CPU implementation; fused kernels move less. Two-stage detectors have 512 boxes and 128
    masks per image. Dropout and stochastic depth are off.

    Args:
        model: as in :func:`mmlinattn.analysis.analyse`. Parameters without ``requires_grad`` get
            no gradient. It is not modified.
        shape: (H, W) of the images.
        batch: number of images.
        dtype: autocast dtype; None disables autocast.
        checkpointing: names of module classes to recompute in the backward pass, as in
            FSDP2.

    Raises:
        ValueError: ``shape`` is not two integers of at least 32, ``batch`` is below 1, the model
            has no trainable parameter, or it has no module of a class in ``checkpointing``.

    Example:
        >>> from torch import nn
        >>> step = training_step(nn.Conv2d(3, 8, 3, padding=1), (32, 64), batch=2)
        >>> forward, weight = 2 * 8 * 27 * 32 * 64, 2 * 8 * 27 * 32 * 64
        >>> step.products == forward + weight
        True
        >>> step.saved == 4 * 2 * 3 * 32 * 64  # the images
        True
    """
    shape = check_shape(shape)
    if batch < 1:
        raise ValueError(f'batch must be positive, got {batch}')
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError('the model has no parameter to train')
    check_classes('checkpointing', checkpointing, model)
    record = partial(_record, model, (batch, 3, *shape), dtype, checkpointing)
    return run_without_values(record)


def _record(
    model: nn.Module, shape: Tuple[int, ...], dtype: Optional[torch.dtype],
    checkpointing: Sequence[str], mode: ContextManager,
) -> TrainingStep:  # fmt: skip
    model = copy_without_values(model, mode)
    for _, module in modules_of_classes(model, checkpointing):
        checkpoint_forward(module)
    runner = Forward(model, (SAMPLED_BOXES, SAMPLED_MASKS)).eval()
    tensors = (*runner.parameters(), *runner.buffers())
    own = {tensor.untyped_storage() for tensor in tensors}
    recorder = _Recorder(own)
    # Weak keys drop tensors that lead to no gradient, such as those of a frozen stage.
    sizes: MutableMapping[UntypedStorage, int] = weakref.WeakKeyDictionary()

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage not in own:
            sizes[storage] = storage.nbytes()
            recorder.track(tensor)  # also constants that the model already had
        return tensor

    with mode, recorder:
        with (
            torch.enable_grad(),
            torch.autocast('cpu', dtype=dtype, enabled=dtype is not None),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        ):
            leaves = tree_leaves(runner(torch.zeros(shape)))
        saved = sum(sizes.values())
        outs = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        recorder.backward = True
        for parameter in runner.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(recorder.untrack_gradient)
        torch.autograd.backward(outs, [torch.empty_like(out) for out in outs])
    return TrainingStep(recorder.operators, saved, recorder.peak, recorder.uncounted)


class _Recorder(TorchDispatchMode):
    """Dispatch mode that records operators and the memory they allocate.

    Args:
        own: storages of the model, which are not counted.
    """

    def __init__(self, own: Set[UntypedStorage]) -> None:
        super().__init__()
        self.operators: List[Operator] = []
        self.uncounted: Set[str] = set()
        self.backward = False
        self.allocated = self.peak = 0
        # Callbacks that stop counting a storage. StorageWeakRef would keep the Python object alive,
        # and with it the count, in torch 2.4.
        self.tracked: MutableMapping[UntypedStorage, Callable[[], object]]
        self.tracked = weakref.WeakKeyDictionary(dict.fromkeys(own, lambda: None))

    def untrack_gradient(self, parameter: Tensor) -> None:
        """Stop counting the gradient of a parameter as memory of the backward pass."""
        assert parameter.grad is not None  # just accumulated
        self.tracked[parameter.grad.untyped_storage()]()

    def track(self, tensor: Tensor) -> None:
        """Count the memory of a tensor once, until it is freed."""
        storage = tensor.untyped_storage()
        if storage in self.tracked:
            return
        nbytes = storage.nbytes()

        def freed() -> None:
            self.allocated -= nbytes

        self.allocated += nbytes
        self.peak = max(self.peak, self.allocated)
        self.tracked[storage] = weakref.finalize(storage, freed)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name
        count = products(func, args, kwargs, out)
        if count is None and may_have_products(func):
            self.uncounted.add(name.removesuffix('_'))
        if 'empty' not in name and not name.startswith('prim::'):
            nbytes = _bytes_moved(func._schema.is_mutable, (args, kwargs), out)
            self.operators.append(Operator(name, count or 0, nbytes, self.backward))
        for tensor in _tensors(out):
            self.track(tensor)
        return out


def _bytes_moved(in_place: bool, inputs: object, outputs: object) -> int:
    """Return the bytes that an operator reads and writes."""
    read, written = [*_tensors(inputs)], [*_tensors(outputs)]
    storages = {x.untyped_storage() for x in read}
    if not in_place and any(x.untyped_storage() in storages for x in written):
        return 0  # a view
    # An expanded tensor moves no more bytes than its storage holds.
    return sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in (*read, *written))


def _tensors(tree: object) -> Iterator[Tensor]:
    return (x for x in tree_leaves(tree) if isinstance(x, Tensor))


def check_classes(argument: str, names: Sequence[str], model: nn.Module) -> None:
    """Raise ValueError, with similar names, for a name that is no class of a submodule."""
    known = {type(module).__name__ for module in model.modules()} - {type(model).__name__}
    for name in names:
        if name not in known:
            raise ValueError(
                f'{argument}: {type(model).__name__} has no module of class {name!r}'
                + did_you_mean(name, known, 2, cutoff=0.4)
            )


def modules_of_classes(model: nn.Module, names: Sequence[str]) -> Iterator[Tuple[str, nn.Module]]:
    """Yield names and submodules of these classes, nested ones before those that contain them."""
    for name, module in reversed(list(model.named_modules())):
        if name and type(module).__name__ in names:
            yield name, module
