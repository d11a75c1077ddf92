"""Trainings of the zoo: hosts, datasets, attentions and seeds, and unsupported combinations."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from mmengine.config import Config

from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.models.layers import RALA, BaseAttention, registered_subclasses

ROOT = Path(__file__).resolve().parents[2]
HOSTS = {'deit-nano': 'DeiT-nano', 'ravlt-nano': 'RAVLT-nano'}
DATA = {'shapes': 'Shapes', 'bccd-cells': 'BCCD cells'}
SIDE = 64  # image size in pixels
# Trained with the requested number of seeds; the others with one.
MAIN = (
    'SoftmaxAttention', 'LinearAttention', 'RALA', 'RWGKA', 'RWGKP', 'RippleAttention',
    'AdditiveAttention',
)  # fmt: skip
# The defaults are for maps of thousands of tokens; maps here have 64 to 256, at the end 4.
OPTIONS: Dict[str, dict] = dict(
    SpatialReductionAttention=dict(sr_ratio=2),
    NystromAttention=dict(num_landmarks=16),
    BiasedSoftmaxAttention=dict(map_size=16),
    RWGKA=dict(num_anchors=16),
    RWGKP=dict(num_anchors=16),
    VisionLongformerAttention=dict(window_size=4),
    WindowAttention=dict(window_size=4),
)
# Extras of RALA, which RAVLT also offers to others, are off so that only attentions are compared.
EXTRAS = dict(rotary=False, lepe=0, gate=None)


@dataclass(frozen=True)
class Sizes:
    """Dataset sizes and training length.

    Args:
        drawn, drawn_val: images of Shapes from which crops are taken.
        cells, cells_val: maximal number of BCCD crops per class.
        epochs: number of epochs; None for that of the configs.
    """

    drawn: int = 450
    drawn_val: int = 400
    cells: int = 80
    cells_val: int = 160
    epochs: Optional[int] = None


TINY = Sizes(drawn=4, drawn_val=2, cells=2, cells_val=2, epochs=1)


@dataclass(frozen=True)
class Job:
    """Host, dataset, attention and seed of a training."""

    host: str
    data: str
    attention: str
    seed: int

    @property
    def name(self) -> str:
        return f'{self.host}_{self.data}_{self.attention}_seed{self.seed}'

    def fields(self) -> dict:
        return asdict(self)


def attentions() -> List[str]:
    """Return the attentions of this package: the main ones, then the others by name."""
    found = registered_subclasses(BaseAttention)
    ours = [name for name, kind in found.items() if kind.__module__.startswith('mmlinattn.')]
    return [*MAIN, *(name for name in ours if name not in MAIN)]


def attn_cfg(name: str) -> dict:
    """Return the config of an attention, the same in both hosts."""
    kind = registered_subclasses(BaseAttention)[name]
    extras = EXTRAS if kind is RALA or 'lepe' in kind.backbone_options else {}
    return dict(type=name, **extras, **OPTIONS.get(name, {}))


def config(job: Job, data_root: Path, sizes: Sizes) -> Config:
    """Return the config of a training.

    It is the config of host and dataset in ``configs/zoo`` with the attention, the seed and the
    dataset folder.
    """
    options: Dict[str, object] = {
        'model.backbone.attn_cfg': attn_cfg(job.attention),
        'randomness.seed': job.seed,
        'default_hooks.checkpoint': None,
        'log_level': 'WARNING',
        'experiment_name': job.name,
    }
    for split in ('train', 'val', 'test'):
        options[f'{split}_dataloader.dataset.data_root'] = str(data_root)
    if sizes.epochs:
        for name in ('max_epochs', 'val_interval'):
            options[f'train_cfg.{name}'] = sizes.epochs
        options['param_scheduler.0.total_steps'] = sizes.epochs
    return load_config(str(ROOT / f'configs/zoo/{job.host}_{job.data}.py'), options)


def split(jobs: Sequence[Job]) -> Tuple[List[Job], Dict[Tuple[str, str], str]]:
    """Return the supported jobs, and the reasons of hosts that reject an attention."""
    refused: Dict[Tuple[str, str], str] = {}
    for host, attention in dict.fromkeys((job.host, job.attention) for job in jobs):
        why = refusal(host, attention)
        if why:
            refused[host, attention] = why
    return [job for job in jobs if (job.host, job.attention) not in refused], refused


def refusal(host: str, attention: str) -> str:
    """Return why a host rejects an attention, or '' if it accepts it."""
    cfg = config(Job(host, 'shapes', attention, 0), Path(), Sizes())
    try:
        build_model(Config(dict(model=cfg.model.backbone)))
    except ValueError as error:
        return str(error)
    return ''


def jobs(hosts: Sequence[str], data: Sequence[str], names: Sequence[str], seeds: int) -> List[Job]:
    """Return all trainings ordered by seed, so that early results already allow a comparison."""
    return [
        Job(host, of, name, seed)
        for seed in range(seeds)
        for of in data
        for host in hosts
        for name in names
        if seed == 0 or name in MAIN
    ]
