#!/usr/bin/env python
"""List pinned packages whose newest release is older than two years.

Exit code 1 if CONTRIBUTING.md gives no reason to keep one of them. Requires uv and the package
index, which knows the release dates.
"""

import argparse
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Dict, List

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGE, HEADING = 'CONTRIBUTING.md', '### Packages without a release in two years'
LIMIT = timedelta(days=730)


def names(constraints: str) -> List[str]:
    """Return the names of the packages in a constraints file."""
    return sorted({re.split('[=;]', line)[0].strip() for line in constraints.splitlines() if line})


def newest(packages: List[str]) -> dict:
    """Return the newest release of each package, as a pylock (PEP 751)."""
    command = ['uv', 'pip', 'compile', '--quiet', '--no-config', '--no-deps', '--universal']
    command += ['--python-version', '3.13', '--no-python-downloads', '--format', 'pylock.toml', '-']
    text = '\n'.join(packages)
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    return tomllib.loads(done.stdout)


def old(lock: dict, now: datetime) -> Dict[str, datetime]:
    """Return the packages whose newest release is too old, with its date."""
    found = {}
    for package in lock['packages']:
        files = [*package.get('wheels', []), package.get('sdist', {})]
        made = max(file['upload-time'] for file in files if 'upload-time' in file)
        if now - made > LIMIT:
            found[package['name']] = made
    return found


def explained(page: str) -> List[str]:
    """Return the packages for which the page gives a reason."""
    section = page.partition(HEADING)[2].partition('\n## ')[0]
    return [
        name.strip('`')
        for row in re.findall(r'^\| (`.*?`) \|', section, re.M)
        for name in row.split(', ')
    ]


def main() -> int:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    pinned = names((ROOT / 'requirements' / 'constraints.txt').read_text())
    found = old(newest(pinned), datetime.now(timezone.utc))
    reasons = explained((ROOT / PAGE).read_text())
    for name, made in sorted(found.items(), key=lambda item: item[1]):
        print(f'{made:%Y-%m-%d} {name}' + ('' if name in reasons else f': no reason in {PAGE}'))
    return int(not set(found) <= set(reasons))


if __name__ == '__main__':
    sys.exit(main())
