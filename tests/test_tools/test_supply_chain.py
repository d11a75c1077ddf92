"""What the set-up installs is what was pinned, byte by byte; packages that age are explained."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile

RELEASE = re.compile(r'^([\w.-]+)==([\w.+-]+)', re.M)


def normal(name):
    return re.sub(r'[-_.]+', '-', name).lower()


def releases(text):
    """(name, version) of each line that pins."""
    return {(normal(name), version) for name, version in RELEASE.findall(text)}


def test_every_pinned_release_has_hashes(root):
    pinned = releases((root / 'requirements/constraints.txt').read_text())
    hashed = set()
    for path in (root / 'requirements/hashes').glob('*.txt'):
        # An entry is a line that pins and the lines after it, which begin with blanks.
        for entry in re.split(r'\n(?=\S)', path.read_text().strip()):
            hashed |= releases(entry)
            lines = entry.replace('\\\n', '\n').splitlines()
            assert len(lines) > 1, f'{path.name}: {entry}'
            for line in lines[1:]:
                assert re.fullmatch(r'\s+--hash=sha256:[0-9a-f]{64}\s*', line), f'{path}: {line}'
    assert len(pinned) > 100
    assert hashed == pinned, 'tools/misc/hashes.sh'


def wheel(folder, name):
    """A wheel of one file."""
    path = folder / f'{name}-1.0-py3-none-any.whl'
    info = f'{name}-1.0.dist-info'
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr(f'{name}.py', 'value = 1\n')
        archive.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n')
        archive.writestr(
            f'{info}/WHEEL', 'Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n'
        )
        archive.writestr(f'{info}/RECORD', '')
    return path


def test_setup_refuses_a_changed_byte(root, tmp_path):
    """One set of packages as it was hashed, and one with another byte in it."""
    for name, package in (('tools', 'honest'), ('default', 'tampered')):
        path = wheel(tmp_path, package)
        content = path.read_bytes()
        line = f'{package}==1.0 --hash=sha256:{hashlib.sha256(content).hexdigest()}\n'
        (tmp_path / f'{name}.txt').write_text(line)
        if package == 'tampered':
            path.write_bytes(content.replace(b'value = 1', b'value = 2'))
    venv = tmp_path / 'venv'
    env = dict(os.environ, BASE_PYTHON=sys.executable, HASHES=str(tmp_path), MMCV='lite')
    env.update(PIP_NO_INDEX='1', PIP_FIND_LINKS=str(tmp_path), PIP_CONFIG_FILE=os.devnull)
    command = ['bash', 'tools/misc/setup.sh', f'{venv}/bin/python', str(venv)]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert '[setup] build tools: ' in done.stdout and 'torch' not in done.stdout
    assert 'DO NOT MATCH THE HASHES' in done.stderr and 'frameworks' in done.stderr
    (packages,) = venv.glob('lib/python*/site-packages')
    assert (packages / 'honest.py').exists() and not (packages / 'tampered.py').exists()
