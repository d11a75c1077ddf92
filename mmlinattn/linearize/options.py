"""Options of the distillation."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Optional, Tuple, Union

# Options that may change between a run and its continuation.
FREE = ('out', 'resume', 'launcher')


@dataclass
class Options:
    """Options of :class:`mmlinattn.linearize.Linearizer`, named as those of the command.

    Attributes:
        images: folder of images without labels, or None: the training images of the config.
        out: folder of the results, new or empty.
        attn: config of the linear attention.
        keep_softmax: layers that keep their attention.
        iters_a, iters_b: iterations of phase A (attentions) and B (backbone or encoder).
        lr_a, lr_b: highest learning rates of AdamW.
        batch_size: images per process and iteration in A and B.
        crop_size: (H, W) of random crops in A and B, or None.
        seed: of initial weights and of the order of the images.
        finetune: train with the labels and the schedule of the config afterwards.
        score: score each stage on the validation data of the config.
        amp: mixed precision in A, B and the fine-tuning.
        resume: continue an interrupted run in ``out``.
        launcher: MMEngine's launcher of several processes.
    """

    images: Optional[str]
    out: str
    attn: Dict[str, Any] = field(default_factory=lambda: dict(type='MALA'))
    keep_softmax: Tuple[Union[int, str], ...] = ()
    iters_a: int = 1000
    iters_b: int = 4000
    lr_a: float = 1e-3
    lr_b: float = 3e-4
    batch_size: int = 8
    crop_size: Optional[Tuple[int, int]] = None
    seed: int = 0
    finetune: bool = False
    score: bool = True
    amp: bool = False
    resume: bool = False
    launcher: str = 'none'

    def fixed(self) -> Dict[str, Any]:
        """Return the options that a continued run must share, in types of JSON."""
        found = {name: value for name, value in asdict(self).items() if name not in FREE}
        return json.loads(json.dumps(found))  # tuples as lists, those of attention options too
