"""Time and memory of teacher and student by the size of the image."""

import statistics
from functools import partial
from typing import Dict, List, Optional, Sequence

import torch
from mmengine.model import BaseModel

from ..analysis.timing import peak_bytes, seconds_of
from .parts import run_to

CALLS = 3


def measure(
    teacher: BaseModel, student: BaseModel, part: str, sides: Sequence[int], device: str
) -> List[Dict[str, float]]:
    """Time both models from the image to the output of a part, without gradients.

    Args:
        teacher, student: whole models, moved to ``device``.
        part: ``'backbone'`` or ``'encoder'``.
        sides: of square images, rounded up to whole patches of a ViT, else to multiples of 32.
        device: where to run.

    Returns:
        for each side ``side``, the median seconds of three calls in turns, ``teacher_s`` and
        ``student_s``, and the peak of torch's allocations in bytes, ``teacher_bytes`` and
        ``student_bytes``, without the weights.
    """
    models = dict(teacher=teacher.to(device).eval(), student=student.to(device).eval())
    step = getattr(teacher.backbone, 'arch', {}).get('patch_size', 32)
    rows: List[Dict[str, float]] = []
    for side in sorted({-(-side // step) * step for side in sides}):
        image = torch.rand(1, 3, side, side, device=device)
        times: Dict[str, List[float]] = {name: [] for name in models}
        row: Dict[str, float] = dict(side=side)
        with torch.no_grad():
            for name, model in models.items():
                call = partial(run_to, model, part, image)
                row[f'{name}_bytes'] = peak_bytes(call, image.device)  # warms up, too
            for _ in range(CALLS):
                for name, model in models.items():
                    times[name].append(
                        seconds_of(partial(run_to, model, part, image), image.device)
                    )
        row.update({f'{name}_s': statistics.median(found) for name, found in times.items()})
        rows.append(row)
    return rows


def crossover(rows: Sequence[Dict[str, float]]) -> Optional[int]:
    """Return the smallest measured side from which on the student is faster, or None.

    Example:
        >>> rows = [(256, 1.0, 2.0), (512, 4.0, 3.0), (1024, 9.0, 8.0)]
        >>> crossover([dict(side=n, teacher_s=t, student_s=s) for n, t, s in rows])
        512
    """
    found = None
    for row in sorted(rows, key=lambda row: -row['side']):
        if row['student_s'] >= row['teacher_s']:
            break
        found = int(row['side'])
    return found
