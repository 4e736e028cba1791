"""Central inference: the same rows, the same learning; whoever dies costs rows that are counted,
and the run goes on.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise import api
from equipoise.chaos.ledger import COUNTS
from equipoise.errors import WorkerFailed
from equipoise.learners.learner import Learner
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.fields import alter
from equipoise.record.checkpoint import load as load_checkpoint
from equipoise.record.directory import params_sha256
from equipoise.runtime import build
from equipoise.runtime.process import process
from equipoise.types import Batch, Program
from equipoise.weights.device import DeviceWeights
from equipoise.weights.store import Weights
from equipoise.workers.shared import Shared
from tests.conftest import descendants
from tests.runtime import ruling
from tests.runtime.ruling import Ruling
from tests.runtime.ruling import program as ruled
from tests.runtime.test_resume import go_on, train
from tests.weights.sharing import Memfd

pytestmark = pytest.mark.few(2)  # all cases: make test-all

VECTORISATIONS = ["equipoise/Ruler-v0", "python:equipoise/Ruler-v0"]


def central(made: Program, **settings: Any) -> Program:
    return alter(made, inference="central", **settings)


def run(made: Program, path: Path, on: Any = "process") -> dict[str, Any]:
    ruling.LEDGER.at.clear()  # the serial learner is this process
    return train(made, path / "run", on)


def pid_of(name: str) -> int | None:
    return next((int(d.split()[0]) for d in descendants() if d.endswith(f"equipoise {name}")), None)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("max_lag", "envs", "workers", "most"),
    [(0, 8, 1, 0), (0, 4, 2, 0), (1, 5, 1, 0), (4, 4, 2, 4), (None, 8, 1, 0)],
)
def test_rows_prove_themselves_in_serial(
    max_lag: int | None, envs: int, workers: int, most: int, tmp_path: Path
) -> None:
    """An even number of envs is two groups, an odd one is one; several inference workers; acts of
    some groups at a time.
    """
    made = ruled(actors=3, envs=envs, max_lag=max_lag, steps=3000)
    summary = run(
        central(made, inference_workers=workers, inference_batch=most), tmp_path, "serial"
    )
    assert summary["env_steps"] >= 3000 and (max_lag is None or summary["lag"]["max"] <= max_lag)
    rows = summary["rows"]
    assert rows["inserted"] == rows["sampled"] + rows["held"] and rows["dropped"] == 0


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("target", "max_lag"),
    [(VECTORISATIONS[0], 0), (VECTORISATIONS[1], 4), (VECTORISATIONS[0], None)],
)
@pytest.mark.thorough
def test_rows_prove_themselves_in_processes(
    target: str, max_lag: int | None, tmp_path: Path
) -> None:
    summary = run(
        central(ruled(target=target, actors=3, max_lag=max_lag, steps=5000), inference_workers=2),
        tmp_path,
    )
    assert summary["env_steps"] >= 5000
    assert summary["failures"].keys() == {"actor 0", "actor 1", "actor 2"}
    assert summary["balance"].keys() == {
        "learner",
        "actor 0",
        "actor 1",
        "actor 2",
        "inference 0",
        "inference 1",
    }


@pytest.mark.parametrize("fault", ["state", "version", "first"])
def test_a_planted_off_by_one_is_caught(fault: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="do not prove themselves"):
        run(central(ruled(algorithm=Ruling(fault=fault))), tmp_path, "serial")


def cartpole(algorithm: str = "ppo", **options: Any) -> Program:
    given: dict[str, Any] = {
        "actors": 2,
        "envs_per_actor": 8,
        "unroll": 16,
        "max_lag": 0,
        "steps": 2560,
        "evaluate_episodes": 0,
        "seed": 3,
    }
    return api.program("CartPole-v1", algorithm, recipe=False, **given | options)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algorithm", "core"), [("ppo", "none"), ("impala", "lstm"), ("impala", "gtrxl")]
)
def test_in_lockstep_it_is_local_inference_of_half_the_envs_to_the_bit(
    algorithm: str, core: str, tmp_path: Path
) -> None:
    settings = [f"algorithm.core={core}"]
    made = central(cartpole(algorithm, settings=settings))
    halves = cartpole(algorithm, settings=settings, actors=4, envs_per_actor=4)
    found = [
        train(halves, tmp_path / "local", "serial"),
        train(made, tmp_path / "serial", "serial"),
    ]
    found += [train(made, tmp_path / "process", "process")]
    assert len({one["params_sha256"] for one in found}) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("env", "on"), [("python:CartPole-v1", "process"), ("CartPole-v1", "serial")]
)
def test_a_run_goes_on_to_the_same_bits(env: str, on: Any, tmp_path: Path) -> None:
    def made(**options: Any) -> Program:
        given: dict[str, Any] = {
            "actors": 2,
            "envs_per_actor": 4,
            "unroll": 8,
            "max_lag": 0,
            "evaluate_episodes": 0,
        }
        return central(
            api.program(
                env, "impala", recipe=False, settings=["algorithm.core=lstm"], **given | options
            )
        )

    whole = train(made(steps=4096, checkpoint_every=0), tmp_path / "whole", "serial")
    train(made(steps=2048, schedule_steps=4096, checkpoint_every=512), tmp_path / "run", on)
    gone_on = go_on(tmp_path / "run", steps=4096)
    assert gone_on["params_sha256"] == whole["params_sha256"]
    assert [note for note in gone_on["notes"] if "actor 1: 4 envs exactly as they were" in note]


@pytest.fixture
def laid_out(monkeypatch: Any) -> Iterator[list[Shared]]:
    """What runs are made of."""
    made: list[Shared] = []
    real = build.lay_out

    def lay_out(*args: Any, **options: Any) -> Any:
        made.append((laid := real(*args, **options))[0])
        return laid

    monkeypatch.setattr(build, "lay_out", lay_out)
    yield made
    made.clear()  # which holds their memory


@pytest.fixture
def device(laid_out: list[Shared], monkeypatch: Any) -> list[Shared]:
    """The learner's and the inference workers' processes have the stand-in for
    a device in common.
    """
    if sys.platform != "linux":
        pytest.skip("it is found in /proc")
    monkeypatch.setattr(process, "shared_device", lambda blue: Memfd())
    return laid_out


@pytest.mark.parametrize(
    ("inferences", "device", "release", "shared"),
    [
        (1, "cuda", "6.8.0", True),
        (2, "cuda:1", "6.8.0", True),
        (0, "cuda", "6.8.0", False),
        (1, "cpu", "6.8.0", False),
        (1, "cuda", "5.15.167.4-microsoft-standard-WSL2", False),
    ],
)
def test_where_a_device_is_in_common(
    inferences: int, device: str, release: str, shared: bool, monkeypatch: Any
) -> None:
    blue: Any = SimpleNamespace(
        inferences=inferences,
        rolls_out=False,
        program=SimpleNamespace(placement=SimpleNamespace(device=device)),
    )
    blue.acting_device = Blueprint.acting_device.fget(blue)  # type: ignore[attr-defined]
    monkeypatch.setattr(platform, "release", lambda: release)
    assert (process.shared_device(blue) is not None) == shared


def publishes(weights: Weights | DeviceWeights | None) -> int:
    assert weights is not None
    return int(weights._latest[0])


@pytest.mark.thorough
def test_weights_on_a_device_are_those_of_the_host(device: list[Shared], tmp_path: Path) -> None:
    """To the bit. The host gets those of records, which the driver acts on, of cuts and of the end;
    and the last are both's.
    """
    made = central(
        cartpole("impala", envs_per_actor=4, unroll=4, steps=16_000, checkpoint_every=4000)
    )
    wanted, got = (train(made, tmp_path / on, on) for on in ("serial", "process"))
    assert got["params_sha256"] == wanted["params_sha256"]
    (ring,) = device[1].policies.values()
    updates = 16_000 // (2 * 4 * 4)
    assert ring.device is not None
    assert (
        publishes(ring.device) == 1 + updates
        and ring.device.version == updates == ring.weights.version
    )
    # the first, those of records, and of the two cuts that lie between
    assert publishes(ring.weights) == 1 + updates // 2 + 2


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for a device is found in /proc")
def test_no_more_versions_are_acted_with_than_are_published(
    laid_out: list[Shared], tmp_path: Path, monkeypatch: Any
) -> None:
    """Those that the host gets for records and cuts are not: they are the same as where there is no
    device.
    """
    acted: dict[str, list[list[int]]] = {"host": [], "device": []}  # versions of each batch
    lay_out, real_step, updates = build.lay_out, Learner.step, 61
    made = cartpole(
        "impala", envs_per_actor=4, unroll=4, max_lag=None, settings=["policy.publish_every=4"]
    )
    for name, share in (("host", None), ("device", Memfd())):

        def step(self: Learner, batch: Batch, name: str = name) -> Any:
            acted[name].append(batch.data.version.flatten().tolist())
            return real_step(self, batch)

        monkeypatch.setattr(Learner, "step", step)
        monkeypatch.setattr(
            build,
            "lay_out",
            lambda *parts, way=share, **more: lay_out(*parts, **more | {"share": way}),
        )
        train(
            central(alter(made, steps=updates * 32, checkpoint_every=320)),
            tmp_path / name,
            "serial",
        )
        go_on(tmp_path / name, steps=2 * updates * 32)
    first = laid_out[2].policies["main"]
    assert first.device is not None and publishes(first.device) == 1 + updates // 4 + 1  # the last
    assert publishes(first.weights) == 1 + updates
    seen = {version for batch in acted["device"] for version in batch}
    assert len(seen) > 20 and all(version % 4 == 0 or version == updates for version in seen), seen
    assert acted["device"] == acted["host"] and len(acted["host"]) == 2 * updates


@pytest.mark.gpu
def test_weights_stay_on_a_gpu(laid_out: list[Shared], tmp_path: Path) -> None:
    """Of a run that acts, learns, is saved, evaluated and goes on."""
    made = central(
        cartpole(
            "impala",
            settings=["algorithm.core=lstm"],
            device="cuda",
            steps=15_360,
            checkpoint_every=3840,
            evaluate_episodes=4,
        )
    )
    summary = train(made, tmp_path / "run", "process")
    (ring,) = laid_out[0].policies.values()
    assert ring.device is not None
    assert ring.device.version == ring.weights.version and summary["evaluation"]["episodes"] == 4
    assert go_on(tmp_path / "run", steps=20_480)["env_steps"] == 20_480


@pytest.mark.thorough
def test_a_run_with_weights_on_a_device_survives(device: list[Shared], tmp_path: Path) -> None:
    """An inference worker that was killed has a successor, which attaches to what its learner has;
    and evaluations are of weights on the host.
    """
    made = alter(proving(1), steps=200_000, evaluate_every=500)  # a record every 1,000 steps
    going, killed = api.start(central(alter(made, evaluate_episodes=2)), out=tmp_path / "run"), 0
    until, evaluated = 2000, -1
    for report in going:
        evaluated = evaluated if report.evaluation is None else report.evaluation.version
        if not killed and report.env_steps > until and (pid := pid_of("inference 0")) is not None:
            os.kill(pid, signal.SIGKILL)
            killed, until = pid, report.env_steps + 3000
        elif (
            evaluated > 0
            and killed
            and report.env_steps > until
            and pid_of("inference 0") not in (None, killed)
        ):
            break
    going.close()
    assert going.summary is not None and going.summary["status"] == "interrupted"
    assert going.summary["evaluation"]["episodes"] == 2
    (ring,) = device[0].policies.values()
    checkpoint = going._files.latest_checkpoint()
    assert checkpoint is not None
    params, meta = load_checkpoint(checkpoint)
    # What was saved is what is summed up, the newest version.
    assert ring.device is not None
    assert meta["version"] == ring.weights.version == ring.device.version and publishes(
        ring.device
    ) > publishes(ring.weights)
    assert params_sha256(params) == going.summary["params_sha256"]


def proving(max_lag: int | None, **options: Any) -> Program:
    """Its learner keeps a ledger of every row, across whatever dies; the envs know how often they
    began anew.
    """
    return api.program(
        "equipoise.chaos.envs:Faulty",
        "equipoise.chaos.ruling:Ruling",
        recipe=False,
        actors=3,
        envs_per_actor=8,
        unroll=5,
        max_lag=max_lag,
        steps=10_000_000,
        evaluate_episodes=0,
        settings=["algorithm.streams=24"],
        **options,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "max_lag", [1, *(pytest.param(lag, marks=pytest.mark.chaos) for lag in (0, None))]
)
def test_a_killed_env_worker_and_a_killed_inference_worker_cost_their_unrolls(
    max_lag: int | None, tmp_path: Path
) -> None:
    """Every row that comes proves itself, recurrent state included; those that were lost are
    counted.
    """
    names = ("actor 0", "inference 1", "actor 2", "inference 0")
    going, waiting, until = (
        api.start(central(proving(max_lag), inference_workers=2), out=tmp_path / "run"),
        list(names),
        0,
    )
    before: dict[str, int] = {}
    for report in going:
        if waiting and report.env_steps > until:
            if (pid := pid_of(waiting[0])) is not None:
                os.kill(pid, signal.SIGKILL)
                before[waiting.pop(0)], until = pid, report.env_steps + 1000
        elif report.env_steps > until and all(
            pid_of(name) not in (None, before[name]) for name in names
        ):
            break
    going.close()
    assert going.summary is not None and going.summary["status"] == "interrupted"
    rows, notes = going.summary["rows"], going.summary["notes"]
    for name in names:
        assert [
            note
            for note in notes
            if f"{name} was killed by SIGKILL; replaced, for the 1st time" in note
        ], notes
    assert (
        rows["inserted"] == rows["sampled"] + rows["dropped"] + rows["held"] and rows["dropped"] > 0
    )
    checkpoint = going._files.latest_checkpoint()
    assert checkpoint is not None
    counts = dict(
        zip(COUNTS, load_checkpoint(checkpoint)[0]["ledger.counts"].tolist(), strict=True)
    )
    assert counts["rows"] > 3000 and counts["missing"] <= rows["dropped"]
    assert {name: counts[name] for name in ("torn", "duplicated", "orphans")} == {
        "torn": 0,
        "duplicated": 0,
        "orphans": 0,
    }


@pytest.mark.thorough
def test_a_resumed_run_whose_workers_die_at_once_proves_its_rows(tmp_path: Path) -> None:
    """Of the envs that are where they were, and of those that act for them, none is asked for what
    the other has dropped.
    """
    train(
        central(alter(proving(1), steps=4000, schedule_steps=10_000_000)),
        tmp_path / "run",
        "process",
    )
    going, killed = api.start(resume=tmp_path / "run", steps=10_000_000), dict[str, int]()
    for report in going:
        for name in ("inference 0", "actor 1"):
            if name not in killed and (pid := pid_of(name)) is not None:
                os.kill(pid, signal.SIGKILL)
                killed[name] = pid
        if (
            report.env_steps > 7000
            and all(pid_of(name) not in (None, pid) for name, pid in killed.items())
            and len(killed) == 2
        ):
            break
    going.close()
    assert going.summary is not None
    failed = [
        note
        for note in going.summary["notes"]
        if "replaced, for the 2nd time" in note or "raised" in note
    ]
    assert not failed, failed
    checkpoint = going._files.latest_checkpoint()
    assert checkpoint is not None
    counts = dict(
        zip(COUNTS, load_checkpoint(checkpoint)[0]["ledger.counts"].tolist(), strict=True)
    )
    assert counts["missing"] <= going.summary["rows"]["dropped"]
    assert {name: counts[name] for name in ("torn", "duplicated", "orphans")} == {
        "torn": 0,
        "duplicated": 0,
        "orphans": 0,
    }


@pytest.mark.thorough
def test_an_env_worker_has_no_torch_in_its_memory(tmp_path: Path) -> None:
    found: dict[str, bool] = {}
    with api.start(central(ruled(steps=10_000_000)), out=tmp_path / "run") as going:
        for report in going:
            for name in ("actor 0", "inference 0"):
                if report.env_steps and name not in found and (pid := pid_of(name)) is not None:
                    found[name] = "libtorch" in Path(f"/proc/{pid}/maps").read_text()
            if len(found) == 2:
                break
    assert found == {"actor 0": False, "inference 0": True}


@pytest.mark.thorough
def test_an_env_that_fails_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    made = api.program(
        "tests.runtime.failing:Failing",
        "impala",
        recipe=False,
        env_kwargs={"how": "raise", "after": 0},
        actors=2,
        envs_per_actor=4,
        unroll=8,
        evaluate_episodes=0,
    )
    with pytest.raises(
        WorkerFailed, match="failed 3 times in a row .*the reactor is leaking"
    ) as caught:
        train(central(made), tmp_path / "run", "process")
    assert caught.value.worker == "actor 0"
