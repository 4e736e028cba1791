"""Files of capsules that are one JSON file: whole or not at all, at most so many of one cause."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from equipoise.files import plain, write_synced

LIMIT = 20


def write(directory: Path, kind: str, cause: str, data: Mapping[str, object]) -> Path | None:
    """Write a capsule as ``KIND-CAUSE-NN.json``; None at the ``LIMIT`` of its cause, or if the disk
    is full.
    """
    data = {**data, "written": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    stem = f"{kind}-{re.sub(r'[^A-Za-z0-9_.-]+', '_', cause)[:80]}"
    aside = directory / f".{stem}.{secrets.token_hex(4)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_synced(aside, (json.dumps(data, indent=1, default=plain) + "\n").encode())
        for n in range(1, LIMIT + 1):
            try:
                os.link(aside, target := directory / f"{stem}-{n:02d}.json")
            except FileExistsError:  # other workers also write here
                continue
            return target
    except OSError as error:  # a full disk costs the capsule, not the run
        warnings.warn(f"no capsule of {kind} {cause!r}: {error}", RuntimeWarning, stacklevel=2)
    finally:
        aside.unlink(missing_ok=True)
    return None
