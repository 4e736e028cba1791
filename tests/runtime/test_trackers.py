"""Experiment trackers: what each gets, that a resume goes on with it, and that a run does not
depend on it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from equipoise import api
from equipoise.record.directory import RunDirectory
from equipoise.record.trackers import tracker as trackers
from tests.runtime.test_directory import report, summary
from tests.runtime.test_program import program

PACKAGE = "equipoise.record.trackers"


class Fake:
    """A tracker that keeps what a server would have; ``fails`` raises, ``held`` waits."""

    runs: ClassVar[dict[str, list[Any]]] = {}
    begun: ClassVar[list[trackers.Begin]] = []
    fails: ClassVar[bool] = False
    error: ClassVar[BaseException] = ConnectionError("the server is away")
    held: ClassVar[threading.Event | None] = None

    def __init__(self, begin: trackers.Begin) -> None:
        if begin.name == "refused":
            raise RuntimeError("api_key not configured")
        if begin.name == "exits":
            sys.exit(3)
        self.begun.append(begin)
        self.rows = self.runs.setdefault(begin.id, [])

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self.held is not None:
            self.held.wait(60)
        if self.fails:
            raise self.error
        self.rows.append((step, dict(values)))

    def completions(self, samples: Sequence[Mapping[str, object]], step: int) -> None:
        self.rows.append((step, list(samples)))

    def finish(self, *, failed: bool) -> None:
        self.rows.append("failed" if failed else "finished")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    kept = type("Kept", (Fake,), {"runs": {}, "begun": [], "fails": False, "held": None})
    for kind, package in trackers.KINDS.items():
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        module = ModuleType(f"{PACKAGE}.{kind}_run")
        vars(module)["begin"] = kept
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return kept


@pytest.mark.parametrize("kind", trackers.KINDS)
def test_a_tracker_gets_each_step_once_also_after_a_resume(
    kind: str, tmp_path: Path, fake: type[Fake]
) -> None:
    with RunDirectory.create(tmp_path / "run", program(seed=5), report_to=f"{kind}:ring") as made:
        for step in (1000, 2000, 3000):
            made.write_report(report(env_steps=step))
        made.rewind(2000)  # the run went back: 3000 comes a second time
        made.write_report(report(env_steps=3000))
    again = RunDirectory.open(made.path)
    again.go_on(program(seed=5), on="serial", step=1000, changes={})
    for step in (2000, 3000, 4000):
        again.write_report(report(env_steps=step))
    again.write_summary(summary(status="failed"))
    again.close()
    (rows,) = fake.runs.values()
    assert [row if isinstance(row, str) else row[0] for row in rows] == [
        *(1000, 2000, 3000, "finished"),
        *(4000, "failed"),
    ]
    assert rows[0][1]["episodes/return_mean"] == 21.0
    one, two = fake.begun
    assert (one.name, one.id, one.directory.name) == ("ring", two.id, "run")
    assert one.config["schedule"]["seed"] == 5  # type: ignore[index]


def test_a_run_reports_to_several_trackers_and_they_get_completions(
    tmp_path: Path, fake: type[Fake]
) -> None:
    names = ["wandb:one", "mlflow:two"]
    samples = [{"prompt": "21>", "completion": "12", "reward": 1.0}]
    with RunDirectory.create(tmp_path / "run", program(), report_to=names) as made:
        made.keep_completions(1000, samples)
    assert sorted(one.name for one in fake.begun) == ["one", "two"]
    assert list(fake.runs.values()) == [[(1000, samples), "finished"]] * 2


@pytest.mark.parametrize("name", ["a\x1b]0;x\x07", "a\u202eb", "a\rb", " ", "x" * 201])
def test_a_name_of_a_received_run_is_checked_before_it_is_used(
    tmp_path: Path, fake: type[Fake], name: str
) -> None:
    known = [{"to": "wandb", "name": name, "id": "0123abcd"}]
    with pytest.raises(ValueError, match="printable characters") as caught:
        trackers.Trackers(known, tmp_path, {})
    assert str(caught.value).isprintable() and not fake.begun


def test_a_table_has_a_column_for_each_reward_function() -> None:
    one = {"prompt": "a", "completion": "b", "reward": 1.5}
    samples = [
        one | {"rewards": {"right": 1.0, "reward": 0.5}},
        one | {"reward": None, "rewards": {}},
    ]
    assert trackers.table(samples) == (
        ["prompt", "completion", "reward", "right", "reward reward"],
        [["a", "b", 1.5, 1.0, 0.5], ["a", "b", None, None, None]],
    )


def test_a_tracker_that_fails_costs_its_own_reports(tmp_path: Path, fake: type[Fake]) -> None:
    fake.fails = True
    made = RunDirectory.create(tmp_path / "run", program(), report_to=["wandb:one"])
    for step in (1000, 2000):
        made.write_report(report(env_steps=step))
    with pytest.warns(RuntimeWarning, match="not all is reported to wandb:one: ConnectionError"):
        made.close()
    assert len(made.metrics()) == 2


def test_a_tracker_that_exits_costs_its_own_reports(tmp_path: Path, fake: type[Fake]) -> None:
    fake.fails, fake.error = True, SystemExit("\x1b[31mno\nkey\x1b[0m")
    made = RunDirectory.create(tmp_path / "run", program(), report_to=["wandb:one"])
    made.write_report(report(env_steps=1000))
    with pytest.warns(RuntimeWarning, match=r"wandb:one: SystemExit: \[31mno key \[0m"):
        made.close()
    (rows,) = fake.runs.values()
    assert rows == ["finished"]
    with pytest.raises(ValueError, match="wandb:exits: must begin a run, got SystemExit: 3"):
        RunDirectory.create(tmp_path / "other", program(), report_to=["wandb:exits"])


def test_the_reports_of_a_run_say_what_a_tracker_did_not_get(
    tmp_path: Path, fake: type[Fake]
) -> None:
    fake.fails = True
    result = api.train(
        "CartPole-v1",
        "ppo",
        steps=2048,
        evaluate_episodes=0,
        on="serial",
        out=tmp_path / "run",
        report_to="mlflow:x",
        progress=False,
    )
    said = json.loads((result.directory / "summary.json").read_text())
    assert said["status"] == "completed" and said["env_steps"] >= 2048
    notes = " ".join(str(one) for one in said["notes"])
    assert "not all is reported to mlflow:x: ConnectionError: the server is away" in notes


def test_a_slow_tracker_does_not_hold_the_run(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "WAITING", 4)
    monkeypatch.setattr(trackers, "END_S", 0.05)
    fake.held = threading.Event()
    made = RunDirectory.create(tmp_path / "run", program(), report_to=["wandb:one"])
    for step in range(1, 10):
        made.write_report(report(env_steps=step))  # the fifth one has no place
    assert any("slower than the run" in text for text in made.unreported())
    with pytest.warns(RuntimeWarning, match="did not end within|still waited"):
        made.close()
    fake.held.set()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("ring", "must be one of wandb:NAME, mlflow:NAME, trackio:NAME, otel:NAME, got 'ring'"),
        ("wandbb:ring", "did you mean 'wandb'|wandb"),
        ("wandb:", "must have a name after wandb:, got 'wandb:'"),
        ("wandb: ", "must have a name after wandb:"),
        ("wandb:a\nb", "printable characters"),
        ("wandb:" + "x" * 201, "at most 200 printable characters"),
        ("wandb:\ud800", "printable characters"),
        ("wandb:a\u202eb", "printable characters"),
        ("wandb:a\x9bb", "printable characters"),
        (["wandb:a", "wandb:a"], "must name each tracker once, got 'wandb:a' twice"),
        ([f"wandb:{n}" for n in range(9)], "at most 8 trackers, got 9"),
        (
            "wandb:refused",
            "report_to wandb:refused: must begin a run, got RuntimeError: api_key not",
        ),
        (["mlflow:fine", "wandb:refused"], "must begin a run"),
    ],
)
def test_a_wrong_tracker_is_refused_and_no_directory_is_left(
    asked: str | list[str], said: str, tmp_path: Path, fake: type[Fake]
) -> None:
    with pytest.raises(ValueError, match=said):
        RunDirectory.create(tmp_path / "run", program(), report_to=asked)
    assert not (tmp_path / "run").exists()
    assert not [one for one in threading.enumerate() if one.name.startswith("tracker")]


@pytest.mark.parametrize("kind", trackers.KINDS)
def test_a_missing_package_is_said_before_anything_starts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, trackers.KINDS[kind], None)
    with pytest.raises(ImportError, match=f"--report-to {kind}:NAME needs .*install"):
        api.start("CartPole-v1", on="serial", out=tmp_path / "run", report_to=f"{kind}:ring")
    assert not (tmp_path / "run").exists()


def test_a_package_that_cannot_be_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb.py").write_text("raise AttributeError('np.float_ was removed')")
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="wandb:NAME needs .*AttributeError: np.float_ was"):
        trackers.read("wandb:ring")


@pytest.mark.parametrize(
    "entry",
    [
        {"to": "os", "name": "x", "id": "0" * 8},
        {"to": "mlflow", "name": "x", "id": "' or 1=1"},
        {"to": "mlflow", "name": "x", "id": "0" * 7},
        {"to": "mlflow", "name": "x"},
        {"to": "mlflow", "name": 3, "id": "0" * 8},
    ],
)
def test_a_received_run_with_odd_trackers_is_refused(
    entry: dict[str, object], tmp_path: Path, fake: type[Fake]
) -> None:
    with RunDirectory.create(tmp_path / "run", program(), report_to="mlflow:x") as made:
        pass
    file = made.path / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"trackers": [entry]}))
    with pytest.raises(ValueError, match=r"trackers|id of eight"):
        RunDirectory.open(made.path).go_on(program(), on="serial", step=0, changes={})
    assert len(fake.begun) == 1


# -------------------------------------------------------------------- the packages, where they are


def run_with(name: str, folder: Path) -> Path:
    """A run directory with two reports, a table and a resume."""
    with RunDirectory.create(folder / "run", program(seed=5), report_to=name) as made:
        made.write_report(report(env_steps=1000))
        made.keep_completions(1000, [{"prompt": "21>", "completion": "12", "reward": None}])
    again = RunDirectory.open(made.path)
    again.go_on(program(seed=5), on="serial", step=1000, changes={})
    again.write_report(report(env_steps=2000))
    again.close()
    return made.path


def test_mlflow_has_one_run_with_settings_steps_and_completions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_with("mlflow:ring", tmp_path)
    client = mlflow.MlflowClient()
    place = client.get_experiment_by_name("ring").experiment_id
    (found,) = client.search_runs([place])
    assert found.info.status == "FINISHED" and found.data.params["schedule.seed"] == "5"
    history = client.get_metric_history(found.info.run_id, "episodes/return_mean")
    assert [(one.step, one.value) for one in history] == [(1000, 21.0), (2000, 21.0)]
    assert [one.path for one in client.list_artifacts(found.info.run_id)] == ["completions"]


def test_trackio_has_one_run_and_the_terminal_stays_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    run_with("trackio:ring", tmp_path)
    assert capfd.readouterr() == ("", "")
    (run,) = trackio.Api().runs("ring")
    assert run.name.startswith("run-")


def test_opentelemetry_gets_gauges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.metric_exporter")
    from http.server import BaseHTTPRequestHandler, HTTPServer

    bodies = list[bytes]()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        run_with("otel:ring", tmp_path)
        server.shutdown()
    assert len(bodies) >= 2
    assert b"equipoise.episodes/return_mean" in bodies[0] and b"equipoise.env_steps" in bodies[0]
