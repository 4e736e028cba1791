"""Envs that a site steps and home acts for, under a relay that delays, cuts and lies: no step is
lost, none is taken twice.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from equipoise import tree
from equipoise.actors.inference.exchange import EPOCH, EnvSide, Exchange, PolicySizes
from equipoise.runtime.cluster.frames import Hold, Step, Stepped, Unstepped
from equipoise.runtime.cluster.parts import Arrays, HomeParts, SiteParts
from equipoise.runtime.cluster.proxy import Proxy, take_back
from equipoise.runtime.cluster.site import SiteEnd
from equipoise.runtime.cluster.stepping import HomeSteps, RemoteEnvs, RemoteInference, SiteSteps
from equipoise.runtime.cluster.wire import Tally
from equipoise.runtime.ipc import Heap
from equipoise.tree import ArraySpec
from equipoise.types import Stack, TimeStep
from tests.runtime.sites import DIGEST, SILENT, Clock, Way

GROUPS = 4
OBS = {"state": ArraySpec((3,), "int64"), "screen": ArraySpec((3, 2), "uint8")}
STACKS = {"one": {"screen": Stack(frames=3, padding="zero")}}
SIZES: dict[str, Any] = {
    "policies": {"one": PolicySizes(obs=OBS, action=ArraySpec((), "int64"), width=1)},
    "groups": GROUPS,
}
STREAM = {"one": np.zeros(1, np.int64)}


def exchange() -> Exchange:
    return Exchange(Heap("exchange", tree.nbytes(Exchange.specs(**SIZES))), **SIZES)


def screen(episode: int, steps: int, total: int) -> Any:
    """The newest frames of an env in this state; now and then they do not follow from the last
    ones.
    """
    frames = [((episode + at) % 251, at % 7) for at in range(steps - 2, steps + 1)]
    return np.array(frames[::-1] if total % 5 == 4 else frames, np.uint8)


class Env:
    """It shows its episode, the steps of it, and the sum of its actions."""

    episodes = 0  # of all envs

    def __init__(self, state: tuple[int, int, int] | None = None) -> None:
        self.state = state or self._new()
        self.brought_back = state is not None  # and its rows were given before
        self.fresh = state is None

    @classmethod
    def _new(cls) -> tuple[int, int, int]:
        cls.episodes += 1
        return cls.episodes, 0, 0

    def begin(self) -> None:
        if not self.fresh:
            self.state = self._new()
        self.fresh = False

    def step(self, action: int) -> None:
        self.state = self.state[0], self.state[1] + 1, self.state[2] + action

    def rows(self) -> dict[str, TimeStep]:
        flag = np.zeros(1, bool)
        return {
            "one": TimeStep(
                obs={"state": np.array([self.state]), "screen": screen(*self.state)[None]},
                reward=np.zeros(1, np.float32),
                terminated=flag,
                truncated=flag,
                first=flag,
                valid=flag,
                stream=STREAM["one"],
            )
        }


class Machine:
    """A site that only steps."""

    def __init__(
        self,
        number: int,
        incarnation: int,
        way: Way,
        steps: type[SiteSteps],
        inference: type[RemoteInference],
        envs: dict[int, Env] | None,
    ) -> None:
        self.groups, self.exchange, self.ended = (
            range(2 * number, 2 * number + 2),
            exchange(),
            list[str](),
        )
        inferences = {group: inference(self.exchange, group, STACKS) for group in self.groups}
        self.failures = {group: np.zeros(1, np.int64) for group in self.groups}
        self.envs = envs or {group: Env() for group in self.groups}
        self.sides = {group: EnvSide(self.exchange, group, STREAM) for group in self.groups}
        counted = {group: Arrays(self.failures[group]) for group in self.groups}
        parts = SiteParts(counted, {group: [group] for group in self.groups}, lambda: way.clock.now)
        self.end = SiteEnd(
            f"site {number}",
            incarnation,
            way.join(),
            [steps(inferences, parts.changed), parts],
            digest=DIGEST,
            cut=lambda *_: None,
            ended=self.ended.append,
            silent_s=SILENT,
        )

    def work(self, group: int) -> None:
        """One look of an env worker, as ``EnvWorker`` has it."""
        env, side = self.envs[group], self.sides[group]
        if side.begins:
            back, env.brought_back = env.brought_back, False
            if back and side.epoch == 0:
                env.fresh = False
                side.begin(None)
            else:
                env.begin()
                side.begin(env.rows())
        elif side.turn:
            self.failures[group] += 1
            env.step(int(np.asarray(side.actions["one"])[0]))
            side.answer(env.rows())

    def kill(self, group: int) -> None:
        """The env worker dies, and another takes its place."""
        self.exchange.lost(range(group, group + 1))
        self.envs[group], self.sides[group] = Env(), EnvSide(self.exchange, group, STREAM)


class World:
    """Home, whose inference worker checks each row, and two sites."""

    def __init__(
        self,
        seed: int,
        delay: float = 8.0,
        steps: type[SiteSteps] = SiteSteps,
        inference: type[RemoteInference] = RemoteInference,
        remote: type[RemoteEnvs] = RemoteEnvs,
    ) -> None:
        self.chance, self.clock, self._steps, self._asker = (
            random.Random(seed),
            Clock(),
            steps,
            inference,
        )
        self.exchange, self.fences = exchange(), tree.zeros(Proxy.specs(GROUPS))
        self.words, self.failures = self.exchange.words, np.zeros((GROUPS, 1), np.int64)
        self.envs = {group: remote(self.exchange, group, STACKS) for group in range(GROUPS)}
        self._remote = remote
        self.ways = [Way(self.clock, self.chance, delay) for _ in range(2)]
        self.incarnations, self.sites, self.twins = [0, 0], list[Machine](), list[Machine]()
        # what the agent of a group saw last
        self.seen: list[tuple[int, int, int] | None] = [None] * GROUPS
        self.steps, self.lost = [0] * GROUPS, [0] * GROUPS
        self.acted = [0] * GROUPS
        self._begin()
        for i in range(2):
            self._start(i)

    def _begin(self) -> None:
        """Home's proxy begins, or a successor does."""
        self.proxy = Proxy(
            Tally(self.fences["refused"]), lambda: (0, 0, False), self, DIGEST, SILENT
        )

    def _expect(self, i: int, groups: range) -> None:
        parts = HomeParts({number: Arrays(one) for number, one in enumerate(self.failures)}, groups)
        steps = HomeSteps({group: self.envs[group] for group in groups}, self.fences)
        self.proxy.expect(f"site {i}", self.incarnations[i], self.ways[i].home, [parts, steps])

    def _start(self, i: int, envs: dict[int, Env] | None = None) -> None:
        self.incarnations[i] += 1
        groups = range(2 * i, 2 * i + 2)
        self._expect(i, groups)
        made = Machine(i, self.incarnations[i], self.ways[i], self._steps, self._asker, envs)
        for group in groups:
            made.failures[group][:] = self.failures[group]
        if len(self.sites) > i:
            self.twins.append(self.sites[i])
            self.sites[i] = made
        else:
            self.sites.append(made)

    def lose(self, group: int) -> None:
        self.exchange.lost(range(group, group + 1))
        self.lost[group] += 1

    def replace(self, i: int) -> None:
        """A site is thought dead, and its envs begin anew; the old one lives on."""
        for group in self.sites[i].groups:
            self.lose(group)
        self._start(i)

    def hand_over(self, i: int) -> bool:
        """The site's envs go on elsewhere, once they wait."""
        site = self.sites[i]
        self.proxy.let_go(f"site {i}")
        for _ in range(200):
            if self._waits(i):
                break
            self.tick()
        self.tick(20)  # the files are under way
        if not self._waits(i):
            return False
        self._start(i, {group: Env(site.envs[group].state) for group in site.groups})
        return True

    def lose_proxy(self) -> None:
        """Home's proxy dies, perhaps while it writes an answer."""
        for group in range(GROUPS):
            if self.words["answered"][group] != self.words["asked"][group] + 1:
                obs: Any = self.exchange.rows(group, STREAM)["one"].obs
                obs["screen"][:, :-1] = obs["screen"][:, 1:]
        take_back(self.fences, self.lose)
        self.envs = {group: self._remote(self.exchange, group, STACKS) for group in range(GROUPS)}
        self._begin()
        for i, site in enumerate(self.sites):
            self.ways[i].cut(0, told=True)
            self._expect(i, site.groups)
            if site.end.leaving:
                self.proxy.let_go(f"site {i}")

    def _waits(self, i: int) -> bool:
        end = self.sites[i].end
        return end.idle and end.joined and bool(self.proxy._sites[f"site {i}"].nonce)

    def think(self, group: int) -> None:
        """One look of the inference worker and its agent."""
        answered, asked, epoch = (
            int(self.words[name][group]) for name in ("answered", "asked", "epoch")
        )
        if asked >> EPOCH != epoch:
            self.seen[group] = None
            self.words["asked"][group] = epoch << EPOCH
        elif answered == asked + 1 and self.chance.random() < 0.7:
            obs: Any = self.exchange.rows(group, STREAM)["one"].obs
            row = obs["state"][0].tolist()
            episode, steps, total = (int(number) for number in row)
            assert (obs["screen"][0] == screen(episode, steps, total)).all(), (
                "not the frames that the env showed"
            )
            if (last := self.seen[group]) is None:
                assert steps == 0 and total == 0, (
                    f"group {group}: the first row of an episode is {row}"
                )
            else:
                assert (episode, steps, total) == (
                    last[0],
                    last[1] + 1,
                    last[2] + self.acted[group],
                ), f"{last} was followed by {row}"
            assert self.failures[group, 0] >= steps, "counts after their rows"
            self.seen[group] = episode, steps, total
            self.steps[group] += 1
            self.acted[group] = self.chance.randrange(1, 1000)
            self.exchange.actions(group)["one"][0] = self.acted[group]
            self.words["asked"][group] = answered

    def tick(self, ticks: int = 1) -> None:
        for _ in range(ticks):
            self.clock.now += 1.0
            for site in (*self.sites, *self.twins[-2:]):
                site.end.tick(self.clock.now)
                for group in site.groups:
                    if self.chance.random() < 0.7:
                        site.work(group)
            self.proxy.tick(self.clock.now)
            if self.chance.random() < 0.5:
                take_back(self.fences, self.lose)
            for group in range(GROUPS):
                self.think(group)

    def trouble(self) -> None:
        i, kind = self.chance.randrange(2), self.chance.randrange(8)
        if kind == 0:
            self.ways[i].cut(0, told=True)
        elif kind == 1:
            self.ways[i].cut(self.chance.random() * 100, told=self.chance.random() < 0.5)
        elif kind in (2, 3):
            self.sites[i].kill(self.chance.choice(self.sites[i].groups))
        elif kind == 4:
            self.replace(i)
        elif kind == 5:
            self.hand_over(i)
        elif kind == 6:
            self.lose_proxy()
        else:  # the inference worker dies: its successor knows nothing of the group
            group = self.chance.randrange(GROUPS)
            self.lose(group)
            self.seen[group] = None

    def settle(self) -> None:
        before = list(self.steps)
        self.tick(600)
        assert all(now > was + 5 for now, was in zip(self.steps, before, strict=True)), (
            "the envs do not go on"
        )

    def said(self, *_: Any) -> None: ...
    def file(self, *_: Any) -> None: ...
    def rows(self, *_: Any) -> None: ...
    def joined(self, site: str) -> None: ...
    def left(self, site: str, how: str) -> None: ...


