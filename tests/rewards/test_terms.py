"""Terms of the rewards: what an algorithm learns from, what a term learns, its state, and its sums
over learners.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from equipoise.rewards.step import RewardStep
from equipoise.rewards.term import RewardTerm
from equipoise.rewards.terms import BUILT_IN, Terms, built
from equipoise.types import Batch, EnvSpec, LossOutput, Optimizer, Rewards, Trajectory
from tests.algorithms.items import DISCRETE, batch, drawn, generator, network
from tests.learners.several import share, together
from tests.nets.recording import Recording

pytestmark = pytest.mark.usefixtures("one_thread")
STREAMS, SEEN = 8, list[Tensor]()
VISITS = "tests.rewards.visits:Visits"
# a sum with each built-in term, of a user, and products
BONUSES = [name for name in BUILT_IN if name not in ("preferences", "gail")]  # which need data
SUMS = [
    *(f"env+0.5*{name}" for name in BONUSES),
    f"env+0.5*{VISITS}",
    f"rnd*{VISITS}-0.1*counts",
    "episodic*rnd+e3b*icm",
]
# small, and with a bonus from the second batch on
SMALL: dict[str, Any] = {"hidden": (8,), "features": 4}
TERMS: dict[str, dict[str, Any]] = {
    "rnd": {"warmup": 8, "share": 0.5, **SMALL},
    "icm": SMALL,
    "e3b": SMALL,
    "episodic": {"bits": 4, "once": False},
}


class Noting(PPO):
    """PPO that keeps the rewards that it was given."""

    def targets(self, net: Any, target_net: Any, data: Any, **given: Any) -> Any:
        SEEN.append(data.reward.clone())
        return super().targets(net, target_net, data, **given)


class Distance(RewardTerm):
    """The error of a network that learns to be another, without any setting."""

    def build(self, spec: EnvSpec, seed: int) -> None:
        self.net: Any = nn.Linear(3, 4)
        self.aim = nn.Linear(3, 4).requires_grad_(False)
        self.optimizer = Optimizer(learning_rate=1e-2, schedule="constant")

    def rewards(self, data: Trajectory) -> Tensor:
        errors: Tensor = (self.net(data.obs[1:]) - self.aim(data.obs[1:])).square().mean(-1)
        return errors

    def loss(self, data: Trajectory) -> LossOutput | None:
        return LossOutput(loss=(self.rewards(data) * data.mask).sum(), count=data.mask.sum())


def terms_of(rewards: Rewards) -> Terms:
    return built(rewards, PPO(), DISCRETE, 5)


def learner(text: str = "env", *, terms: Terms | None = None, **settings: Any) -> Learner:
    """A learner with a sum of rewards; ``terms``: made already."""
    algorithm = settings.pop("algorithm", None) or PPO(hidden=(16,), epochs=1, minibatches=2)
    net = settings.pop("net", None) or network(algorithm, DISCRETE, 0)
    rewards = Rewards(sum=text, terms=TERMS, normalize=settings.pop("normalize", False))
    return Learner(
        algorithm,
        net,
        rewards=rewards,
        terms=terms_of(rewards) if terms is None else terms,
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


def learn(made: Learner, given: list[Batch]) -> Learner:
    for one in given:
        made.step(one)
    return made


def same(one: Learner, other: Learner) -> bool:
    pairs = zip(tree.leaves(one.state()), tree.leaves(other.state()), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def test_an_algorithm_learns_from_the_weighted_sum() -> None:
    SEEN.clear()
    first, second = batches(2)
    made = learner(f"2*env-0.5*{VISITS}", algorithm=Noting(hidden=(16,), epochs=1))
    visits: Any = made.terms["visits"]
    raw, mask = first.data.reward.clone(), first.data.mask
    step = made.step(first)
    torch.testing.assert_close(SEEN[0], 2 * raw - 0.5 * mask, msg="nothing was counted yet")
    assert torch.equal(first.data.reward, raw), "the data keeps the env's own"
    assert int(visits.counts.sum()) == int(mask.sum()) and visits.version == 1
    for name, wanted in (("reward_visits", 1.0), ("reward_env", float(raw[mask].mean()))):
        total, count = step.metrics[name]
        assert float(total / count) == pytest.approx(wanted, rel=1e-5)
    made.step(second)
    bonus = ((2 * second.data.reward - SEEN[1]) / 0.5)[second.data.mask]
    assert bonus.min() < 0.6 < bonus.max() <= 1.0, "the more often, the less"
    assert (SEEN[1] == 2 * second.data.reward)[~second.data.mask].all()


def test_a_sum_without_env_and_a_product() -> None:
    SEEN.clear()
    (first,) = batches(1)
    ones = {name: Ones() for name in ("a", "b")}
    ones["b"].level = 3.0
    learner("0.5*a*b", terms=ones, algorithm=Noting(hidden=(16,), epochs=1)).step(first)
    assert torch.equal(SEEN[0], 1.5 * first.data.mask)


@dataclass(kw_only=True, eq=False)
class Ones(RewardTerm):
    level: float = 1.0

    def rewards(self, data: Trajectory) -> Tensor:
        return torch.full_like(data.reward, self.level)


def test_the_scale_acts_on_the_sum_and_has_its_statistics() -> None:
    given = batches(2)
    made = learn(learner("env+0.5*a", terms={"a": Ones()}, normalize=True), given[:1])
    wanted: Any = RewardStep(Rewards(normalize=True), 0.99)
    data = given[0].data
    wanted.absorb(replace(data, reward=data.reward + 0.5 * data.mask), made.pool)
    state: Any = made.state()
    assert torch.equal(state["rewards"]["statistics"]["m2"], wanted.state()["statistics"]["m2"])


def test_the_env_s_rewards_alone_take_no_step_and_no_state() -> None:
    given = batches(2)
    one, other = (
        learner(),
        Learner(
            PPO(hidden=(16,), epochs=1, minibatches=2),
            network(PPO(hidden=(16,), epochs=1, minibatches=2), DISCRETE, 0),
            schedule_updates=9,
            seed=3,
            batch=STREAMS,
        ),
    )
    assert (
        learn(one, given).step(given[0]).metrics.keys()
        == learn(other, given).step(given[0]).metrics.keys()
    )
    assert same(one, other) and "terms" not in one.state()


@pytest.mark.parametrize("text", SUMS)
def test_terms_are_saved_and_go_on_to_the_same_bits(text: str) -> None:
    given = batches(6)
    whole = learn(learner(text, normalize=True), given)
    half = learn(learner(text, normalize=True), given[:3])
    saved = statefile.parse(statefile.dump(half.state()))
    resumed, taken = (learner(text, normalize=True) for _ in range(2))
    resumed.load(saved)
    taken.adopt(statefile.parse(statefile.dump(half.state())))
    assert [term.version for term in resumed.terms.values()] == [3] * len(half.terms)
    for made in (half, resumed, taken):
        learn(made, given[3:])
    assert same(half, whole) and same(resumed, whole)
    assert all(torch.equal(x, whole.params()[name]) for name, x in taken.params().items())
    without = learn(learner(normalize=True), given)
    assert not torch.equal(
        without.params()["policy_head.weight"], whole.params()["policy_head.weight"]
    )


@pytest.mark.parametrize("text", SUMS)
def test_what_two_learners_counted_and_learned_is_added_up(text: str) -> None:
    given = batches(3)
    # by one thread: torch has one seed
    nets = [network(PPO(hidden=(16,), epochs=1, minibatches=2), DISCRETE, 0) for _ in range(2)]
    terms = [terms_of(Rewards(sum=text, terms=TERMS)) for _ in range(2)]

    def work(rank: int, pool: Any) -> Learner:
        made = learner(
            text, terms=terms[rank], net=nets[rank], normalize=True, parameters=Flat(pool)
        )
        return learn(made, [share(one, rank, 2) for one in given])

    whole: Any = learn(learner(text, normalize=True), given).state()
    one, other = together(2, work)
    states: list[Any] = [made.state() for made in (one, other)]
    for mine, others, wanted in zip(
        *(tree.leaves(state["terms"]) for state in (*states, whole)), strict=True
    ):
        if isinstance(mine, Tensor):
            assert torch.equal(mine, others)
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(x, other.params()[name]) for name, x in one.params().items())


def distance(kind: type[Distance] = Distance) -> dict[str, Any]:
    term = kind()
    torch.manual_seed(1)
    term.build(DISCRETE, 0)
    return {"distance": term}


def test_a_network_of_a_term_learns_and_what_is_not_finite_never_reaches_it() -> None:
    terms, (first, *more) = distance(), batches(4)
    term = terms["distance"]
    before = term.rewards(first.data).mean()
    learn(learner("env+distance", terms=terms), [first, *more] * 5)
    assert term.rewards(first.data).mean() < 0.9 * before
    kept = copy.deepcopy(term.net.state_dict())
    term.aim.bias.data.fill_(float("inf"))
    bad = learner("env+distance", terms=terms)
    with pytest.raises(RewardsFailed, match="Distance.rewards failed: .*expected finite rewards"):
        bad.step(first)
    assert all(torch.equal(x, kept[name]) for name, x in term.net.state_dict().items())


def test_a_loss_of_a_term_that_is_not_finite_is_raised_with_its_name() -> None:
    class Broken(Distance):
        def loss(self, data: Trajectory) -> LossOutput | None:
            out = super().loss(data)
            return None if out is None else replace(out, loss=out.loss * float("nan"))

    terms = distance(Broken)
    net = terms["distance"].net
    made, kept = learner("env+distance", terms=terms), copy.deepcopy(net.state_dict())
    with pytest.raises(NonFiniteUpdate, match="group 'distance', update 1: expected a finite loss"):
        made.step(batches(1)[0])
    assert made.version == 0
    assert all(torch.equal(x, kept[name]) for name, x in net.state_dict().items())


def test_a_state_of_other_terms_is_refused() -> None:
    for one, other in ((learner("env+counts"), learner()), (learner(), learner("env+counts"))):
        with pytest.raises(ValueError, match="terms"):
            one.load(other.state())
    with pytest.raises(
        ValueError, match="graphs: expected.*a term of the rewards may run Python code"
    ):
        learner("env+counts").set_execution(
            Graph(torch.device("cpu"), lambda text: None, Recording())
        )


def train(
    out: Path, steps: int, *settings: str, resume: bool = False, on: Any = "serial", **options: Any
) -> Any:
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
            max_lag=0,
            **options,
            settings=[
                "rewards.normalize=true",
                *settings,
            ],
        )
        run = api.start(made, on=on, out=out)
    for _ in run:
        pass
    assert run.summary is not None
    return run.summary["params_sha256"]


EVERY = f"env+0.1*rnd+0.1*counts+0.1*{VISITS}+0.1*icm+0.1*e3b+0.1*episodic"
FAST = (
    "schedule.schedule_steps=512",
    "reward.warmup=50",
    "reward.rnd.hidden=16",
    "reward.e3b.features=8",
)


@pytest.mark.thorough
def test_a_run_with_every_term_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", 512, *FAST, reward=EVERY)
    train(tmp_path / "half", 256, *FAST, reward=EVERY)
    assert train(tmp_path / "half", 512, resume=True) == whole
    for settings in (["rewards.sum=env"], ["reward.rnd.features=3"]):
        with pytest.raises(ValueError, match=settings[0].partition("=")[0]):
            api.start(resume=tmp_path / "half", steps=1024, settings=settings)
    free = api.start(
        resume=tmp_path / "half", steps=576, settings=["reward.rnd.learning_rate=1e-4"]
    )
    assert [None for _ in free] and free.summary is not None


@pytest.mark.thorough
def test_a_run_with_every_term_has_the_same_bits_in_processes(tmp_path: Path) -> None:
    one, other = (
        train(tmp_path / on, 256, *FAST, reward=EVERY, on=on) for on in ("serial", "process")
    )
    assert one == other


class Faulty(RewardTerm):
    """A term that gives what it is told to."""

    given = None

    def rewards(self, data: Trajectory) -> Any:
        given: Any = self.given
        if isinstance(given, Exception):
            raise given
        return given(data.reward)


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
        (KeyError("x"), r"KeyError: .*test_terms.py, line \d+"),
    ],
)
def test_a_term_that_gives_no_rewards_is_named(given: Any, sentence: str) -> None:
    term: Any = Faulty()
    term.given = given
    with pytest.raises(RewardsFailed, match=rf"^reward: Faulty.rewards failed: .*{sentence}"):
        learner("env+faulty", terms={"faulty": term}).step(batches(1)[0])
