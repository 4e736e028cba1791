"""Parts of the rewards: what an algorithm learns from, what a part learns, its state, and its sums
over learners.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from equipoise import api, tree
from equipoise.algorithms.ppo import PPO
from equipoise.errors import RewardsFailed
from equipoise.learners.execution import Graph
from equipoise.learners.learner import Learner
from equipoise.learners.parameters.flat import Flat
from equipoise.learners.steps import NonFiniteUpdate
from equipoise.record import statefile
from equipoise.rewards.part import RewardPart, parts_of
from equipoise.rewards.step import RewardStep
from equipoise.types import Batch, LossOutput, Optimizer, Rewards, Trajectory
from tests.algorithms.items import DISCRETE, batch, drawn, generator, network
from tests.learners.several import share, together
from tests.nets.recording import Recording
from tests.rewards.counts import Counts

pytestmark = pytest.mark.usefixtures("one_thread")
STREAMS, SEEN = 8, list[Tensor]()


class Noting(PPO):
    """PPO that keeps the rewards that it was given."""

    def targets(self, net: Any, target_net: Any, data: Any, *, rng: Any, pool: Any) -> Any:
        SEEN.append(data.reward.clone())
        return super().targets(net, target_net, data, rng=rng, pool=pool)


class Distance(RewardPart):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894): the error of a network
    that learns to be another.
    """

    name: ClassVar[str] = "distance"

    net: nn.Module

    def __init__(self, rate: float = 1e-2) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.net, self._aim = nn.Linear(3, 4), nn.Linear(3, 4)
        self.optimizer = Optimizer(learning_rate=rate, schedule="constant")

    def rewards(self, data: Trajectory) -> Tensor:
        return data.reward + self._errors(data)

    def loss(self, data: Trajectory) -> LossOutput | None:
        return LossOutput(loss=(self._errors(data) * data.mask).sum(), count=data.mask.sum())

    def _errors(self, data: Trajectory) -> Tensor:
        return (self.net(data.obs[1:]) - self._aim(data.obs[1:]).detach()).square().mean(-1)


def learner(
    *parts: RewardPart, rewards: Rewards | None = None, algorithm: Any = None, **settings: Any
) -> Learner:
    algorithm = algorithm or PPO(hidden=(16,))
    net = settings.pop("net", None) or network(algorithm, DISCRETE, 0)
    return Learner(
        algorithm,
        net,
        parts=parts,
        rewards=rewards,
        schedule_updates=9,
        seed=3,
        batch=STREAMS,
        **settings,
    )


def batches(count: int, first: int = 0) -> list[Batch]:
    made = []
    for seed in range(first, first + count):
        data = drawn(DISCRETE, 6, STREAMS, seed)
        logp = -torch.rand(data.shape, generator=generator(seed))
        made.append(batch(replace(data, behaviour={"logp": logp, "value": logp})))
    return made


def with_bonus(data: Trajectory, bonus: float) -> Trajectory:
    """The rows with what a part without any count adds."""
    return replace(data, reward=data.reward + bonus * data.mask)


def learn(made: Learner, given: list[Batch]) -> Learner:
    for one in given:
        made.step(one)
    return made


