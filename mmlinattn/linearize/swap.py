"""Direct swap: the teacher's weights in the student, before any training."""

from dataclasses import dataclass, field
from typing import List, Mapping

import torch
from torch import Tensor, nn

from ..models.layers.base import BaseAttention
from ..utils.suggest import shorten


@dataclass
class SwapReport:
    """Names of the student's tensors by the origin of their values."""

    copied: List[str] = field(default_factory=list)  # equal to the teacher's
    partial: List[str] = field(default_factory=list)  # the teacher's but for the rows of the gate
    fresh: List[str] = field(default_factory=list)  # not in the teacher, or of another shape there
    dropped: List[str] = field(default_factory=list)  # the teacher's that the student cannot take

    def __str__(self) -> str:
        lines = [f'{len(self.copied)} tensors are copied from the teacher']
        for names, what in (
            (self.partial, 'are copied except the rows of the gate'),
            (self.fresh, 'start fresh'),
            (self.dropped, 'of the teacher are not used'),
        ):
            if names:
                lines.append(f'{len(names)} {what}: {shorten(names)}')
        return '\n'.join(lines)


def swap_weights(teacher: Mapping[str, Tensor], student: nn.Module) -> SwapReport:
    """Copy the teacher's weights into every tensor of the student with the same name and shape.

    If the student's attention adds a gate, the rows of its ``in_proj`` for queries, keys and values
    are copied. The gate starts as 1, which needs a bias. A local position (LePE) that the
    teacher lacks starts as 0. The attention begins without the two and learns them.

    Args:
        teacher: state dict of the teacher.
        student: initialised model, modified in place.

    Returns:
        the names by origin.

    Example:
        >>> from mmlinattn.models.layers import MALA, SoftmaxAttention
        >>> teacher, student = SoftmaxAttention(8, 1), MALA(8, 1)
        >>> report = swap_weights(teacher.state_dict(), student)
        >>> report.partial, report.fresh
        (['in_proj.weight', 'in_proj.bias'], ['lepe.weight', 'lepe.bias'])
        >>> bool((student.in_proj.weight[:24] == teacher.in_proj.weight).all())
        True
    """
    state = student.state_dict()
    report = SwapReport()
    with torch.no_grad():
        for name, value in state.items():
            if name in teacher and teacher[name].shape == value.shape:
                value.copy_(teacher[name])
                report.copied.append(name)
            else:
                report.fresh.append(name)
        for prefix, module in student.named_modules():
            if isinstance(module, BaseAttention):
                _start_neutral(teacher, module, f'{prefix}.' if prefix else '', report)
    report.dropped = [n for n in teacher if n not in report.copied and n not in report.partial]
    return report


def _start_neutral(
    teacher: Mapping[str, Tensor], attn: BaseAttention, prefix: str, report: SwapReport
) -> None:
    """Start what the student's attention adds, gate and local position, without an effect."""
    if attn.lepe is not None and f'{prefix}lepe.weight' in report.fresh:
        for value in attn.lepe.parameters():
            nn.init.zeros_(value)
    rows = 3 * attn.embed_dims
    weight = teacher.get(f'{prefix}in_proj.weight')
    adds_gate = (
        attn.gate == 'proj'
        and len(attn.in_proj.weight) == rows + attn.embed_dims
        and weight is not None
        and len(weight) == rows
    )
    for name, value in attn.in_proj.named_parameters() if adds_gate else ():
        key = f'{prefix}in_proj.{name}'
        if key in teacher:
            value[:rows].copy_(teacher[key])
            report.fresh.remove(key)
            report.partial.append(key)
        else:  # the teacher has no bias
            nn.init.zeros_(value[:rows])
        if attn.in_proj.bias is not None:
            nn.init.constant_(value[rows:], float(name == 'bias'))
