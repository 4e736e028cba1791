"""Runs on images: precision, compilation, Atari's books, and that something is learned."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from equipoise import api
from equipoise.nets.vision import Vision
from equipoise.plans.roles import network
from equipoise.tuning import compiling
from equipoise.types import (
    EnvFactory,
    EnvSource,
    EvaluationSettings,
    Placement,
    Policy,
    Program,
    RunSpec,
    Schedule,
)
from tests.runtime.brooding import BROODS_S, Brooding

pytestmark = pytest.mark.few(2)  # all cases: make test-all

PIXELS = "tests.runtime.pixels:PixelCatch"
SMALL: dict[str, Any] = {
    "actors": 2,
    "envs_per_actor": 4,
    "unroll": 5,
    "max_lag": 0,
    "evaluate_episodes": 0,
    "recipe": False,
}


@pytest.fixture(autouse=True)
def _unjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tests/runtime/test_compiling.py`` is of what is measured first: seconds."""
    monkeypatch.setattr(compiling, "judged", lambda *_, **__: None)


def train(env: str, algorithm: str, on: Any, out: Any, **options: Any) -> Any:
    run = api.start(api.program(env, algorithm, **options), on=on, out=out)
    for _ in run:
        pass
    assert run.summary is not None
    return run.summary


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_same_bits_on_serial_and_process(precision: str, tmp_path: Any) -> None:
    hashes = [
        train(PIXELS, "impala", on, tmp_path / on, precision=precision, steps=160, **SMALL)[
            "params_sha256"
        ]
        for on in ("serial", "process")
    ]
    assert hashes[0] == hashes[1]


