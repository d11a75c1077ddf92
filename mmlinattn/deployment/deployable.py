"""Wrappers of models for export, with normalisation and post-processing inside."""

from typing import List, Optional, Sequence, Tuple, Type

import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..checkpoints import load_checkpoint
from ..engine.model import class_names, number_of_classes, preprocessor_of
from .export_rewrites import rewrite_for_export
from .exported_file import Outputs

# Methods by which models and heads of the frameworks predict, as far as they have them.
PREDICTION = (
    'predict', '_get_predictions', 'predict_by_feat', '_predict_by_feat_single',
    '_bbox_post_process', 'predict_bbox', 'predict_mask', '_bbox_forward', '_mask_forward',
    '_refine_roi', 'regress_by_class',
)  # fmt: skip


class NotDeployable(ValueError):
    """Model, or setting of a model, that cannot be exported; the message names it."""


def check_prediction(part: nn.Module, *kinds: type) -> None:
    """Raise NotDeployable unless a part of a model predicts by the methods of one of the kinds."""
    own = [
        [name for name in PREDICTION if getattr(type(part), name, 0) != getattr(kind, name, 0)]
        for kind in kinds
    ]
    fewest: List[str] = min(own, key=len)
    if fewest:
        raise NotDeployable(
            f'{type(part).__name__} predicts in a way that has no exported form: by its own '
            + ', '.join(fewest)
        )


class Deployable(nn.Module):
    """Base class of exported models: normalisation, network and post-processing.

    Args:
        model: model of MMDetection, MMSegmentation or MMPretrain, in eval mode.
        preprocessor: config of its data preprocessor: ``mean``, ``std``, the order of channels.

    Raises:
        NotDeployable: the model cannot be exported.
    """

    task: str
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, model: BaseModel, preprocessor: dict) -> None:
        super().__init__()
        self.model: BaseModel = model
        self.check()
        # Exported models take RGB; channels are swapped for models trained on BGR.
        mean, std, self.swap = normalisation(preprocessor)
        self.register_buffer('pixel_mean', mean)
        self.register_buffer('pixel_std', std)
        self.pad_value = preprocessor.get('pad_value', preprocessor.get('pad_val', 0))

    def forward(self, image: Tensor, size: Optional[Tensor] = None) -> Outputs:
        """Compute named outputs, float32 or int64, of images (B, 3, H, W) float32, RGB, 0..255.

        Detectors also take ``size`` (B, 2) int64: height and width before padding, or None for
        images without padding.
        """
        return self.predict(self.normalised(image), size)

    def normalised(self, image: Tensor) -> Tensor:
        if self.swap:
            image = torch.cat([image[:, 2:], image[:, 1:2], image[:, :1]], 1)
        return (image - self.pixel_mean) / self.pixel_std

    def check(self) -> None:
        """Raise NotDeployable if :meth:`predict` would differ from the framework's prediction."""

    def predict(self, x: Tensor, size: Optional[Tensor] = None) -> Outputs:
        """Compute the predictions of normalised images (B, 3, H, W)."""
        raise NotImplementedError

    def framework_prediction(self, image: Tensor, size: Tensor) -> Outputs:
        """Compute the outputs of one padded image with the framework; detectors only."""
        raise NotImplementedError

    def padding(self) -> Tuple[float, float, float]:
        """Return the padding colour (RGB, 0..255), which the normalisation maps to the config's."""
        colour = self.pixel_mean + self.pad_value * self.pixel_std
        first, green, last = colour.flatten().tolist()
        return (last, green, first) if self.swap else (first, green, last)


class DeployableSegmentor(Deployable):
    """Segmentor. Outputs ``labels`` (B, H, W) int64, of the size of the input."""

    task = 'segmentation'

    def predict(self, x: Tensor, size: Optional[Tensor] = None) -> Outputs:
        logits = self.model.encode_decode(x, [dict(img_shape=tuple(x.shape[-2:]))])
        if logits.shape[1] == 1:
            raise NotDeployable('a segmentor with one output has no exported form')
        return dict(labels=logits.argmax(1))


