"""A recording does what torch did: for every algorithm's act, on other rows and with other weights
than it was made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from equipoise import tree
from equipoise.actors.forward.lean import Refused, Tape
from equipoise.algorithms.apex_dqn import ApexDQN
from equipoise.algorithms.crossq import CrossQ
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.r2d2 import R2D2
from equipoise.algorithms.sac import SAC
from equipoise.algorithms.td3 import TD3
from equipoise.algorithms.tqc import TQC
from equipoise.types import Algorithm, EnvSpec

OBS = spaces.Box(-1, 1, (5,), np.float32)
SCREEN = spaces.Box(0, 255, (2, 40, 40), np.uint8)
TWO, SIX, BOX = spaces.Discrete(2), spaces.Discrete(6, start=1), spaces.Box(-2, 1, (3,), np.float32)
MIXED = spaces.Dict(
    {"a": SIX, "b": BOX, "c": spaces.MultiDiscrete([2, 3]), "d": spaces.MultiBinary(2)}
)
MASKED = spaces.Dict({"obs": OBS, "action_mask": spaces.MultiBinary(6)})

# and the columns of noise
CASES: dict[str, tuple[Algorithm, spaces.Space[Any], spaces.Space[Any], int]] = {
    "ppo": (PPO(), OBS, TWO, 1),
    "ppo six": (PPO(activation="relu"), OBS, SIX, 1),
    "ppo box": (PPO(normalize_obs=True), OBS, BOX, 3),
    "ppo squash": (PPO(squash=True), OBS, BOX, 3),
    "ppo sde": (PPO(hidden=(16, 8), sde_every=4), OBS, BOX, 3 + 3 * 8),
    "ppo mixed": (PPO(), OBS, MIXED, 8),
    "ppo masked": (PPO(), MASKED, SIX, 1),
    "ppo discrete": (
        PPO(),
        spaces.Dict({"x": spaces.Discrete(4), "y": spaces.MultiDiscrete([2, 3])}),
        TWO,
        1,
    ),
    "ppo nature": (PPO(), SCREEN, SIX, 1),
    "impala lstm": (IMPALA(core="lstm"), OBS, SIX, 1),
    "impala gru": (IMPALA(core="gru"), OBS, SIX, 1),
    "impala mingru": (IMPALA(core="mingru", core_layers=2), OBS, SIX, 1),
    "impala gtrxl": (IMPALA(core="gtrxl", core_size=16, core_layers=2, core_window=8), OBS, SIX, 1),
    "dqn": (DQN(dueling=True), OBS, SIX, 2),
    "dqn masked": (DQN(), MASKED, SIX, 2),
    "c51": (DQN(distribution="c51"), OBS, SIX, 2),
    "apex": (ApexDQN(), OBS, SIX, 2),
    "r2d2": (R2D2(), OBS, SIX, 2),
    "sac": (SAC(), OBS, BOX, 4),
    "sac discrete": (SAC(), OBS, SIX, 2),
    "sac sde": (SAC(hidden=(32, 16), sde_every=8), OBS, BOX, 4 + 3 * 16),
    "td3": (TD3(), OBS, BOX, 4),
    "tqc": (TQC(), OBS, BOX, 4),
    "crossq": (CrossQ(critic_hidden=(32,)), OBS, BOX, 4),
}


def some(space: Any, streams: int, rng: np.random.Generator) -> Any:
    if (inner := tree.branches(space)) is not None:
        return {key: some(one, streams, rng) for key, one in inner.items()}
    if space.dtype.kind == "f":
        return rng.standard_normal((streams, *space.shape)).astype(space.dtype)
    return rng.integers(0, 256 if space.dtype == np.uint8 else 2, (streams, *space.shape)).astype(
        space.dtype
    )


def network(algorithm: Algorithm, spec: EnvSpec) -> Any:
    return algorithm.network(spec)


class Acted:
    """An algorithm's act of ``streams`` rows, as torch does it and recorded."""

    def __init__(self, name: str, streams: int, autocast: bool = False) -> None:
        self.name = name
        algorithm, self.obs, action, self.columns = CASES[name]
        self.algorithm = algorithm
        mask = ("action_mask",) if self.obs is MASKED else ()
        torch.manual_seed(1)
        self.streams, self.rng, self.autocast = streams, np.random.default_rng(1), autocast
        self.net = network(algorithm, EnvSpec(observation=self.obs, action=action, mask=mask))
        self.weights: dict[str, Tensor] = tree.named_tensors(self.net)
        self.move()
        self.inputs: Any = {
            "obs": some(self.obs, streams, self.rng),
            "first": np.zeros(streams, bool),
            "state": tree.numpy_views(self.net.initial_state(streams)),
            "noise": np.zeros((streams, self.columns), np.float32),
            "explore": tree.numpy_views(self.algorithm.explore(np.arange(streams), streams, 500)),
        }
        self.fill()
        self.tape = Tape(self.act, self.inputs, self.weights.values())

    def act(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            said = self.algorithm.act(
                self.net, x["obs"], x["first"], x["state"], explore=x["explore"], noise=x["noise"]
            )
        return dict(zip(("action", "behaviour", "state"), said, strict=True))

    def move(self) -> None:
        """Other weights, away from the little of a last layer's gain."""
        for name, x in self.weights.items():
            if x.is_floating_point() and "norm" not in name:
                x += 0.3 * torch.randn_like(x)

    def fill(self) -> None:
        """Another row."""
        tree.copy(self.inputs["obs"], some(self.obs, self.streams, self.rng))
        self.inputs["first"][:] = self.rng.random(self.streams) < 0.3
        self.inputs["noise"][:] = self.rng.random(self.inputs["noise"].shape)
        tree.map(
            lambda x: np.copyto(x, self.rng.standard_normal(x.shape), "same_kind"),
            self.inputs["state"],
        )
        if "held" in self.inputs["state"]:  # rows
            self.inputs["state"]["held"][:] = self.rng.integers(0, 9, (self.streams, 1))
        for x in tree.leaves(self.inputs["explore"]):
            x[:] = self.rng.random(x.shape) < 0.5 if x.dtype == bool else self.rng.random(x.shape)

    def logp(self, action: Any) -> Any:
        """What torch says of these very actions: next to a bound a density differs a thousand times
        as much as two actions.
        """
        with torch.inference_mode():
            policy, _ = self.net.policy(
                *[tree.torch_views(self.inputs[key]) for key in ("obs", "first", "state")]
            )
            return policy.logp(torch.from_numpy(action)).numpy()

    def compare(self, rows: int) -> tuple[list[Any], float]:
        """Are a stream's whole numbers the same, and how far are its others apart, relative to 1
        and more, where they are.
        """
        same, worst = [], 0.0
        for _ in range(rows):
            self.fill()
            self.tape.run()
            with torch.inference_mode():
                wanted = tree.numpy_views(self.act(tree.torch_views(self.inputs)))
            assert tree.spec(wanted) == tree.spec(self.tape.outputs)
            if "squash" in self.name:
                wanted["behaviour"]["logp"] = self.logp(self.tape.outputs["action"])
            both = list(zip(tree.leaves(self.tape.outputs), tree.leaves(wanted), strict=True))
            equal = np.ones(self.streams, bool)
            for a, b in both:
                if a.dtype.kind != "f":
                    equal &= (a == b).reshape(self.streams, -1).all(1)
            same.append(equal)
            apart = [
                (np.abs(a - b) / (1 + np.abs(b)))[equal] for a, b in both if a.dtype.kind == "f"
            ]
            worst = max([worst, *(float(x.max()) for x in apart if x.size)])
        return same, worst


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("streams", [1, 40])
def test_a_tape_acts_as_torch_does(name: str, streams: int) -> None:
    acted = Acted(name, streams)
    rows = 3 if name == "ppo nature" else 60
    same, worst = acted.compare(rows)
    assert np.mean(same) >= 0.999 and worst < 1e-4
    acted.move()
    acted.tape.refresh()
    same, worst = acted.compare(rows)
    assert np.mean(same) >= 0.999 and worst < 1e-4


def test_under_autocast_weights_are_cast_once() -> None:
    acted = Acted("ppo nature", 8, autocast=True)
    same, worst = acted.compare(3)
    assert np.mean(same) >= 0.95 and worst < 0.05  # of bfloat16, whose kernels may differ with out=
    casts = [
        call
        for call in acted.tape._kept
        if call.name == "_to_copy" and call.reads & {x.data_ptr() for x in acted.weights.values()}
    ]
    assert casts and len(acted.tape._weights) >= len(casts)
    before = len(acted.tape)
    acted.move()
    acted.tape.refresh()
    same, worst = acted.compare(3)
    assert np.mean(same) >= 0.95 and worst < 0.05 and len(acted.tape) == before


def tape_of(act: Any, **inputs: Any) -> Tape:
    return Tape(lambda x: {"y": act(x)}, inputs, [])


def test_what_nothing_needs_is_left_out() -> None:
    x = np.ones((3, 2), np.float32)
    acted = tape_of(lambda x: (x["a"].exp() * x["b"], x["a"] + 1)[1], a=x, b=x.copy())
    assert acted.reads == {"a"} and len(acted) == 1
    x[:] = 4
    acted.run()
    assert (acted.outputs["y"] == 5).all()


def test_what_weights_alone_decide_waits_for_weights() -> None:
    w, x = torch.ones(2), np.zeros((3, 2), np.float32)
    acted = Tape(lambda given: {"y": given["x"] + w.exp()}, {"x": x}, [w])
    assert len(acted) == 1
    w.zero_()
    acted.run()
    assert np.allclose(acted.outputs["y"], np.e)
    acted.refresh()
    acted.run()
    assert np.allclose(acted.outputs["y"], 1)


def test_a_constant_that_is_written_into_is_made_anew() -> None:
    x = np.ones(4, np.float32)
    acted = tape_of(lambda given: torch.zeros(4).add_(given["x"]), x=x)
    for n in (1, 2, 3):
        x[:] = n
        acted.run()
        assert (acted.outputs["y"] == n).all()


def test_the_products_of_numpy_stay_below_the_size_that_openblas_takes_threads_for() -> None:
    def products(rows: int, size: int) -> str:
        w = torch.ones(size, size)
        step: Any
        (step,) = Tape(
            lambda given: {"y": given["x"] @ w}, {"x": np.ones((rows, size), np.float32)}, [w]
        )._act
        return "numpy" if step.func is np.dot else "torch"

    assert [products(*sizes) for sizes in ((1, 64), (8, 64), (64, 64), (1, 256))] == [
        "numpy",
        "numpy",
        "torch",
        "torch",
    ]


def branches(x: Any) -> Tensor:
    return x["x"] + 1 if x["x"].sum() > 0 else x["x"]


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda x: x["x"] + torch.rand(3), "draws random numbers of its own"),
        (branches, "may change what follows"),
        (lambda x: x["x"][x["x"] > 0], "depends on the data"),
        (lambda x: x["x"].add_(1), "writes into what was there before"),
        (lambda x: torch.unique_consecutive(x["x"]), "depends on the data"),
    ],
)
def test_what_cannot_be_recorded_is_refused(act: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        tape_of(act, x=np.ones(3, np.float32))


def test_a_weight_is_not_written_into() -> None:
    w = torch.ones(3)
    with pytest.raises(Refused, match="writes into what was there before"):
        Tape(lambda x: {"y": w.mul_(2) + x["x"]}, {"x": np.ones(3, np.float32)}, [w])
