"""Both forwards act alike, with whatever weights they are given; the rounded ones are what they
say, and so is their error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from equipoise import tree
from equipoise.actors.forward.forward import Forward, LeanForward, can_round
from equipoise.actors.forward.lean import Refused
from equipoise.actors.forward.rounding import (
    EVERY,
    KEPT,
    Rounding,
    errors,
    kind_of,
    rounding_metrics,
)
from equipoise.actors.inference.joint import JointForward
from equipoise.algorithms.crossq import CrossQ
from equipoise.algorithms.dqn import DQN
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.algorithms.r2d2 import R2D2
from equipoise.algorithms.td3 import TD3
from equipoise.algorithms.tqc import TQC
from equipoise.experience.discard import Discard
from equipoise.experience.layout import RowSpec
from equipoise.nets.compiled import pays
from equipoise.nets.quantize import dequantize, layer_weights, quantize
from equipoise.tree import ArraySpec
from equipoise.tuning import forward as choice
from equipoise.tuning.forward import Acts, choose
from equipoise.types import EnvSpec

OBS, SIX, BOX = (
    spaces.Box(-1, 1, (5,), np.float32),
    spaces.Discrete(6),
    spaces.Box(-1, 1, (3,), np.float32),
)
STREAMS, ROWS = 32, 5


class Played:
    """A forward over arrays of ``ROWS`` rows."""

    def __init__(
        self,
        kind: type[Forward],
        algorithm: Any,
        action: Any = SIX,
        acting: Any = "fp32",
        columns: int = 2,
    ) -> None:
        torch.manual_seed(0)
        net = algorithm.network(EnvSpec(observation=OBS, action=action))
        self.forward = kind(algorithm, net, acting=acting)
        self.params = {name: x.clone() for name, x in tree.named_tensors(net).items()}
        for x in self.params.values():
            if x.is_floating_point():
                x += 0.2 * torch.randn_like(x)
        rng = np.random.default_rng(0)
        explore = algorithm.explore(np.arange(STREAMS), STREAMS, 0)
        with torch.inference_mode():
            said = algorithm.act(
                net,
                torch.zeros(STREAMS, 5),
                torch.zeros(STREAMS, dtype=torch.bool),
                net.initial_state(STREAMS),
                explore=explore,
                noise=torch.full((STREAMS, columns), 0.5),
            )
        self.data: Any = {
            "obs": rng.standard_normal((ROWS + 1, STREAMS, 5)).astype(np.float32),
            "first": rng.random((ROWS + 1, STREAMS)) < 0.3,
            "noise": rng.random((ROWS, STREAMS, columns), np.float32),
            "action": tree.zeros(tree.prepend(tree.spec(said[0]), ROWS)),
            "behaviour": tree.zeros(tree.prepend(tree.spec(said[1]), ROWS)),
        }
        self.rows = self.forward.rows(**self.data)
        self.state, self.explore = net.initial_state(STREAMS), explore
        self.forward.use(self.params)
        self.forward.begin(explore)

    def play(self) -> Any:
        for row in self.rows:
            self.state = self.forward(row, self.state)
        kept = {name: self.data[name] for name in ("action", "behaviour")} | {
            "state": tree.numpy_views(self.state)
        }
        return tree.map(np.array, kept)


def agree(one: Any, other: Any) -> None:
    assert tree.spec(one) == tree.spec(other)
    for (path, a), (_, b) in zip(*map(tree.items, (one, other)), strict=True):
        assert np.isclose(a, b, 1e-4, 1e-4).mean() >= 0.999, path


@pytest.mark.parametrize("kind", [Forward, LeanForward, JointForward])
def test_the_rows_of_an_unroll_are_kept_by_where_they_lie(kind: type[Forward]) -> None:
    """Agents that share a forward have slots of their own, and each slot its noise."""
    played = Played(Forward, IMPALA())
    forward = kind(IMPALA(), played.forward.net)
    row = RowSpec(
        obs=ArraySpec((5,), "float32"),
        action=ArraySpec((), "int64"),
        behaviour={},
        state={},
        context={},
    )
    slots = [Discard(row, ROWS, STREAMS).reserve(np.arange(STREAMS)).data for _ in range(3)]
    first, second = (forward.unroll(data, 2) for data in slots[:2])
    assert first[0] is forward.unroll(slots[0], 2)[0] and first[1].shape == (ROWS, STREAMS, 2)
    assert not np.shares_memory(first[1], second[1])
    slots[0].obs[3] = 7.0
    assert (
        float(np.asarray(first[0][3].obs).mean()) == 7.0 and not np.asarray(second[0][3].obs).any()
    )
    assert len(forward.unroll(slots[2], 2)[0]) == ROWS


ALGORITHMS = {
    "ppo": (PPO(), SIX, 1),
    "box": (PPO(), BOX, 3),
    "lstm": (IMPALA(core="lstm"), SIX, 1),
    "r2d2": (R2D2(), SIX, 2),
    "td3": (TD3(), BOX, 4),
    "tqc": (TQC(), BOX, 4),
    "crossq": (CrossQ(critic_hidden=(32,)), BOX, 4),
}


@pytest.mark.parametrize("acting", ["fp32", "int8"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_lean_acts_as_torch_does(name: str, acting: Any) -> None:
    algorithm, action, columns = ALGORITHMS[name]
    by_torch, lean = (
        Played(kind, algorithm, action, acting, columns) for kind in (Forward, LeanForward)
    )
    agree(lean.play(), by_torch.play())
    for played in (by_torch, lean):  # a store rewrites its tensors in place
        for x in played.params.values():
            if x.is_floating_point():
                x *= 0.5
        assert not played.forward.use(played.params)
        explore = tree.map(torch.zeros_like, played.explore)
        played.forward.begin(explore)
        # as of a state that was loaded
        played.state = tree.map(lambda x: x.clone() + 0.5, played.state)
    again = lean.play()
    agree(again, by_torch.play())


def test_lean_records_anew_where_weights_or_exploration_are_other_ones() -> None:
    by_torch, lean = (Played(kind, PPO(), columns=1) for kind in (Forward, LeanForward))
    agree(lean.play(), by_torch.play())
    for played in (by_torch, lean):
        assert played.forward.use({name: x.clone() * 0.5 for name, x in played.params.items()})
    agree(lean.play(), by_torch.play())
    lean = Played(LeanForward, DQN())
    lean.play()
    lean.forward.begin({"epsilon": torch.zeros(STREAMS, dtype=torch.float64)})
    assert lean.forward._tape is None  # type: ignore[attr-defined]


def test_int8_weights_are_of_127_steps_a_side_for_each_channel_and_biases_stay() -> None:
    played = Played(Forward, IMPALA(core="lstm"), acting="int8", columns=1)
    net, names = played.forward.net, layer_weights(played.forward.net)
    assert (
        "core.rnn.weight_hh_l0" in names
        and "torso.layers.0.weight" in names
        and not any("bias" in name for name in names)
    )
    for name, x in tree.named_tensors(net).items():
        wanted = played.params[name]
        if name not in names:
            assert torch.equal(x, wanted)
            continue
        step = wanted.abs().amax(1, keepdim=True) / 127
        assert 0 < float(((x - wanted).abs() / step).max()) <= 0.5001
        assert torch.allclose((x / step).round(), x / step, atol=1e-3)


def test_quantised_and_back_of_convolutions_and_of_a_channel_of_zeros() -> None:
    weight = torch.randn(4, 3, 2, 2)
    weight[1] = 0
    q, scale = quantize(weight)
    back = torch.empty_like(weight)
    dequantize(q, scale, back)
    assert (
        q.dtype == torch.int8
        and q.shape == weight.shape
        and scale.shape == (4,)
        and int(q.abs().max()) == 127
    )
    assert (
        torch.equal(back[1], weight[1])
        and float((back - weight).abs().max()) <= float(scale.max()) / 2 + 1e-6
    )


@pytest.mark.parametrize("kind", [Forward, LeanForward])
def test_what_is_recorded_is_of_the_policy_that_acted(kind: type[Forward]) -> None:
    """logp of int8 weights, not of those that were fetched."""
    played = Played(kind, PPO(), acting="int8", columns=1)
    said = played.play()
    with played.forward.acting():
        obs, first = (
            torch.from_numpy(played.data["obs"][0]),
            torch.from_numpy(played.data["first"][0]),
        )
        mine = played.forward.net.policy(obs, first, {})[0].logp(
            torch.from_numpy(said["action"][0])
        )
    with played.forward.exact():
        theirs = played.forward.net.policy(obs, first, {})[0].logp(
            torch.from_numpy(said["action"][0])
        )
    got = torch.from_numpy(said["behaviour"]["logp"][0])
    assert torch.allclose(got, mine, atol=1e-5) and float((got - theirs).abs().max()) > 1e-4
    agree(said, played.play())  # after ``exact`` it acts as before


@pytest.mark.parametrize(
    ("algorithm", "action", "columns", "kind"),
    [
        (PPO(), SIX, 1, "p_error"),
        (PPO(), BOX, 3, "logp_error"),
        (DQN(), SIX, 2, "equal_best"),
        (TD3(), BOX, 4, "best_error"),
    ],
)
@pytest.mark.parametrize("acting", ["bf16", "int8"])
def test_the_error_is_that_of_the_same_rows_by_exact_weights(
    algorithm: Any, action: Any, columns: int, kind: str, acting: Any
) -> None:
    played = Played(LeanForward, algorithm, action, acting, columns)
    row = played.rows[0]
    assert kind_of(played.forward.net, row.action) == kind
    found = errors(played.forward, row, played.state, played.explore)
    assert found.shape == (STREAMS,) and found.dtype == torch.float64
    if kind == "equal_best":
        assert 0.8 <= float(found.mean()) <= 1
    else:
        assert 0 < float(found.mean()) <= float(found.max()) < 0.3
    exact = Played(Forward, algorithm, action, "fp32", columns)
    nothing = errors(exact.forward, exact.rows[0], exact.state, exact.explore)
    assert float(nothing.mean()) == (1.0 if kind == "equal_best" else 0.0)


def test_probabilities_are_compared_of_the_action_that_was_taken() -> None:
    """One that weights decide alone, so that the numbers are known."""
    played = Played(Forward, PPO(hidden=()), acting="int8", columns=1)
    for name, x in played.params.items():
        x.zero_()
        if name == "policy_head.weight":
            x[0, 0], x[0, 1] = 1.0, 0.003  # 0.003 is less than half a step: it becomes 0
    played.forward.use(played.params)
    row = played.rows[0]
    row.obs.zero_()
    row.obs[:, 1] = 100.0
    row.noise.fill_(0.5)  # the third or the fourth of six
    p, exact = 1 / 6, float(1 / (5 + np.exp(0.3)))
    found = errors(played.forward, row, {}, {})
    assert np.allclose(found.numpy(), p - exact, atol=1e-6)


class Heap:
    def __init__(self) -> None:
        self.buffer = bytearray(tree.nbytes(Rounding.specs))


def test_measured_every_so_many_versions_and_told_of_older_versions_only() -> None:
    one, other = Rounding(Heap()), Rounding(Heap())
    assert one.due(0) and rounding_metrics([one, other], "p_error", 5) == {}
    one.add(3, torch.tensor([0.0, 0.2], dtype=torch.float64))
    other.add(4, torch.tensor([0.4], dtype=torch.float64))
    assert not one.due(EVERY - 1) and one.due(EVERY)
    said = rounding_metrics([one, other], "p_error", 5)
    assert said == pytest.approx({"acting/p_error_mean": 0.2, "acting/p_error_max": 0.4})
    assert rounding_metrics([one, other], "p_error", 4) == pytest.approx(
        {"acting/p_error_mean": 0.1, "acting/p_error_max": 0.2}
    )
    assert rounding_metrics([one], "equal_best", 5) == pytest.approx({"acting/equal_best": 0.1})
    for n in range(1, KEPT + 2):
        one.add(n * EVERY, torch.full((2,), float(n), dtype=torch.float64))
    assert rounding_metrics([one], "p_error", 3 * EVERY)["acting/p_error_mean"] == 2
    again = Rounding(Heap())
    again.load(one.state())
    assert not again.due((KEPT + 1) * EVERY)
    assert rounding_metrics([again], "p_error", 999) == rounding_metrics([one], "p_error", 999)


def acts_of(algorithm: Any, net: Any = None, **settings: Any) -> Acts:
    class Specs:
        obs, action, behaviour = (
            ArraySpec((5,), "float32"),
            ArraySpec((), "int64"),
            {"logp": ArraySpec((), "float32")},
        )

    net = algorithm.network(EnvSpec(observation=OBS, action=SIX)) if net is None else net
    return Acts(algorithm, net, row=Specs, streams=8, noise_columns=1, **settings)


@pytest.mark.parametrize(
    ("took", "faster"),
    [((2e-4, 1e-4), "lean"), ((1e-4, 2e-4), "torch"), ((1e-4, 0.99e-4), "torch")],
)
def test_the_faster_one_is_chosen(
    took: tuple[float, float], faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        choice, "_seconds", lambda forward, *_: took[isinstance(forward, LeanForward)]
    )
    found = choose(acts_of(PPO()), max_lag=1, compiled=False)
    assert (
        found.value == faster
        and found.measured["torch"] == pytest.approx(took[0] * 1e6)
        and "8 streams" in found.why
    )


def test_what_is_not_chosen_by_measurement() -> None:
    assert "max_lag=0" in choose(acts_of(PPO()), max_lag=0, compiled=False).why
    assert "compiled" in choose(acts_of(PPO()), max_lag=1, compiled=True).why
    assert "medium" in choose(acts_of(PPO(), precision="medium"), max_lag=1, compiled=False).why
    found = choose(acts_of(PPO()), max_lag=0, compiled=False)
    assert found.value == "torch" and not found.measured
    net = acts_of(PPO()).net
    assert not pays(net) and not pays(nn.Linear(1, 1))
    net.torso = nn.Conv2d(1, 1, 1)
    assert pays(net)


class Numpy(nn.Module):
    """A torso that leaves torch: its features would be constants of a recording."""

    size_out = 5

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.tanh(x.numpy()))


class Rolling(nn.Module):
    size_out = 5

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize(
    ("torso", "why"), [(Numpy(), "differs from torch's"), (Rolling(), "draws random numbers")]
)
def test_what_a_recording_would_get_wrong_is_left_to_torch(torso: nn.Module, why: str) -> None:
    acts = acts_of(PPO())
    acts.net.torso, acts.net.value_torso = torso, None
    acts.net.policy_head = nn.Linear(5, 6)
    found = choose(acts, max_lag=None, compiled=False)
    assert found.value == "torch" and why in found.why


def test_a_check_finds_one_weight_that_is_not_refreshed() -> None:
    acts = acts_of(PPO())
    by_torch, lean = acts.make(Forward), acts.make(LeanForward)
    lean(acts.row(lean, 0), acts.state)
    choice.check(by_torch, lean, acts)
    by_torch.use(
        {
            name: x + 1 if name == "policy_head.bias" else x
            for name, x in tree.named_tensors(acts.net).items()
        }
    )
    acts.net.policy_head.bias.data[0] += 3
    with pytest.raises(Refused, match="of a second row differs from torch's"):
        choice.check(by_torch, lean, acts)


def test_there_has_to_be_something_to_round() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values = nn.Parameter(torch.zeros(3, 3))

    can_round(Table(), "bf16")
    with pytest.raises(
        ValueError,
        match="acting: expected fp32 or bf16 for a network without layers to quantise, got int8",
    ):
        can_round(Table(), "int8")


@pytest.mark.gpu
@pytest.mark.parametrize("acting", ["fp32", "int8"])
def test_weights_of_a_gpu_are_bound_and_those_of_the_host_copied(acting: Any) -> None:
    forward = Forward(
        IMPALA(core="lstm"),
        IMPALA(core="lstm").network(EnvSpec(observation=OBS, action=SIX)),
        acting=acting,
        device="cuda",
    )
    rounded, host = (
        set(forward._own),
        {name: x.cpu() for name, x in tree.named_tensors(forward.net).items()},
    )
    on_gpu = {name: x.cuda() for name, x in host.items()}
    for params, bound in ((host, False), (on_gpu, True), (on_gpu, True)):
        forward.use(params)
        for name, tensor in tree.named_tensors(forward.net).items():
            assert tensor.is_cuda and (tensor.data_ptr() == params[name].data_ptr()) == (
                bound and name not in rounded
            )
            if name not in rounded:
                assert bool((tensor.cpu() == host[name]).all())
        with forward.exact():
            assert all(
                x.is_cuda and bool((x.cpu() == host[name]).all())
                for name, x in tree.named_tensors(forward.net).items()
            )
        assert all(
            forward.net.get_parameter(name).data_ptr() == x.data_ptr()
            for name, x in forward._own.items()
        )