def same(one: Learner, other: Learner) -> bool:
    pairs = zip(tree.leaves(one.state()), tree.leaves(other.state()), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_an_algorithm_learns_from_the_env_s_rewards_and_the_bonus() -> None:
    SEEN.clear()
    part, (first, second) = Counts(), batches(2)
    made = learner(part, algorithm=Noting(hidden=(16,)))
    raw = first.data.reward.clone()
    made.step(first)
    assert torch.equal(SEEN[0], with_bonus(first.data, 0.5).reward), (
        "no observation was counted yet"
    )
    assert torch.equal(first.data.reward, raw), "the data keeps the env's own"
    assert int(part.counts.sum()) == int(first.data.mask.sum()) and part.version == 1
    made.step(second)
    bonus = (SEEN[1] - second.data.reward)[second.data.mask]
    assert bonus.min() < 0.3 < bonus.max() <= 0.5, "the more often, the less"


def test_the_scale_is_the_last_part_and_has_the_statistics_of_the_sum() -> None:
    given = batches(2)
    made = learn(learner(Counts(), rewards=Rewards(normalize=True)), given[:1])
    wanted: Any = RewardStep(Rewards(normalize=True), 0.99)
    wanted.absorb(with_bonus(given[0].data, 0.5), made.pool)
    state: Any = made.state()
    assert torch.equal(state["rewards"]["statistics"]["m2"], wanted.state()["statistics"]["m2"])


@pytest.mark.few(1)
@pytest.mark.parametrize("part", [Counts, Distance])
def test_parts_are_saved_and_go_on_to_the_same_bits(part: Any, tmp_path: Path) -> None:
    given = batches(6)
    whole = learn(learner(part(), rewards=Rewards(normalize=True)), given)
    half = learn(learner(part(), rewards=Rewards(normalize=True)), given[:3])
    saved = statefile.parse(statefile.dump(half.state()))
    resumed, taken = (learner(part(), rewards=Rewards(normalize=True)) for _ in range(2))
    resumed.load(saved)
    taken.adopt(statefile.parse(statefile.dump(half.state())))
    assert resumed.parts[0].version == 3
    for made in (half, resumed, taken):
        learn(made, given[3:])
    assert same(half, whole) and same(resumed, whole)
    assert all(torch.equal(x, whole.params()[name]) for name, x in taken.params().items())
    without = learn(learner(rewards=Rewards(normalize=True)), given)
    assert not torch.equal(
        without.params()["policy_head.weight"], whole.params()["policy_head.weight"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("part", [Counts, Distance])
def test_what_two_learners_counted_and_learned_is_added_up(part: Any) -> None:
    given = batches(3)
    # by one thread: torch has one seed
    begun = [(part(), network(PPO(hidden=(16,)), DISCRETE, 0)) for _ in range(2)]

    def work(rank: int, pool: Any) -> Learner:
        one, net = begun[rank]
        made = learner(one, net=net, rewards=Rewards(normalize=True), parameters=Flat(pool))
        return learn(made, [share(one, rank, 2) for one in given])

    whole: Any = learn(learner(part(), rewards=Rewards(normalize=True)), given).state()
    one, other = together(2, work)
    parts: list[Any] = [made.state() for made in (one, other)]
    for mine, others, wanted in zip(
        *(tree.leaves(state["parts"]) for state in (*parts, whole)), strict=True
    ):
        if isinstance(mine, Tensor):
            assert torch.equal(mine, others)
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(x, other.params()[name]) for name, x in one.params().items())


def test_a_network_of_a_part_learns_and_what_is_not_finite_never_reaches_it() -> None:
    part, (first, *more) = Distance(), batches(4)
    made = learner(part)
    before = part.rewards(first.data) - first.data.reward
    learn(made, [first, *more] * 5)
    assert (part.rewards(first.data) - first.data.reward).mean() < 0.9 * before.mean()
    kept = copy.deepcopy(part.net.state_dict())
    part._aim.bias.data.fill_(float("inf"))
    bad = learner(part)
    with pytest.raises(RewardsFailed, match="Distance.rewards failed: .*expected finite rewards"):
        bad.step(first)
    assert all(torch.equal(x, kept[name]) for name, x in part.net.state_dict().items())


def test_a_loss_of_a_part_that_is_not_finite_is_raised_with_its_name() -> None:
    class Broken(Distance):
        def loss(self, data: Trajectory) -> LossOutput | None:
            out = super().loss(data)
            return None if out is None else replace(out, loss=out.loss * float("nan"))

    part = Broken()
    made, kept = learner(part), copy.deepcopy(part.net.state_dict())
    with pytest.raises(NonFiniteUpdate, match="group 'distance', update 1: expected a finite loss"):
        made.step(batches(1)[0])
    assert made.version == 0
    assert all(torch.equal(x, kept[name]) for name, x in part.net.state_dict().items())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match="rewards.parts: expected names that differ.*got 'counts' twice"
    ):
        learner(Counts(), Counts())
    nameless = Counts()
    nameless.name = ""  # type: ignore[misc]
    with pytest.raises(
        ValueError, match="rewards.parts: expected a name of letters and digits.*got ''"
    ):
        learner(nameless)
    with pytest.raises(ValueError, match="parts"):
        learner(Counts()).load(learner().state())
    with pytest.raises(ValueError, match="parts"):
        learner().load(learner(Counts()).state())
    with pytest.raises(
        ValueError, match="graphs: expected.*a part of the rewards may run Python code"
    ):
        learner(Counts()).set_execution(Graph(torch.device("cpu"), lambda text: None, Recording()))


def train(out: Path, steps: int, *settings: str, resume: bool = False) -> Any:
    if resume:
        run = api.start(resume=out, steps=steps)
    else:
        made = api.program(
            "CartPole-v1",
            "ppo",
            recipe=False,
            actors=1,
            envs_per_actor=4,
            unroll=16,
            steps=steps,
            evaluate_episodes=0,
            settings=[
                "rewards.parts=tests.rewards.test_parts:FourCounts",
                "rewards.normalize=true",
                *settings,
            ],
        )
        run = api.start(made, on="serial", out=out)
    for _ in run:
        pass
    assert run.summary is not None
    return run.summary["params_sha256"]


class FourCounts(Counts):
    def __init__(self) -> None:
        super().__init__(4)


@pytest.mark.thorough
def test_a_run_with_a_part_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    schedule = "schedule.schedule_steps=512"
    whole = train(tmp_path / "whole", 512, schedule)
    train(tmp_path / "half", 256, schedule)
    assert train(tmp_path / "half", 512, resume=True) == whole
    with pytest.raises(ValueError, match=r"rewards\.parts"):
        api.start(resume=tmp_path / "half", steps=1024, settings=["rewards.parts="])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "tests.rewards.counts:Count",
            r"rewards\.parts 'tests.rewards.counts:Count': unknown function 'Count'.*Counts",
        ),
        ("tests.rewards.none:Counts", r"rewards\.parts 'tests.rewards.none:Counts': no module"),
        ("Counts", r"rewards\.parts: expected module:name, got 'Counts'"),
        (
            "builtins:dict",
            r"rewards\.parts: expected builtins:dict\(\) to be a RewardPart, got dict",
        ),
        (
            "equipoise.rewards.step:RewardStep",
            r"expected equipoise.rewards.step:RewardStep\(\) to make a part, got TypeError",
        ),
    ],
)
def test_a_name_that_is_no_part_is_refused_before_a_run(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        api.start(
            api.program("CartPole-v1", "ppo", settings=[f"rewards.parts={name}"], steps=512),
            on="serial",
        )


class Faulty(RewardPart):
    """A part that gives what it is told to."""

    name = "faulty"
    given: Any = None

    def rewards(self, data: Trajectory) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given(data.reward)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda reward: None, r"expected a tensor of float \[\d+, \d+\] on cpu, got NoneType"),
        (
            lambda reward: reward[0],
            r"expected a tensor of float \[\d+, \d+\] on cpu, got torch.float32 \[\d+\]",
        ),
        (lambda reward: reward.long(), "got torch.int64"),
        (lambda reward: reward.numpy(), "got ndarray"),
        (lambda reward: reward / 0, r"expected finite rewards, got (nan|inf|-inf) at \[0, 0\]"),
        (KeyError("x"), r"KeyError: .*test_parts.py, line \d+"),
    ],
)
def test_a_part_that_gives_no_rewards_is_named(given: Any, sentence: str) -> None:
    part = Faulty()
    part.given = staticmethod(given) if callable(given) else given
    with pytest.raises(
        RewardsFailed, match=rf"^rewards.parts: Faulty.rewards failed: .*{sentence}"
    ):
        learner(part).step(batches(1)[0])


class Forgetful(RewardPart):
    name: ClassVar[str] = "forgetful"

    def rewards(self, data: Trajectory) -> Tensor:
        return data.reward

    def state(self) -> Any:
        return {"seen": torch.zeros(1)}


def test_a_part_with_a_state_and_without_load_is_refused() -> None:
    with pytest.raises(ValueError, match="to have a method load, since it has a state, got none"):
        parts_of([f"{__name__}:Forgetful"], PPO())


@pytest.mark.parametrize(
    ("text", "said"), [("\n1 / 0\n", "ZeroDivisionError: .*, line 2"), ("(", "SyntaxError")]
)
def test_a_part_whose_module_fails_is_told_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{len(text)}_part"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=f"expected a module that can be imported, got {said}"):
        parts_of([f"{name}:A"], PPO())