class DeployableClassifier(Deployable):
    """Classifier. Outputs ``scores`` (B, classes), by a sigmoid for several labels per image."""

    task = 'classification'

    def check(self) -> None:
        from mmpretrain.models import ClsHead, ImageClassifier, MultiLabelClsHead

        check_prediction(self.model, ImageClassifier)
        check_prediction(self.model.head, ClsHead, MultiLabelClsHead)

    def predict(self, x: Tensor, size: Optional[Tensor] = None) -> Outputs:
        logits = self.model.head(self.model.extract_feat(x))
        return dict(scores=logits.sigmoid() if is_multi_label(self.model) else logits.softmax(-1))


def is_multi_label(model: BaseModel) -> bool:
    """Return True if a classifier of MMPretrain predicts several labels per image."""
    from mmpretrain.models import MultiLabelClsHead

    return isinstance(model.head, MultiLabelClsHead)


def normalisation(preprocessor: dict) -> Tuple[Tensor, Tensor, bool]:
    """Return mean and std (3, 1, 1) of a data preprocessor, and True if the model takes BGR.

    A mean or std without 3 channels raises NotDeployable.
    """
    mean, std = (preprocessor.get(name) or [zero] * 3 for name, zero in (('mean', 0), ('std', 1)))
    if len(mean) != 3 or len(std) != 3:
        raise NotDeployable(f'data_preprocessor has mean={mean} and std={std}, not of 3 colours')
    rgb = any(preprocessor.get(name) for name in ('bgr_to_rgb', 'to_rgb', 'rgb_to_bgr'))
    mean, std = (torch.tensor(x, dtype=torch.float32).view(-1, 1, 1) for x in (mean, std))
    return mean, std, not rgb


def exported_form(model: BaseModel, cfg: Config) -> Type[Deployable]:
    """Return the subclass of :class:`Deployable` for a model, or raise NotDeployable."""
    scope = cfg.get('default_scope')
    if scope == 'mmdet':
        from .detectors import deployable_detector

        return deployable_detector(model)
    if scope == 'mmseg' and hasattr(model, 'encode_decode') and hasattr(model, 'decode_head'):
        if hasattr(model.decode_head, 'pixel_decoder'):
            raise NotDeployable(
                f'{type(model.decode_head).__name__} has no exported form: its pixel decoder keeps '
                'the sizes of maps in tensors'
            )
        return DeployableSegmentor
    if scope == 'mmpretrain' and getattr(model, 'head', None) is not None:
        return DeployableClassifier
    raise NotDeployable(
        f'{type(model).__name__} (default_scope={scope!r}) has no exported form: detectors, '
        'segmentors and classifiers of the frameworks have'
    )


def deployable(model: BaseModel, cfg: Config) -> Deployable:
    """Wrap a model, built from ``cfg.model``, for export; some of its layers are replaced in place.

    Raises:
        NotDeployable: see :func:`exported_form`, or a setting cannot be exported.
    """
    kind = exported_form(model, cfg)
    rewrite_for_export(model)
    model.data_preprocessor = nn.Identity()  # its buffers would become weights of the program
    if hasattr(model, 'auxiliary_head'):
        del model.auxiliary_head  # used in training only
    model.eval()
    return kind(model.requires_grad_(False), preprocessor_of(cfg)).eval()


def load(cfg: Config, checkpoint: Optional[str]) -> Tuple[Deployable, Sequence[str]]:
    """Build and load the model of a config for export, and return it with its class names.

    Without a checkpoint the model has initial weights.

    Raises:
        FileNotFoundError: the checkpoint does not exist.
        mmlinattn.checkpoints.CheckpointError: it cannot be read or does not fit the model.
        NotDeployable: the model cannot be exported.
    """
    model = MODELS.build(dict(cfg.model, data_preprocessor=preprocessor_of(cfg) or None))
    exported_form(model, cfg)
    meta = {} if checkpoint is None else load_checkpoint(model, checkpoint)
    return deployable(model, cfg), class_names(cfg, meta, number_of_classes(model))
