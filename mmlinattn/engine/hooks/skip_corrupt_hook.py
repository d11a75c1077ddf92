"""Skipping of unreadable images in training, up to a limit."""

from typing import Any

import torch
from mmengine.dist import all_reduce, is_distributed
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ...utils import redacted
from ..preflight.data import DataError
from ..preflight.sample_loading import base_datasets, loading_checks, path_of

# Number of iterations between two exchanges of the skipped images by all processes.
TOGETHER = 50


class SkippedImages:
    """Skipped images of a training set, in this process and its data-loader workers.

    Args:
        dataset: a data set of MMEngine, or a wrapper of such, with guarded transforms
            (:func:`.sample_loading.check_loading`). When one fails, the data set loads another
            image at random, up to ``max_refetch`` times.
        share: largest share of its images that may be skipped, 0 to 1.

    Raises:
        DataError: the share is out of range, or the data set has no loading transforms.
    """

    def __init__(self, dataset: Any, share: float) -> None:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise DataError(f'skip_corrupt must be a share of the images, 0 to 1, got {share!r}')
        self.share = share
        self.parts = [*base_datasets(dataset)]
        self.total = sum(map(len, self.parts))
        # Flags of all parts, concatenated, in memory that workers share with this process.
        self.flags = torch.zeros(self.total, dtype=torch.uint8).share_memory_()
        guards = 0
        for part, flags in zip(self.parts, self.flags.split([*map(len, self.parts)])):
            for guard in loading_checks(part):
                guard.skipped = flags
                guards += 1
        if not guards:
            raise DataError(
                f'skip_corrupt: {type(dataset).__name__} has no LoadImageFromFile or LoadClip'
            )

    def describe(self, index: int) -> str:
        """Return the file of an image, by its index over all parts, and the reason for skipping."""
        for part in self.parts:
            if index < len(part):
                break
            index -= len(part)
        path, why = f'image {index} of {type(part).__name__}', 'it can be read now'
        try:
            results = part.get_data_info(index)
            path = path_of(results)
            for guard in loading_checks(part):
                results = guard.loaded(results)
        except Exception as error:
            why = f'{type(error).__name__}: {" ".join(str(error).split())}'
        return redacted(f'{path} ({why})')


class SkippedImagesHook(Hook):
    """Hook that logs skipped images and ends a training that skips too many.

    Args:
        skipped: skipped images of the training set.

    Raises:
        DataError: after an iteration, more images were skipped than the share allows.
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
                'mmlinattn check-data finds them all'
            )
