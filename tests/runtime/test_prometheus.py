"""The Prometheus endpoint: what it serves, to whom,
and that the dashboard asks for what there is.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from equipoise import cli
from equipoise.balance.shares import Shares
from equipoise.record import prometheus
from equipoise.record.prometheus import TOKEN, Address, Endpoint, read_address
from tests.cli.samples import VERDICT, report

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/equipoise.json"
FULL: dict[str, Any] = {
    "balance": {
        "learner": Shares(
            worked=3, starved=1, kind="learner", parts={"loss": 2.0}, counts={"loss": 4.0}
        )
    },
    "lags": {"versions": {"0": 3, "2": 1}, "seconds": {"0.01": 4}, "loop": {"0.1": 2}},
    "occupancy": {"queue": 0.5},
    "moved": {"written": 1000},
    "usage": {"learner": {"cpu_s": 2.5, "rss": 1 << 20}},
    "gpus": {"gpu 0": {"busy": 0.5, "used": 1 << 30, "total": 2 << 30, "power_w": 200.0}},
    "metrics": {"loss": 0.25},
}
SECRET = "a-word-of-19-letters"


def said(
    endpoint: Endpoint, token: str = ""
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples that an endpoint serves, by name and labels."""
    asked = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}/metrics")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(asked, timeout=20) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
    }


def test_nothing_is_served_before_the_first_report_and_then_the_newest() -> None:
    with Endpoint(Address("127.0.0.1", 0)) as endpoint:
        assert said(endpoint) == {}
        endpoint.update(report(**FULL))
        endpoint.update(report(**FULL, env_steps=220_000, return_mean=None))
        found = said(endpoint)
    assert found["equipoise_env_steps_total", ()] == 220_000
    assert ("equipoise_return_mean", ()) not in found, "no number where there is none"
    assert found["equipoise_verdict", (("sentence", VERDICT),)] == 1
    assert found["equipoise_process_resident_bytes", (("process", "learner"),)] == 1 << 20
    assert found["equipoise_gpu_power_watts", (("gpu", "gpu 0"),)] == 200


def test_what_is_of_the_time_since_the_last_record_only_rises() -> None:
    worked, part = (
        (("kind", "learner"), ("state", "worked"), ("worker", "learner")),
        ("learner", "learner", "loss"),
    )
    seen = []
    with Endpoint(Address("127.0.0.1", 0)) as endpoint:
        # of 3 s each, and 3 s anew after a recorded one
        for recorded in (False, False, True, False, True):
            endpoint.update(report(**FULL, recorded=recorded))
            found = said(endpoint)
            seen.append(found["equipoise_worker_seconds_total", worked])
        endpoint.update(report(**FULL, final=True))  # of the whole run, which is known already
        found = said(endpoint)
    assert seen == [3, 3, 3, 6, 6] and found["equipoise_worker_seconds_total", worked] == 6
    kind, worker, name = part
    assert (
        found["equipoise_part_times_total", (("kind", kind), ("part", name), ("worker", worker))]
        == 8
    )
    buckets = {
        dict(labels)["le"]: x
        for (name, labels), x in found.items()
        if name == "equipoise_lag_versions_bucket"
    }
    assert (buckets["0"], buckets["1"], buckets["2"], buckets["+Inf"]) == (6, 6, 8, 8)


def test_a_token_is_wanted_where_there_is_one() -> None:
    with Endpoint(Address("127.0.0.1", 0, "a secret")) as endpoint:
        endpoint.update(report())
        for token in ("", "another"):
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                said(endpoint, token)
            refused.value.close()
        assert said(endpoint, "a secret")


@pytest.mark.parametrize(
    ("text", "environ", "wanted"),
    [
        ("9090", {}, Address("127.0.0.1", 9090)),
        ("localhost:0", {}, Address("localhost", 0)),
        ("[::1]:9090", {TOKEN: SECRET}, Address("::1", 9090, SECRET)),
        ("0.0.0.0:9090", {TOKEN: SECRET}, Address("0.0.0.0", 9090, SECRET)),
        (
            "0.0.0.0:9090",
            {},
            "must have a token if other machines can connect, got none; set "
            "EQUIPOISE_PROMETHEUS_TOKEN",
        ),
        (
            "0.0.0.0:9090",
            {TOKEN: "x"},
            "EQUIPOISE_PROMETHEUS_TOKEN: expected a token of 16 to 4,096 letters",
        ),
        (
            "10.0.0.7:9090",
            {},
            "--prometheus 10.0.0.7:9090: must have a token if other machines can connect",
        ),
        ("port", {}, r"expected \[HOST:\]PORT, such as 9090 .*, got 'port'"),
        ("127.0.0.1:70000", {}, "got '127.0.0.1:70000'"),
        ("", {}, "got ''"),
    ],
)
def test_addresses(
    text: str, environ: dict[str, str], wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    for name, token in environ.items():
        monkeypatch.setenv(name, token)
    if isinstance(wanted, Address):
        assert read_address(text) == wanted
    else:
        with pytest.raises(ValueError, match=wanted):
            read_address(text)


def test_a_port_that_is_taken_is_one_line() -> None:
    with Endpoint(Address("127.0.0.1", 0)) as endpoint:
        found = CliRunner().invoke(
            cli.app, ["train", "CartPole-v1", "--prometheus", f"127.0.0.1:{endpoint.port}"]
        )
    assert (
        found.exit_code == 2
        and "nothing listens at 127.0.0.1" in found.output
        and "Address already in use" in found.output
    )


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"--prometheus needs the package prometheus-client: "):
        prometheus.load()


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    with Endpoint(Address("127.0.0.1", 0)) as endpoint:
        endpoint.update(replace(report(**FULL), recorded=True))
        served = {name: {key for key, _ in labels} for name, labels in said(endpoint)}
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    names = {name for expr in asked for name in re.findall(r"equipoise_\w+", expr)}
    assert names <= served.keys(), f"the endpoint serves no {sorted(names - served.keys())}"
    for panel in board["panels"]:
        for target in panel["targets"]:
            of = set.union(
                *(served[name] for name in re.findall(r"equipoise_\w+", target["expr"]))
            ) | {"instance"}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= of, target
            assert {
                label
                for labels in re.findall(r"by \(([^)]*)\)", target["expr"])
                for label in labels.split(", ")
            } <= of
    assert {re.sub(r"_bucket$", "", name) for name in served if name.endswith("_bucket")} <= {
        re.sub(r"_bucket$", "", name) for name in names
    }, "every histogram is drawn"
