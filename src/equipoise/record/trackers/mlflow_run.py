"""MLflow (the extra ``mlflow``); ``MLFLOW_TRACKING_URI`` names its server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from mlflow import MlflowClient
from mlflow.entities import Metric, Param

from equipoise.record.trackers.tracker import Begin, table

ID = "equipoise.id"  # a tag, by which a resume finds its run
LONGEST = 6_000  # most characters of a parameter
AT_ONCE = 100  # most parameters of one request


class MlflowRun:
    """One run of an experiment; its parameters are the settings of the program."""

    def __init__(self, begin: Begin) -> None:
        self._client = MlflowClient()
        experiment = self._client.get_experiment_by_name(begin.name)
        place = (
            self._client.create_experiment(begin.name)
            if experiment is None
            else experiment.experiment_id
        )
        known = self._client.search_runs([place], f"tags.`{ID}` = '{begin.id}'")
        if known:
            self._run: str = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        made = self._client.create_run(place, run_name=begin.directory.name, tags={ID: begin.id})
        self._run = made.info.run_id
        params = [Param(key, value[:LONGEST]) for key, value in flat(begin.config).items()]
        for i in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._run, params=params[i : i + AT_ONCE])

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(
            self._run, [Metric(name, value, now, step) for name, value in values.items()]
        )

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        columns, rows = table(samples)
        # the layout of tables that MLflow's page shows
        shown = {"columns": columns, "data": rows}
        self._client.log_dict(self._run, shown, f"completions/step_{step}.json")

    def finish(self, *, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def flat(config: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return the settings of a program by their dotted names."""
    found = dict[str, str]()
    for key, value in config.items():
        name = f"{prefix}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: str(value)}
    return found


begin = MlflowRun
