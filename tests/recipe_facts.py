"""The recipe that a config resolves to, in the terms of tests/reference/recipes.yml."""

import re
from collections import Counter
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional

import torch
from mmengine.config import Config
from torch import nn

TASKS = {'mmpretrain': 'classification', 'mmdet': 'detection', 'mmseg': 'segmentation'}
RECONSTRUCTION = 'ViTVQGAN'  # its data sets and transforms are those of MMPretrain
SCHEDULES = {'CosineAnnealingLR': 'cosine', 'MultiStepLR': 'step', 'PolyLR': 'poly'}


def kind(cfg: Any) -> str:
    """Return the type of a component without its module path."""
    name = cfg if isinstance(cfg, str) else cfg['type']
    return name.split('.')[-1]


def number(value: float) -> str:
    return f'{value:g}'


def size(value: Any) -> str:
    return 'x'.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def sides(scales: Iterable) -> str:
    """Return short sides and the limit of the long side, such as '480:800:32/1333'."""
    short, long = sorted(min(s) for s in scales), max(max(s) for s in scales)
    steps = {short[i + 1] - short[i] for i in range(len(short) - 1)}
    if len(short) > 3 and len(steps) == 1:
        text = f'{short[0]}:{short[-1]}:{steps.pop()}'
    else:
        text = ','.join(map(str, short))
    return f'{text}/{"inf" if long > 9999 else long}'


def describe_transform(t: Dict[str, Any]) -> str:
    """Return a transform and the options that recipes state, in a few words."""
    name = kind(t)
    stretched = '' if t.get('keep_ratio') else ' stretched'
    pillow = ' by Pillow' if t.get('backend') == 'pillow' else ''
    if name == 'RandomResizedCrop':
        low, high = t.get('crop_ratio_range', (0.08, 1.0))
        scale, mode = size(t['scale']), t.get('interpolation', 'bilinear')
        return f'{name} {scale} {mode} {number(low)}-{number(high)}'
    if name == 'RandAugment':
        policies = str(t['policies']).removeprefix('timm_')
        count, level = t['num_policies'], t['magnitude_level']
        return f'{name} {count} of level {level} std {t.get("magnitude_std", 0)} {policies}'
    if name == 'RandomErasing':
        noise = {'rand': 'pixel'}.get(t.get('mode', 'const'), t.get('mode', 'const'))
        low, high = t.get('min_area_ratio', 0.02), t.get('max_area_ratio', 0.4)
        return f'{name} {t["erase_prob"]} {noise} {number(low)}-{number(round(high, 4))}'
    if name == 'RandomCrop' and 'padding' in t:
        return f'{name} {size(t["crop_size"])} padding {t["padding"]}'
    if name == 'RandomCrop' and t.get('crop_type') == 'absolute_range':
        return f'{name} {"-".join(map(str, t["crop_size"]))}'
    if name == 'RandomCrop':
        return f'{name} {size(t["crop_size"])} category at most {t.get("cat_max_ratio", 1)}'
    if name == 'RandomResize':
        low, high = t['ratio_range']
        return f'{name} {size(t["scale"])} x {number(low)}-{number(high)}{stretched}'
    if name == 'RandomChoiceResize':
        return f'{name} {sides(t["scales"])}{stretched}{pillow}'
    if name == 'RandomChoice':
        return f'{name} ' + ' | '.join(', '.join(describe(branch)) for branch in t['transforms'])
    if name == 'Resize':
        scale = t['scale']
        if isinstance(scale, int):
            return f'{name} {scale}x{scale} stretched'
        return (
            f'{name} {size(scale)} stretched' if stretched else f'{name} {sides([scale])}{pillow}'
        )
    if name == 'ResizeEdge':
        return f'{name} {t["scale"]} {t.get("interpolation", "bilinear")}'
    if name == 'CenterCrop':
        return f'{name} {size(t["crop_size"])}'
    if name == 'LoadClip':
        rate = f' at {t["fps"]} fps' if t.get('fps') else ''
        kind_of = f'of {t["interval"]}{rate}' if t.get('interval') else 'segments'
        return f'Clip {t["num_frames"]} {kind_of} {t.get("place", "random")}'
    if name == 'ResizeClip':
        short = t['short_side']
        text = '-'.join(map(str, short)) if isinstance(short, (list, tuple)) else short
        return f'{name} {text}{" inverse" if t.get("inverse") else ""}'
    if name == 'CropClip':
        return f'{name} {t["size"]} {t.get("mode", "random")}'
    return f'{name} {t["prob"]}' if name in ('RandomFlip', 'FlipClip') else name