def schedule(seed: int, **broken: Any) -> None:
    world = World(seed, **broken)
    for _ in range(12):
        world.tick(world.chance.randrange(60))
        world.trouble()
    world.settle()


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(24))
def test_no_step_is_lost_or_taken_twice_whatever_goes_wrong(seed: int) -> None:
    schedule(seed)


@pytest.mark.slow
def test_no_step_is_lost_or_taken_twice_in_a_thousand_schedules() -> None:
    for seed in range(100, 1100):
        schedule(seed)


@pytest.mark.thorough
def test_a_session_that_ends_costs_no_episode() -> None:
    for seed in range(10):
        world = World(seed, delay=2.0)
        for _ in range(10):
            world.tick(world.chance.randrange(60))
            world.ways[world.chance.randrange(2)].cut(
                world.chance.random() * 100, told=world.chance.random() < 0.5
            )
        world.settle()
        assert world.lost == [0] * GROUPS


@pytest.mark.thorough
def test_envs_that_are_handed_over_go_on_where_they_were() -> None:
    moved = 0
    for seed in range(10):
        world = World(seed, delay=2.0)
        for _ in range(6):
            world.tick(world.chance.randrange(60))
            moved += world.hand_over(world.chance.randrange(2))
        world.settle()
        assert world.lost == [0] * GROUPS
    assert moved == 60


