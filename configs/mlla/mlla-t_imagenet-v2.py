# Tests the classifier on ImageNet-V2. The paper of RALA does not say on which of its three sets.
_base_ = './mlla-t_8xb128_in1k.py'

test_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ImageNetV2',
        data_root='data/imagenet-v2/imagenetv2-matched-frequency-format-val',
        pipeline={{_base_.test_dataloader.dataset.pipeline}},
    )
)
