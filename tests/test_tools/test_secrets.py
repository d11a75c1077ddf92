"""What is secret in the environment or in an address is in no log, no file and no message."""

import pytest

from mmlinattn import __main__ as program
from mmlinattn.checkpoints import CheckpointError, read_checkpoint
from tests.test_tools.conftest import CONFIGS

KEYS = ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN', 'HF_TOKEN',
        'HUGGING_FACE_HUB_TOKEN', 'WANDB_API_KEY', 'GITHUB_TOKEN', 'PIP_INDEX_URL')  # fmt: skip
SECRET = 'swordfish-4711'
ADDRESS = f'https://me:{SECRET}@127.0.0.1:9/released.pth'


def written(folder, capfd):
    """All that is in the files and in the output, as bytes."""
    out = capfd.readouterr()
    files = [path.read_bytes() for path in folder.rglob('*') if path.is_file()]
    return b'\n'.join([*files, out.out.encode(), out.err.encode()]), len(files)


def test_keys_of_the_environment(quick, tmp_path, monkeypatch, capfd):
    for key in KEYS:
        monkeypatch.setenv(key, SECRET)
    quick('train', 'cls')
    quick('test', 'cls', tmp_path / 'epoch_1.pth', '--out', tmp_path / 'out.pkl')
    content, number = written(tmp_path, capfd)
    # The log has the environment and the config; the checkpoint has meta information.
    assert b'System environment' in content and b'optim_wrapper' in content and number >= 6
    assert SECRET.encode() not in content


@pytest.mark.parametrize('where', ['argument', 'init_cfg', 'data_root'])
def test_passwords_in_addresses_of_a_run(run, root, options, tmp_path, monkeypatch, capfd, where):
    monkeypatch.chdir(tmp_path)
    argv = ['train', root / CONFIGS['cls'], '--work-dir', 'work', '--cfg-options', *options('cls')]
    if where == 'argument':
        argv[:2] = 'test', argv[1], ADDRESS
    elif where == 'init_cfg':
        pretrained = f"dict(_delete_=True, type='Pretrained', checkpoint='{ADDRESS}')"
        argv += [f'model.backbone.init_cfg={pretrained}']
    elif where == 'data_root':
        argv += [f'train_dataloader.dataset.data_root={ADDRESS}']
    with pytest.raises(SystemExit, match='^2$'):
        run(*argv, debug=False)
    content, _ = written(tmp_path, capfd)
    assert b'https://***@127.0.0.1:9/released.pth' in content and SECRET.encode() not in content


def test_passwords_in_an_address_to_convert(tmp_path, capfd):
    with pytest.raises(SystemExit, match='^2$'):
        program.main(['convert', ADDRESS, str(tmp_path / 'ours.pth')])
    content, _ = written(tmp_path, capfd)
    assert b'***@127.0.0.1' in content and SECRET.encode() not in content


def test_queries_of_addresses_are_left_out(monkeypatch, tmp_path):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    with pytest.raises(CheckpointError, match=r'127.0.0.1:9/a.pth\?\*\*\* cannot be') as caught:
        read_checkpoint(f'https://127.0.0.1:9/a.pth?X-Amz-Signature={SECRET}')
    assert SECRET not in str(caught.value)
