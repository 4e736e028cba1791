"""What a learner does on a device, without one: recorders stand in for CUDA. Those marked ``gpu``
have the real thing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import tree
from equipoise.algorithms.impala import IMPALA
from equipoise.algorithms.ppo import PPO
from equipoise.learners import execution
from equipoise.learners.execution import Compiled, Graph, chosen
from equipoise.learners.learner import Learner
from equipoise.learners.optimizers import descent
from equipoise.learners.scaling import FIRST, Scaled
from equipoise.learners.steps import NonFiniteUpdate, Numbers
from equipoise.learners.transfer import DoubleBuffer
from equipoise.nets.compiled import NOTHING
from equipoise.nets.precision import autocast, backward
from equipoise.programs.refusals import check
from equipoise.types import Batch, Optimizer, Placement
from tests.algorithms.items import batch as as_batch
from tests.algorithms.windows import GAMMA, network, window
from tests.learners.test_learner import batch as numbered
from tests.nets.recording import Recording

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
ADAM = Optimizer(learning_rate=3e-3, schedule="linear")
PPO_ = PPO(gamma=GAMMA, epochs=2, minibatches=5, target_kl=0.05, anneal_clip=True)
IMPALA_ = IMPALA(gamma=GAMMA)


def learner(algorithm: Any, *, optimizer: Optimizer = ADAM, **options: Any) -> Learner:
    return Learner(
        algorithm,
        network(algorithm, 0),
        optimizer=optimizer,
        schedule_updates=9,
        seed=3,
        batch=5,
        **options,
    )


def quicken(one: Learner, place: Placement, note: Callable[[str], object]) -> None:
    one.set_execution(chosen(one.algorithm, one.terms, one.net, one.rng, place, note))


def made(algorithm: Any) -> Batch:
    return as_batch(window(algorithm, network(algorithm, 0)))


def weights(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).cpu()


# ------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize(
    "optimizer",
    [ADAM, replace(ADAM, name="rmsprop"), replace(ADAM, name="adamw", weight_decay=0.1)],
)
@pytest.mark.parametrize("algorithm", [PPO_, IMPALA_])
def test_an_update_as_a_graph_is_the_update(algorithm: Any, optimizer: Optimizer) -> None:
    """Its rates and its share of the schedule are tensors, which differ in every update; all else
    is the same work.
    """
    plain, graphed = (
        learner(algorithm, optimizer=optimizer),
        learner(algorithm, optimizer=optimizer),
    )
    record, said = Recording(), list[str]()
    for one in (plain, graphed):
        one.looks = False
    graphed.set_execution(Graph(CPU, said.append, record))
    where = made(algorithm)
    for _ in range(4):
        want, got = plain.step(made(algorithm)), graphed.step(where)
        assert list(want.metrics) == list(got.metrics)
        for name, pair in want.metrics.items():
            torch.testing.assert_close(
                [x.double() for x in pair], list(got.metrics[name]), rtol=1e-4, atol=1e-5
            )
        torch.testing.assert_close(weights(plain.net), weights(graphed.net), rtol=1e-5, atol=1e-6)
    graphed.settle()
    assert (record.made, record.replayed, said) == (1, 3, [])


def test_each_place_of_a_batch_has_a_graph_and_what_comes_out_is_its_own() -> None:
    one, record = learner(IMPALA_), Recording()
    one.set_execution(Graph(CPU, lambda text: None, record))
    places = [made(IMPALA_), made(IMPALA_)]
    out = [one.step(places[n % 2]) for n in range(6)]
    assert (record.made, record.replayed) == (2, 5)
    # none was written over
    assert len({float(step.metrics["grad_norm/all"][0]) for step in out}) == 6


def test_groups_that_are_not_due_have_a_graph_of_their_own() -> None:
    record = Recording()
    graphs, where = Graph(CPU, lambda text: None, record), numbered()
    graphs.follow(IMPALA_)
    done = learner(IMPALA_)._update(
        made(IMPALA_), ("all",), graphs.numbers(Numbers(progress=0.5, rates={"all": 0.1}))
    )
    for due in (("a",), ("a",), ("a", "b"), ("a",), ("a", "b")):
        graphs.update(where, due, lambda: done)
    assert (record.made, record.replayed) == (2, 4)


def test_statistics_that_a_loss_leaves_behind_are_part_of_the_graph() -> None:
    """CrossQ's norms keep the moments of a batch until ``absorb``: a replay runs no Python, so both
    are recorded.
    """
    done = list[str]()

    class Noting(IMPALA):
        def absorb(self, net: Any, data: Any, *, pool: Any) -> None:
            done.append("absorbed")

    one = learner(Noting(gamma=GAMMA))

    def record(work: Callable[[], None]) -> Callable[[], None]:
        work()
        done.append("captured")
        return lambda: None

    one.set_execution(Graph(CPU, lambda text: None, record))
    where = made(IMPALA_)
    for _ in range(3):
        one.step(where)
    assert done == ["absorbed", "absorbed", "captured"]


def test_a_capture_that_fails_falls_back_and_says_so_once() -> None:
    plain, fallen, said = learner(PPO_), learner(PPO_), list[str]()
    fallen.set_execution(Graph(CPU, said.append, Recording(fails=True)))
    for _ in range(3):
        plain.step(made(PPO_))
        fallen.step(made(PPO_))
    torch.testing.assert_close(weights(plain.net), weights(fallen.net), rtol=1e-5, atol=1e-6)
    assert said == [
        "warning: graphs: updates are done operation by operation, since a capture failed: "
        "RuntimeError: CUDA error: operation "
        "not permitted when stream is capturing"
    ]


def test_text_is_not_recorded_and_an_mlp_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    said, one = list[str](), learner(IMPALA_)
    quicken(one, Placement(actors=1, compile=True), said.append)
    assert said == [NOTHING] and one._execution.loss == one.algorithm.loss
    monkeypatch.setattr(IMPALA, "needs_task", True)
    quicken(one, Placement(actors=1, graphs=True), said.append)
    assert "every batch of text has another size" in said[1]


# ------------------------------------------------------------------------------------------ compile


def test_a_loss_that_cannot_be_compiled_falls_back_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        def fails(*args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("no compiler\nat all")

        return fails

    monkeypatch.setattr(torch, "compile", refuses)
    monkeypatch.setattr(execution, "pays", lambda net: True)
    plain, fallen, said = learner(PPO_), learner(PPO_), list[str]()
    quicken(fallen, Placement(actors=1, compile=True), said.append)
    for _ in range(2):
        plain.step(made(PPO_))
        fallen.step(made(PPO_))
    torch.testing.assert_close(weights(plain.net), weights(fallen.net), rtol=1e-5, atol=1e-6)
    assert said == [
        "warning: compile: losses are done operation by operation, since torch.compile failed: "
        "RuntimeError: no compiler"
    ]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # torch's own, while it imports the compiler and compiles
def test_a_compiled_loss_is_the_loss_and_is_not_compiled_for_every_update() -> None:
    from torch.compiler import set_stance

    plain, fast, said = learner(PPO_), learner(PPO_), list[str]()
    fast.set_execution(Compiled(CPU, said.append))
    for n in range(5):
        with set_stance("fail_on_recompile") if n > 1 else contextlib.nullcontext():
            plain.step(made(PPO_))
            fast.step(made(PPO_))
    if said:
        pytest.skip(said[0])  # no C++ compiler here
    torch.testing.assert_close(weights(plain.net), weights(fast.net), rtol=1e-3, atol=1e-5)


# ----------------------------------------------------------------------------------------- transfer


class Log:
    """Streams that note what is queued where."""

    def __init__(self) -> None:
        self.said, self._copying, self._marks = list[str](), False, 0
        self.pins = 0

    def pinned(self, like: Tensor) -> Tensor:
        self.pins += 1
        return torch.empty_like(like)

    def on_device(self, like: Tensor) -> Tensor:
        return torch.full_like(like, 1)

    @contextlib.contextmanager
    def copying(self) -> Any:
        self._copying = True
        yield
        self._copying = False
        self.said.append("copied")

    def mark(self) -> Any:
        self._marks += 1
        mark, log = f"{'copy' if self._copying else 'compute'} {self._marks}", self

        class Mark:
            name = mark

            def synchronize(self) -> None:
                log.said.append(f"host waits for {mark}")

        return Mark()

    def wait(self, event: Any) -> None:
        self.said.append(f"{'copy' if self._copying else 'compute'} waits for {event.name}")


def coming(n: int) -> Batch:
    found = numbered()
    found.data.reward[:] = n
    found.keys[:, 1] = n
    return found


def doubled(streams: Log) -> DoubleBuffer:
    return DoubleBuffer(torch.device("meta"), streams)  # another device than that of the rows


def test_two_sets_of_buffers_take_turns_and_neither_is_written_while_it_is_read() -> None:
    log = Log()
    way, places = doubled(log), list[int]()
    for n in range(4):
        got = way(coming(n))
        places.append(got.data.reward.data_ptr())
        assert (
            got.data.reward.eq(n).all()
            and torch.equal(got.weight, numbered().weight)
            and got.keys[0, 1] == n
        )
        assert torch.equal(got.data.state["h"], numbered().data.state["h"])
        log.said.append(f"learned {n}")
        way.read()
    assert places[0] == places[2] != places[1] == places[3]
    assert log.pins == 2 * len(
        [*tree.leaves({n: getattr(coming(0).data, n) for n in coming(0).data.__slots__}), 0]
    )
    assert log.said == [
        "copy waits for compute 1",
        "copied",
        "compute waits for copy 2",
        "learned 0",
        "copy waits for compute 4",
        "copied",
        "compute waits for copy 5",
        "learned 1",
        "host waits for copy 2",
        "copy waits for compute 3",
        "copied",
        "compute waits for copy 7",
        "learned 2",
        "host waits for copy 5",
        "copy waits for compute 6",
        "copied",
        "compute waits for copy 9",
        "learned 3",
    ]


def test_the_next_batch_is_copied_while_this_one_is_learned_from() -> None:
    log = Log()
    way = doubled(log)
    way(coming(0))
    way.read()
    way.ahead(lambda: coming(1))
    copies = log.said.count("copied")
    assert copies == 2 and way(coming(1)).data.reward.eq(1).all()
    assert log.said.count("copied") == 2  # it was there
    way.read()
    way.ahead(lambda: coming(2))
    assert way(coming(3)).data.reward.eq(3).all()  # another one came
    way.ahead(lambda: None)
    assert way(coming(4)).data.reward.eq(4).all()


def test_rows_on_the_device_stay_there() -> None:
    log, where = Log(), numbered()
    way = DoubleBuffer(CPU, log)
    way.ahead(lambda: where)
    assert way(where) is where and log.said == []
    way.read()


def test_a_batch_of_another_size_has_room() -> None:
    way = doubled(Log())
    for rows in (4, 7, 7, 4):
        assert way(numbered(rows)).data.reward.shape[0] == rows


# --------------------------------------------------------------------------------------------- fp16


def scaled(**options: Any) -> Learner:
    """A learner in float32 whose loss is scaled."""
    one = learner(IMPALA_, **options)
    one._scaling = Scaled(CPU)
    return one


def test_a_scaled_loss_takes_the_same_steps_and_says_that_none_was_skipped() -> None:
    plain, fp16 = learner(IMPALA_), scaled()
    for _ in range(3):
        plain.step(made(IMPALA_))
        fp16.step(made(IMPALA_))
    out = fp16.step(made(IMPALA_))
    plain.step(made(IMPALA_))
    torch.testing.assert_close(weights(plain.net), weights(fp16.net), rtol=1e-4, atol=1e-6)
    assert [float(x) for x in out.metrics["fp16/skipped"]] == [0.0, 1.0]
    assert [float(x) for x in out.metrics["fp16/scale"]] == [FIRST, 1.0]


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    one = scaled()
    one.step(made(IMPALA_))
    one._scaling.slots["scale"].fill_(torch.finfo(torch.float32).max)
    whole = made(IMPALA_)
    whole.data.reward.mul_(1e3)  # with which its gradient overflows
    before, adam = (
        weights(one.net).clone(),
        {k: v.clone() for k, v in one.parameters.optimizers["all"].slots.items()},
    )
    out = one.step(whole)
    assert torch.equal(before, weights(one.net)) and one.version == 2
    assert all(torch.equal(adam[k], v) for k, v in one.parameters.optimizers["all"].slots.items())
    assert float(out.metrics["fp16/skipped"][0]) == 1.0 and int(one._scaling.slots["skipped"]) == 1
    assert float(one._scaling.slots["scale"]) == torch.finfo(torch.float32).max / 2


def test_a_gradient_that_is_no_number_at_the_least_scale_is_an_error() -> None:
    one, whole = scaled(), made(IMPALA_)
    one._scaling.slots["scale"].fill_(1.0)
    whole.data.behaviour["logp"].fill_(float("nan"))
    with pytest.raises(NonFiniteUpdate):
        one.step(whole)


def test_the_scale_grows_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.learners.scaling.EVERY", 3)
    one = Scaled(CPU)
    for _ in range(4):
        assert not one.down([torch.ones(2)])
    assert float(one.slots["scale"]) == 2 * FIRST and int(one.slots["good"]) == 1


def test_the_scale_is_saved_and_a_resume_may_change_the_precision() -> None:
    one, other, plain = scaled(), scaled(), learner(IMPALA_)
    one._scaling.slots["scale"].fill_(64.0)
    one._scaling.slots["skipped"].fill_(7)
    one.step(made(IMPALA_))
    other.load(one.state())
    assert all(torch.equal(x, other._scaling.slots[name]) for name, x in one._scaling.slots.items())
    plain.load(one.state())
    assert "scaling" not in plain.state()
    other.load(plain.state())  # which has no scale to load
    assert float(other._scaling.slots["scale"]) == 64.0
    for each in (one, other, plain):
        each.step(made(IMPALA_))
    torch.testing.assert_close(weights(one.net), weights(other.net))
    torch.testing.assert_close(weights(one.net), weights(plain.net), rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize(("precision", "nearest"), [("fp16", "bf16"), ("tf32", "medium")])
def test_a_cpu_refuses_what_only_a_gpu_has(precision: Any, nearest: str) -> None:
    from equipoise import api

    with pytest.raises(ValueError) as raised:
        check(
            api.program(
                "CartPole-v1", "ppo", recipe=False, settings=[f"placement.precision={precision}"]
            )
        )
    assert str(raised.value) == (
        "placement.precision: expected one of fp32, medium, bf16 with device=cpu, which has no "
        f"{precision}, got "
        f"{precision!r}; did you mean {nearest!r}?"
    )
    # of those that act on a CPU
    assert autocast(precision) is autocast("fp32") and backward(precision) is autocast("fp32")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "expected false with device=cpu, since CUDA graphs are of a GPU, got true"),
        (
            {"device": "cuda", "learners": 2},
            "expected false with 2 learners, whose sums a graph cannot wait for, got true",
        ),
    ],
)
def test_graphs_are_refused_where_they_cannot_be(settings: dict[str, Any], said: str) -> None:
    from equipoise import api

    given = [f"placement.{name}={value}" for name, value in {**settings, "graphs": "true"}.items()]
    with pytest.raises(ValueError, match="placement.graphs: ") as raised:
        check(api.program("CartPole-v1", "ppo", recipe=False, actors=2, settings=given))
    assert said in str(raised.value)


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop"])
def test_a_rate_may_be_a_tensor(kind: Any) -> None:
    flats = [nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2)]
    rates: list[float | Tensor] = [0.25, torch.tensor(0.25)]
    for flat, rate in zip(flats, rates, strict=True):
        one = descent(Optimizer(name=kind), flat)
        for n in range(3):
            flat.grad = torch.linspace(1, n, 7)
            one.step(rate)
    torch.testing.assert_close(*flats)


# -------------------------------------------------------------------------------------------- a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
@pytest.mark.parametrize("algorithm", [PPO_, IMPALA_])
def test_graphs_of_a_gpu_are_its_updates(algorithm: Any, precision: Any) -> None:
    algorithm = replace(algorithm, minibatches=1)  # whose order needs no random number
    said, ends = list[str](), []
    for graphs in (False, True):
        one = learner(algorithm, device="cuda", precision=precision)
        quicken(one, Placement(actors=1, device="cuda", graphs=graphs), said.append)
        for _ in range(5):
            one.step(made(algorithm))
        out = one.step(made(algorithm))
        assert all(x.is_cuda for pair in out.metrics.values() for x in pair)
        one.settle()
        ends.append(weights(one.net))
    assert said == []
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_random_numbers_within_a_graph_are_new_in_every_replay() -> None:
    said, one = list[str](), learner(PPO_, device="cuda")
    quicken(one, Placement(actors=1, device="cuda", graphs=True), said.append)
    where = made(PPO_)
    found = {float(one.step(where).metrics["grad_norm/all"][0]) for _ in range(6)}
    assert said == [] and len(found) == 6


@pytest.mark.gpu
def test_a_gpu_learns_as_the_cpu_does() -> None:
    algorithm, ends = replace(IMPALA_, minibatches=1), []
    for device in ("cpu", "cuda"):
        one = learner(algorithm, device=device)
        for n in range(4):
            one.ahead(partial(made, algorithm) if n % 2 else lambda: None)
            one.step(made(algorithm))
        one.settle()
        ends.append(weights(one.net))
    torch.testing.assert_close(*ends, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_an_update_does_not_wait_for_the_gpu() -> None:
    one = learner(PPO_, device="cuda")
    one.step(made(PPO_))
    torch.cuda.set_sync_debug_mode("error")
    try:
        one.step(made(PPO_))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    one.settle()


@pytest.mark.gpu
def test_fp16_learns_and_counts_what_it_skips() -> None:
    one = learner(IMPALA_, device="cuda", precision="fp16")
    one.step(made(IMPALA_))
    out = one.step(made(IMPALA_))
    one.settle()
    assert set(out.metrics) >= {"fp16/skipped", "fp16/scale"} and weights(one.net).isfinite().all()


@pytest.mark.gpu
def test_pinned_rows_arrive_whole() -> None:
    from equipoise.learners.transfer import transfer

    way = transfer(torch.device("cuda"))
    for n in range(6):
        got = way(coming(n))
        assert got.data.reward.eq(n).all() and np.array_equal(got.keys, coming(n).keys)
        way.read()
        way.ahead(partial(coming, n + 1))
