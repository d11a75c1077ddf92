"""Hashes of the pinned packages."""

import re

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
