import re

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.runner import load_checkpoint
from torch import nn

import mmlinattn  # noqa: F401
from mmlinattn import __main__ as program
from mmlinattn.checkpoints import load_state_dict, save_checkpoint
from mmlinattn.cli import convert as cli


@pytest.fixture
def src(tmp_path, classifier):
    path = tmp_path / 'released.pth'
    torch.save(dict(model=classifier, epoch=299), path)
    return path


@pytest.fixture
def run(capsys):
    """Runs the command line in this process: (exit code, stdout, stderr).

    The source is RALA unless it is given; 'tell' leaves it to the command.
    """

    def call(*argv, source='rala'):
        if source != 'tell' and '--source' not in argv:
            argv = (*argv, '--source', source)
        return program.main(['convert', *map(str, argv)]), *capsys.readouterr()

    return call


@pytest.fixture
def config(tmp_path, backbone_cfg):
    """Writes a config of a detector-like model around a backbone with the given arguments."""

    def write(**kwargs):
        backbone = dict(backbone_cfg, **kwargs)
        path = tmp_path / 'config.py'
        path.write_text(
            "custom_imports = dict(imports=['mmlinattn'])\ndefault_scope = 'mmdet'\n"
            f"model = dict(type='RetinaNet', backbone={backbone!r}, "
            "neck=dict(type='FPN', in_channels=[16, 32, 48, 64], out_channels=8, num_outs=5), "
            "bbox_head=dict(type='RetinaHead', num_classes=3, in_channels=8))\n"
        )
        return path

    return write


def test_summary_and_use(run, src, tmp_path, backbone_cfg):
    dst = tmp_path / 'out' / 'ravlt.pth'
    code, out, err = run(src, dst)
    assert (code, err) == (0, '')
    state_dict, _ = load_state_dict(dst)
    values = sum(value.numel() for value in state_dict.values()) / 1e6
    assert f'{src}: classifier of rala' in out
    assert f'{len(state_dict)} tensors, {values:.2f} M values' in out
    assert f"init_cfg=dict(type='Pretrained', checkpoint='{dst}', prefix='backbone.')" in out
    assert f"load_from='{dst}'" in out

    init_cfg = dict(type='Pretrained', checkpoint=str(dst), prefix='backbone.')
    backbone = MODELS.build(dict(backbone_cfg, out_norm=False, init_cfg=init_cfg))
    backbone.init_weights()
    name = 'stages.2.1.attn.in_proj.weight'
    assert torch.equal(backbone.state_dict()[name], state_dict[f'backbone.{name}'])
    host = nn.ModuleDict(dict(backbone=MODELS.build(dict(backbone_cfg, out_norm=False))))
    load_checkpoint(host, str(dst))
    assert torch.equal(host.backbone.state_dict()[name], state_dict[f'backbone.{name}'])


def test_prefix(run, error_of, tmp_path):
    src, dst = tmp_path / 'lightning.pth', tmp_path / 'plain.pth'
    weights = {'model.backbone._orig_mod.a': torch.ones(2), 'model.head.b': torch.ones(1)}
    torch.save(dict(state_dict=dict(weights, loss=torch.ones(1)), epoch=1), src)
    code, out, _ = run(src, dst, '--prefix', 'model.', source='tell')
    assert code == 0 and f"{src}: classifier behind 'model.'\n" in out
    assert list(load_state_dict(dst)[0]) == ['backbone.a', 'head.b']
    code, out, _ = run(src, dst, '--force', '--prefix', 'model.backbone.', source='tell')
    assert out.splitlines()[-1].endswith(f"init_cfg=dict(type='Pretrained', checkpoint='{dst}')")
    error = error_of(run, src, dst, '--force', '--prefix', 'modle.')
    assert "no name begins with --prefix 'modle.'" in error


def test_safetensors_output(run, src, tmp_path):
    code, out, _ = run(src, tmp_path / 'ravlt.safetensors')
    assert code == 0 and f"'safe://{tmp_path}/ravlt.safetensors'" in out
    assert 'backbone.stem.0.conv.weight' in load_state_dict(tmp_path / 'ravlt.safetensors')[0]


def test_config_reports_missing_and_unexpected(run, src, tmp_path, config):
    pytest.importorskip('mmdet', reason='the config is of a detector')
    code, out, _ = run(src, tmp_path / 'a.pth', '--config', config())
    assert code == 0
    assert 'missing in the file: backbone.out_norms.0.weight' in out
    assert '9 unexpected: neck.' in out and 'as the whole' not in out


def test_weights_of_a_backbone_that_are_missing(run, src, tmp_path, config, monkeypatch):
    """Nothing is said of those of its heads, outputs and attentions."""
    pytest.importorskip('mmdet', reason='the config is of a detector')
    said = []
    monkeypatch.setattr(cli, 'log_warning', said.append)
    state = load_state_dict(src)[0]
    gone = [name for name in state if name.startswith('patch_embed.proj.0.')]
    save_checkpoint(tmp_path / 'cut.pth', {k: v for k, v in state.items() if k not in gone}, {})
    for path in (src, tmp_path / 'cut.pth'):
        run(path, tmp_path / 'a.pth', '--config', config(), '--force')
    (text,) = said
    assert f'{len(gone)} weights of the backbone would start untrained, such as backbone.' in text


