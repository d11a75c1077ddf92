"""Videos and their labels from the annotation files of MMAction2."""

import os.path as osp
from typing import Any, List, Optional

from mmengine import fileio
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS


@DATASETS.register_module()
class VideoList(BaseDataset):
    """Videos of a text file with a file name and a label in each line, as of MMAction2's
    ``VideoDataset``::

        abseiling/0wR5jVB-WPk.mp4 0
        zumba/zKZN1JtaiqY.mp4 399

    Lines of three entries (``RawframeDataset``) are read with ``frame_template``: the folder of the
    frames, their number and the label.

    Args:
        ann_file: the text file.
        data_root: folder, or address, before ``ann_file`` and ``data_prefix``.
        data_prefix: ``dict(video='...')``, the folder of the videos.
        frame_template: file name of frame i of a folder, such as ``'img_{:05}.jpg'``, counted
            from 1; None for video files.
        kwargs: options of MMEngine's ``BaseDataset``.

    Samples, before the pipeline:
        ``video_path`` and ``gt_label``; for folders also ``total_frames`` and ``frame_template``.

    Raises:
        ValueError: a line has other entries, a label that is no number from 0 on, or one that is
            none of ``metainfo['classes']``; the file is not UTF-8; ``data_prefix`` has other keys.
        FileNotFoundError: there is no annotation file.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
        ...     print('a/b.mp4 3', file=file, flush=True)
        ...     data = VideoList(file.name, data_prefix=dict(video='clips'), serialize_data=False)
        >>> data.data_list
        [{'video_path': 'clips/a/b.mp4', 'gt_label': 3}]
    """

    def __init__(
        self,
        ann_file: str,
        data_prefix: Optional[dict] = None,
        frame_template: Optional[str] = None,
        **kwargs: Any,
    ) -> None:
        self.frame_template = frame_template
        prefix = dict(video='') if data_prefix is None else data_prefix
        if not isinstance(prefix, dict) or {*prefix} != {'video'}:
            raise ValueError(f"data_prefix must be dict(video='FOLDER'), got {data_prefix!r}")
        super().__init__(ann_file, data_prefix=prefix, **kwargs)

    def load_data_list(self) -> List[dict]:
        try:
            text = fileio.get_text(self.ann_file).removeprefix('\ufeff')  # a byte-order mark
        except UnicodeDecodeError as error:
            raise ValueError(f'{self.ann_file} is not UTF-8 text: save it as UTF-8') from error
        lines = enumerate(text.splitlines(), 1)
        samples = [self._sample(line.strip(), number) for number, line in lines if line.strip()]
        if not samples:
            raise ValueError(f'{self.ann_file} has no lines')
        return samples

    def _sample(self, line: str, number: int) -> dict:
        folders = self.frame_template is not None
        name, *rest = line.rsplit(' ', 2 if folders else 1)
        if len(rest) != 1 + folders or not all(entry.isdecimal() for entry in rest):
            form = 'FOLDER FRAMES LABEL' if folders else 'FILE LABEL'
            raise ValueError(
                f'line {number} of {self.ann_file} is {line!r}, not {form} with one space '
                'between them and numbers from 0 on'
            )
        classes = self.metainfo.get('classes')
        if classes and int(rest[-1]) >= len(classes):
            raise ValueError(
                f'line {number} of {self.ann_file} has the label {rest[-1]}, the labels of '
                f'{len(classes)} classes (metainfo.classes) are 0 to {len(classes) - 1}'
            )
        path = osp.join(self.data_prefix.get('video') or '', name)
        sample = dict(video_path=path, gt_label=int(rest[-1]))
        if folders:
            sample.update(total_frames=int(rest[0]), frame_template=self.frame_template)
        return sample
