"""Runs sections of jobs in a budget of time; what is done is on disk at once, and not repeated."""

import contextlib
import json
import os
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Sequence, Tuple

import torch

Row = Dict[str, object]
Job = Tuple[str, Callable[[], Iterable[Row]]]
Jobs = Dict[str, Callable[[], Iterable[Row]]]
# Of a job: what it should give was computed; it gave something wrong; it raised an error; it did
# not run, which is no mistake.
DONE, WRONG, FAILED, LEFT = 'done', 'wrong', 'failed', 'left'
BAD = (WRONG, FAILED)
OUT_OF_TIME = 'out of time'
PREPARE = 'prepare'  # the job of a section that cannot say what it runs


class NeedsMore(Exception):
    """This machine lacks what a job needs: a GPU, memory, a package. The message says what."""


@dataclass(frozen=True)
class Day:
    """What sections are run on.

    Args:
        tiny: sizes for trying the script, on a CPU too.
    """

    device: torch.device
    tiny: bool

    @property
    def gpu(self) -> bool:
        return self.device.type == 'cuda'

    def needs_gpu(self) -> None:
        """Raise NeedsMore where there is none."""
        if not self.gpu:
            raise NeedsMore('needs a GPU')

    def synchronize(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Args:
        share: of the time, to those of the others.
        jobs: names and what they run, in order; a job yields rows, of which ``'wrong'`` says what
            is wrong with it.
        table: of all rows, in Markdown.
    """

    name: str
    title: str
    share: float
    jobs: Callable[[Day], List[Job]]
    table: Callable[[List[Row]], List[str]]


def run(
    sections: Sequence[Section],
    day: Day,
    key: Dict[str, str],
    folder: Path,
    seconds: float,
    again: Sequence[str] = (),
    show: Callable[[str], None] = print,
    write: Callable[[Dict[str, dict]], None] = lambda records: None,
) -> Dict[str, dict]:
    """Run what is not done; returns the records of all sections, which lie in ``folder`` as well.

    A section gets its share of what time is left and passes on what it does not use. It stops
    between jobs, and leaves what does not fit for the next call. What failed in an earlier call
    comes last: it may break the device.

    Args:
        key: what results belong to. Those in ``folder`` that have another one are run again.
        seconds: in all.
        again: sections of which nothing counts as done.
        show: called with a line of progress.
        write: called with the records after each section.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end, records = time.monotonic() + seconds, {}
    fresh: Dict[str, Jobs] = {}
    failed: Dict[str, Jobs] = {}
    for section in sections:
        record = {} if section.name in again else read(folder / f'{section.name}.json')
        if record.get('key') != key:
            record = dict(section=section.name, title=section.title, key=key, jobs={})
        records[section.name] = record
        try:
            jobs = dict(section.jobs(day))
            record['jobs'].pop(PREPARE, None)
        except Exception as error:  # the other sections can still run
            jobs = {PREPARE: _raiser(error)}
        states = {name: record['jobs'].get(name, {}).get('state') for name in jobs}
        fresh[section.name] = {n: job for n, job in jobs.items() if states[n] in (None, LEFT)}
        failed[section.name] = {n: job for n, job in jobs.items() if states[n] == FAILED}
    broken = ''
    for waiting in (fresh, failed):
        # Again and again for what the others left time for.
        while any(waiting.values()):
            for i, section in enumerate(sections):
                jobs, record = waiting[section.name], records[section.name]
                if not jobs:
                    continue
                rest = sum(other.share for other in sections[i:] if waiting[other.name])
                now = time.monotonic()
                until = now + max(0.0, end - now) * section.share / rest
                for name in list(jobs):
                    late = OUT_OF_TIME if time.monotonic() >= until else ''
                    if waiting is failed and (broken or late):
                        continue  # the record says how it failed
                    result = _run_job(jobs[name], broken or late)
                    record['jobs'][name] = result
                    _write(folder / f'{section.name}.json', record)
                    if result['state'] == FAILED and device_is_broken():
                        broken = f'after {section.name}, {name} the device fails: call again'
                    if result['why'] != OUT_OF_TIME:
                        del jobs[name]
                    if result['state'] in BAD:
                        show(f'{section.name}, {name}: {result["why"]}')
                show(summary(section.name, record))
                write(records)
            if broken or time.monotonic() >= end:
                break
    return records


def device_is_broken() -> bool:
    """Whether a fault in a kernel left this process without its GPU."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:
        return True
    return False


def _raiser(error: Exception) -> Callable[[], Iterable[Row]]:
    def job() -> Iterable[Row]:
        raise error

    return job


def _run_job(job: Callable[[], Iterable[Row]], why_not: str) -> dict:
    result = dict(state=DONE, why='', seconds=0.0, rows=[])
    if why_not:
        return dict(result, state=LEFT, why=why_not)
    start = time.monotonic()
    try:
        for row in job():
            result['rows'].append(row)
        wrong = [str(row['wrong']) for row in result['rows'] if row.get('wrong')]
        if wrong:
            result.update(state=WRONG, why='; '.join(wrong))
    except NeedsMore as error:
        result.update(state=LEFT, why=str(error))
    except torch.cuda.OutOfMemoryError:
        result.update(state=LEFT, why='out of memory')
    except Exception as error:
        first = (str(error).strip().splitlines() or [''])[0]
        why = f'{type(error).__name__}: {first}'[:300]
        result.update(state=FAILED, why=why, traceback=traceback.format_exc())
    if torch.cuda.is_initialized():
        with contextlib.suppress(Exception):  # after a fault in a kernel every call fails
            torch.cuda.empty_cache()
    result['seconds'] = round(time.monotonic() - start, 3)
    return result


def read(path: Path) -> dict:
    """A record; an empty one where the file is missing or was cut off."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def _write(path: Path, record: dict) -> None:
    part = path.with_suffix('.part')
    part.write_text(json.dumps(record, indent=1) + '\n')
    os.replace(part, path)  # a call that is cut off leaves a whole file


def rows_of(record: dict) -> List[Row]:
    """Rows of all jobs of a section, in order."""
    return [row for job in record['jobs'].values() for row in job['rows']]


def bad_jobs(record: dict) -> Dict[str, str]:
    """What is wrong, by job."""
    return {name: job['why'] for name, job in record['jobs'].items() if job['state'] in BAD}


def left_jobs(record: dict) -> Dict[str, List[str]]:
    """Names of jobs that did not run, by reason."""
    found: Dict[str, List[str]] = {}
    for name, job in record['jobs'].items():
        if job['state'] == LEFT:
            found.setdefault(job['why'], []).append(name)
    return found


def summary(name: str, record: dict) -> str:
    """One line: how many jobs are done, wrong and left."""
    jobs = record['jobs'].values()
    parts = [f'{sum(job["state"] == DONE for job in jobs)} done']
    parts += [f'{len(bad_jobs(record))} wrong'] if bad_jobs(record) else []
    parts += [f'{len(names)} left ({why})' for why, names in left_jobs(record).items()]
    return f'{name}: {", ".join(parts)}, {sum(job["seconds"] for job in jobs):.1f} s'
