"""Runner configs of the phases A, B and C, and their trainings."""

import copy
import gc
from pathlib import Path
from typing import Any, Dict, Sequence

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import print_log

from ..checkpoints import read_checkpoint
from ..engine.model import preprocessor_of
from ..engine.preflight.weights import check_weights
from ..engine.runner.runner import PluginRunner
from ..engine.training_setup import set_up_training
from ..utils import type_name
from ..utils.pretrained import remove_pretrained
from .images import image_pipeline
from .options import Options

OBJECTIVES = dict(a='attentions', b='outputs')
IMPORTS = ('mmlinattn', 'mmlinattn.linearize')
RESUME_HOOKS = ('ExactResumeHook', 'PreemptionHook')
# Entries that a phase takes from the user's config.
SHARED = ('default_scope', 'env_cfg', 'log_level', 'find_unused_parameters')


def phase_config(
    cfg: Config,
    student: Config,
    phase: str,
    options: Options,
    teacher: str,
    start: str,
    images: str,
) -> Config:
    """Return the config of phase A or B, which any runner of MMEngine trains.

    ``cfg`` and ``teacher`` are config and checkpoint of the teacher, ``student`` and ``start``
    those of the student at first. ``images`` is a JSON file, the list of the images.
    """
    iters = getattr(options, f'iters_{phase}')
    imports = list((cfg.get('custom_imports') or {}).get('imports', ()))
    loader = cfg.get('train_dataloader') or {}
    workers = loader.get('num_workers', 0)
    # A LinearLR of one iteration would never leave its start factor.
    warmup = iters // 20 if iters >= 40 else 0
    vis_backends = (cfg.get('visualizer') or {}).get('vis_backends')
    found: Dict[str, Any] = {name: cfg[name] for name in SHARED if name in cfg}
    found.update(
        custom_imports=dict(imports=[*dict.fromkeys([*imports, *IMPORTS])]),
        model=dict(
            type='Distiller',
            teacher=_with_weights(cfg, teacher),
            student=_with_weights(student, start),
            objective=OBJECTIVES[phase],
        ),
        train_dataloader=dict(
            batch_size=options.batch_size,
            num_workers=workers,
            persistent_workers=workers > 0,
            sampler=dict(type='InfiniteSampler', shuffle=True),
            dataset=dict(
                type='UnlabelledImages',
                ann_file=images,
                pipeline=image_pipeline(cfg, options.crop_size),
            ),
        ),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=iters),
        optim_wrapper=dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=getattr(options, f'lr_{phase}'), weight_decay=0.01),
            clip_grad=dict(max_norm=1.0),
        ),
        param_scheduler=[
            *[dict(type='LinearLR', start_factor=0.01, by_epoch=False, end=warmup)] * (warmup > 0),
            dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=iters),
        ],
        default_hooks=dict(
            timer=dict(type='IterTimerHook'),
            logger=dict(
                type='LoggerHook', interval=max(1, min(50, iters // 10)),
                log_metric_by_epoch=False,
            ),
            param_scheduler=dict(type='ParamSchedulerHook'),
            checkpoint=dict(
                type='AtomicCheckpointHook', by_epoch=False,
                interval=max(1, min(500, iters // 4)), max_keep_ckpts=1,
            ),
            sampler_seed=dict(type='DistSamplerSeedHook'),
        ),
        custom_hooks=[dict(type=name) for name in RESUME_HOOKS],
        log_processor=dict(by_epoch=False),
        randomness=dict(seed=options.seed),
        experiment_name=f'linearize_{phase}',
    )  # fmt: skip
    if vis_backends:
        found['visualizer'] = dict(type='Visualizer', vis_backends=vis_backends)
    return Config(found)


def finetune_config(student: Config, start: str, seed: int) -> Config:
    """Return the config of phase C: the user's, with the student's attentions and weights.

    A seed, and hooks by which a killed training resumes to the same weights, are added where they
    are absent.
    """
    found = copy.deepcopy(student)
    found.load_from, found.resume, found.experiment_name = start, False, 'linearize_c'
    if found.get('visualizer'):
        found.visualizer.pop('name', None)  # of the runner, not of an earlier one
    randomness = found.get('randomness') or {}
    if randomness.get('seed') is None:
        found.randomness = dict(randomness, seed=seed)
    custom = found.get('custom_hooks') or []
    absent = [name for name in RESUME_HOOKS if not any(name in str(hook) for hook in custom)]
    found.custom_hooks = [*custom, *(dict(type=name) for name in absent)]
    hooks = found.get('default_hooks') or {}
    saves = hooks.get('checkpoint', dict(type='CheckpointHook', interval=1))  # MMEngine's default
    # AtomicCheckpointHook writes to no other file backend.
    elsewhere = saves and any(map(saves.get, ('backend_args', 'file_client_args', 'out_dir')))
    if saves and type_name(saves) == 'CheckpointHook' and not elsewhere:
        found.default_hooks = dict(hooks, checkpoint=dict(saves, type='AtomicCheckpointHook'))
    return found


def train_phase(cfg: Config, work_dir: Path, options: Options) -> Dict[str, Any]:
    """Train a phase, or continue it, and return the checkpoint of its end in the first process.

    The hooks of phase C may write none at the end.
    """
    cfg.work_dir, cfg.launcher = str(work_dir), options.launcher
    set_up_training(cfg, resume='auto' if options.resume else None, amp=options.amp)
    if is_main_process():
        print_log(f'{cfg.experiment_name}: {work_dir}', 'current')
    runner = PluginRunner.from_cfg(cfg)
    check_weights(runner, cfg)
    runner.prepare_training()
    runner.train()
    content: Dict[str, Any] = {}
    if is_main_process():
        end = work_dir / 'end.pth'
        # Of averages, if a hook has some.
        runner.save_checkpoint(
            str(work_dir), end.name, save_optimizer=False, save_param_scheduler=False
        )
        content = read_checkpoint(end)
        end.unlink()
    del runner
    gc.collect()  # models and optimizer, which refer to each other, before the next phase
    return content


def student_weights(state: Dict[str, Any], parts: Sequence[str]) -> Dict[str, Any]:
    """Return the weights of the student's parts among those of phase A or B."""
    prefixes = tuple(f'student.{part}.' for part in parts)
    return {
        name.removeprefix('student.'): value
        for name, value in state.items()
        if name.startswith(prefixes)
    }


def _with_weights(cfg: Config, checkpoint: str) -> dict:
    """Return the model of a config with the weights of a checkpoint, and no others."""
    found = copy.deepcopy(cfg)
    remove_pretrained(found.model)
    model = dict(found.model.to_dict(), init_cfg=dict(type='Pretrained', checkpoint=checkpoint))
    if preprocessor := preprocessor_of(cfg):
        model['data_preprocessor'] = preprocessor
    return model
