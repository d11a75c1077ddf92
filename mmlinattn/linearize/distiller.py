"""Training model of the distillation: a frozen teacher and a student with other attentions."""

import copy
import inspect
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from mmengine.config import ConfigDict
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..models.backbones.base import Backbone
from .parts import KINDS, inputs_of, outputs_of
from .student import attention_layers, carries_cores

OBJECTIVES = ('attentions', 'outputs')


@MODELS.register_module()
class Distiller(BaseModel):
    """Distillation of a trained model into one with other attentions, without labels.

    The two stages of ViT-AdaLA (arXiv 2603.16063). With ``objective='attentions'`` every replaced
    attention of the student gets the input of the teacher's and learns its output; all blocks train
    at once, in one pass of the teacher, and nothing else trains. With ``'outputs'`` the parts with
    replaced attentions train, on the images: the backbone, the encoder of SMCA, or both. They learn
    the outputs of the last of them, which the unchanged rest of the model reads. If no
    attention of the backbone is replaced, the student's encoder reads the teacher's feature maps.

    The teacher is frozen and runs as in a test, and so does the student but for its new
    attentions: without stochastic depth and dropout, and with the batch-norm statistics of the
    teacher. Padded tokens of an encoder do not count. The places of core attention are shifted and
    scaled in training.

    Args:
        teacher: config of the trained model, with its weights as ``init_cfg``. Its data
            preprocessor prepares the images as in a test.
        student: config of the same model with other attentions, with weights as ``init_cfg``.
        objective: ``'attentions'`` or ``'outputs'``.

    Inputs:
        (B, 3, H, W).

    Returns:
        ``mode='loss'``: one loss, see :func:`relative_error`, summed over attentions or outputs.
        ``mode='tensor'``: the errors by attention or output, a dict of scalars.

    Raises:
        ValueError: ``objective`` is unknown, all attentions of both models are the same, or they
            share cores, see :class:`CoreAttention`, with ``'attentions'``.

    Example:
        >>> mit = dict(type='MixTransformer', arch='b0', out_indices=(0,))
        >>> teacher = dict(type='mmpretrain.ImageClassifier', backbone=mit)
        >>> student = dict(teacher, backbone=dict(mit, attn_cfg='MALA'))
        >>> [*Distiller(teacher, student)(torch.randn(2, 3, 32, 32))]
        ['backbone.stages.0.0.attn', 'backbone.stages.0.1.attn']
    """

    # Parts that run in bfloat16 under CPUAmpOptimWrapper. Attentions run inside the teacher.
    amp_parts = tuple(f'{m}.{part}' for m in ('teacher', 'student') for part in ('neck', *KINDS))

    def __init__(self, teacher: dict, student: dict, objective: str = 'attentions') -> None:
        if objective not in OBJECTIVES:
            raise ValueError(f'objective must be one of {OBJECTIVES}, got {objective!r}')
        # Detectors add options to the configs of their heads.
        models = [MODELS.build(ConfigDict(copy.deepcopy(cfg))) for cfg in (teacher, student)]
        super().__init__(models[0].data_preprocessor)
        self.data_preprocessor.register_forward_pre_hook(_as_in_test, with_kwargs=True)
        self.objective = objective
        self.teacher, self.student = (model.requires_grad_(False) for model in models)
        self.attentions = distilled_attentions(self.teacher, self.student)
        if not self.attentions:
            raise ValueError('teacher and student have the same attentions: nothing to distil')
        if objective == 'attentions' and carries_cores(self.student):
            raise ValueError("layers that share cores do not learn alone: set objective='outputs'")
        replaced = {name.split('.')[0] for name in self.attentions}
        self.parts = [part for part in KINDS if part in replaced]
        if isinstance(self.student.backbone, Backbone):
            self.student.backbone.frozen_stages = -1
        for name in self.attentions if objective == 'attentions' else self.parts:
            self.student.get_submodule(name).requires_grad_(True)
        self.train()

    def train(self, mode: bool = True) -> 'Distiller':
        super().train(mode)
        self.teacher.eval()
        self.student.eval()
        if carries_cores(self.student):
            self.student.backbone.cores.train(mode)
        for name in self.attentions:
            attention = self.student.get_submodule(name).train(mode)
            for module in attention.modules():
                if isinstance(module, nn.Dropout):
                    module.eval()
        return self

    def forward(
        self, inputs: Tensor, data_samples: Optional[list] = None, mode: str = 'tensor'
    ) -> Dict[str, Tensor]:
        """Return the loss or the errors of images (B, 3, H, W)."""
        errors = self.attention_errors if self.objective == 'attentions' else self.output_errors
        found = errors(inputs, data_samples)
        if mode == 'loss':
            return {f'loss_{self.objective}': torch.stack([*found.values()]).sum()}
        return found

    def attention_errors(self, images: Tensor, data_samples: Optional[list]) -> Dict[str, Tensor]:
        """Return the error of each replaced attention on the teacher's input, by its name."""
        errors: Dict[str, Tensor] = {}
        last = self.parts[-1]
        with torch.no_grad(), ExitStack() as hooks:
            for name in self.attentions:
                compare = _comparison(errors, name, self.student.get_submodule(name))
                teacher = self.teacher.get_submodule(name)
                hooks.enter_context(teacher.register_forward_hook(compare, with_kwargs=True))
            outputs_of(self.teacher, last, inputs_of(self.teacher, last, images, data_samples))
        return errors

    def output_errors(self, images: Tensor, data_samples: Optional[list]) -> Dict[str, Tensor]:
        """Return the relative error of each output of the last part with replaced attentions."""
        last = self.parts[-1]
        with torch.no_grad():
            inputs = inputs_of(self.teacher, last, images, data_samples)
            expected = outputs_of(self.teacher, last, inputs)
        if len(self.parts) > 1:  # parts before the last differ, too
            inputs = inputs_of(self.student, last, images, data_samples)
        pairs = zip(outputs_of(self.student, last, inputs), expected)
        return {
            f'{last} output {i}': relative_error(found.values, target.values, target.padding)
            for i, (found, target) in enumerate(pairs)
        }


