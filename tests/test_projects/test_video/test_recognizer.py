"""The recogniser: averages of crops, losses, and torchvision's 3D ResNet as a backbone."""

import pytest
import torch
from torch.nn import functional as F

from mmlinattn.projects import video
from mmlinattn.projects.video import TimeSformer
from mmlinattn.utils.errors import InputError

pytest.importorskip('mmpretrain', reason='MMPretrain comes with the extra "cls"')

ARCH = dict(embed_dims=16, num_heads=2, depth=1, patch_size=8)
HEAD = dict(type='mmpretrain.LinearClsHead', num_classes=5, in_channels=16)


def build(**kwargs):
    torch.manual_seed(0)
    backbone = dict(type='TimeSformer', arch=ARCH, img_size=16, num_frames=4, position_std=0.5)
    model = video.VideoRecognizer(backbone, HEAD, **kwargs)
    torch.nn.init.normal_(model.head.fc.weight)
    return model


def samples(labels):
    from mmpretrain.structures import DataSample

    return [DataSample().set_gt_label(label) for label in labels]


@pytest.mark.parametrize('average', ['score', 'logit'])
def test_averages_the_crops_of_a_video(average):
    model, clips = build(average=average).eval(), torch.randn(2, 3, 3, 4, 16, 16)
    with torch.no_grad():
        found = model(list(clips), samples([1, 4]), mode='predict')
        logits = [model.head.fc(model.backbone(clip)) for clip in clips]
    for sample, crops, label in zip(found, logits, (1, 4)):
        expected = crops.softmax(-1).mean(0) if average == 'score' else crops.mean(0).softmax(-1)
        torch.testing.assert_close(sample.pred_score, expected)
        assert sample.pred_label == expected.argmax() and sample.gt_label == label


def test_empty_batches():
    model, empty = build().eval(), torch.zeros(0, 3, 3, 4, 16, 16)
    assert model(empty, mode='predict') == []
    space = TimeSformer(ARCH, img_size=16, scheme='space')
    assert space(empty[:, 0]).shape == (0, 16)


def test_trains_by_cross_entropy_on_normalised_clips():
    model = build(data_preprocessor=dict(mean=[10.0, 20.0, 30.0], std=[2.0, 4.0, 5.0]))
    clips = torch.randint(0, 255, (2, 1, 3, 4, 16, 16), dtype=torch.uint8)
    batch = dict(inputs=list(clips), data_samples=samples([3, 0]))
    data = model.data_preprocessor(batch, training=True)
    loss = model(**data, mode='loss')['loss']
    mean, std = (torch.tensor(x).view(3, 1, 1, 1) for x in ([10.0, 20, 30], [2.0, 4, 5]))
    logits = model.head.fc(model.backbone((clips[:, 0].float() - mean) / std))
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.tensor([3, 0])))


def test_bad_options_are_named():
    with pytest.raises(ValueError, match="average must be one of .* got 'max'"):
        build(average='max')
    with pytest.raises(InputError, match=r"one crop of each video, got 3: set mode='random'"):
        build()(torch.randn(1, 3, 3, 4, 16, 16), samples([0]), mode='loss')