def describe(pipeline: Iterable) -> List[str]:
    """Return the transforms of a pipeline, without loading and packing."""
    hidden = ('LoadImage', 'LoadAnnotations', 'Pack')
    return [describe_transform(t) for t in pipeline if not kind(t).startswith(hidden)]


def losses(node: Any) -> Counter:
    """Count the losses of a model config with their weights, such as {'Focal*2': 1}."""
    found: Counter = Counter()
    items = node.items() if isinstance(node, dict) else ((None, x) for x in node)
    for key, value in items:
        if str(key).startswith('loss') and isinstance(value, dict):
            found[f'{kind(value).removesuffix("Loss")}*{number(value.get("loss_weight", 1))}'] = 1
        elif key not in ('train_cfg', 'test_cfg') and isinstance(value, (dict, list, tuple)):
            found.update(losses(value))
    return found


def schedule(cfg: Config) -> Dict[str, Any]:
    """Return warm-up and decay of the learning rate."""
    lr, found = cfg.optim_wrapper.optimizer.lr, dict(warmup='none', schedule='none')
    for s in cfg.get('param_scheduler') or []:
        begin, end = s.get('begin', 0), s.get('end')
        unit = 'epochs' if s.get('by_epoch', True) else 'iterations'
        by_epoch = unit == 'epochs' and not s.get('convert_to_iter_based')
        by = 'epoch' if by_epoch else 'iteration'
        if kind(s) == 'LinearLR':
            start = s.get('start_factor', 1 / 3) * lr
            found.update(warmup=f'{end - begin} {unit}', warmup_start_lr=start, warmup_by=by)
            continue
        found.update(schedule=SCHEDULES.get(kind(s), kind(s)), schedule_by=by)
        found['schedule_begin'] = f'{begin} {unit}' if begin else 0
        if kind(s) == 'MultiStepLR':
            found.update(milestones=list(s.milestones), gamma=s.get('gamma', 0.1))
            continue
        ratio = s.get('eta_min_ratio')
        found['min_lr'] = s.get('eta_min', 0) if ratio is None else ratio * lr
        found['power'] = s.get('power', 1)
    return found


def batch_norms(modules: Iterable[nn.Module], synchronised: bool) -> str:
    """Return the kinds of batch norm, as they are in training with several processes."""
    names = {'BatchNorm2d': 'SyncBatchNorm' if synchronised else 'BatchNorm2d'}
    names['SyncBatchNorm'] = 'SyncBatchNorm'
    kinds = {type(m).__name__ for module in modules for m in module.modules()}
    return '+'.join(sorted({names[k] for k in kinds if k in names})) or 'none'


def attentions(cfg: Config, model: nn.Module) -> List[Any]:
    """Return the attention config of each stage or layer."""
    layer = cfg.model.get('encoder', {}).get('layer_cfg', {}).get('attn_cfg')
    return list(getattr(model.backbone, 'attn_cfgs', [layer] if layer else []))


def decode_run_lengths(values: Iterable[str]) -> str:
    """Return 'A*2+B' for A, A, B."""
    runs: List[List] = []
    for value in values:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return '+'.join(f'{value}*{count}' if count > 1 else value for value, count in runs)


def checkpoint(cfg: Config) -> str:
    init = cfg.model.backbone.get('init_cfg')
    path = cfg.get('load_from') or (init or {}).get('checkpoint')
    return Path(path).name if path else 'none'


