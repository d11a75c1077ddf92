"""Training model of the distillation: a frozen teacher backbone and the student's."""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

from .student import attention_layers

OBJECTIVES = ('attentions', 'outputs')


@MODELS.register_module()
class BackboneDistiller(BaseModel):
    """Distillation of a trained backbone into one with other attentions, without labels.

    The two stages of ViT-AdaLA (arXiv 2603.16063). With ``objective='attentions'`` every replaced
    attention of the student gets the input of the teacher's and learns its output; all blocks train
    at once, in one pass of the teacher, and nothing else trains. With ``'outputs'`` all weights of
    the student train, on the images, to give the outputs of the teacher's backbone, which are what
    neck and head read.

    The teacher is frozen and runs as in a test, and so does the student but for its new
    attentions: without stochastic depth, and with the batch-norm statistics of the teacher.

    Args:
        teacher: config of the trained backbone, with its weights as ``init_cfg``.
        student: config of the same backbone with other attentions, with weights as ``init_cfg``.
        objective: ``'attentions'`` or ``'outputs'``.
        data_preprocessor: that of the teacher's whole model; it works as in a test.

    Inputs:
        (B, 3, H, W).

    Returns:
        ``mode='loss'``: one loss, see :func:`relative_error`, summed over the blocks or outputs.
        ``mode='tensor'``: the errors by block or output, a dict of scalars.

    Raises:
        ValueError: ``objective`` is unknown, or all attentions of both backbones are the same.

    Example:
        >>> mit = dict(type='MixTransformer', arch='b0', out_indices=(0,))
        >>> model = BackboneDistiller(mit, dict(mit, attn_cfg='MALA'))
        >>> [*model(torch.randn(2, 3, 32, 32))]
        ['stages.0.0.attn', 'stages.0.1.attn']
    """

    # Parts that run in bfloat16 under CPUAmpOptimWrapper. Attentions run inside the teacher.
    amp_parts = ('teacher', 'student')

    def __init__(
        self,
        teacher: dict,
        student: dict,
        objective: str = 'attentions',
        data_preprocessor: Optional[dict] = None,
    ) -> None:
        super().__init__(data_preprocessor)
        if objective not in OBJECTIVES:
            raise ValueError(f'objective must be one of {OBJECTIVES}, got {objective!r}')
        self.objective = objective
        self.data_preprocessor.register_forward_pre_hook(_as_in_test, with_kwargs=True)
        self.teacher = MODELS.build(dict(teacher, frozen_stages=-1)).requires_grad_(False)
        self.student = MODELS.build(dict(student, frozen_stages=-1))
        self.attentions = distilled_attentions(self.teacher, self.student)
        if not self.attentions:
            raise ValueError('teacher and student have the same attentions: nothing to distil')
        if objective == 'attentions':
            trained = {
                id(p) for name in self.attentions
                for p in self.student.get_submodule(name).parameters()
            }  # fmt: skip
            for parameter in self.student.parameters():
                if id(parameter) not in trained:
                    parameter.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> 'BackboneDistiller':
        super().train(mode)
        self.teacher.eval()
        self.student.eval()
        for name in self.attentions:
            self.student.get_submodule(name).train(mode)
        return self

    def forward(
        self, inputs: Tensor, data_samples: Optional[list] = None, mode: str = 'tensor'
    ) -> Dict[str, Tensor]:
        """Return the loss or the errors of images (B, 3, H, W)."""
        errors = self.attention_errors if self.objective == 'attentions' else self.output_errors
        found = errors(inputs)
        if mode == 'loss':
            return {f'loss_{self.objective}': torch.stack([*found.values()]).sum()}
        return found

    def attention_errors(self, images: Tensor) -> Dict[str, Tensor]:
        """Return the error of each replaced attention on the teacher's input, by its name."""
        errors: Dict[str, Tensor] = {}
        hooks = [
            self.teacher.get_submodule(name).register_forward_hook(
                _comparison(errors, name, self.student.get_submodule(name)), with_kwargs=True
            )
            for name in self.attentions
        ]
        try:
            with torch.no_grad():
                self.teacher(images)
        finally:
            for hook in hooks:
                hook.remove()
        return errors

    def output_errors(self, images: Tensor) -> Dict[str, Tensor]:
        """Return the error of each output of the backbone."""
        with torch.no_grad():
            expected = self.teacher(images)
        pairs = zip(self.student(images), expected)
        return {f'output {i}': relative_error(*pair) for i, pair in enumerate(pairs)}


def distilled_attentions(teacher: nn.Module, student: nn.Module) -> List[str]:
    """Return the names of the attentions whose classes differ in two backbones."""
    names = attention_layers(student)
    pairs = {name: (teacher.get_submodule(name), student.get_submodule(name)) for name in names}
    return [name for name, (one, other) in pairs.items() if type(one) is not type(other)]


def relative_error(found: Tensor, expected: Tensor) -> Tensor:
    """Return the squared error over the squares of ``expected``, the mean over the images.

    It is the mean squared error of each image in units of the teacher's mean square, so blocks and
    outputs of any scale weigh the same. A mean over the images is the same on several processes.

    Args:
        found, expected: (B, ...).

    Example:
        >>> relative_error(torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, 2.0]])).item()
        0.20000000298023224
    """
    found, expected = found.float().flatten(1), expected.float().flatten(1)
    energy = expected.square().sum(1).clamp(min=1e-12)
    return ((found - expected).square().sum(1) / energy).mean()


def _comparison(errors: Dict[str, Tensor], name: str, student: nn.Module) -> Callable:
    """Return a hook of the teacher's attention that runs the student's on the same input."""

    def hook(module: nn.Module, args: Tuple, kwargs: Dict[str, Any], expected: Tensor) -> None:
        # The teacher runs without gradients, the student's attention with them.
        with torch.set_grad_enabled(student.training):
            errors[name] = relative_error(student(*args, **kwargs), expected)

    return hook


def _as_in_test(module: nn.Module, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tuple, dict]:
    """Drop the argument ``training`` of a data preprocessor: labels and augmentation need it."""
    return args[:1], dict(training=False)
