"""Training goes on past images that cannot be read, up to a limit, and says how many."""

from typing import Any

import torch
from mmengine.dist import all_reduce, is_distributed
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..files import redacted
from .data_checks import DataError
from .loading import base_datasets, guards_of

# Iterations between two looks of all processes at what each has skipped.
TOGETHER = 50


class SkippedImages:
    """Which images of a training set were skipped, by this process and its data-loader workers.

    Args:
        dataset: MMEngine's, or one that wraps such, with guarded transforms
            (:func:`.loading.guard_loading`): from now on, where one fails, the data set takes
            another image at random, as often as its ``max_refetch`` allows.
        share: how many of its images may be skipped, 0 to 1.

    Raises:
        DataError: a share out of range, a data set without transforms that load.
    """

    def __init__(self, dataset: Any, share: float) -> None:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise DataError(f'skip_corrupt must be a share of the images, 0 to 1, got {share!r}')
        self.share = share
        self.parts = [*base_datasets(dataset)]
        self.total = sum(map(len, self.parts))
        # Of all parts, one after the other; workers write where this process reads.
        self.flags = torch.zeros(self.total, dtype=torch.uint8).share_memory_()
        guards = 0
        for part, flags in zip(self.parts, self.flags.split([*map(len, self.parts)])):
            for guard in guards_of(part):
                guard.skipped = flags
                guards += 1
        if not guards:
            raise DataError(
                f'skip_corrupt: {type(dataset).__name__} has no LoadImageFromFile to skip'
            )

    def describe(self, index: int) -> str:
        """File of an image, counted over all parts, and why it cannot be read."""
        for part in self.parts:
            if index < len(part):
                break
            index -= len(part)
        path, why = f'image {index} of {type(part).__name__}', 'it can be read now'
        try:
            results = part.get_data_info(index)
            path = results.get('img_path')
            for guard in guards_of(part):
                results = guard.loaded(results)
        except Exception as error:
            why = f'{type(error).__name__}: {" ".join(str(error).split())}'
        return redacted(f'{path} ({why})')


class SkippedImagesHook(Hook):
    """Logs the images that were skipped, and ends a training that skips too many.

    Args:
        skipped: of the training set.

    Raises:
        DataError: after an iteration, more than the share that may be.
    """

    def __init__(self, skipped: SkippedImages) -> None:
        self.skipped = skipped
        self.known = torch.zeros_like(skipped.flags)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if not is_distributed() or self.every_n_inner_iters(batch_idx, TOGETHER):
            self.look(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self.look(runner)

    def after_train(self, runner: Runner) -> None:
        self.look(runner)
        count = int(self.known.sum())
        runner.logger.info(f'skip_corrupt: {count} of {self.skipped.total} images were skipped.')

    def look(self, runner: Runner) -> None:
        flags = self.skipped.flags.clone()
        all_reduce(flags, 'max')
        if torch.equal(flags, self.known):
            return
        new = (flags > self.known).nonzero().flatten().tolist()
        self.known, count, total = flags, int(flags.sum()), self.skipped.total
        for index in new:
            runner.logger.warning(
                f'skip_corrupt: {self.skipped.describe(index)} is skipped; '
                f'{count} of {total} images so far'
            )
        if count > self.skipped.share * total:
            raise DataError(
                f'{count} of {total} images of the training set cannot be read, more than '
                f'skip_corrupt={self.skipped.share} allows: {self.skipped.describe(new[0])}, ...; '
                'tools/analysis_tools/check_data.py finds them all'
            )
