"""Distillation of a trained softmax model into one of linear cost, stage by stage."""

import copy
import hashlib
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List

import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.device import get_device
from mmengine.dist import barrier, get_world_size, is_main_process
from mmengine.logging import print_log
from mmengine.registry import DATASETS, MODELS, DefaultScope

from ..checkpoints import (
    check_complete,
    check_fits,
    load_state_dict,
    read_checkpoint,
    save_checkpoint,
)
from ..engine.hooks.exact_resume_hook import seed_everything
from ..engine.launch import broadcast_from_first
from ..engine.model import build_model, load_model, quiet
from ..engine.preflight.model import check_channels
from ..engine.preflight.run import check_run
from ..utils import check_writable, remove_temporaries, write_json
from ..utils.errors import InputError
from ..utils.pretrained import initial_weights_read_safely
from .images import check_readable, image_pipeline, images_below, training_images
from .options import Options
from .phases import finetune_config, phase_config, student_weights, train_phase
from .report import markdown, score, write_report
from .student import StudentPlan, plan_student
from .swap import swap_weights

RECORD, CONFIG, MODEL, IMAGES = 'record.json', 'config.py', 'model.pth', 'images.json'
# Images of the errors of each attention in the report.
ERROR_IMAGES = 32


class Linearizer:
    """One distillation in its folder, which a later process can continue.

    Every stage leaves a file, written atomically, before the next begins: weights after each phase
    and a record of scores and errors. A stage whose file is there is not repeated.

    Args:
        cfg: config of the teacher, from :func:`mmlinattn.engine.config.load_config`.
        checkpoint: weights of the teacher, which must have all of them.
        options: see :class:`Options`.

    Raises:
        ValueError, KeyError, TypeError: see :func:`.student.plan_student`.
        FileNotFoundError, DataError: images or validation data are missing or unreadable.
        CheckpointError: the checkpoint does not fit the config, or lacks weights.
        InputError: no phase would train the cores of the attention.
        FileExistsError: the folder is not empty, or belongs to a run with other options.

    Example:
        >>> from mmlinattn.engine.config import load_config
        >>> from mmlinattn.linearize import Linearizer, Options
        >>> def linearize(config, checkpoint, images):
        ...     options = Options(images, out='linear', keep_softmax=('last4',))
        ...     return Linearizer(load_config(config), checkpoint, options).run()
    """

    def __init__(self, cfg: Config, checkpoint: str, options: Options) -> None:
        self.cfg, self.checkpoint, self.options = cfg, checkpoint, options
        self.out = Path(options.out)
        self.plan: StudentPlan = plan_student(cfg, options.attn, options.keep_softmax)
        if self.plan.carries_cores and options.iters_a:
            if not options.iters_b:
                raise InputError(
                    'iters_b=0 trains no cores, which phase A leaves out: set --iters-b, or '
                    '--iters-a 0 for the untrained model'
                )
            print_log('Phase A is left out: layers that share cores do not learn alone', 'current')
            options = self.options = replace(options, iters_a=0)
        self.phases = [p for p in ('a', 'b') if getattr(options, f'iters_{p}') > 0]
        model = build_model(cfg)
        check_complete(checkpoint, check_fits(checkpoint, model))
        check_channels(cfg, model)
        self.has_scores = options.score and cfg.get('val_dataloader') is not None
        if self.has_scores or options.finetune:
            check_run(cfg, *['train'] * options.finetune, *['val'] * self.has_scores)
        self.images = broadcast_from_first(self._find_images)
        self.record: Dict[str, Any] = dict(
            options=options.fixed(), replaced=self.plan.replaced, kept=self.plan.kept,
            parts=self.plan.parts, images=len(self.images), processes=get_world_size(), scores={},
            errors={}, teacher=self._teacher_hash(),
        )  # fmt: skip
        self.record.update(broadcast_from_first(self._open))

    def run(self) -> Path:
        """Run all stages that are not done and return the checkpoint of the result."""
        self._score('teacher', self.cfg, self.checkpoint)
        self._once('swap', self._swap)
        self._evaluate('swap')
        last = 'swap'
        for phase in [*self.phases, 'c'] if self.options.finetune else self.phases:
            start = self.out / f'{last}.pth'
            if not self._has(phase):
                cfg = self._phase_config(phase, start)
                trained = train_phase(cfg, self.out / f'phase_{phase}', self.options)
                self._once(phase, partial(self._save_trained, phase, start, trained))
            self._evaluate(phase)
            last = phase
        self._once('model', lambda: self._save(read_checkpoint(self.out / f'{last}.pth'), 'model'))
        if is_main_process():
            self._write_results()
        barrier()
        return self.out / MODEL

    def _find_images(self) -> List[Path]:
        """Return the images of ``--images``, or else, if a phase needs some, of the config.

        A continued run keeps those that it began with.
        """
        folder, listed = self.options.images, self.out / IMAGES
        if self.options.resume and listed.is_file():
            found = [Path(path) for path in json.loads(listed.read_text(encoding='utf-8'))]
            source = str(listed)
        elif folder is not None:
            found, source = images_below(folder), f'--images {folder}'
        elif self.phases:
            found, source = training_images(self.cfg), 'train_dataloader'
        else:
            return []
        print_log(f'{len(found)} images of {source}', 'current')
        pipeline = image_pipeline(self.cfg, self.options.crop_size)
        check_readable(found, source, pipeline, padded=self.plan.parts == ['encoder'])
        return found

    def _teacher_hash(self) -> str:
        """Return a hash of the teacher's model and weights."""
        found = hashlib.sha256(repr(self.cfg.model.to_dict()).encode())
        weights, _ = load_state_dict(self.checkpoint)
        for name in sorted(weights):
            found.update(name.encode())
            found.update(weights[name].contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()[:16]

    def _open(self) -> dict:
        """Make the folder, or return what the record of the run to continue has."""
        known = self.out / RECORD
        if not self.options.resume and self.out.is_dir() and any(self.out.iterdir()):
            raise FileExistsError(
                f'--out {self.out} is not empty: name another folder, or add --resume to continue '
                'an interrupted run there'
            )
        check_writable(known)
        if not known.exists():
            paths = [os.path.abspath(path) for path in self.images]
            write_json(self.out / IMAGES, paths, indent=0)
            self._write_record()
            return {}
        before = json.loads(known.read_text(encoding='utf-8'))
        processes = get_world_size()
        had = dict(before['options'], processes=before.get('processes', processes))
        for name, value in dict(self.options.fixed(), processes=processes).items():
            if had.get(name) != value:
                raise FileExistsError(
                    f'--out {self.out} is of a run with {name}={had.get(name)!r}, not {value!r}: '
                    'repeat its options, or name another folder'
                )
        if before.get('teacher', self.record['teacher']) != self.record['teacher']:
            raise FileExistsError(
                f'--out {self.out} is of a run with another model or checkpoint: name those, or '
                'another folder'
            )
        remove_temporaries(self.out)
        return dict(scores=before['scores'], errors=before['errors'])

    def _has(self, stage: str) -> bool:
        return broadcast_from_first((self.out / f'{stage}.pth').exists)

    def _once(self, stage: str, save: Callable[[], None]) -> None:
        """Let the first process save the weights of a stage, unless they are there."""
        if not self._has(stage) and is_main_process():
            save()
        barrier()

    def _swap(self) -> None:
        with DefaultScope.overwrite_default_scope(self.cfg.get('default_scope')), quiet():
            teacher, meta = load_model(self.cfg, self.checkpoint)
            seed_everything(self.options.seed)
            student = MODELS.build(self.plan.cfg.model)
            student.init_weights()
        report = swap_weights(teacher.state_dict(), student)
        print_log(f'Direct swap: {report}', 'current')
        self._save(dict(meta=meta, state_dict=student.state_dict()), 'swap')

    def _save(self, content: dict, stage: str) -> None:
        meta = dict(dataset_meta=content.get('meta', {}).get('dataset_meta'))
        save_checkpoint(self.out / f'{stage}.pth', content['state_dict'], meta)

    def _save_trained(self, phase: str, start: Path, trained: Dict[str, Any]) -> None:
        """Save the model of a phase; A and B train some of its parts, the others do not change."""
        content = trained if phase == 'c' else read_checkpoint(start)
        if phase != 'c':
            content['state_dict'].update(student_weights(trained['state_dict'], self.plan.parts))
        self._save(content, phase)

    def _phase_config(self, phase: str, start: Path) -> Config:
        if phase == 'c':
            return finetune_config(self.plan.cfg, str(start), self.options.seed)
        return phase_config(
            self.cfg, self.plan.cfg, phase, self.options, self.checkpoint, str(start),
            str(self.out / IMAGES),
        )  # fmt: skip

    def _evaluate(self, stage: str) -> None:
        """Score the weights of a stage, and measure the errors of their attentions."""
        path = self.out / f'{stage}.pth'
        self._score(stage, self.plan.cfg, str(path))
        measured = self.plan.carries_cores or stage in self.record['errors']
        if self.images and not measured:
            with DefaultScope.overwrite_default_scope(self.cfg.get('default_scope')), quiet():
                found = attention_errors(self._phase_config('a', path), self.options.seed)
            self.record['errors'][stage] = found
            self._write_record()

    def _score(self, stage: str, cfg: Config, checkpoint: str) -> None:
        if self.has_scores and stage not in self.record['scores']:
            where = self.out / 'scores' / stage
            found = score(cfg, checkpoint, where, stage, self.options.launcher)
            self.record['scores'][stage] = found
            self._write_record()

    def _write_record(self) -> None:
        if is_main_process():
            write_json(self.out / RECORD, self.record)

    def _write_results(self) -> None:
        """Write the config of the result and the report."""
        result = copy.deepcopy(self.plan.cfg)
        folder = os.path.abspath(self.out)
        if not set(folder) & set('\'"\\'):  # MMEngine cannot fill those in
            folder = '{{ fileDirname }}'  # of the config, which may be moved
        result.load_from, result.resume = f'{folder}/{MODEL}', False
        result.pop('work_dir', None)
        result.dump(self.out / CONFIG)
        write_report(self.out, self.record)
        files = ', '.join((CONFIG, MODEL, 'report.json', 'report.md'))
        print_log(f'{self.out}: {files}\n\n{markdown(self.record)}', 'current')


def attention_errors(cfg: Config, seed: int) -> Dict[str, float]:
    """Return the error of each replaced attention on the first images, by its name.

    ``cfg`` is that of phase A, see :func:`.phases.phase_config`; ``seed`` is of the random crops.
    """
    model = MODELS.build(cfg.model)
    with initial_weights_read_safely(model):
        model.init_weights()
    model = model.to(get_device()).eval()
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    count, size = min(len(dataset), ERROR_IMAGES), cfg.train_dataloader.batch_size
    seed_everything(seed)
    totals: Dict[str, float] = {}
    with torch.no_grad():
        for first in range(0, count, size):
            samples = [dataset[i] for i in range(first, min(first + size, count))]
            batch = model.data_preprocessor(pseudo_collate(samples))
            for name, error in model(**batch).items():
                totals[name] = totals.get(name, 0.0) + float(error) * len(samples) / count
    return totals
