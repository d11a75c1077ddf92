"""One JSON line a run: ``runs.jsonl`` in the folder of a study."""

import fcntl
import json
import os
from pathlib import Path
from typing import Dict, Iterator, List, TextIO

FILE = 'runs.jsonl'


def lines(path: Path) -> Iterator[dict]:
    """Yield the mappings of a file of JSON lines; a line that a kill has cut is passed over."""
    for line in path.read_text(errors='replace').splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            yield record


def read(path: Path, wanted: Dict[str, str]) -> Dict[str, dict]:
    """Return the newest record of each run among those with the wanted settings.

    A result counts even if a later repetition, for its weights, has failed.

    Args:
        path: file of records.
        wanted: hash of the settings by name of the run.
    """
    found: Dict[tuple, dict] = {}
    for of in lines(path):
        key = of.get('run'), of.get('settings')
        if 'metrics' in of or 'metrics' not in found.get(key, {}):
            found[key] = of
    return {
        run: found[run, settings] for run, settings in wanted.items() if (run, settings) in found
    }


def stale(path: Path, wanted: Dict[str, str]) -> List[str]:
    """Return the runs that are recorded with other settings alone."""
    found = {of['run'] for of in lines(path) if 'run' in of}
    return [run for run in wanted if run in found and run not in read(path, wanted)]


def append(path: Path, record: dict) -> None:
    """Add a record as one line, in one write that is flushed to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open('ab+') as file:
        file.seek(0, os.SEEK_END)
        cut = False
        if file.tell():
            file.seek(-1, os.SEEK_END)
            cut = file.read(1) != b'\n'
        file.write(b'\n' * cut + json.dumps(record).encode() + b'\n')
        file.flush()
        os.fsync(file.fileno())


def lock(folder: Path) -> TextIO:
    """Lock the folder of a study for this process, until the returned file is closed.

    Raises:
        BlockingIOError: another process runs the study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / '.lock').open('w')
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise BlockingIOError(f'{folder} is in use by another run of the study') from error
    return file