def training(cfg: Config, name: str) -> Dict[str, Any]:
    """Return what the optimiser, the loops, the loader and the hooks state."""
    wrapper, optimizer, loader = (
        cfg.optim_wrapper,
        cfg.optim_wrapper.optimizer,
        cfg.train_dataloader,
    )
    gpus = re.search(r'_(\d+)xb\d+', name)
    batch = int(gpus[1]) * loader.batch_size if gpus else cfg.auto_scale_lr.base_batch_size
    epochs = cfg.train_cfg.get('max_epochs')
    sampler = loader.get('sampler') or {}
    repeats = sampler.get('num_repeats', 3) if kind(sampler) == 'RepeatAugSampler' else 1
    averages = [h for h in cfg.get('custom_hooks', []) if kind(h).endswith('EMAHook')]
    facts = dict(
        task='reconstruction' if kind(cfg.model) == RECONSTRUCTION else TASKS[cfg.default_scope],
        batch_size=batch * wrapper.get('accumulative_counts', 1),
        optimizer=optimizer.type,
        lr=optimizer.lr,
        momentum=optimizer.get('momentum', 'none'),
        betas=list(optimizer.get('betas', (0.9, 0.999))) if 'Adam' in optimizer.type else 'none',
        eps=optimizer.get('eps', 1e-8),
        weight_decay=optimizer.get('weight_decay', 0),
        clip_grad_norm=(wrapper.get('clip_grad') or {}).get('max_norm', 'none'),
        mixed_precision=wrapper.type == 'AmpOptimWrapper',
        mixed_precision_test=bool(cfg.val_cfg.get('fp16') and cfg.test_cfg.get('fp16')),
        loss_scale=wrapper.get('loss_scale', 'dynamic'),
        validation_interval=cfg.train_cfg.val_interval,
        length=f'{epochs} epochs' if epochs else f'{cfg.train_cfg.max_iters} iterations',
        ema_decay=1 - averages[0].momentum if averages else 'none',
        ema_buffers=bool(averages and averages[0].get('update_buffers')),
        synchronised_buffers='SyncBuffersHook' in map(kind, cfg.get('custom_hooks', [])),
        repeated_augmentation=repeats,
        drop_last=bool(loader.get('drop_last')),
        save_best=bool(cfg.default_hooks.checkpoint.get('save_best')),
        pretrained=checkpoint(cfg),
    )
    return {**facts, **schedule(cfg)}


def data(cfg: Config) -> Dict[str, Any]:
    dataset = cfg.train_dataloader.dataset
    dataset = dataset if 'pipeline' in dataset else dataset.dataset
    mixes = (cfg.model.get('train_cfg') or {}).get('augments') or []
    facts = {kind(a).lower(): a.alpha for a in mixes}
    facts['skip_empty_images'] = (dataset.get('filter_cfg') or {}).get('filter_empty_gt', False)
    facts['train_pipeline'] = describe(dataset.pipeline)
    facts['test_pipeline'] = describe(cfg.test_dataloader.dataset.pipeline)
    return facts


def heads(cfg: Config) -> Dict[str, Any]:
    """Return what the heads and their test settings state."""
    model = cfg.model
    if kind(model) == RECONSTRUCTION:
        return reconstruction(model)
    facts: Dict[str, Any] = dict(losses=' '.join(sorted(losses(model))))
    if cfg.default_scope == 'mmpretrain':
        facts['label_smoothing'] = model.head.loss.get('label_smooth_val', 0)
        init = model.head.get('init_cfg') or {}
        facts['head_init'] = f'{init.get("type")} {init.get("std")}'
    elif cfg.default_scope == 'mmdet':
        test = model.get('test_cfg') or {}
        last = test.get('rcnn', test)
        facts.update(
            score_threshold=last.get('score_thr'),
            nms_iou=(last.get('nms') or {}).get('iou_threshold'),
            max_per_image=last.get('max_per_img'),
            num_queries=model.get('num_queries'),
        )
        if 'rpn' in test:
            facts.update(
                rpn_proposals_train=model.train_cfg.rpn_proposal.max_per_img,
                rpn_proposals_test=test.rpn.max_per_img,
                rpn_nms_iou=test.rpn.nms.iou_threshold,
            )
    else:
        test, auxiliary = model.test_cfg, model.get('auxiliary_head')
        slide = test.mode == 'slide'
        facts.update(
            test_mode=test.mode,
            test_window=[size(test.crop_size), size(test.stride)] if slide else 'none',
            head_channels=model.decode_head.channels,
            head_init=(model.decode_head.get('init_cfg') or {}).get('type', 'none'),
            head_dropout=model.decode_head.get('dropout_ratio', 0.1),
            auxiliary_weight=auxiliary.loss_decode.loss_weight if auxiliary else 'none',
        )
    return facts


def reconstruction(model: Dict[str, Any]) -> Dict[str, Any]:
    """Return what a model that reconstructs images through a codebook states."""
    arch, quantizer = model.backbone.arch, model.quantizer
    return dict(
        losses=' '.join(f'{name}*{number(weight)}' for name, weight in model.loss_weights.items()),
        commitment=quantizer.commitment,
        codebook=f'{quantizer.num_codes}x{quantizer.code_dims}',
        discriminator=kind(model.discriminator),
        discriminator_channels=model.discriminator.get('base_channels', 64),
        perceptual=kind(model.perceptual),
        blocks=arch.depth,
        embed_dims=arch.embed_dims,
        mlp_ratio=arch.mlp_ratio,
        patch_size=arch.patch_size,
        image_size=model.backbone.img_size,
    )


