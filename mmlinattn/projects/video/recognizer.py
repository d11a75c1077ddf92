"""Recogniser of videos on MMPretrain's classifier."""

from typing import List, Optional, Sequence, Tuple, Union

import torch
from mmengine.registry import MODELS
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn

from ...utils.errors import InputError

AVERAGES = ('score', 'logit')


@MODELS.register_module()
class VideoRecognizer(ImageClassifier):
    """Classifier of clips, with one prediction for all crops of a video.

    Heads, losses, metrics and data samples are those of MMPretrain, such as ``LinearClsHead``.

    Args:
        backbone: backbone of clips (B, C, T, H, W), such as :class:`TimeSformer`, or one with the
            output of ``torchvision``'s 3D ResNet.
        head: classification head.
        neck: neck between them, or None.
        data_preprocessor: options ``mean`` and ``std`` of MMPretrain's ``VideoDataPreprocessor``.
            Clips of :class:`LoadClip` are RGB.
        average: ``'score'``: mean of the softmax scores of all crops, as in the paper of
            TimeSformer; ``'logit'``: mean of the logits, as in its release.
        init_cfg: MMEngine initialisation.

    Inputs:
        list of B clips (crops, C, T, H, W), or one tensor of them, from ``CropClip``.

    Raises:
        ValueError: ``average`` is unknown; in training, a sample has several crops.

    Example:
        >>> from mmpretrain.registry import MODELS as registry
        >>> head = dict(type='mmpretrain.LinearClsHead', num_classes=4, in_channels=32)
        >>> arch = dict(embed_dims=32, num_heads=2, depth=1)
        >>> model = VideoRecognizer(dict(type='TimeSformer', arch=arch, img_size=32), head).eval()
        >>> found = model(torch.randn(2, 3, 3, 8, 32, 32), mode='predict')  # 2 videos, 3 crops
        >>> [tuple(sample.pred_score.shape) for sample in found]
        [(4,), (4,)]
    """

    def __init__(
        self,
        backbone: dict,
        head: dict,
        neck: Optional[dict] = None,
        data_preprocessor: Union[dict, nn.Module, None] = None,
        average: str = 'score',
        init_cfg: Optional[dict] = None,
    ) -> None:
        if average not in AVERAGES:
            raise ValueError(f'average must be one of {AVERAGES}, got {average!r}')
        if not isinstance(data_preprocessor, nn.Module):
            defaults = dict(type='mmpretrain.VideoDataPreprocessor', format_shape='NCTHW')
            data_preprocessor = MODELS.build({**defaults, **(data_preprocessor or {})})
        super().__init__(
            backbone, neck, head, data_preprocessor=data_preprocessor, init_cfg=init_cfg
        )
        self.average = average

    def extract_feat(
        self, inputs: Union[Tensor, Sequence[Tensor]], stage: str = 'neck'
    ) -> Tuple[Tensor, ...]:
        """Return the features of all crops, (B * crops, ...)."""
        inputs = inputs if isinstance(inputs, Tensor) else torch.stack(list(inputs))
        found = super().extract_feat(inputs.flatten(0, 1) if inputs.dim() == 6 else inputs, stage)
        return (found,) if isinstance(found, Tensor) and stage != 'pre_logits' else found

    def loss(self, inputs: Union[Tensor, Sequence[Tensor]], data_samples: List) -> dict:
        """Return the losses of the head for one crop of each video."""
        crops = 1 if inputs[0].dim() == 4 else inputs[0].shape[0]
        if crops != 1:
            raise InputError(
                f"training needs one crop of each video, got {crops}: set mode='random' in the "
                'CropClip of train_dataloader'
            )
        return super().loss(inputs, data_samples)

    def predict(
        self, inputs: Union[Tensor, Sequence[Tensor]], data_samples: Optional[List] = None, **kwargs
    ) -> List:
        """Return a data sample with ``pred_score`` and ``pred_label`` for each video."""
        logits = self.head(self.extract_feat(inputs))
        logits = logits.unflatten(0, (len(inputs), len(logits) // max(len(inputs), 1)))
        scores = logits.softmax(-1).mean(1).log()
        logits = scores if self.average == 'score' else logits.mean(1)
        return self.head._get_predictions(logits, data_samples)
