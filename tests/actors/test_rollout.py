"""A rollout's rows are those that an actor writes; graphs and compiled rows change nothing; its
state goes on exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch

from equipoise import api, tree
from equipoise.actors.agent import ActingParts, StreamNumbers
from equipoise.actors.capture import Capture, Compiled, Graphed, Plainly
from equipoise.actors.episodes import Episodes
from equipoise.actors.forward.forward import Forward
from equipoise.actors.rollout import PARTS, Rollout, SteppedEnv
from equipoise.clock import Clock
from equipoise.device_envs.cartpole import CartPole
from equipoise.device_envs.device_env import NextStep
from equipoise.device_envs.naming import make_device_env
from equipoise.device_envs.simulators import IsaacLab
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.experience.discard import Discard
from equipoise.experience.staged import Staged
from equipoise.nets.capture import FAILURES
from equipoise.plans.blueprint import Blueprint
from equipoise.plans.plan import plan_run
from equipoise.runtime.ipc import Heap
from equipoise.types import Slot, Tick
from equipoise.weights.store import WeightPlan, Weights
from equipoise.workers.agents import build_forward
from tests.actors.file import File
from tests.device_envs.test_device_env import Counting
from tests.nets.recording import Recording

pytestmark = pytest.mark.usefixtures("one_thread")
B, T = 6, 9


class Places:
    """One slot, and copies of what was handed in."""

    def __init__(self, blue: Blueprint) -> None:
        self.inner, self.rows = Discard(blue.roles["main"].row, T, B), list[Any]()

    def reserve(self, streams: Any) -> Slot | None:
        return self.inner.reserve(streams)

    def commit(self, slot: Slot) -> None:
        self.rows.append(tree.map(np.array, tree.on_host(slot.data.fields())))
        self.inner.commit(slot)

    def restart(self, slot: Slot) -> None: ...


def plan(algorithm: str = "impala", env: str = "device:cartpole", **options: Any) -> Blueprint:
    settings = options.pop("settings", [])
    return plan_run(
        api.program(
            env,
            algorithm,
            actors=1,
            envs_per_actor=B,
            unroll=T,
            steps=100_000,
            recipe=False,
            evaluate_episodes=0,
            settings=settings,
            **options,
        )
    )


def rollout(
    blue: Blueprint, capture: Capture | None = None, env: Any = None, staged: bool = False
) -> tuple[Rollout, Places]:
    role, places, net = blue.roles["main"], Places(blue), blue.network("main")
    weights = WeightPlan(tree.named_tensors(net))
    store = Weights(weights, Heap("", weights.nbytes))
    store.publish(0, tree.named_tensors(net))
    device = torch.device("cpu")
    made = Rollout(
        SteppedEnv(
            env=env or make_device_env("cartpole", {"max_episode_steps": 30}, streams=B),
            name="device:cartpole",
            seed=5,
            observation=role.row.obs,
        ),
        acting=ActingParts(
            forward=build_forward(Forward, blue, "main"),
            weights=store.handle(),
            noise=role.noise,
            seed=3,
        ),
        places=Staged(places, role.row, T, B, device, lambda: None) if staged else places,
        episodes=Episodes(B, Heap("", tree.nbytes(Episodes.layout()))),
        streams=StreamNumbers(numbers=np.arange(B), total=B, envs=B),
        unroll=T,
        clock=Clock(PARTS),
        capture=capture,
    )
    return made, places


def ticked(made: Rollout, places: Places, times: int) -> list[Any]:
    for _ in range(times):
        assert made.tick() is Tick.WORKED
    return places.rows[-times:]


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


@pytest.mark.parametrize("settings", [["algorithm.core=lstm"], []])
def test_rows_are_those_that_an_actor_writes(settings: list[str]) -> None:
    """Each row is acted again, by its own observation, state and noise; the env's rows follow from
    its actions.
    """
    blue = plan(settings=settings)
    made, places = rollout(blue)
    role, net = blue.roles["main"], cast("Any", blue.network("main"))
    env: Any = make_device_env("cartpole", {"max_episode_steps": 30}, streams=B)
    state, ts = env.reset(5, torch.arange(B))
    recurrent, before = net.initial_state(B), None
    for number, rows in enumerate(ticked(made, places, 8)):
        assert (
            rows["context"]["start"].tolist() == [number * T] * B
            and rows["version"].tolist() == [[0] * B] * T
        )
        noise = role.noise.draw(3, np.arange(B), np.full(B, number * T), T)
        assert same(rows["state"], tree.on_host(recurrent))
        if before is not None:
            assert same(tree.index(before["obs"], T), tree.index(rows["obs"], 0))
        for t in range(T):
            assert np.array_equal(rows["obs"][t], ts.obs.numpy()) and np.array_equal(
                rows["first"][t], ts.first.numpy()
            )
            with torch.inference_mode():
                action, behaviour, recurrent = role.algorithm.act(
                    net, ts.obs, ts.first, recurrent, explore={}, noise=torch.from_numpy(noise[t])
                )
            assert same(rows["action"][t], action.numpy()) and same(
                tree.index(rows["behaviour"], t), tree.on_host(behaviour)
            )
            state, ts = env.step(state, action)
            assert np.array_equal(rows["reward"][t], ts.reward) and np.array_equal(
                rows["mask"][t], ts.valid
            )
            assert np.array_equal(rows["bootstrap"][t], ~ts.terminated)
        before = rows
    assert made._episodes.count > 3 and made._episodes.ticks == 8 * T + 1


def test_slots_in_the_hosts_memory_get_the_same_rows() -> None:
    plain, staged = (ticked(*rollout(plan(), staged=where), times=4) for where in (False, True))
    assert all(same(a, b) for a, b in zip(plain, staged, strict=True))


def test_a_graph_is_made_of_each_slot_after_a_first_unroll_without_one() -> None:
    record, said = Recording(within=torch.inference_mode), list[str]()
    plain = ticked(*rollout(plan()), times=5)
    graphed = ticked(*rollout(plan(), Graphed(said.append, record)), times=5)
    assert all(same(a, b) for a, b in zip(plain, graphed, strict=True))
    assert (record.made, record.replayed, said) == (1, 4, [])


def test_a_capture_that_fails_falls_back_and_says_so_once() -> None:
    said = list[str]()
    plain = ticked(*rollout(plan()), times=4)
    fallen = ticked(*rollout(plan(), Graphed(said.append, Recording(fails=True))), times=4)
    assert all(same(a, b) for a, b in zip(plain, fallen, strict=True))
    assert said == [
        "warning: graphs: unrolls are done operation by operation, since a capture failed: "
        "RuntimeError: CUDA error: operation "
        "not permitted when stream is capturing"
    ]


def test_new_addresses_of_weights_make_new_graphs() -> None:
    record = Recording(within=torch.inference_mode)
    made, places = rollout(plan(), Graphed(lambda text: None, record))
    ticked(made, places, 3)
    params = {name: tensor.clone() for name, tensor in tree.named_tensors(made.net).items()}
    made._forward.version = -1
    made._weights = type(
        "Moved", (), {"fetch": lambda self, newer: (1, params) if newer < 1 else None}
    )()
    ticked(made, places, 1)
    assert record.made == 2 and places.rows[-1]["version"].min() == 1


@pytest.mark.thorough
# torch's own, while it imports the compiler
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_row_is_the_same_within_rounding() -> None:
    said = list[str]()
    plain = ticked(*rollout(plan()), times=2)
    compiled = ticked(*rollout(plan(), Compiled(said.append)), times=2)
    if said:
        pytest.skip(said[0])  # no C++ compiler here
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(a["behaviour"]["logp"], b["behaviour"]["logp"], atol=1e-5)
        np.testing.assert_allclose(a["obs"], b["obs"], atol=1e-5)


def test_a_row_that_cannot_be_compiled_falls_back_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        def fails(*args: Any) -> Any:
            raise FAILURES[0]("no compiler\nat all")

        return fails

    monkeypatch.setattr(torch, "compile", refuses)
    said = list[str]()
    plain = ticked(*rollout(plan()), times=2)
    fallen = ticked(*rollout(plan(), Compiled(said.append)), times=2)
    assert all(same(a, b) for a, b in zip(plain, fallen, strict=True))
    assert said == [
        "warning: compile: rows are done operation by operation, since torch.compile failed: "
        "RuntimeError: no compiler"
    ]


# -------------------------------------------------------------------------------------- checkpoints


def test_a_saved_state_goes_on_with_the_same_rows() -> None:
    blue, file = plan(settings=["algorithm.core=gru"]), File()
    made, places = rollout(blue)
    ticked(made, places, 4)
    made.save(file)  # type: ignore[arg-type]
    expected = ticked(made, places, 4)
    other, its = rollout(blue)
    other.load(file)  # type: ignore[arg-type]
    assert all(same(a, b) for a, b in zip(expected, ticked(other, its, 4), strict=True))
    assert (
        other.resumed == {"exact": B, "replay": 0, "restart": 0}
        and other._episodes.count == made._episodes.count
    )


WRONG: Mapping[str, Callable[[Any], Any]] = {
    r"start: expected an int64 tensor": lambda s: s | {"start": s["start"].float()},
    r"carry": lambda s: s | {"carry": {"obs": s["carry"]["obs"][:3], "first": s["carry"]["first"]}},
    r"state": lambda s: s | {"state": {"recurrent": {}}},
}


@pytest.mark.parametrize("said", WRONG)
def test_a_state_of_another_form_is_refused(said: str) -> None:
    made, places = rollout(plan())
    ticked(made, places, 1)
    file = File()
    made.save(file)  # type: ignore[arg-type]
    file.put(WRONG[said](file.state()))
    with pytest.raises(ValueError, match=said.split(":", maxsplit=1)[0]):
        made.load(file)  # type: ignore[arg-type]


def test_a_state_with_views_of_the_one_before_is_kept() -> None:
    """Bricks remember where the ball was by a view of the last state; an unroll of one row ends
    with that.
    """

    class Shifting(CartPole):
        """The state's two parts change places: each is a view of the other of the step before."""

        def begin(self, u: torch.Tensor) -> Any:
            return {"a": super().begin(u), "b": -super().begin(u)}

        def advance(self, state: Any, action: Any) -> Any:
            _, reward, ended = super().advance(state["a"], action)
            return {"a": state["b"][:], "b": state["a"][:]}, reward, ended

        def observe(self, state: Any) -> Any:
            return super().observe(state["a"])

    made, places = rollout(plan(), env=Shifting())
    for rows in ticked(made, places, 3):
        assert all(np.array_equal(rows["obs"][t + 1], -rows["obs"][t]) for t in range(T))


