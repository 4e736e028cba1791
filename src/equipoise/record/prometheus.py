"""A Prometheus endpoint of a run (the extra ``prometheus``, imported when one is asked for).

It serves what the newest report says. Seconds of workers and histograms, which a report has of the time since the last recorded
one, are added up here, since Prometheus wants counters that only rise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from socket import AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from equipoise.access import bearer_token, need_token, read_token, same
from equipoise.balance.shares import STATES
from equipoise.hints import install
from equipoise.histograms import EDGES
from equipoise.record.report import Report

TOKEN = "EQUIPOISE_PROMETHEUS_TOKEN"  # the environment variable with the word that a reader must say
Labels = tuple[str, ...]
Numbers = Mapping[Labels, float | None]


def load() -> Any:
    """The package, or an ImportError that says what to install."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ImportError(f"--prometheus needs the package prometheus-client: {install('prometheus')} ({error})") from error
    return prometheus_client


@dataclass(frozen=True, slots=True)
class Address:
    """The place where an endpoint listens, and the word that a reader must say; "": none."""

    host: str
    port: int
    token: str = ""


def read_address(text: str) -> Address:
    """Read "[HOST:]PORT"; ValueError for another text, and for a host that others reach without a token in the environment."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise ValueError(f"--prometheus: expected [HOST:]PORT, such as 9090 or 0.0.0.0:9090, got {text!r}")
    token = read_token(TOKEN, None, "--prometheus")
    need_token(
        host, token, f"--prometheus {text}", f"set {TOKEN}; without one, --prometheus {port} listens on this machine alone"
    )
    return Address(host, int(port), token or "")


@dataclass(slots=True)
class Totals:
    """Sums over the whole run: those up to the last recorded report, and with what has come since."""

    until: dict[tuple[str, Labels], float] = field(default_factory=dict)
    now: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        if report.final:  # of the whole run, which is known already
            return
        self.now = dict(self.until)
        for key, x in _since(report):
            self.now[key] = self.now.get(key, 0.0) + x
        if report.recorded:
            self.until = self.now

    def of(self, name: str) -> Iterator[tuple[Labels, float]]:
        return ((labels, x) for (kind, labels), x in self.now.items() if kind == name)


def _since(report: Report) -> Iterator[tuple[tuple[str, Labels], float]]:
    """The numbers of a report that are of the time since the last recorded one."""
    for worker, shares in report.balance.items():
        for state in STATES:
            yield ("state", (worker, shares.kind, state)), max(getattr(shares, state), 0.0)
        for part, seconds in shares.parts.items():
            yield ("part", (worker, shares.kind, part)), seconds
            yield ("times", (worker, shares.kind, part)), shares.counts.get(part, 0.0)
    for name, bins in report.lags.items():
        for end, count in bins.items():
            yield (name, (end,)), count


class Endpoint:
    """Serves the metrics of one run until it is closed; ``update`` gives it a report."""

    def __init__(self, address: Address) -> None:
        """Begin to listen; ValueError where that cannot be."""
        client = load()
        self._metrics, self._totals = client.metrics_core, Totals()
        self._report: Report | None = None
        registry = client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        app = guarded(client.make_wsgi_app(registry), address.token)
        try:
            self._server = make_server(address.host, address.port, app, Server6 if ":" in address.host else Server, Quiet)
        except OSError as error:
            raise ValueError(f"--prometheus: nothing listens at {address.host}:{address.port}: {error.strerror}") from error
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

    # ------------------------------------------------------------------------------------------ asked by the package

    def collect(self) -> Iterable[Any]:
        """The metrics of the newest report; nothing before the first."""
        report = self._report
        return [] if report is None else [*self._of_the_run(report), *self._of_workers(report), *self._of_channels(report)]

    def _of_the_run(self, r: Report) -> Iterator[Any]:
        yield self._counter("env_steps", "Env steps that were learned from.", r.env_steps)
        yield self._counter("taken", "Env steps that were taken.", r.taken)
        yield self._counter("updates", "Updates of the learner.", r.updates)
        yield self._counter("episodes", "Episodes that ended.", r.episodes)
        yield self._counter("aborted", "Episodes that a failure of an env ended.", r.aborted)
        yield self._gauge("wall_seconds", "Seconds since the run began.", r.wall_s)
        yield self._gauge("steps_per_second", "Env steps learned from in a second.", r.steps_per_s)
        yield self._gauge("updates_per_second", "Updates in a second.", r.updates_per_s)
        yield self._gauge("tokens_per_second", "Tokens of text learned from in a second.", r.tokens_per_s)
        yield self._gauge("return_mean", "Mean return of the last 100 episodes.", r.return_mean)
        yield self._gauge("length_mean", "Mean length of the last 100 episodes.", r.length_mean)
        yield self._gauge("lag_versions_mean", "Mean lag in versions.", r.lag_mean)
        metrics: Numbers = {(name,): x for name, x in r.metrics.items()}
        yield self._gauge("learner", "A metric of the algorithm.", of=metrics, labels=("name",))
        said: Numbers = {(r.verdict,): 1.0}
        yield self._gauge("verdict", "1, with what holds the run back as a label.", of=said, labels=("sentence",))

    def _of_workers(self, r: Report) -> Iterator[Any]:
        totals, who = self._totals, ("worker", "kind")
        yield self._counter("worker_seconds", "Seconds of a worker by state.", of=totals.of("state"), labels=(*who, "state"))
        parts = (*who, "part")
        yield self._counter("part_seconds", "Seconds of a part of a worker's work.", of=totals.of("part"), labels=parts)
        yield self._counter("part_times", "How often a part of a worker's work came.", of=totals.of("times"), labels=parts)
        cpu = (((name,), one["cpu_s"]) for name, one in r.usage.items())
        yield self._counter("process_cpu_seconds", "CPU seconds of a process.", of=cpu, labels=("process",))
        memory: Numbers = {(name,): one["rss"] for name, one in r.usage.items()}
        yield self._gauge("process_resident_bytes", "Memory of a process.", of=memory, labels=("process",))
        for name, key in (("busy", "busy"), ("memory_bytes", "used"), ("power_watts", "power_w")):
            numbers: Numbers = {(gpu,): one[key] for gpu, one in r.gpus.items() if key in one}
            yield self._gauge(f"gpu_{name}", f"{name.capitalize()} of a GPU.", of=numbers, labels=("gpu",))

    def _of_channels(self, r: Report) -> Iterator[Any]:
        stores: Numbers = {(name,): x for name, x in r.occupancy.items()}
        yield self._gauge("occupancy", "How full a store of rows is, 0 to 1.", of=stores, labels=("store",))
        moved = (((name,), float(x)) for name, x in r.moved.items())
        yield self._counter("moved_bytes", "Bytes that a channel moved.", of=moved, labels=("channel",))
        told = {"versions": "lag_versions", "seconds": "lag_seconds", "loop": "loop_seconds"}
        says = {
            "versions": "Windows that were learned from, by the lag in versions.",
            "seconds": "Windows that were learned from, by the seconds since the version that acted came out.",
            "loop": "Blocks of rows, by the seconds from their env steps to the end of their updates.",
        }
        for kind, name in told.items():
            yield self._histogram(name, says[kind], EDGES[kind], {end: x for (end,), x in self._totals.of(kind)})

    def _counter(
        self, name: str, says: str, value: float = 0.0, *, of: Iterable[tuple[Labels, float]] | None = None, labels: Labels = ()
    ) -> Any:
        family = self._metrics.CounterMetricFamily(f"equipoise_{name}", says, labels=labels)
        for key, x in [((), value)] if of is None else of:
            family.add_metric(key, x)
        return family

    def _gauge(
        self, name: str, says: str, value: float | None = None, *, of: Numbers | None = None,
        labels: Labels = (),
    ) -> Any:  # fmt: skip
        family = self._metrics.GaugeMetricFamily(f"equipoise_{name}", says, labels=labels)
        for key, x in ({(): value} if of is None else of).items():
            if x is not None:
                family.add_metric(key, x)
        return family

    def _histogram(self, name: str, says: str, edges: Iterable[float], bins: Mapping[str, float]) -> Any:
        """Buckets are cumulative there: how many were at most so large."""
        buckets, sum_ = list[tuple[str, float]](), 0.0
        for end in (*(f"{edge:g}" for edge in edges), "inf"):
            sum_ += bins.get(end, 0.0)
            buckets.append(("+Inf" if end == "inf" else end, sum_))
        family = self._metrics.HistogramMetricFamily(f"equipoise_{name}", says)
        family.add_metric((), buckets, None)
        return family


def guarded(app: Callable[..., Any], token: str) -> Callable[..., Any]:
    """The same application for readers that say the token, if there is one."""

    def asked(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        if token and not same(bearer_token(environ.get("HTTP_AUTHORIZATION", "")) or "", token):
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
            return [b"expected Authorization: Bearer TOKEN\n"]
        return app(environ, start)

    return asked


class Server(ThreadingMixIn, WSGIServer):
    """A thread for each reader: one that says nothing keeps no other waiting."""

    daemon_threads = True

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # WSGIServer's would ask the network for the name of this machine, which may take long
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class Server6(Server):
    address_family = AF_INET6


class Quiet(WSGIRequestHandler):
    """A handler that prints nothing: the terminal is the live view's."""

    timeout = 5.0  # seconds that a reader may be silent

    def log_message(self, format: str, *args: Any) -> None: ...
