"""Whole models as they are exported: pixels in, what a user wants out."""

from typing import Dict, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..checkpoints import load_checkpoint
from ..engine.model import class_names, number_of_classes
from .export_rewrites import use_equivalents

Outputs = Dict[str, Tensor]


class NotDeployable(ValueError):
    """A model, or a setting of it, that has no exported form; the message names it."""


class Deployable(nn.Module):
    """A model with its normalisation in front and its post-processing behind.

    Args:
        model: of a framework, in eval mode.
        preprocessor: config of its data preprocessor: ``mean``, ``std``, the order of channels.
        raw: what the heads give in place of predictions.

    Raises:
        NotDeployable: a model that has no exported form.
    """

    task: str
    has_raw = True

    def __init__(self, model: nn.Module, preprocessor: dict, raw: bool = False) -> None:
        super().__init__()
        self.model = model
        self.is_raw = raw
        if not raw:
            self.check()
        # Images are loaded as BGR; those of a model that takes them so are swapped here.
        mean, std, self.swap = normalisation(preprocessor)
        self.register_buffer('pixel_mean', mean)
        self.register_buffer('pixel_std', std)
        self.dtype = torch.float32

    def forward(self, image: Tensor) -> Outputs:
        """(B, 3, H, W) float32, RGB, 0..255, to named outputs, float32 or int64."""
        if self.swap:
            image = torch.cat([image[:, 2:], image[:, 1:2], image[:, :1]], 1)
        x = ((image - self.pixel_mean) / self.pixel_std).to(self.dtype)
        return self.raw(x) if self.is_raw else self.predict(x)

    def check(self) -> None:
        """Raise NotDeployable where :meth:`predict` would not do what the framework does."""

    def predict(self, x: Tensor) -> Outputs:
        """From normalised images (B, 3, H, W) to predictions."""
        raise NotImplementedError

    def raw(self, x: Tensor) -> Outputs:
        """From normalised images (B, 3, H, W) to what the heads give."""
        raise NotImplementedError

    def padding(self) -> Sequence[float]:
        """The colour, RGB in 0..255, that is 0 behind the normalisation: to fill images up with."""
        mean = self.pixel_mean.flatten().tolist()
        return mean[::-1] if self.swap else mean


class Segmentor(Deployable):
    """``labels`` (B, H, W) int64; raw: ``logits`` (B, classes, H, W) at the size of the input."""

    task = 'segmentation'

    def predict(self, x: Tensor) -> Outputs:
        logits = self.raw(x)['logits']
        if logits.shape[1] == 1:
            raise NotDeployable('a segmentor with one output: export its raw outputs')
        return dict(labels=logits.argmax(1))

    def raw(self, x: Tensor) -> Outputs:
        logits = self.model.encode_decode(x, [dict(img_shape=tuple(x.shape[-2:]))])
        return dict(logits=logits.float())


class Classifier(Deployable):
    """``scores`` (B, classes), their softmax; raw: ``logits``."""

    task = 'classification'

    def predict(self, x: Tensor) -> Outputs:
        return dict(scores=self.raw(x)['logits'].softmax(-1))

    def raw(self, x: Tensor) -> Outputs:
        return dict(logits=self.model.head(self.model.extract_feat(x)).float())


def normalisation(preprocessor: dict) -> Tuple[Tensor, Tensor, bool]:
    """Mean and deviation (3, 1, 1) of a data preprocessor, and whether its colours are BGR.

    Raises:
        NotDeployable: another number of colours.
    """
    mean, std = (preprocessor.get(name) or [zero] * 3 for name, zero in (('mean', 0), ('std', 1)))
    if len(mean) != 3 or len(std) != 3:
        raise NotDeployable(f'data_preprocessor has mean={mean} and std={std}, not of 3 colours')
    rgb = any(preprocessor.get(name) for name in ('bgr_to_rgb', 'to_rgb', 'rgb_to_bgr'))
    mean, std = (torch.tensor(x, dtype=torch.float32).view(-1, 1, 1) for x in (mean, std))
    return mean, std, not rgb


def preprocessor_of(cfg: Config) -> dict:
    """The config of the data preprocessor, which may stand beside the model's."""
    return dict(cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {})


def exported_form(model: nn.Module, cfg: Config, raw: bool = False) -> type:
    """The subclass of :class:`Deployable` that serves a model; no weight is looked at.

    Raises:
        NotDeployable: a model without one, or without raw outputs.
    """
    scope = cfg.get('default_scope')
    if scope == 'mmdet':
        from .detectors import deployable_detector

        kind = deployable_detector(model)
    elif scope == 'mmseg' and hasattr(model, 'encode_decode') and hasattr(model, 'decode_head'):
        kind = Segmentor
    elif scope == 'mmpretrain' and getattr(model, 'head', None) is not None:
        kind = Classifier
    else:
        raise NotDeployable(
            f'{type(model).__name__} (default_scope={scope!r}) has no exported form: detectors, '
            'segmentors and classifiers of the frameworks have'
        )
    if raw and not kind.has_raw:
        raise NotDeployable(
            f'--raw: {type(model).__name__} has two stages, the second one works on the boxes of '
            'the first: there are no raw outputs, export without --raw'
        )
    return kind


def deployable(model: nn.Module, cfg: Config, raw: bool = False) -> Deployable:
    """The exported form of a model.

    Args:
        model: built of ``cfg.model``, in eval mode; parts of it are exchanged in place for
            equivalents that can be captured.
        cfg: its config.
        raw: see :class:`Deployable`.

    Raises:
        NotDeployable: see :func:`exported_form`, or a setting without an exported form.
    """
    kind = exported_form(model, cfg, raw)
    use_equivalents(model)
    model.data_preprocessor = nn.Identity()  # its numbers would be weights of the program
    if hasattr(model, 'auxiliary_head'):
        del model.auxiliary_head  # of the training
    out = kind(model.eval().requires_grad_(False), preprocessor_of(cfg), raw)
    return out.eval()


def load(
    cfg: Config, checkpoint: Optional[str], raw: bool = False
) -> Tuple[Deployable, Sequence[str]]:
    """The exported form of a config's model, and the names of its classes.

    Args:
        cfg: what :func:`mmlinattn.engine.config.load_config` returns.
        checkpoint: a file or an address; None for initial weights.
        raw: see :class:`Deployable`.

    Raises:
        FileNotFoundError: no such checkpoint.
        mmlinattn.checkpoints.CheckpointError: one that cannot be read or does not fit.
        NotDeployable: a model without an exported form.
    """
    model = MODELS.build(dict(cfg.model, data_preprocessor=preprocessor_of(cfg) or None))
    exported_form(model, cfg, raw)
    meta = {} if checkpoint is None else load_checkpoint(model, checkpoint)
    return deployable(model, cfg, raw), class_names(cfg, meta, number_of_classes(model))