def network(cfg: Config, model: nn.Module) -> Dict[str, Any]:
    """Return what the built model states."""
    backbone, sync = model.backbone, bool(cfg.get('sync_bn'))
    drop_paths = getattr(backbone, 'drop_paths', None)
    arch = getattr(backbone, 'arch', {})
    rest = [module for name, module in model.named_children() if name != 'backbone']
    options: Dict[str, Any] = {}
    for attention in attentions(cfg, model):
        if isinstance(attention, dict):
            options = {**attention, **options}
    return dict(
        drop_path=max((p for stage in drop_paths for p in stage), default=0) if drop_paths else 0,
        num_heads=arch.get('num_heads'),
        layer_scale=arch.get('layer_scale_init'),
        attention=decode_run_lengths(map(kind, attentions(cfg, model))),
        attention_options=options,
        backbone_batch_norm=batch_norms([backbone], sync),
        head_batch_norm=batch_norms(rest, sync),
        norm_eval=bool(getattr(backbone, 'norm_eval', False)),
    )


def facts_of(cfg: Config, model: nn.Module, name: str) -> Dict[str, Any]:
    """Return all that is compared with a recipe, except decay and rates of single parameters."""
    return {**training(cfg, name), **data(cfg), **heads(cfg), **network(cfg, model)}


def is_decayed(rule: Dict[str, Any], name: str, param: nn.Parameter, in_norm: bool) -> bool:
    """Return True if a recipe's rule applies weight decay to a parameter."""

    def matches(key: str) -> bool:
        return any(re.search(pattern, name) for pattern in rule.get(key, ()))

    exempt = (
        (rule.get('ndim1') and param.ndim <= 1)
        or (rule.get('bias') and name.endswith('bias'))
        or (rule.get('norms') and in_norm)
        or matches('exempt')
    )
    return not exempt or matches('decayed')


NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)


def wrong_groups(
    rule: Dict[str, Any],
    rates: Optional[Dict[str, float]],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> List[str]:
    """Return the parameters whose weight decay or learning rate is not that of the recipe.

    Args:
        rule: weight decay of a recipe, see :func:`is_decayed`.
        rates: factor of the learning rate for each pattern of names; None: not known.
        model: the model that the optimiser trains.
        optimizer: the optimiser as the config builds it.
    """
    norms = {id(p) for m in model.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    names = {id(p): name for name, p in model.named_parameters()}
    base = optimizer.defaults
    wrong = []
    for group in optimizer.param_groups:
        for p in filter(lambda p: p.requires_grad, group['params']):
            name = names[id(p)]
            wanted = base['weight_decay'] if is_decayed(rule, name, p, id(p) in norms) else 0
            if group['weight_decay'] != wanted:
                wrong.append(f'{name}: weight decay {group["weight_decay"]}, not {wanted}')
            if rates is None:
                continue
            factor = next((f for pattern, f in rates.items() if re.search(pattern, name)), 1)
            if abs(group['lr'] - factor * base['lr']) > 1e-9 * base['lr']:
                wrong.append(f'{name}: learning rate {group["lr"]}, not {factor * base["lr"]}')
    return wrong


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORMS) or type(module).__name__.startswith('LayerNorm')


def agrees(wanted: Any, found: Any) -> bool:
    """Compare a value of a recipe with that of a config; numbers to 1e-6."""
    if isinstance(wanted, dict) and 'any' in wanted:
        return any(agrees(option, found) for option in wanted['any'])
    if isinstance(wanted, dict):
        return wanted == found
    if wanted == 'none':
        return found in ('none', None, [], False, 0)
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(wanted) == len(found) and all(map(agrees, wanted, found))
    if isinstance(wanted, bool) or isinstance(found, (bool, str)) or isinstance(wanted, str):
        return wanted == found
    if wanted is None or found is None:
        return wanted is found
    return abs(wanted - found) <= 1e-6 * max(abs(wanted), abs(found))


def differences(wanted: Dict[str, Any], found: Dict[str, Any]) -> Dict[str, Optional[tuple]]:
    """Return the fields in which a config differs from a recipe, with both values."""
    wrong = {}
    for field, value in wanted.items():
        if field in ('decay_rule', 'lr_multipliers') or value == 'unknown':
            continue
        if field == 'attention_options':
            for option, needed in value.items():
                value_found = found[field].get(option, 'unset')
                if not agrees(needed, value_found):
                    wrong[f'attention {option}'] = (needed, value_found)
        elif not agrees(value, found[field]):
            wrong[field] = (value, found[field])
    return wrong
