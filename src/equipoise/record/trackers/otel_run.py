"""OpenTelemetry (the extra ``otel``): OTLP over HTTP to ``OTEL_EXPORTER_OTLP_ENDPOINT``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from equipoise.record.trackers.tracker import Begin

STEP = "equipoise.env_steps"
SECONDS = 3_600.0  # between two exports on a timer; each report also exports


class Gauge(Protocol):
    """A gauge of OpenTelemetry, whose own class has a private name."""

    def set(self, amount: float) -> None: ...


class OtelRun:
    """Gauges of a service, with the values of the newest report; its env steps are also a gauge."""

    def __init__(self, begin: Begin) -> None:
        self._reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(), export_interval_millis=SECONDS * 1000
        )
        resource = Resource.create(
            {
                "service.name": begin.name,
                "service.instance.id": begin.id,
                "equipoise.run": begin.directory.name,
            }
        )
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("equipoise")
        self._gauges = dict[str, Gauge]()

    def log(self, values: Mapping[str, float], step: int) -> None:
        found = {STEP: float(step)} | {f"equipoise.{key}": one for key, one in values.items()}
        for name, value in found.items():
            if name not in self._gauges:
                self._gauges[name] = self._meter.create_gauge(name)
            self._gauges[name].set(value)
        self._provider.force_flush()

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        """Do nothing: metrics have no tables."""

    def finish(self, *, failed: bool) -> None:
        self._provider.shutdown()


begin = OtelRun
