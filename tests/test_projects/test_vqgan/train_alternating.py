"""ViT-VQGAN in one of two processes, each with half of the batch: python train_alternating.py FILE.

The first process then trains a copy with the whole batch and compares.
"""

import copy
import sys
from pathlib import Path

import torch
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODEL_WRAPPERS, MODELS
from torch import distributed as dist

import mmlinattn.projects.vqgan  # noqa: F401  registers the model
from mmlinattn.engine.launch import leave_process_group

STEPS = 3
VIT = dict(
    type='ViT', arch=dict(embed_dims=16, num_heads=2, depth=1, patch_size=8), img_size=16,
    attn_cfg=dict(type='RWGKA', num_anchors=4), with_cls_token=False,
)  # fmt: skip


def train(model, wrapped, images) -> list:
    # SGD, since Adam's first steps turn rounding into signs.
    cfg = dict(constructor='GeneratorDiscriminatorConstructor', optimizer=dict(type='SGD', lr=0.1))
    wrappers = build_optim_wrapper(wrapped, ConfigDict(type='OptimWrapper', **cfg))
    return [wrapped.train_step(dict(inputs=list(images)), wrappers) for _ in range(STEPS)]


def main() -> None:
    dist.init_process_group('gloo')
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cfg = dict(
        type='ViTVQGAN', backbone=VIT, quantizer=dict(num_codes=8, code_dims=4),
        discriminator=dict(img_size=16, base_channels=4),
        data_preprocessor=dict(type='ImgDataPreprocessor', mean=[0], std=[255]),
    )  # fmt: skip
    model = MODELS.build(cfg)
    model.init_weights()
    alone, images = copy.deepcopy(model), torch.randint(0, 256, (4, 3, 16, 16)).byte()
    ddp = dict(type='AlternatingDistributedDataParallel')
    wrapped = MODEL_WRAPPERS.build(ddp, default_args=dict(module=model))
    rank = dist.get_rank()
    logged = train(model, wrapped, images[2 * rank : 2 * rank + 2])
    both = [None, None]
    dist.all_gather_object(both, [{k: float(v) for k, v in step.items()} for step in logged])
    if rank == 0:
        whole = train(alone, alone, images)
        for step, first, second in zip(whole, *both):
            assert first != second
            for name in set(step) - {'perplexity'}:
                found, wanted = (first[name] + second[name]) / 2, float(step[name])
                assert abs(found - wanted) < 1e-5 * max(1, abs(wanted)), (name, found, wanted)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
        Path(sys.argv[1]).write_text('equal')
    leave_process_group()


if __name__ == '__main__':
    main()
