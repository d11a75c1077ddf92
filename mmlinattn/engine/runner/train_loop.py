"""Epoch-based training loop that resumes inside an epoch."""

from itertools import islice
from typing import Any, Iterator, List, Optional

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop
from torch import nn
from torch.utils.data import DataLoader

from ..preflight.data import DataError

# Key of the number of batches per epoch in the message hub, which every checkpoint contains.
BATCHES = 'batches_an_epoch'


class _SkippedBatchSampler:
    """Batch sampler that skips the first ``start`` batches of another one."""

    def __init__(self, batch_sampler: Any, start: int) -> None:
        self.batch_sampler = batch_sampler
        self.start = start

    def __iter__(self) -> Iterator[List[int]]:
        return islice(self.batch_sampler, self.start, None)

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.start


@LOOPS.register_module()
class ResumableEpochLoop(EpochBasedTrainLoop):
    """MMEngine's EpochBasedTrainLoop, resuming at the iteration of the checkpoint.

    MMEngine resumes at the start of the epoch. This loop reads only the remaining samples.
    ``mmlinattn train`` uses it in place of ``EpochBasedTrainLoop``; the arguments are the same.

    Raises:
        DataError: an epoch has no batch, since ``drop_last`` drops the only one.
    """

    _iter: int  # of MMEngine's loop

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        loader = self.dataloader
        if len(loader) == 0:
            sampler = loader.batch_sampler
            raise DataError(
                f'train_dataloader: an epoch has {len(sampler.sampler)} images for a process, '
                f'fewer than batch_size={sampler.batch_size}, and drop_last=True drops them; '
                'lower batch_size or set drop_last=False'
            )

    def run(self) -> nn.Module:
        """Run the training from the position of the loaded checkpoint."""
        self.fit_epoch()
        return super().run()

    def fit_epoch(self, other_images: bool = False) -> Optional[int]:
        """Find the position of a loaded checkpoint in its epoch.

        Args:
            other_images: True if the batches of the epoch are made of other images than before.

        Returns:
            None if training resumes at that position. Otherwise the epoch has another number of
            batches, or ``other_images`` is set, and training resumes at the start of the epoch.
            Then the return value is the number of batches at the checkpoint, 0 if unknown.
        """
        hub = self.runner.message_hub
        self._start = self._iter - self._epoch * len(self.dataloader)
        now = len(self.dataloader)
        # MMEngine's own checkpoints do not record the number of batches.
        then = hub.runtime_info.get(BATCHES, now if 0 <= self._start <= now else 0)
        hub.update_info(BATCHES, now)
        if then == now and not (other_images and self._start):
            return None
        self.runner.logger.warning(
            (
                f'An epoch had {then or "other"} batches when the checkpoint was made and has '
                f'{now} now (another batch size, number of processes or data set)'
                if then != now
                else 'The rest of the epoch would not be the images that it has not seen'
            )
            + f': training goes on at the start of epoch {self._epoch + 1}.'
        )
        self._start = 0
        self._iter = self._epoch * now
        return then

    def run_epoch(self) -> None:
        """Run an epoch from the first batch that has not been trained on."""
        start, self._start = self._start, 0
        if not start:
            super().run_epoch()
            return
        batches = len(self.dataloader)
        where = f'before batch {start + 1} of' if start < batches else 'behind the last batch of'
        self.runner.logger.info(f'Resumed {where} {batches}.')
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        for idx, data_batch in enumerate(_skip_batches(self.dataloader, start), start):
            self.run_iter(idx, data_batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


def _skip_batches(loader: DataLoader, start: int) -> DataLoader:
    return DataLoader(
        loader.dataset,
        batch_sampler=_SkippedBatchSampler(loader.batch_sampler, start),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