class AnswersOnce(RemoteInference):
    """What was answered is not answered again, though home may not have heard it."""

    def ask(self, asked: int, whole: bool, actions: Any) -> None:
        if asked != self.asked:
            super().ask(asked, whole, actions)


class StepsTwice(RemoteInference):
    """An ask that comes once more is taken for another one."""

    def ask(self, asked: int, whole: bool, actions: Any) -> None:
        if (
            asked == self.asked
            and self._words["answered"][self._g] == self._words["asked"][self._g] + 1
            and len(actions)
        ):
            self._write(actions)
        super().ask(asked, whole, actions)


class SeesNoDeath(RemoteInference):
    """Whoever answers is taken for the env worker that was asked."""

    @property
    def _current(self) -> bool:
        self._epoch = int(self._words["epoch"][self._g])
        return True


class TakesLateAnswers(RemoteEnvs):
    """Rows are taken whatever they answer."""

    def answer(self, asked: int, anew: bool, rows: Any) -> bool:
        return super().answer(int(self._words["asked"][self._g]), anew, rows)


class AsksOnce(RemoteEnvs):
    """A session that ended is not followed by the same ask."""

    def forget(self) -> None:
        if not hasattr(self, "_passed"):
            super().forget()


class GoesOnWhileItLeaves(SiteSteps):
    """What home asks is passed on while the envs are handed over."""

    def leave(self) -> None: ...