def test_a_person_is_told_that_final_observations_are_missing() -> None:
    said = list[str]()
    made, places = rollout(
        plan(env=f"device:{__name__}:simulator"), env=NextStep(IsaacLab(Counting(B, final=False)))
    )
    made._note = said.append
    ticked(made, places, 2)
    assert said == [
        "warning: device:cartpole: truncation treated as termination: expected the final "
        "observations of truncated episodes, "
        "got none"
    ]


def simulator(num_envs: int) -> Any:
    return IsaacLab(Counting(num_envs))


def test_a_simulators_episodes_begin_anew_after_a_gap() -> None:
    blue = plan(env=f"device:{__name__}:simulator")
    env: Callable[[], Any] = partial(make_device_env, f"{__name__}:simulator", {}, streams=B)
    made, places = rollout(blue, env=env())
    ticked(made, places, 3)
    file = File()
    made.save(file)  # type: ignore[arg-type]
    other, its = rollout(blue, env=env())
    other.load(file)  # type: ignore[arg-type]
    (rows,) = ticked(other, its, 1)
    assert rows["context"]["start"].tolist() == [3 * T + 1] * B and rows["first"][0].all()
    assert other.resumed == {"exact": 0, "replay": 0, "restart": B} and len(other.restarts) == B
    assert blue.spec.env.resume == "restart"


# ---------------------------------------------------------------------------------------- bad input


class Blind(CartPole):
    """CartPole whose observations become nan after some steps."""

    def observe(self, state: Any) -> Any:
        obs = super().observe(state)
        return torch.where(obs[:, :1].abs() > 0.06, torch.nan, obs)


class Double(CartPole):
    def observe(self, state: Any) -> Any:
        return super().observe(state).double()


def test_a_number_that_is_not_finite_ends_the_run_with_its_place() -> None:
    made, places = rollout(plan(), env=Blind())
    with pytest.raises(
        WrongValue,
        match=r"device env device:cartpole, stream \d, row \d+ of an unroll: obs: expected finite",
    ):
        ticked(made, places, 5)


def test_rows_are_checked_before_the_first_unroll() -> None:
    with pytest.raises(
        ValueError, match=r"device:cartpole, obs: expected float32 \[6, 4\] on cpu, got float64"
    ):
        rollout(plan(), env=Double())


def test_the_usual_capture_is_none() -> None:
    assert type(rollout(plan())[0]._capture) is Plainly
