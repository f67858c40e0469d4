"""The jobs that have not ended, and which of them a step of the pipeline looks at: few of many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tlmd.pipeline.tuning_jobs import TuningJob

_BY_TURNS = 32  # jobs that a step looks at, beside those whose tasks had news


class UnfinishedJobs:
    """Finds the jobs to whose tasks something has happened without a search through all jobs.

    The others are looked at by turns, since their time may be over: `begin_round` starts a round
    through all jobs, where none is under way.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, TuningJob] = {}
        self._of_task: dict[tuple[str, str], dict[str, None]] = {}  # ids of jobs, by task
        self._touched: dict[str, None] = {}  # ids of jobs to whose tasks something has happened
        self._turns: list[str] = []  # ids of jobs that this round has still to look at

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[TuningJob]:
        """In the order in which they were added. Jobs may be removed meanwhile."""
        return iter(list(self._jobs.values()))

    def add(self, job: TuningJob) -> None:
        """A job has begun; it has no tasks yet."""
        self._jobs[job.id] = job

    def add_tasks(self, job: TuningJob, keys: Iterable[tuple[str, str]]) -> None:
        """A job that has not ended has tasks with these keys, or all its tasks are known."""
        self._touched[job.id] = None
        for key in keys:
            self._of_task.setdefault(key, {})[job.id] = None

    def remove(self, job: TuningJob) -> None:
        """A job has ended."""
        del self._jobs[job.id]
        for key in {task.task.key for task in job.tasks}:
            jobs = self._of_task[key]
            del jobs[job.id]
            if not jobs:
                del self._of_task[key]

    def touch(self, task: tuple[str, str]) -> None:
        """Something has happened to the task with this key."""
        self._touched |= self._of_task.get(task, {})

    def begin_round(self) -> None:
        """Look at all jobs within the next steps."""
        self._turns = self._turns or list(self._jobs)

    def due(self) -> list[TuningJob]:
        """The jobs to look at now; each call gives others."""
        turns, self._turns = self._turns[:_BY_TURNS], self._turns[_BY_TURNS:]
        due, self._touched = self._touched | dict.fromkeys(turns), {}
        return [self._jobs[job_id] for job_id in due if job_id in self._jobs]
