"""Fully sharded training: parameters, gradients and optimizer state are split over processes."""

import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence, Tuple

import mmengine
import torch
from mmengine._strategy import DDPStrategy
from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.logging import MMLogger
from mmengine.model import BaseDataPreprocessor
from mmengine.optim import BaseOptimWrapper, OptimWrapper
from mmengine.registry import STRATEGIES
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...checkpoints import is_sharded, load_shards, read_checkpoint, save_sharded, tensors_of
from ...models.layers import optimize_for_cpu
from ...models.layers.activation_checkpointing import checkpoint_forward
from ...utils import check_integer
from ...utils.suggest import did_you_mean
from ..runner.console import hide_start
from .launch import init_gloo_group

DTYPES = ('float32', 'float16', 'bfloat16')
MiB = 2**20


@STRATEGIES.register_module()
class FSDP2Strategy(DDPStrategy):
    """Fully sharded data parallel training (``torch.distributed.fsdp.fully_shard``) for MMEngine.

    It needs the FlexibleRunner. Each process keeps its rows of every parameter, gradient and
    optimizer state. The parameters of a block are gathered while it computes. Results equal those
    of DDP up to rounding. Checkpoints are sharded (:func:`mmlinattn.checkpoints.save_sharded`).
    Sharded and ordinary checkpoints can be resumed from with any number of processes.

    Args:
        shard: class names, such as ``'RAVLTBlock'``. The parameters of each module of these
            classes are gathered separately; those of the rest of the model are gathered together.
            The modules must be called as modules. For a head whose ``loss`` is called, name its
            parts.
        mesh: ``dict(replicate=r, shard=s)`` for r * s processes: parameters are split over s
            processes and replicated r times. None: split over all.
        mp: ``dict(param_dtype=..., reduce_dtype=...)``, names of dtypes. The modules of ``shard``
            compute with parameters and inputs in ``param_dtype`` and return float32. Gradients
            are averaged in ``reduce_dtype``. All else is float32, including the parameters of
            the optimizer and the checkpoint. None: float32.
        checkpointing: class names of modules with activation checkpointing: they are recomputed
            in the backward pass.
        kwargs: see MMEngine's DDPStrategy; ``model_wrapper`` is not accepted.

    Raises:
        ImportError: torch has no ``fully_shard`` or no sharded safetensors files.
        TypeError, ValueError: an argument is invalid; the message names it. Class names are
            checked when the model is built.

    Example:
        >>> runner_type = 'FlexibleRunner'
        >>> strategy = dict(
        ...     type='FSDP2Strategy',
        ...     shard=['RAVLTBlock'],
        ...     mesh=dict(replicate=2, shard=8),
        ...     mp=dict(param_dtype='bfloat16', reduce_dtype='float32'),
        ... )
    """

    # Function that reads a checkpoint without its shards.
    read: Callable[[str], Dict[str, Any]]

    def __init__(
        self,
        *,
        shard: Sequence[str],
        mesh: Optional[Dict[str, int]] = None,
        mp: Optional[Dict[str, str]] = None,
        checkpointing: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        _check_torch()
        self.shard = _names('shard', shard)
        self.checkpointing = _names('checkpointing', checkpointing)
        self.dtypes = _dtypes(mp)
        mesh = _mesh(mesh)
        super().__init__(model_wrapper=None, **kwargs)
        if not is_distributed():
            raise ValueError(
                "launcher is 'none': FSDP2Strategy spreads a model over processes; start them "
                'with torchrun, and --launcher pytorch'
            )
        self.mesh_shape = _fitting(mesh, self.world_size)
        self.read = lambda source: read_checkpoint(source, fill=False)

    def _setup_distributed(self, launcher: str = 'pytorch', *args: Any, **kwargs: Any) -> None:
        if get_device() == 'cpu':
            init_gloo_group(launcher)
        else:
            super()._setup_distributed(launcher, *args, **kwargs)

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        return hide_start(super().build_logger(*args, **kwargs))

    def build_model(self, model: Any) -> nn.Module:
        """Build the model; raise ValueError for a class name that no module of it has."""
        model = super().build_model(model)
        for argument in ('shard', 'checkpointing'):
            check_classes(argument, getattr(self, argument), model)
        half = self.dtypes.get('param_dtype', torch.float32) != torch.float32
        for name, module in modules_of_classes(model, self.shard):
            if half and any(isinstance(part, _BatchNorm) for part in module.modules()):
                raise ValueError(
                    f'mp.param_dtype: batch norm needs float32, and {type(module).__name__} '
                    f'({name}), which shard names, has one'
                )
        return model

    def compile_model(self, model: nn.Module, compile: Any = False) -> nn.Module:
        if compile:
            raise ValueError(f'compile={compile!r}: FSDP2Strategy does not compile models')
        return model

    def build_optim_wrapper(self, optim_wrapper: Any, model: Any = None) -> BaseOptimWrapper:
        wrapper = super().build_optim_wrapper(optim_wrapper, model)
        if type(wrapper) is not OptimWrapper:
            raise ValueError(
                f'optim_wrapper.type is {type(wrapper).__name__!r}: FSDP2Strategy takes '
                "'OptimWrapper' alone, and mixed precision by strategy.mp"
            )
        self._log_memory_once(model, wrapper.optimizer)
        return wrapper

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model = self.convert_model(model)
        if get_device() == 'cpu':
            optimize_for_cpu(model)
        for module in model.modules():
            if isinstance(module, BaseDataPreprocessor):
                module.to(get_device())
        for parameter in model.parameters():
            # FSDP splits a parameter by rows.
            parameter.data = parameter.data.contiguous()
        for _, module in modules_of_classes(model, self.checkpointing):
            checkpoint_forward(module)
        names = ('replicate', 'shard') if len(self.mesh_shape) == 2 else ('shard',)
        mesh = init_device_mesh(get_device(), self.mesh_shape, mesh_dim_names=names)
        blocks = MixedPrecisionPolicy(
            param_dtype=self.dtypes.get('param_dtype'),
            reduce_dtype=self.dtypes.get('reduce_dtype'),
            output_dtype=torch.float32 if 'param_dtype' in self.dtypes else None,
        )
        for _, module in modules_of_classes(model, self.shard):
            fully_shard(module, mesh=mesh, mp_policy=blocks)
        rest = MixedPrecisionPolicy(
            reduce_dtype=self.dtypes.get('reduce_dtype'), cast_forward_inputs=False
        )
        return fully_shard(model, mesh=mesh, mp_policy=rest)

    def _log_memory_once(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        def log(*_: Any) -> None:
            handle.remove()
            own = training_bytes(model, optimizer)
            self.logger.info(
                'FSDP2: this process has '
                + ', '.join(f'{size / MiB:.3f} MiB of {part}' for part, size in own.items())
                + f', together {sum(own.values()) / MiB:.3f} MiB.'
            )

        handle = optimizer.register_step_post_hook(log)

    def save_checkpoint(
        self,
        filename: str,
        *,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        extra_ckpt: Optional[dict] = None,
        callback: Optional[Callable] = None,
    ) -> None:
        """Save a sharded checkpoint. All processes call this together.

        Raises:
            mmlinattn.checkpoints.CheckpointError: it cannot be written; an older file of the same
                name stays unchanged.
        """
        content: Dict[str, Any] = dict(state_dict=self.model.state_dict())
        if save_optimizer:
            content['optimizer'] = self.optim_state_dict()
        if save_param_scheduler and hasattr(self, 'param_schedulers'):
            content['param_schedulers'] = self.scheduler_state_dict()
        content.update(extra_ckpt or {})
        content.setdefault('meta', {}).update(
            seed=self.seed, mmengine_version=mmengine.__version__, world_size=self.world_size
        )
        if callback is not None:
            callback(content)
        save_sharded(Path(filename), content)

    def load_checkpoint(
        self,
        filename: str,
        *,
        map_location: Any = 'cpu',
        strict: bool = False,
        revise_keys: list = [(r'^module.', '')],  # noqa: B006  MMEngine's own
        callback: Optional[Callable] = None,
    ) -> dict:
        """Load a checkpoint. If it is sharded, this process reads only its own part."""
        self.logger.info(f'Load checkpoint from {filename}')
        content = self.read(filename)
        if callback is not None:
            callback(content)
        own = self.model.state_dict()
        self._fill(filename, content, 'state_dict', own)
        if 'optimizer' in content and hasattr(self, 'optim_wrapper'):
            self._fill(filename, content, 'optimizer', self._parameters_by_number())
        self.load_model_state_dict(
            content.pop('state_dict'), strict=strict, revise_keys=revise_keys
        )
        return content

    def _fill(self, source: str, content: dict, section: str, own: Mapping[str, Tensor]) -> None:
        """Load the sharded tensors of a section, split as in this model, else in full."""
        if not is_sharded(content):
            return
        into = {}
        for key, owner, name, tensor in tensors_of(content):
            if not key.startswith(f'{section}.') or not tensor.is_meta:
                continue
            # Optimizer state is keyed by the number of the parameter.
            like = own.get(name if section == 'state_dict' else key.split('.')[1])
            if like is not None and like.shape == tensor.shape:
                owner[name] = torch.empty_like(like, dtype=tensor.dtype)
            else:
                owner[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            into[key] = owner[name]
        load_shards(source, content, into)

    def load_model_state_dict(self, state_dict: dict, **kwargs: Any) -> None:
        """Load full tensors, or tensors that are sharded as in the model."""
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication(), warnings.catch_warnings():
            warnings.filterwarnings('ignore', 'Found a non-scalar tensor with numel=1')
            super().load_model_state_dict(state_dict, **kwargs)

    def load_optim_state_dict(self, state_dict: dict) -> None:
        """Load an optimizer state; full tensors are sharded as their parameters are."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        parameters = self._parameters_by_number()
        for key, owner, name, value in tensors_of(dict(optimizer=state_dict)):
            like = parameters.get(key.split('.')[1])
            if isinstance(value, DTensor) or not isinstance(like, DTensor):
                continue
            if like.shape != value.shape:
                continue
            value = value.to(like.device)
            # Every process has the full tensor, so nothing is sent.
            owner[name] = distribute_tensor(
                value, like.device_mesh, like.placements, src_data_rank=None
            )
        super().load_optim_state_dict(state_dict)

    def _parameters_by_number(self) -> Dict[str, Tensor]:
        """Return the parameters of the optimizer, keyed as in its state."""
        groups = self.optim_wrapper.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group['params']]
        return {str(number): parameter for number, parameter in enumerate(parameters)}


def training_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> Dict[str, int]:
    """Return the bytes that this process keeps between steps, counted from its own shards.

    Args:
        model: model in training.
        optimizer: its optimizer, after a step and before the gradients are dropped.

    Returns:
        Bytes of ``parameters``, ``gradients``, ``optimizer state`` and ``buffers``. The temporary
        memory of a step (gathered parameters, activations) is not included.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
        >>> layer(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> training_bytes(layer, optimizer)
        {'parameters': 36, 'gradients': 36, 'optimizer state': 36, 'buffers': 0}
    """
    parameters = list(model.parameters())
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    parts: Dict[str, Sequence[Tensor]] = {
        'parameters': parameters,
        'gradients': [p.grad for p in parameters if p.grad is not None],
        'optimizer state': [value for value in state if isinstance(value, Tensor)],
        'buffers': list(model.buffers()),
    }
    return {name: sum(map(_own_bytes, tensors)) for name, tensors in parts.items()}


def _own_bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if hasattr(tensor, 'to_local') else tensor
    return local.numel() * local.element_size()


def _check_torch() -> None:
    try:
        from torch.distributed.checkpoint import HuggingFaceStorageReader  # noqa: F401
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'FSDP2Strategy needs fully_shard and safe shards, which torch {torch.__version__} '
            f'does not have ({error}); torch 2.11 does'
        ) from error


def _names(argument: str, names: Any) -> Tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f'{argument} must be a list of names of classes, got {names!r}')
    return tuple(names)


def _dtypes(mp: Optional[Dict[str, str]]) -> Dict[str, torch.dtype]:
    found = {}
    for key, value in (mp or {}).items():
        if key not in ('param_dtype', 'reduce_dtype'):
            raise ValueError(f'mp has param_dtype and reduce_dtype, got {key!r}')
        if value not in DTYPES:
            raise ValueError(f'mp.{key} must be one of {DTYPES}, got {value!r}')
        found[key] = getattr(torch, value)
    return found


def _mesh(mesh: Optional[Dict[str, int]]) -> Dict[str, int]:
    mesh = dict(mesh or {})
    for key, value in mesh.items():
        if key not in ('replicate', 'shard'):
            raise ValueError(f'mesh has replicate and shard, got {key!r}')
        check_integer(f'mesh.{key}', value)
    return mesh


def _fitting(mesh: Dict[str, int], processes: int) -> Tuple[int, ...]:
    replicate = mesh.get('replicate', 1)
    shard = mesh.get('shard', max(processes // replicate, 1))
    if replicate * shard != processes:
        raise ValueError(
            f'mesh: replicate={replicate} times shard={shard} is {replicate * shard}, and there '
            f'are {processes} processes'
        )
    return (replicate, shard) if replicate > 1 else (shard,)


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
