"""SegFormer with random walks: trains, then tests whole images and by sliding window."""

import pytest

from .test_train_and_test import metrics

WINDOW = ['mode=slide', 'crop_size=(48,48)', 'stride=(32,32)']


@pytest.mark.parametrize('attn', ['rwgka', 'rwgkp'])
def test_whole_and_sliding_window(root, run, options, tmp_path, attn):
    config = root / f'configs/rwgka/segformer_mit-b0-{attn}_shapes.py'
    work = tmp_path / 'train'
    run('train', config, '--work-dir', work, '--cfg-options', *options('seg', 2))
    checkpoint = (work / 'last_checkpoint').read_text()
    scores = {}
    for mode, extra in (('whole', []), ('slide', [f'model.test_cfg.{o}' for o in WINDOW])):
        tested = tmp_path / mode
        run('test', config, checkpoint, '--work-dir', tested, '--cfg-options',
            *options('seg'), *extra)  # fmt: skip
        scores[mode] = metrics(tested)['aAcc']
    # Windows see less around: other predictions, of about the same quality.
    assert scores['slide'] != scores['whole'] and 0 < scores['slide'] <= 100
