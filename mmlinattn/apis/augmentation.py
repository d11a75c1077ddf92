"""Test-time augmentation: views of each image, predicted alone and merged by the framework."""

from typing import List, Sequence, Tuple

from mmengine.config import Config, ConfigDict
from mmengine.hooks import Hook
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import nn

from ..engine.model import unwrapped
from ..utils import type_name
from .pipeline import steps_of

# Those of the frameworks' tools/test.py, for configs without `tta_model`.
MERGING = {
    'mmdet': dict(
        type='DetTTAModel', tta_cfg=dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=100)
    ),
    'mmseg': dict(type='SegTTAModel'),
    'mmpretrain': dict(type='AverageClsScoreTTA'),
}


class AugmentationHook(Hook):
    """Hook that merges the views of each test image, by the results of :func:`augmentation`.

    The model inside a wrapper for distributed runs is used: the merging models read its attributes.
    """

    def __init__(self, merging: ConfigDict, text: str = '') -> None:
        self.merging, self.text = merging, text

    def check(self, model: nn.Module) -> None:
        """Raise ValueError if predictions of the model cannot be merged."""
        check_augmentable(model)

    def before_test(self, runner: Runner) -> None:
        runner.model = merging_model(self.merging, unwrapped(runner.model))


def augmentation(cfg: Config) -> Tuple[ConfigDict, List[dict], str]:
    """Return the merging model, without its module, the pipeline and a description of both.

    ``tta_model`` and ``tta_pipeline`` of the config are used. The defaults are those of the
    frameworks' test tools: the test pipeline with and without a horizontal flip.

    Raises:
        ValueError: the config has no framework with a merging model; or it loads clips and has no
            ``tta_pipeline``, as flips are of images.
    """
    scope = cfg.get('default_scope')
    if scope not in MERGING:
        raise ValueError(f'default_scope of the config must be of {[*MERGING]}, got {scope!r}')
    own = 'tta_pipeline' in cfg
    steps = list(cfg.tta_pipeline) if own else flip_pipeline(steps_of(cfg))
    merging = ConfigDict(cfg.get('tta_model') or MERGING[scope])
    source = 'tta_pipeline of the config' if own else 'default: a horizontal flip'
    return merging, steps, f'test-time augmentation ({source}), merged by {merging["type"]}'


def check_augmentable(model: nn.Module) -> None:
    """Raise ValueError if the framework cannot merge the views of a model."""
    of_one_stage = hasattr(getattr(model, 'bbox_head', None), 'mask_head')
    if of_one_stage or hasattr(model, 'panoptic_head') or getattr(model, 'with_mask', False):
        raise ValueError(
            f'tta: {type(model).__name__} predicts masks, and DetTTAModel of MMDetection merges '
            'boxes only; run without it'
        )
    if getattr(getattr(model, 'decode_head', None), 'out_channels', 0) == 1:
        raise ValueError(
            f'tta: {type(model).__name__} has one output, and SegTTAModel of MMSegmentation takes '
            'its sigmoid twice, after which every pixel is class 1; run without it'
        )


def merging_model(merging: ConfigDict, model: nn.Module) -> nn.Module:
    """Build the merging model around a model, in eval mode."""
    return MODELS.build(ConfigDict(merging, module=model)).eval()


def flip_pipeline(steps: Sequence[dict]) -> List[dict]:
    """Return a test pipeline that gives each image as it is and flipped horizontally.

    The last step packs the inputs. Clips, which RandomFlip would not mirror, raise ValueError.
    """
    if any(type_name(step) == 'LoadClip' for step in steps):
        raise ValueError(
            'tta: the default view, a horizontal flip, is of images, and the test pipeline loads '
            'clips; give the config a tta_pipeline, or run without it'
        )
    pack = dict(steps[-1])
    if 'meta_keys' in pack:
        pack['meta_keys'] = (*pack['meta_keys'], 'flip', 'flip_direction')  # for merging
    flips = [dict(type='RandomFlip', prob=prob, direction='horizontal') for prob in (0.0, 1.0)]
    return [*steps[:-1], dict(type='TestTimeAug', transforms=[flips, [pack]])]