class RemembersStacks(RemoteInference):
    """Home is taken to have the stacks of the last step, whatever happened since."""

    def ask(self, asked: int, whole: bool, actions: Any) -> None:
        super().ask(asked, whole, actions)
        self.rows._known = True


class TrustsHalfAnAnswer(RemoteEnvs):
    """What a predecessor wrote of an answer counts as the rows before it."""

    def asks(self) -> Any:
        return None if (found := super().asks()) is None else (found[0], False, found[2])


class CountsAfterwards(SiteSteps):
    """What the envs count follows their rows."""

    def __init__(self, inferences: Any, counted: Any) -> None:
        super().__init__(inferences, lambda group: ())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "broken",
    [
        AnswersOnce,
        StepsTwice,
        SeesNoDeath,
        TakesLateAnswers,
        AsksOnce,
        GoesOnWhileItLeaves,
        CountsAfterwards,
        RemembersStacks,
        TrustsHalfAnAnswer,
    ],
    ids=lambda one: one.__name__,
)
def test_a_protocol_that_is_broken_is_caught(broken: Any) -> None:
    parts = {RemoteInference: "inference", RemoteEnvs: "remote", SiteSteps: "steps"}
    made = {name: broken for base, name in parts.items() if issubclass(broken, base)}

    def hunt() -> None:
        for seed in range(40):
            schedule(seed, **made)

    with pytest.raises(AssertionError):
        hunt()


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["home", "site"])
def test_garbage_ends_at_most_the_session_that_it_came_in(at: str, seed: int) -> None:
    """In its session and in its turn, but about other asks, of other sizes, or about groups that
    the sender has not.
    """
    world = World(seed % 1000, delay=2.0)
    kinds: Any = (Stepped, Unstepped) if at == "home" else (Step, Hold)
    chance, sent = world.chance, 0
    for _ in range(4000):
        world.tick()
        i = chance.randrange(2)
        line = world.proxy._sites[f"site {i}"].line if at == "home" else world.sites[i].end.line
        link: Any = line.link
        if not line.session or chance.random() < 0.5:
            continue
        kind = chance.choice(kinds)
        group = chance.choice((*range(-1, GROUPS + 1), 1 << 62))
        now = int(world.words["asked"][max(min(group, GROUPS - 1), 0)])
        asked = chance.choice(
            (0, -1, 1 << 62, -(1 << 63), now + 7, *([now] if at == "home" else []))
        )
        body = bytes(chance.choice((0, 0, 1, 8, 30, 34, 36)))  # rows are 35 or 39
        message = kind(group, asked, 1, body) if kind in (Stepped, Step) else kind(group, asked)
        head = message.head(line.session, line._received + 1)
        link.inbox.appendleft((0.0, head, body))
        sent += 1
    assert sent > 200
    world.settle()


@pytest.mark.thorough
def test_an_env_worker_that_dies_while_its_site_leaves_does_not_keep_it_for_ever() -> None:
    """What home asked meanwhile was put off for another machine; now the envs have to begin anew
    here, and wait again.
    """
    for seed in range(3):
        world = World(seed, delay=2.0)
        world.tick(60)
        world.proxy.let_go("site 0")
        for _ in range(200):
            if world._waits(0):
                break
            world.tick()
        world.tick(20)
        world.sites[0].kill(0)
        world.tick(2000)
        assert world._waits(0)
