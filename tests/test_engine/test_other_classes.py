"""Fine-tuning to other classes: what load_from starts anew."""

import pytest

from mmlinattn.checkpoints.compare import HEADS
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config


def shapes(name, options):
    state = build_model(load_config(name, options)).state_dict()
    return {key: value.shape for key, value in state.items()}


@pytest.mark.parametrize(
    'name, options, part',
    [
        ('dino_nano_shapes', {'model.bbox_head.num_classes': 80}, 'dn_query_generator.'),
        (
            'mask2former_nano_shapes',
            {
                'model.panoptic_head.num_things_classes': 80,
                'model.panoptic_fusion_head.num_things_classes': 80,
                'model.panoptic_head.loss_cls.class_weight': [1.0] * 80 + [0.1],
            },
            'panoptic_head.',
        ),
    ],
)
def test_shapes_that_depend_on_the_classes_are_of_heads(name, options, part):
    pytest.importorskip('mmdet', reason='the models are detectors')
    ours, theirs = shapes(name, {}), shapes(name, options)
    other = [key for key in ours if ours[key] != theirs[key]]
    assert other and all(key.startswith(HEADS) for key in other)
    assert any(key.startswith(part) for key in other)
