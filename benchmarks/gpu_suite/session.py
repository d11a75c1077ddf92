"""Runner of sections of jobs within a time budget; results are saved at once and not run again."""

import contextlib
import json
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterable, List, Sequence, Tuple

import torch

from mmlinattn.utils import write_json

from ..machine import error_line

Row = Dict[str, object]
Job = Tuple[str, Callable[[], Iterable[Row]]]
Jobs = Dict[str, Callable[[], Iterable[Row]]]
# States of a job: result computed; result wrong; exception raised; not run, which is no error.
DONE, WRONG, FAILED, LEFT = 'done', 'wrong', 'failed', 'left'
BAD = (WRONG, FAILED)
OUT_OF_TIME = 'out of time'
PREPARE = 'prepare'  # the job of a section whose jobs cannot be listed


class NeedsMore(Exception):
    """Exception if the machine lacks a GPU, memory or a package that a job needs."""


@dataclass(frozen=True)
class Session:
    """Device and sizes of a run.

    Args:
        tiny: use sizes that test the script, also on a CPU.
    """

    device: torch.device
    tiny: bool

    @property
    def gpu(self) -> bool:
        return self.device.type == 'cuda'

    def needs_gpu(self) -> None:
        """Raise NeedsMore unless the device is a GPU."""
        if not self.gpu:
            raise NeedsMore('needs a GPU')

    def synchronize(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Section:
    """Section of the report.

    Args:
        share: share of the time, relative to the other sections.
        jobs: names and functions, in order; a job yields rows, with ``'wrong'`` set to the error
            of a failed check.
        table: formats all rows in Markdown.
    """

    name: str
    title: str
    share: float
    jobs: Callable[[Session], List[Job]]
    table: Callable[[List[Row]], List[str]]


def run(
    sections: Sequence[Section],
    session: Session,
    key: Dict[str, str],
    folder: Path,
    seconds: float,
    again: Sequence[str] = (),
    show: Callable[[str], None] = print,
    write: Callable[[Dict[str, dict]], None] = lambda records: None,
) -> Dict[str, dict]:
    """Run unfinished jobs and return the records of all sections, also saved in ``folder``.

    A section gets its share of the remaining time and passes unused time on. It stops between jobs
    and leaves unfinished jobs for the next call. Jobs that failed in an earlier call run last,
    because they may break the device.

    Args:
        key: identity of the results. Records in ``folder`` with another key are run again.
        seconds: total time.
        again: sections to run again.
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
            jobs = dict(section.jobs(session))
            record['jobs'].pop(PREPARE, None)
        except Exception as error:  # the other sections can still run
            jobs = {PREPARE: _raiser(error)}
        states = {name: record['jobs'].get(name, {}).get('state') for name in jobs}
        fresh[section.name] = {n: job for n, job in jobs.items() if states[n] in (None, LEFT)}
        failed[section.name] = {n: job for n, job in jobs.items() if states[n] == FAILED}
    broken = ''
    for waiting in (fresh, failed):
        # Repeat for the time that other sections did not use.
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
                        continue  # keep the recorded error
                    result = _run_job(jobs[name], broken or late)
                    record['jobs'][name] = result
                    write_json(folder / f'{section.name}.json', record, indent=1)
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
    """Return True if an error in a kernel made the GPU unusable for this process."""
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
        result.update(state=FAILED, why=error_line(error), traceback=traceback.format_exc())
    if torch.cuda.is_initialized():
        with contextlib.suppress(Exception):  # after an error in a kernel every call fails
            torch.cuda.empty_cache()
    result['seconds'] = round(time.monotonic() - start, 3)
    return result


def read(path: Path) -> dict:
    """Return a record, or an empty dict if the file is missing or truncated."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def rows_of(record: dict) -> List[Row]:
    """Return the rows of all jobs of a section, in order."""
    return [row for job in record['jobs'].values() for row in job['rows']]


def bad_jobs(record: dict) -> Dict[str, str]:
    """Return the errors by job."""
    return {name: job['why'] for name, job in record['jobs'].items() if job['state'] in BAD}


def left_jobs(record: dict) -> Dict[str, List[str]]:
    """Return the names of jobs that did not run, by reason."""
    found: Dict[str, List[str]] = {}
    for name, job in record['jobs'].items():
        if job['state'] == LEFT:
            found.setdefault(job['why'], []).append(name)
    return found


def summary(name: str, record: dict) -> str:
    """Return one line with the numbers of jobs that are done, wrong and left."""
    jobs = record['jobs'].values()
    parts = [f'{sum(job["state"] == DONE for job in jobs)} done']
    parts += [f'{len(bad_jobs(record))} wrong'] if bad_jobs(record) else []
    parts += [f'{len(names)} left ({why})' for why, names in left_jobs(record).items()]
    return f'{name}: {", ".join(parts)}, {sum(job["seconds"] for job in jobs):.1f} s'
