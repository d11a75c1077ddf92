"""What a release consists of: source distribution, wheel, versions, pages, licences."""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
import yaml

from mmlinattn import __version__
from mmlinattn.checkpoints.converters import SOURCES

TOP = ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE', 'CITATION.cff')
TOP += ('CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md', 'model-index.yml')
FOLDERS = ('mmlinattn', 'configs', 'tools')


def build(kind, source, out):
    """What pip and `python -m build` call, in the environment that there is."""
    code = f'from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})'
    done = subprocess.run([sys.executable, '-c', code], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(out.iterdir())


def files(folder):
    """Those of a checkout, as paths from its root; none that Python has compiled."""
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob('*')
        if path.is_file() and '__pycache__' not in path.parts
    }


@pytest.fixture(scope='module')
def sdist(root, tmp_path_factory):
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp('sdist')
    source = folder / 'source'
    for name in FOLDERS:
        shutil.copytree(root / name, source / name)  # byte code too
    for name in TOP:
        shutil.copy(root / name, source)
    (source / 'tests').mkdir()
    (source / 'tests' / 'test_nothing.py').touch()
    (folder / 'out').mkdir()
    with tarfile.open(build('sdist', source, folder / 'out')) as archive:
        archive.extractall(folder, filter='data')
    return folder / f'mmlinattn-{__version__}'


@pytest.fixture(scope='module')
def wheel(sdist, tmp_path_factory):
    out = tmp_path_factory.mktemp('wheel')
    return build('wheel', sdist, out)


def test_the_sdist_has_what_the_wheel_needs(root, sdist):
    names = {path.relative_to(sdist).as_posix() for path in sdist.rglob('*') if path.is_file()}
    made = {'PKG-INFO', 'setup.cfg', *(name for name in names if '.egg-info/' in name)}
    assert names - made == {*TOP}.union(*(files(root / folder) for folder in FOLDERS))


def test_the_wheel_has_the_package_and_what_mim_looks_for(root, wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = f'mmlinattn-{__version__}.dist-info/'
        metadata = archive.read(info + 'METADATA').decode()
        assert archive.read(info + 'entry_points.txt').decode().split() == [
            '[console_scripts]', 'mmlinattn', '=', 'mmlinattn.__main__:main',
        ]  # fmt: skip
    brought = files(root / 'configs') | files(root / 'tools') | {'model-index.yml'}
    assert {name for name in names if not name.startswith(info)} == {
        *files(root / 'mmlinattn'),
        *(f'mmlinattn/.mim/{name}' for name in brought),
        'mmcv/_ext.py',
    }
    assert info + 'licenses/LICENSE' in names
    for line in (f'Version: {__version__}', 'License-Expression: Apache-2.0'):
        assert f'\n{line}\n' in metadata


@pytest.mark.parametrize('kind', ['wheel', 'editable'])
def test_an_install_puts_operators_beside_mmcv_lite(sdist, root, tmp_path, request, kind):
    """They are in the record, so pip removes them; compiled ones come first."""
    source, out, site = tmp_path / 'source', tmp_path / 'out', tmp_path / 'site'
    out.mkdir()
    if kind == 'wheel':
        built = request.getfixturevalue('wheel')
    else:
        shutil.copytree(sdist, source)
        built = build('editable', source, out)
    with zipfile.ZipFile(built) as archive:
        archive.extractall(site)
    (site / 'mmcv/__init__.py').touch()  # as mmcv-lite has it
    operators = (root / 'mmlinattn/utils/mmcv_ops.py').read_text()
    assert (site / 'mmcv/_ext.py').read_text() == operators
    assert 'mmcv/_ext.py,' in next(site.glob('*.dist-info/RECORD')).read_text()
    assert not list(site.glob('mmlinattn*.pth')), 'a file that runs whenever Python starts'
    code = 'import importlib.util; print(importlib.util.find_spec("mmcv._ext").origin)'
    for name in ('_ext.py', '_ext' + EXTENSION_SUFFIXES[0]):
        (site / 'mmcv' / name).touch()
        run = [sys.executable, '-S', '-c', code]  # without the packages of this environment
        found = subprocess.check_output(run, env=dict(PYTHONPATH=str(site)), cwd=out, text=True)
        assert found.strip() == str(site / 'mmcv' / name)


def test_the_version_is_one(root):
    newest = re.search(r'^## (\S+) \((.*)\)$', (root / 'CHANGELOG.md').read_text(), re.M)
    citation = yaml.safe_load((root / 'CITATION.cff').read_text())
    released = (str(citation['version']), str(citation['date-released']))
    assert newest.groups() == released and released[0] == __version__


def test_the_licence_of_every_source_of_weights_is_on_its_page(root):
    page = (root / 'docs' / 'commercial_use.md').read_text()
    assert set(re.findall(r'^\| [^|]+ \| `(\w+)` \|', page, re.M)) == set(SOURCES)
