"""Check for settings of MMDetection 2.x, MMSegmentation 0.x and MMPretrain 0.x in a config."""

import ast
from pathlib import Path

from mmengine.config import Config

# Section of old configs: its present form.
PRESENT = {
    'optimizer': "optim_wrapper=dict(type='OptimWrapper', optimizer=...)",
    'optimizer_config': 'optim_wrapper=dict(clip_grad=...)',
    'lr_config': "param_scheduler=[dict(type='LinearLR', ...), dict(type='MultiStepLR', ...)]",
    'runner': 'train_cfg=dict(by_epoch=True, max_epochs=...)',
    'total_epochs': 'train_cfg=dict(by_epoch=True, max_epochs=...)',
    'data': 'train_dataloader=..., val_dataloader=..., test_dataloader=...',
    'evaluation': 'val_evaluator=... and train_cfg.val_interval',
    'checkpoint_config': "default_hooks=dict(checkpoint=dict(type='CheckpointHook', ...))",
    'log_config': "default_hooks=dict(logger=dict(type='LoggerHook', ...))",
}
# Present configs have some of these names as variables; nothing reads the others.
WITHOUT_EFFECT = {'lr_config', 'checkpoint_config', 'log_config'}


def check_not_old(cfg: Config) -> None:
    """Raise ValueError for a config of OpenMMLab 1.x, or for sections of it in a present one.

    MMEngine ignores such sections: another optimizer or schedule would train. The message names the
    sections and their present form.

    Example:
        >>> check_not_old(Config(dict(runner=dict(max_epochs=12))))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: the config has sections of MMDetection 2.x or its like, which nothing reads: ...
    """
    found = [name for name in PRESENT if name in cfg]
    if 'optim_wrapper' in cfg or not {'optimizer', 'runner', 'data'} & {*found}:
        found = [name for name in found if name in WITHOUT_EFFECT]
        own = _assigned(cfg.filename)
        found += ['optimizer'] if 'optimizer' in own and 'optim_wrapper' not in own else []
    if found:
        forms = '; '.join(f'{name}: write {PRESENT[name]}' for name in found)
        raise ValueError(
            'the config has sections of MMDetection 2.x or its like, which nothing reads: '
            f'{forms}. See the migration guide of the framework'
        )


def _assigned(path: str) -> set:
    """Return the names that a config file assigns itself, without those of its bases."""
    if not path or not path.endswith('.py') or not Path(path).is_file():
        return set()
    tree = ast.parse(Path(path).read_text(encoding='utf-8'))
    targets = [t for s in tree.body if isinstance(s, ast.Assign) for t in s.targets]
    return {t.id for t in targets if isinstance(t, ast.Name)}
