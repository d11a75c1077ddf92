"""Evaluation of exported files with the loops and metrics of the frameworks."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.model import BaseModel, BaseModule
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ..engine.model import check_device, number_of_classes, preprocessor_of, quiet
from ..utils.messages import log_warning
from .capture import strides_of
from .deployable import exported_form, is_multi_label, normalisation
from .exported_file import ExportedFile, FileError
from .file_metadata import FileMetadata


def use_exported(cfg: Config, path: str) -> None:
    """Replace the model of a config by an exported file."""
    scope = cfg.get('default_scope')
    cfg.model = dict(type='ExportedModel', file=path, network=cfg.model, scope=scope)
    cfg.load_from = None


def load_exported(
    cfg: Config, path: str, device: str = 'cpu'
) -> Tuple['ExportedModel', Dict[str, Any]]:
    """Return the model of an exported file, and ``dict(dataset_meta=dict(classes=...))``.

    It predicts as the model of :func:`mmlinattn.engine.model.load_model` does.

    Raises:
        FileNotFoundError, mmlinattn.deployment.FileError, NotDeployable: see
            :class:`ExportedModel`.
        ValueError: see :func:`mmlinattn.engine.model.check_device`.
    """
    check_device(device)
    preprocessor = preprocessor_of(cfg) or None
    model = ExportedModel(path, cfg.model, cfg.get('default_scope'), preprocessor)
    return model.to(device).eval(), dict(dataset_meta=dict(classes=model.file.metadata.classes))


@MODELS.register_module()
class ExportedModel(BaseModel):
    """Model that predicts with a file written by ``mmlinattn export``, for testing.

    The framework preprocesses images and postprocesses outputs as for the network: sliding windows,
    resizing to the original size, masks. Images are padded to a size that the file takes, with the
    padding colour of the file.

    Args:
        file: see :class:`.exported_file.ExportedFile`.
        network: config of the exported model.
        scope: ``default_scope`` of the config, which names the framework.
        data_preprocessor: its config, if the config has it beside the model.

    Raises:
        FileNotFoundError, mmlinattn.deployment.FileError: the file cannot be loaded, or its task,
            number of classes, stride or prediction of masks differs from that of ``network``.
        NotDeployable: the network cannot be exported.
    """

    skeleton: BaseModel  # the network without weights

    def __init__(
        self, file: str, network: dict, scope: Optional[str],
        data_preprocessor: Optional[dict] = None,
    ) -> None:  # fmt: skip
        cfg = Config(dict(model=network, data_preprocessor=data_preprocessor, default_scope=scope))
        preprocessor = preprocessor_of(cfg)
        with quiet():
            skeleton = MODELS.build(dict(network, data_preprocessor=preprocessor or None)).eval()
        super().__init__(skeleton.data_preprocessor)
        self.file = ExportedFile(file)
        check_model(self.file, skeleton, cfg)
        # Not a submodule, so that its weights are neither moved nor counted.
        object.__setattr__(self, 'skeleton', skeleton)
        mean, std, self.swap = normalisation(preprocessor)
        self.register_buffer('mean', mean, persistent=False)
        self.register_buffer('std', std, persistent=False)
        self.predictions = getattr(self, self.file.metadata.task)
        self.num_classes = len(self.file.metadata.classes)

    def forward(self, inputs: Tensor, data_samples: list, mode: str = 'predict') -> list:
        """Predict; other modes are not supported.

        Raises:
            FileError: the file does not take the size.
            ValueError: another mode.
        """
        if mode != 'predict':
            raise ValueError(f'an exported file predicts, it has no mode {mode!r}')
        return self.predictions(inputs, data_samples)

    def segmentation(self, inputs: Tensor, data_samples: list) -> list:
        self.skeleton.encode_decode = lambda images, metas: self.logits(images)
        return self.skeleton.predict(inputs, data_samples)

    def logits(self, images: Tensor) -> Tensor:
        """Return the labels of the file as one-hot logits (B, classes, H, W)."""
        labels = self.run(images)['labels']
        logits = F.one_hot(labels, max(self.skeleton.out_channels, 2)).permute(0, 3, 1, 2).float()
        return logits[..., : images.shape[-2], : images.shape[-1]].to(images.device)

    def classification(self, inputs: Tensor, data_samples: list) -> list:
        # The head applies a softmax or a sigmoid, which log and logit of the scores undo.
        scores, head = self.run(inputs)['scores'], self.skeleton.head
        logits = scores.logit() if is_multi_label(self.skeleton) else scores.log()
        head.forward = lambda feats: feats
        return head.predict(logits.to(inputs.device), data_samples)

    def detection(self, inputs: Tensor, data_samples: list) -> list:
        sizes = torch.tensor([sample.img_shape[:2] for sample in data_samples])
        found = {name: out.to(inputs.device) for name, out in self.run(inputs, sizes).items()}
        for i, sample in enumerate(data_samples):
            count = int(found['count'][i])
            boxes = found['boxes'][i, :count]
            scores, labels = found['scores'][i, :count], found['labels'][i, :count]
            instances = InstanceData(bboxes=boxes, scores=scores, labels=labels)
            if 'masks' in found:
                self.paste(instances, found['masks'][i, :count], sample)  # rescales boxes, too
            else:
                instances.bboxes = boxes / boxes.new_tensor(sample.scale_factor).repeat(2)
            sample.pred_instances = instances
        return data_samples

    def paste(self, instances: InstanceData, masks: Tensor, sample) -> None:
        """Mask (n, h, w) over their boxes, by the framework, in the size of the original."""
        heads = self.skeleton.roi_head.mask_head
        head: BaseModule = heads[-1] if isinstance(heads, nn.ModuleList) else heads
        head.class_agnostic = True  # the file returns only the masks of the labels
        head.predict_by_feat(
            [masks[:, None].cpu().numpy()], [instances], [sample.metainfo],
            self.skeleton.test_cfg.rcnn, rescale=True, activate_map=True,
        )  # fmt: skip

    def run(self, images: Tensor, sizes: Optional[Tensor] = None) -> dict:
        """Return the outputs of the file for normalised images (B, 3, H, W) of any size.

        ``sizes``: (B, 2) int64, height and width before padding, for detectors.
        """
        pixels = images * self.std + self.mean
        pixels = pixels.flip(1) if self.swap else pixels
        pixels = pad_to_metadata(pixels.cpu(), self.file.metadata)
        batch = self.file.metadata.batch or 8
        split = [None] * len(pixels) if sizes is None else sizes.split(batch)
        parts: List[dict] = [self.file(*part) for part in zip(pixels.split(batch), split)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def check_model(file: ExportedFile, model: nn.Module, cfg: Config) -> None:
    """Raise FileError unless task, classes, stride and masks of an exported file fit a model."""
    metadata = file.metadata
    number = len(metadata.classes)
    pairs = {
        'task': (metadata.task, exported_form(model, cfg).task),
        'number of classes': (number, number_of_classes(model) or number),
        'stride': (metadata.stride, strides_of(model)[0]),
    }
    has_masks = bool(getattr(model, 'with_mask', False))
    pairs['prediction of masks'] = ('masks' in metadata.outputs, has_masks)
    for name, (found, expected) in pairs.items():
        if found != expected:
            raise FileError(
                f'{file.path} does not fit the config: its {name} is {found}, that of '
                f'{type(model).__name__} in the config is {expected}; give the config that it was '
                'exported with'
            )


def check_classes(file: ExportedFile, classes: Sequence[str]) -> None:
    """Compare the names of an exported file's classes with those of a data set.

    Other names are only a warning, because the names of a data set may change.

    Raises:
        FileError: the same names are in another order, so scores would be of wrong classes.
    """
    own = file.metadata.classes
    if {*own} != {*classes}:
        log_warning(f'{file.path} names its classes {own}, the data set {tuple(classes)}')
    for i, (a, b) in enumerate(zip(own, classes)):
        if a != b and sorted(own) == sorted(classes):
            raise FileError(
                f'{file.path} has the classes of the data set in another order: class {i} is '
                f'{a!r} in the file and {b!r} in the data set'
            )


def pad_to_metadata(images: Tensor, metadata: FileMetadata) -> Tensor:
    """Pad RGB images (B, 3, H, W) to a size that a file takes, or raise FileError."""
    sides = images.shape[-2:]
    if metadata.dynamic:
        stride = metadata.stride
        wanted = tuple(max(-(-side // stride) * stride, metadata.least) for side in sides)
    else:
        wanted = metadata.shape
    if any(side > limit for side, limit in zip(sides, wanted)):
        raise FileError(
            f'an image of {sides[0]}x{sides[1]} for a file of {wanted[0]}x{wanted[1]} alone: '
            'export it with dynamic sizes or resize in the test pipeline'
        )
    colour = images.new_tensor(metadata.padding).view(1, 3, 1, 1)
    padded = colour.repeat(len(images), 1, *wanted)
    padded[..., : sides[0], : sides[1]] = images
    return padded
