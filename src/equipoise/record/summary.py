"""The last word of a run: ``summary.json``, with exactly the keys of ``SUMMARY_KEYS``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equipoise.files import json_bytes, plain, read_json, write_atomic
from equipoise.hints import hint
from equipoise.record.schemas import STATUSES, SUMMARY_KEYS, SUMMARY_SCHEMA
from equipoise.schema import check

SUMMARY = "summary.json"
Summary = dict[str, Any]  # by the keys of SUMMARY_KEYS


def write_summary(directory: Path, summary: Mapping[str, object]) -> Summary:
    """Write the summary of a run -> what was written; ValueError for another set of keys."""
    for key in summary:
        if key not in SUMMARY_KEYS:
            raise ValueError(f"summary: unknown key {key!r}{hint(key, SUMMARY_KEYS)}")
    if missing := [key for key in SUMMARY_KEYS if key not in summary]:
        raise ValueError(
            f"summary: expected the keys {list(SUMMARY_KEYS)}, got none named {missing}"
        )
    if summary["status"] not in STATUSES:
        raise ValueError(
            f"summary: expected a status of {list(STATUSES)}, got {summary['status']!r}"
        )
    data: Summary = plain({key: summary[key] for key in SUMMARY_KEYS})
    # three numbers of an evaluation, and fields that only some evaluations have
    if data["evaluation"] is not None:
        keys = (
            "mean",
            "std",
            "episodes",
            *(key for key in ("policies", "info") if data["evaluation"].get(key)),
        )
        data["evaluation"] = {key: data["evaluation"][key] for key in keys}
    write_atomic(directory / SUMMARY, json_bytes(data))
    return data


def read_summary(directory: Path) -> Summary | None:
    """The summary; None before the end, and with a warning if the file is damaged."""
    file = directory / SUMMARY
    if not file.exists():
        return None
    try:
        data: Summary = check(read_json(file), SUMMARY_SCHEMA, str(file))
    except (OSError, ValueError) as error:
        warnings.warn(
            f"{error}; the file is not needed, and is left out of account",
            RuntimeWarning,
            stacklevel=3,
        )
        return None
    return data
