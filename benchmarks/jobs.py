"""Sections of jobs that run within a time limit; results are saved after each job."""

import gc
import json
import multiprocessing
import os
import queue
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple

import torch

from mmlinattn.ops import BackendError
from mmlinattn.utils import write_json

from .machine import error_line

Row = Dict[str, object]
# Jobs by name: functions that can be pickled. The time is checked before each.
Jobs = Dict[str, Callable[[], Iterable[Row]]]
# States of a job. LEFT is no error.
DONE, LEFT, WRONG, FAILED = 'done', 'left', 'wrong', 'failed'
OUT_OF_TIME = 'out of time'


class NeedsMore(Exception):
    """Exception if the machine lacks a GPU, memory or a package that a job needs."""


@dataclass(frozen=True)
class Session:
    """Device and sizes of a run; ``tiny`` sizes test the script, also on a CPU."""

    device: torch.device
    tiny: bool

    @property
    def gpu(self) -> bool:
        return self.device.type == 'cuda'

    def needs_gpu(self) -> None:
        if not self.gpu:
            raise NeedsMore('needs a GPU')

    def synchronize(self) -> None:
        if self.gpu:
            torch.cuda.synchronize(self.device)

    def workers(self) -> int:
        """Return how many processes the CPU cores and the GPU memory allow."""
        if not self.gpu:
            return 1
        memory = torch.cuda.mem_get_info(self.device)[0] // (4 * 2**30)
        return max(1, min((os.cpu_count() or 1) - 2, memory))


@dataclass(frozen=True)
class Section:
    """Section of the report.

    Args:
        share: share of the time, relative to the other sections.
        jobs: returns the jobs in order. A row of a failed check has the error under ``'wrong'``.
        table: returns the arguments of :func:`benchmarks.report.number_table` for all rows.
        parallel: run jobs side by side, each in a process of its own.
    """

    name: str
    title: str
    share: float
    jobs: Callable[[Session], Jobs]
    table: Callable[[Sequence[Row]], dict]
    parallel: bool = False


def run(
    sections: Sequence[Section],
    session: Session,
    key: Dict[str, object],
    folder: Path,
    seconds: float,
    show: Callable[[str], None] = partial(print, flush=True),
) -> None:
    """Run the jobs that are not done, and save the record of each section in ``folder``.

    A section gets its share of the remaining time and passes unused time on. In the end jobs that
    ran out of time run, and those that failed in an earlier call, which may break the device.

    Args:
        key: identity of the results; records in ``folder`` with another key are run again.
        show: called with a line of progress.
    """
    end = time.time() + seconds
    records: Dict[str, dict] = {}
    waiting: Dict[str, Jobs] = {}
    for section in sections:
        record: dict = read(folder / f'{section.name}.json')
        if record.get('key') != key:
            record = dict(section=section.name, title=section.title, key=key, jobs={})
        done = [name for name, job in record['jobs'].items() if job['state'] == DONE]
        jobs = section.jobs(session).items()
        waiting[section.name] = {name: job for name, job in jobs if name not in done}
        records[section.name] = record
    for last in (False, True):
        for i, section in enumerate(sections):
            jobs, record = waiting[section.name], records[section.name]
            results = record['jobs']
            failed = [name for name in results if results[name]['state'] == FAILED and not last]
            chosen = {name: job for name, job in jobs.items() if name not in failed}
            if not chosen:
                continue
            now, rest = time.time(), sum(s.share for s in sections[i:] if waiting[s.name])
            until = end if last else now + max(0.0, end - now) * section.share / rest
            workers = session.workers() if section.parallel else 1
            for name, result in _execute(chosen, workers, until):
                late = result['why'] == OUT_OF_TIME
                if not late:
                    del jobs[name]
                if not late or name not in results:
                    results[name] = result
                    write_json(folder / f'{section.name}.json', record, indent=1)
                if result['state'] in (WRONG, FAILED):
                    show(f'{section.name}, {name}: {result["why"]}')
            show(f'{section.name}: {summary(record)}')


def _execute(jobs: Jobs, workers: int, until: float) -> Iterator[Tuple[str, dict]]:
    """Yield the names and results of all jobs."""
    if workers == 1:
        yield from ((name, run_job(job, until)) for name, job in jobs.items())
        return
    waiting, results = iter(list(jobs.items())), queue.SimpleQueue()

    def work() -> None:
        """Run jobs in a process with the imports and compiled kernels of those before."""
        process = _process()
        for name, job in waiting:  # each thread takes the next one
            try:
                result = process.submit(run_job, job, until).result()
            except Exception as error:
                died = isinstance(error, BrokenProcessPool)
                why = 'its process died' if died else error_line(error)
                result = dict(state=FAILED, why=why, seconds=0.0, rows=[])
            results.put((name, result))
            if result['state'] == FAILED:  # which may have broken the process
                process.shutdown()
                process = _process()
        process.shutdown()

    with ThreadPoolExecutor(workers) as threads:
        for _ in range(workers):
            threads.submit(work)
        yield from (results.get() for _ in jobs)


def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn'))


def run_job(job: Callable[[], Iterable[Row]], until: float) -> dict:
    """Return state, reason, seconds and rows of a job."""
    rows: List[Row] = []
    result = dict(state=LEFT, why='', seconds=0.0, rows=rows)
    start = time.time()
    if start >= until or device_is_broken():
        why = OUT_OF_TIME if start >= until else 'an earlier job broke the device: call again'
        return dict(result, why=why)
    try:
        for row in job():
            rows.append(row)
        result['state'] = DONE
    except (NeedsMore, BackendError) as error:
        result['why'] = str(error)
    except torch.cuda.OutOfMemoryError:
        result['why'] = 'out of memory'
    except Exception as error:
        result.update(state=FAILED, why=error_line(error), traceback=traceback.format_exc())
    wrong = dict.fromkeys(str(row['wrong']) for row in rows if row.get('wrong'))
    if wrong and result['state'] != FAILED:
        result.update(state=WRONG, why='; '.join(wrong))
    if torch.cuda.is_initialized() and not device_is_broken():
        gc.collect()  # models have reference cycles
        torch.cuda.empty_cache()
    result['seconds'] = round(time.time() - start, 3)
    return result


def device_is_broken() -> bool:
    """Return True if an error in a kernel made the GPU unusable for this process."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception:
        return True
    return False


def read(path: Path) -> dict:
    """Return a record, or an empty dict if the file is missing or truncated."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}


def rows_of(record: dict) -> List[Row]:
    """Return the rows of all jobs of a section, in order."""
    return [row for job in record['jobs'].values() for row in job['rows']]


def bad_jobs(record: dict) -> List[str]:
    """Return the names of wrong and failed jobs with their errors."""
    bad = [(n, job) for n, job in record['jobs'].items() if job['state'] in (WRONG, FAILED)]
    return [f'{name}: {job["why"]}' for name, job in bad]


def summary(record: dict) -> str:
    """Return one line with the number of jobs by state, and why jobs are left."""
    jobs = record['jobs'].values()
    states = [f'left ({j["why"]})' if j['state'] == LEFT else j['state'] for j in jobs]
    counts = ', '.join(f'{states.count(state)} {state}' for state in dict.fromkeys(states))
    return f'{counts}; {sum(job["seconds"] for job in jobs):.0f} s'