def test_bf16_is_what_learner_and_actors_compute_in(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ActingPrecision, PPO's targets and its loss; weights stay float32, and move about as they do
    with fp32.
    """
    settings = [
        "optimizer.learning_rate=1e-3",
        "optimizer.name=rmsprop",
        "optimizer.schedule=constant",
        "algorithm.epochs=1",
    ]
    forward, seen, params = Vision.forward, set(), {}

    def recorded(self: Any, obs: Any) -> Any:
        features = forward(self, obs)
        seen.add(
            (precision, torch.is_inference_mode_enabled(), torch.is_grad_enabled(), features.dtype)
        )
        return features

    options: dict[str, Any] = {"steps": 40, "settings": settings, **SMALL}
    for precision in ("fp32", "bf16"):
        out = tmp_path / precision
        run = api.start(
            api.program(PIXELS, "ppo", precision=precision, **options), on="serial", out=out
        )  # looks at one action already
        with monkeypatch.context() as patch:
            patch.setattr(Vision, "forward", recorded)
            for _ in run:
                pass
        params[precision] = dict(api.load(out).policy.net.named_parameters())
    kinds = ((True, False), (False, False), (False, True))
    assert seen == {("fp32", *k, torch.float32) for k in kinds} | {
        ("bf16", *k, torch.bfloat16) for k in kinds
    }
    spec = api.load(tmp_path / "fp32").spec
    first = network(
        api.program(PIXELS, "ppo", **options), RunSpec(env=spec, policies={"main": spec}), "main"
    )
    start = dict(first.named_parameters())
    moved, apart = 0.0, 0.0
    for name, parameter in params["fp32"].items():
        p, low = parameter.detach(), params["bf16"][name].detach()
        assert p.dtype == low.dtype == torch.float32
        moved += float((p - start[name].detach()).square().sum())
        apart += float((p - low).square().sum())
    assert 0 < apart < 0.5 * moved


def test_a_precision_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ValueError, match="precision: expected one of 'fp32', 'medium', 'tf32', 'bf16', 'fp16'"
    ):
        api.program(PIXELS, "ppo", **cast(Any, {"precision": "fp8"}), **SMALL)


@pytest.mark.thorough
def test_clipping_changes_what_is_learned(tmp_path: Any) -> None:
    """Catch pays 1, so a bound of 1 says nothing and one of 0.1 does."""
    hashes = {
        train(
            PIXELS,
            name,
            "serial",
            tmp_path / f"{name}{bound}",
            steps=200,
            settings=[f"rewards.clip={bound}"],
            **SMALL,
        )["params_sha256"]
        for name in ("ppo", "impala")
        for bound in (1, 0.1)
    }
    assert len(hashes) == 4


@pytest.mark.thorough
def test_atari_is_booked_in_frames_and_named(tmp_path: Any) -> None:
    pytest.importorskip("ale_py")
    small = SMALL | {"envs_per_actor": 1}
    summary = train(
        "ALE/Pong-v5",
        "impala",
        "serial",
        tmp_path / "run",
        steps=20,
        env_kwargs={"frameskip": 3},
        **small,
    )
    assert summary["frames"] == 3 * summary["env_steps"] >= 60
    (tmp_path / "run" / "run.json").read_text().index("3 frames a step")


def test_a_failed_compilation_is_said_and_survived(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(pure: Any, **kwargs: Any) -> Any:
        def call(*_: Any, **__: Any) -> None:
            raise RuntimeError("no C++ compiler found")

        return call

    plain = train(PIXELS, "impala", "serial", tmp_path / "plain", steps=80, **SMALL)
    monkeypatch.setattr(torch, "compile", failing)
    summary = train(PIXELS, "impala", "serial", tmp_path / "run", steps=80, compile=True, **SMALL)
    why = "since torch.compile failed: RuntimeError: no C++ compiler found"
    assert sorted(summary["notes"])[-2:] == [
        f"warning: compile: losses are done operation by operation, {why}",
        f"warning: compile: the torso runs uncompiled, {why}",
    ]
    assert summary["params_sha256"] == plain["params_sha256"]


def test_there_may_be_nothing_to_compile(tmp_path: Any) -> None:
    summary = train(
        "CartPole-v1", "impala", "serial", tmp_path / "run", steps=80, compile=True, **SMALL
    )
    assert summary["notes"] == [
        "compile: nothing was compiled, since there is no torso of images (an MLP is slower when "
        "compiled)"
    ]


def test_torsos_are_compiled_in_the_modes_that_they_are_used_in(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled for another mode is compiled again at the first step."""
    modes = set()

    def compile(pure: Any, **kwargs: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            modes.add((torch.is_inference_mode_enabled(), torch.is_grad_enabled()))
            return pure(*args, **kwargs)

        return call

    monkeypatch.setattr(torch, "compile", compile)
    train(PIXELS, "impala", "serial", tmp_path / "run", steps=80, compile=True, **SMALL)
    assert modes == {(True, False), (False, True)}


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["loss", "act"])
def test_a_worker_that_compiles_does_not_hang(where: Any, tmp_path: Any) -> None:
    """Also in the midst of the run: three times as long as a tick may take."""
    policy = Policy(algorithm=Brooding(where=where), unroll=5, batch=4)
    made = Program(
        source=EnvSource(env=EnvFactory(target="CartPole-v1")),
        policies={"main": policy},
        placement=Placement(
            actors=1, envs_per_actor=4, max_lag=1, compile=True, deadline_s=BROODS_S / 3
        ),
        schedule=Schedule(steps=400),
        evaluation=EvaluationSettings(episodes=0),
    )
    run = api.start(made, on="process", out=tmp_path / "run")
    for _ in run:
        pass
    assert run.summary is not None and run.summary["status"] == "completed"
    assert not [
        note
        for note in run.summary["notes"]
        if not note.startswith("compile: nothing was compiled")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("on", ["serial", "process"])
@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_compiled_it_computes_the_same(
    algorithm: str, on: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    options = SMALL | {"actors": 1, "steps": 60}
    plain, compiled = (
        train(PIXELS, algorithm, on, tmp_path / f"{c}", compile=c, **options) for c in (False, True)
    )
    assert not compiled["notes"], compiled["notes"]
    a, b = (api.load(tmp_path / f"{c}").policy.net for c in (False, True))
    assert plain["env_steps"] == compiled["env_steps"]
    for x, y in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(x, y, atol=2e-3, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("algorithm", "torso"), [("ppo", "nature"), ("impala", "nature"), ("impala", "resnet")]
)
def test_catch_is_learned_from_pixels(
    algorithm: str, torso: str, precision: str, tmp_path: Any
) -> None:
    """Random play comes to -0.6; the best is 1."""
    settings = [
        f"algorithm.torso={torso}",
        "optimizer.learning_rate=1e-3",
        "algorithm.entropy=0.01",
    ]
    if algorithm == "ppo":
        settings += ["algorithm.epochs=4", "algorithm.minibatches=4"]
    summary = train(
        PIXELS,
        algorithm,
        "serial",
        tmp_path / "run",
        actors=1,
        envs_per_actor=32,
        unroll=9,
        max_lag=0,
        recipe=False,
        steps=100_000,
        stop_at=0.95,
        precision=precision,
        settings=settings,
    )
    assert summary["status"] == "solved", summary
