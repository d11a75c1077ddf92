"""Best checkpoints, early stopping and averages with MMEngine's Runner, against definitions."""

import pytest
from mmengine.evaluator import BaseMetric
from mmengine.runner import Runner

from mmlinattn import engine
from mmlinattn.checkpoints import read_checkpoint
from mmlinattn.utils.errors import InputError
from tests.test_engine.tiny_runner import tiny_runner

SCORES = [1.0, 3.0, 2.0, 3.05, 2.5, 3.05, 9.0]


class Scripted(BaseMetric):
    """The scores of a list, one per validation."""

    default_prefix = 'accuracy'

    def __init__(self, epoch) -> None:
        super().__init__()
        self.epoch = epoch

    def process(self, data_batch, data_samples) -> None:
        self.results.append(0)

    def compute_metrics(self, results: list) -> dict:
        return dict(top1=SCORES[self.epoch() - 1])


def train(folder, epochs=7, hooks=(), checkpoint=(), **options):
    saving = dict(type='AtomicCheckpointHook', interval=1, **dict(checkpoint))
    runner = tiny_runner(
        folder, epochs, metrics=[Scripted(lambda: runner.epoch or 1)], custom_hooks=list(hooks),
        default_hooks=dict(checkpoint=saving), build=Runner, **options,
    )  # fmt: skip
    runner.train()
    return runner


def test_the_best_checkpoint_is_kept_over_a_stop(tmp_path):
    best = dict(save_best='accuracy/top1')
    train(tmp_path, 3, checkpoint=best)
    assert [p.name for p in tmp_path.glob('best_*')] == ['best_accuracy_top1_epoch_2.pth']
    resume = dict(resume=True, load_from=str(tmp_path / 'epoch_3.pth'))
    train(tmp_path, 6, checkpoint=best, **resume)
    # 3.05 is better than 3, and the same score later is not.
    assert [p.name for p in tmp_path.glob('best_*')] == ['best_accuracy_top1_epoch_4.pth']
    found, regular = (
        read_checkpoint(tmp_path / f'{name}.pth')['state_dict']['weight']
        for name in ('best_accuracy_top1_epoch_4', 'epoch_4')
    )
    assert found == regular == -4 * 2 * 0.125


def test_a_file_of_the_same_name_is_no_outdated_one(tmp_path):
    """MMEngine removes the older file first; here that is done last."""
    runner = train(tmp_path, 2, checkpoint=dict(save_best='accuracy/top1', max_keep_ckpts=1))
    hook = next(hook for hook in runner.hooks if isinstance(hook, engine.AtomicCheckpointHook))
    for name in ('epoch_2', 'best_accuracy_top1_epoch_2'):
        hook.file_backend.remove(tmp_path / f'{name}.pth')
    hook._remove_outdated()
    assert {path.stem for path in tmp_path.glob('*.pth')} == {
        'epoch_2', 'best_accuracy_top1_epoch_2',
    }  # fmt: skip


def test_a_training_by_epochs_is_saved_inside_one_only_if_it_resumes_there(tmp_path):
    with pytest.raises(InputError, match="^PreemptionHook saves .*add dict.type='ExactResumeHook'"):
        train(tmp_path, 1, hooks=[dict(type='PreemptionHook')])
