"""Messages between a study and the processes of its trials: a line of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from equipoise.studies.executor import Job, Progress
from equipoise.studies.history import Result


def job_line(job: Job) -> bytes:
    return json.dumps({**asdict(job), "study": str(job.study)}).encode() + b"\n"


def read_job(line: bytes) -> Job | None:
    """Return the job of a line; None for the request to end the present one."""
    data = json.loads(line)
    if "stop" in data:
        return None
    return Job(**{**data, "study": Path(data["study"]), "trust": tuple(data["trust"])})


def event_line(event: Progress | Result | None) -> bytes:
    """Return the line of an event; None: the job has ended as it was asked to, without a result."""
    data = {} if event is None else {"kind": type(event).__name__, **asdict(event)}
    return json.dumps(data).encode() + b"\n"


def read_event(line: bytes) -> Progress | Result | None:
    data = json.loads(line)
    kind = data.pop("kind", None)
    if kind is None:
        return None
    if kind == "Progress":
        return Progress(**data)
    return Result(**{**data, "alarms": tuple(data["alarms"])})
