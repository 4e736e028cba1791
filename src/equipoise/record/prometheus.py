"""A Prometheus endpoint of a run (the extra ``prometheus``, imported when an endpoint is asked
for).

It serves the numbers of the newest report. Seconds of workers and histograms, which a report has of
the time since the last recorded one, are added up here, since Prometheus wants counters that only
rise.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from socket import AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from types import ModuleType
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from equipoise.access import bearer_token, need_token, read_token, same
from equipoise.hints import install
from equipoise.record.report import Report
from equipoise.record.series import FAMILIES, SERIES, Family, Labels, Numbers

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    Filled = CounterMetricFamily | GaugeMetricFamily

# the environment variable with the word that a reader must send
TOKEN = "EQUIPOISE_PROMETHEUS_TOKEN"


def load() -> ModuleType:
    """The package, or an ImportError with the install command."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(
            f"--prometheus needs the package prometheus-client: {install('prometheus')} ({error})"
        ) from error
    return prometheus_client


@dataclass(frozen=True, slots=True)
class Address:
    """The place where an endpoint listens, and the word that a reader must send; "" turns it
    off.
    """

    host: str
    port: int
    token: str = ""


def read_address(text: str) -> Address:
    """Read "[HOST:]PORT"; ValueError for others, and for an open host without a token."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ValueError(
            f"--prometheus: expected [HOST:]PORT, such as 9090 or 0.0.0.0:9090, got {text!r}"
        )
    token = read_token(TOKEN, None, "--prometheus")
    need_token(
        host,
        token,
        f"--prometheus {text}",
        f"set {TOKEN}; without one, --prometheus {port} listens on this machine alone",
    )
    return Address(host, int(port), token or "")


@dataclass(slots=True)
class Totals:
    """Sums over the whole run: the sums up to the last recorded report, and the sums with the
    newest report.
    """

    until: dict[tuple[str, Labels], float] = field(default_factory=dict)
    now: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        if report.final:  # of the whole run, which is known already
            return
        self.now = dict(self.until)
        for family in (one for one in FAMILIES if one.since):
            for labels, x in family.read(report).items():
                self.now[family.metric, labels] = self.now.get((family.metric, labels), 0.0) + (
                    x or 0.0
                )
        if report.recorded:
            self.until = self.now

    def of(self, metric: str) -> dict[Labels, float | None]:
        return {labels: x for (name, labels), x in self.now.items() if name == metric}


class Endpoint:
    """Serves the metrics of one run until it is closed; ``update`` gives it a report."""

    def __init__(self, address: Address) -> None:
        """Begin to listen; ValueError if that cannot be."""
        client = load()
        self._metrics, self._totals = client.metrics_core, Totals()
        self._report: Report | None = None
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        app = guarded(client.make_wsgi_app(registry), address.token)
        try:
            self._server = make_server(
                address.host, address.port, app, Server6 if ":" in address.host else Server, Quiet
            )
        except OSError as error:
            raise ValueError(
                f"--prometheus: nothing listens at {address.host}:{address.port}: {error.strerror}"
            ) from error
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()

    def update(self, report: Report) -> None:
        self._totals.take(report)
        self._report = report

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------- asked by the package

    def collect(self) -> Iterator[Filled | HistogramMetricFamily]:
        """The metrics of the newest report; nothing before the first."""
        report, core = self._report, self._metrics
        if report is None:
            return
        for one in SERIES:
            if one.metric:
                yield _filled(
                    self._kind(one.rises)(f"equipoise_{one.metric}", one.words),
                    {(): one.read(report)},
                )
        for family in FAMILIES:
            numbers = self._totals.of(family.metric) if family.since else family.read(report)
            name = f"equipoise_{family.metric}"
            if family.edges:
                yield _histogram(core.HistogramMetricFamily(name, family.words), family, numbers)
            else:
                yield _filled(
                    self._kind(family.rises)(name, family.words, labels=family.labels), numbers
                )

    def _kind(self, rises: bool) -> type[Filled]:
        made: type[Filled] = (
            self._metrics.CounterMetricFamily if rises else self._metrics.GaugeMetricFamily
        )
        return made


def _filled(metric: Filled, numbers: Numbers) -> Filled:
    for labels, x in numbers.items():
        if x is not None:
            metric.add_metric(labels, float(x))
    return metric


def _histogram(
    metric: HistogramMetricFamily, family: Family, bins: Numbers
) -> HistogramMetricFamily:
    """Buckets are cumulative there: how many were at most so large."""
    buckets, sum_ = list[tuple[str, float]](), 0.0
    for end in (*(f"{edge:g}" for edge in family.edges), "inf"):
        sum_ += bins.get((end,)) or 0.0
        buckets.append(("+Inf" if end == "inf" else end, sum_))
    metric.add_metric((), buckets, None)
    return metric


def guarded(app: WSGIApplication, token: str) -> WSGIApplication:
    """The same application for readers that send the token, if there is one."""

    def asked(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if token and not same(bearer_token(environ.get("HTTP_AUTHORIZATION", "")) or "", token):
            start(
                "401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")]
            )
            return [b"expected Authorization: Bearer TOKEN\n"]
        return app(environ, start)

    return asked


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each reader: a silent reader keeps no other reader waiting."""

    daemon_threads = True

    def server_bind(self) -> None:
        # WSGIServer's would ask the network for the name of this machine, which may take long
        TCPServer.server_bind(self)
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )
        self.setup_environ()


class Server6(Server):
    address_family = AF_INET6


class Quiet(WSGIRequestHandler):
    """A handler that prints nothing: the terminal is the live view's."""

    timeout = 5.0  # seconds that a reader may be silent

    def log_message(self, format: str, *args: object) -> None: ...