def test_config_by_its_name(run, error_of, src, tmp_path, monkeypatch):
    """The only form outside of a checkout; options of other commands work here, too."""
    pytest.importorskip('mmpretrain', reason='the config is of a classifier')
    monkeypatch.chdir(tmp_path)
    error = error_of(run, src, tmp_path / 'a.pth', '--config', 'ravlt-t_8xb128_in1k')
    assert re.search('ravlt-t_8xb128_in1k: .* in the file and .* in the model', error)
    error = error_of(run, src, tmp_path / 'a.pth', '--config', 'ravlt-tt_8xb128_in1k')
    assert "config 'ravlt-tt_8xb128_in1k' does not exist; did you mean ravlt-t_8xb128_in1k" in error


def test_config_of_another_size(run, error_of, src, tmp_path, config, backbone_cfg):
    pytest.importorskip('mmdet', reason='the config is of a detector')
    arch = dict(backbone_cfg['arch'], mlp_ratios=3.0)
    error = error_of(run, src, tmp_path / 'a.pth', '--config', config(arch=arch))
    shapes = 'ffn.fc1.weight is (56, 16) in the file and (48, 16) in the model'
    assert f'backbone.stages.0.0.{shapes}' in error
    assert not (tmp_path / 'a.pth').exists()
    for depths in ((1, 1, 3, 1), (1, 1, 1, 1)):
        arch = dict(backbone_cfg['arch'], depths=depths)
        error = error_of(run, src, tmp_path / 'a.pth', '--config', config(arch=arch))
        counts = f'stages.2 has 2 blocks in the file, {depths[2]} in the model'
        assert f'{counts}. Give the arch' in error


def test_bad_config(run, error_of, src, tmp_path, config):
    argv = src, tmp_path / 'a.pth', '--config'
    assert 'no.py' in error_of(run, *argv, tmp_path / 'no.py')
    assert re.search('config.py.*colour', error_of(run, *argv, config(colour='red')))


def test_refusals(run, error_of, src, tmp_path):
    dst = tmp_path / 'a.pth'
    assert 'no.pth does not exist' in error_of(run, tmp_path / 'no.pth', dst)
    assert 'same file' in error_of(run, src, src)
    for name in (src, f'safe://{src}', src.resolve().as_uri()):
        assert 'same file' in error_of(run, name, src, '--force')
    assert 'must end in' in error_of(run, src, tmp_path / 'a.bin')
    dst.write_bytes(b'mine')
    assert '--force' in error_of(run, src, dst)
    assert dst.read_bytes() == b'mine'
    assert run(src, dst, '--force')[0] == 0
    src.write_bytes(src.read_bytes()[:20_000])
    assert 'released.pth is incomplete' in error_of(run, src, tmp_path / 'b.pth')
    assert not (tmp_path / 'b.pth').exists()


def test_unknown_key_and_source(run, error_of, src, tmp_path, classifier):
    argv = run, src, tmp_path / 'a.pth'
    assert "invalid choice: 'rola'" in error_of(*argv, '--source', 'rola')
    torch.save(dict(model=dict(classifier, mystery=torch.zeros(1))), src)
    assert re.search('released.pth.*mystery', error_of(*argv))


def test_a_release_behind_a_prefix(run, error_of, src, tmp_path, classifier):
    run(src, tmp_path / 'plain.pth')
    expected, _ = load_state_dict(tmp_path / 'plain.pth')
    for start, cut in (('net.', ['--prefix', 'net.']), ('module._orig_mod.module.', [])):
        moved = {f'{start}{name}': value for name, value in classifier.items()}
        torch.save(dict(model=moved), src)
        argv = run, src, tmp_path / 'a.pth'
        if cut:
            cure = r"stand behind 'net\.': convert with --prefix net\. --source rala"
            assert re.search(cure, error_of(*argv))
        code, out, _ = argv[0](*argv[1:], *cut, '--force')
        assert code == 0 and f'{src}: classifier of rala' in out
        found, _ = load_state_dict(tmp_path / 'a.pth')
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_prefix_that_is_not_the_whole_one(run, error_of, src, tmp_path, classifier):
    argv = run, src, tmp_path / 'a.pth', '--prefix'
    whole = r"stand behind 'a\.net\.': convert with --prefix a\.net\. --source rala"
    moved = {f'a.net.{name}': value for name, value in classifier.items()}
    torch.save(dict(model=dict(moved, other=torch.zeros(1))), src)
    assert re.search(whole, error_of(*argv, 'a.', '--source', 'rala'))
    for cut, source in (('a', 'tell'), ('a.net', 'rala')):
        assert f"--prefix '{cut}' lacks the dot" in error_of(*argv, cut, source=source)
    torch.save(dict(model=moved), src)
    assert re.search(whole, error_of(*argv[:-1], source='tell'))
    code, out, _ = run(*argv[1:], 'a.net.', source='tell')
    assert code == 0 and "behind 'a.net.'; for models of this package add --source rala or m" in out
    name = next(name for name in moved if name.endswith('qkvo.weight'))
    torch.save(dict(model=dict(moved, **{name: moved[name] * float('nan')})), src)
    error = error_of(*argv, 'a.net.', '--force')
    assert 'released.pth has 1 weights that are NaN: backbone.stages.' in error
    torch.save(dict(model={f'module.{name}': torch.zeros(1) for name in 'ab'}), src)
    assert 'say which release' in error_of(*argv[:-1], '--force', source='tell')
