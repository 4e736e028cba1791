"""Schemas of the files of a run directory: the fields of run.json and summary.json that a resume
reads.
"""

from __future__ import annotations

from equipoise.record.series import SERIES
from equipoise.record.trackers.tracker import SCHEMA as TRACKERS
from equipoise.schema import Anything, Each, Flag, Items, Maybe, Schema, Text, count

SUMMARY_KEYS = (
    "status",
    *(one.name for one in SERIES if one.summary),
    "info",
    "evaluation",
    "best_evaluation",
    "lag",
    "acting",
    "balance",
    "cause",
    "verdict",
    "remedies",
    "evaluations",
    "params_sha256",
    "rows",
    "notes",
    "alarms",
    "governor",
    "lending",
    "failures",
    "aborted",
    "printed",
    "sites",
    "refused",
)


STATUSES = ("completed", "solved", "alarmed", "interrupted", "failed")


RUN_SCHEMA: Schema = {  # of what a resume reads; "program" has a reader of its own
    "on": Text(among=("serial", "process", "ray")),
    "tensorboard": Flag(),
    "trackers?": TRACKERS,
    "signature?": Maybe(Text(64)),
    "cluster?": {"address?": Text(1000), "*": Anything()},
    "cluster_signature?": Maybe(Text(64)),
    "resumed?": Items(Anything()),
    "cloned?": {"run": Text(), "step": count(), "*": Anything()},
    "dataset?": {"sha256": Text(64), "*": Anything()},
    "task?": {"sha256": Text(64)},
    "reward_models?": Each(Text(64)),
    "choices?": Each({"why": Text(2_000), "*": Anything()}),
    "*": Anything(),
}


SUMMARY_SCHEMA: Schema = {"status": Text(among=STATUSES), "*": Anything()}