def distilled_attentions(teacher: nn.Module, student: nn.Module) -> List[str]:
    """Return the names of the attentions whose classes differ in two models."""
    names = attention_layers(student)
    pairs = {name: (teacher.get_submodule(name), student.get_submodule(name)) for name in names}
    return [name for name, (one, other) in pairs.items() if type(one) is not type(other)]


def relative_error(found: Tensor, expected: Tensor, padding: Optional[Tensor] = None) -> Tensor:
    """Return the squared error over the squares of ``expected``, the mean over the images.

    Blocks and outputs of any scale weigh the same, and the mean is the same on several processes.
    Both are (B, ...), or (B, N, C) with ``padding`` (B, N) bool, True = token that does not count.
    """
    found, expected = found.float(), expected.float()
    if padding is not None:
        found, expected = (x.masked_fill(padding[..., None], 0) for x in (found, expected))
    energy = expected.square().flatten(1).sum(1).clamp(min=1e-12)
    return ((found - expected).square().flatten(1).sum(1) / energy).mean()


def _comparison(errors: Dict[str, Tensor], name: str, student: nn.Module) -> Callable:
    """Return a hook of the teacher's attention that runs the student's on the same input."""

    def hook(module: nn.Module, args: Tuple, kwargs: Dict[str, Any], expected: Tensor) -> None:
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        # The teacher runs without gradients, the student's attention with them.
        with torch.set_grad_enabled(student.training):
            found = student(*args, **kwargs)
            errors[name] = relative_error(found, expected, given.get('key_padding_mask'))

    return hook


def _as_in_test(module: nn.Module, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tuple, dict]:
    """Drop the argument ``training`` of a data preprocessor: labels and augmentation need it."""
    return args[:1], dict(training=False)
