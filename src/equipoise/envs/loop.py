"""One Python env a stream, stepped in turn.

Like Gymnasium's ``SyncVectorEnv`` in NEXT_STEP mode, row for row (tested), and 15 to 18 % faster on
CartPole: no dispatch on spaces, no information dicts, no second copy. One place holds each env's
step, so a failing env costs its own episode:

    obs    o0  o1  p0  p1     its step after o1 raised: the env is made anew, and the row looks like a seam whose
    first  x       x          predecessor did not end, so a reader bootstraps from o1 and passes nothing on
    valid      x       x
"""  # noqa: E501

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import gymnasium
import numpy as np

from equipoise import foreign, phases, tree
from equipoise.envs.base import SyncEnv
from equipoise.envs.failures.capsule import EnvFailed, ProcessExhausted, Start, exhausted
from equipoise.envs.failures.row_checks import WrongValue
from equipoise.envs.infos import NoNumber
from equipoise.envs.masks import KEY
from equipoise.envs.restore import snapshot
from equipoise.envs.restore.record import Record
from equipoise.envs.spaces import member, observation_spec
from equipoise.envs.values import FLAGS, NUMBERS, flag, hidden, number, taken, uncast
from equipoise.hints import message, raised
from equipoise.seeds import stream_seed, stream_seeds
from equipoise.types import Array, Resume, TimeStep, Tree

PATIENCE = 3  # failures of one stream in a row without a working step
STOPPED = "--on-nonfinite drop gives up the episode and goes on, clamp takes finite numbers instead"
MASKED = (
    f". Its info has an {KEY!r} without a request: with --action-mask info only allowed "
    "actions are taken"
)


class LoopEnv(SyncEnv):
    """``makers[i]`` makes the env of ``streams[i]``, seeded once from (``seed``, stream).

    ``made``: the env that the first maker already returned. An env that fails is closed, made again
    and seeded from (``seed``, stream, its number of failures).
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], gymnasium.Env]],
        *,
        streams: Array,
        seed: int,
        made: gymnasium.Env | None = None,
        action_mask: str = "auto",
    ) -> None:
        self.envs: list[gymnasium.Env] = [] if made is None else [made]
        for i, make in enumerate(makers[len(self.envs) :], len(self.envs)):
            phases.say(f"making env {i + 1} of {len(makers)}")
            self.envs.append(make())
        one = self.envs[0]
        # ``SyncEnv`` refuses a space that is None.
        observation: Any = foreign.attribute(one, "observation_space")
        action: Any = foreign.attribute(one, "action_space")
        super().__init__(
            observation=observation, action=action, streams=streams, action_mask=action_mask
        )
        for env in self.envs[1:]:
            same_spaces(one, env)
        self._past = Record(self.envs, streams, self.action, self.form)
        self.spec = replace(self.spec, resume=self._past.promise)
        self._makers, self._seed = makers, seed
        self._seeds: list[int | None] = [*stream_seeds(seed, streams)]
        count = len(self.envs)
        self._obs: list[Tree] = [None] * count
        self._reward: list[object] = [0.0] * count
        self._terminated: list[object] = [False] * count
        self._truncated: list[object] = [False] * count
        self._incarnation, self._barren = (
            [0] * count,
            [0] * count,
        )  # times that each env was made again; failures since its last real step
        self._troubled = False  # any of these counts is not 0
        self._lost: list[int] = []  # streams whose episode this step aborted
        self._broken: set[int] = set()  # streams whose env is closed already
        self._spec = observation_spec(one.observation_space)
        self.log = Log(self.ts)
        self._masked = False  # a failed env had a mask in its info that was not asked for
        self.strict = False  # a first observation that has to be cast is an error

    def _reset(self) -> None:
        self._lost.clear()
        for i, (env, seed) in enumerate(zip(self.envs, self._seeds, strict=True)):
            phases.say(f"first reset of env {i + 1} of {len(self.envs)}")
            try:
                self.log.begin(i, env, seed)
                self._past.resets(i, seed)
                began = time.perf_counter()
                self._obs[i], _ = env.reset(seed=seed)
                if self.failures is not None:
                    self.failures.resetting(time.perf_counter() - began)
            except Exception as error:
                self._abort(i, error)
        phases.say("")
        self._seeds = [None] * len(self.envs)
        self._gather()
        self._look_at_resets([True] * len(self.envs))

    def _step(self) -> None:
        obs, reward, terminated, truncated = (
            self._obs,
            self._reward,
            self._terminated,
            self._truncated,
        )
        ts, lost, log, infos = self.ts, self._lost, self.log, self.infos
        np.logical_or(ts.terminated, ts.truncated, out=ts.first)  # as the row before has it
        np.logical_not(ts.first, out=ts.valid)
        seam = ts.first.tolist()
        lost.clear()
        log.act(self.action)
        self._past.steps(self.action)
        for i, (env, action) in enumerate(zip(self.envs, self.form.each(self.action))):
            try:
                if seam[i]:
                    log.begin(i, env)
                    self._past.resets(i)
                    began = time.perf_counter()
                    obs[i], _ = env.reset()
                    if self.failures is not None:
                        self.failures.resetting(time.perf_counter() - began)
                    reward[i], terminated[i], truncated[i] = 0.0, False, False
                else:
                    obs[i], reward[i], terminated[i], truncated[i], info = env.step(action)
                    if infos is not None:
                        infos.read_one(i, info)
            except NoNumber:  # the run's mistake, not the env's
                raise
            except Exception as error:
                self._abort(i, error)
        self._gather()
        if True in seam:
            self._look_at_resets(seam)
        if not self.checks.fine(begins=True in seam):
            self._judge()
        if lost:
            ts.first[lost], ts.valid[lost] = True, False
        if self._troubled:
            self._barren = [
                0 if worked else n
                for n, worked in zip(self._barren, ts.valid.tolist(), strict=True)
            ]
            self._troubled = any(self._barren)

    def _look_at_resets(self, seam: list[bool]) -> None:
        """Warn of first observations that were cast; with ``strict`` refuse them."""
        for i, began in enumerate(seam):
            if began and (wrong := uncast(self.spec.observation, i, self._obs[i])) is not None:
                if self.failures is not None:
                    self._tell(self.failures, i, wrong.placed(self._where(i)))
                elif self.strict:
                    raise wrong.placed(self._where(i))

    def _gather(self) -> None:
        """Copy every env's answer into the rows; an answer that does not fit is that env's
        failure.
        """
        sure = NUMBERS.issuperset(map(type, self._reward))
        sure = (
            sure
            and FLAGS.issuperset(map(type, self._terminated))
            and FLAGS.issuperset(map(type, self._truncated))
        )
        if sure:
            try:
                self._place()
            except Exception:
                sure = False  # the judge names what is wrong
        for i in () if sure else range(len(self.envs)):
            try:
                self._put(i)
            except WrongValue as wrong:
                self._abort(i, wrong)

    def _place(self) -> None:
        ts = self.ts
        gather(ts.obs, self._obs)
        ts.reward[:] = self._reward
        ts.terminated[:] = self._terminated
        ts.truncated[:] = self._truncated

    def _put(self, i: int) -> None:
        """Judge the answer of one env and copy it into its row."""
        ts = self.ts
        reward = number(self._reward[i], i, "reward")
        ends = flag(self._terminated[i], i, "terminated"), flag(self._truncated[i], i, "truncated")
        put(ts.obs, i, taken(self._spec, self._obs[i], i))
        ts.reward[i] = reward
        ts.terminated[i], ts.truncated[i] = ends

    def _abort(self, i: int, error: Exception) -> None:
        """Replace the env of stream ``i``, at the beginning of an episode, and write a capsule.

        Raises without a rule, if the run shall end, and after ``PATIENCE`` failures in a row.
        """
        failures, error = self.failures, self._placed(i, error)
        if failures is None:
            if not isinstance(error, WrongValue):  # a WrongValue has it in its message
                error.add_note(f"in {self._where(i)}")
            raise error
        # a new env would not help, and a capsule could not be written
        if exhausted(error):
            raise ProcessExhausted(
                f"{self._where(i)}: this process has run out of files or memory: {error}"
            ) from error
        while not failures.ends_the_run(error):
            self._close_one(i, error)
            self._record(i, error)
            failures.aborted(error)
            self._barren[i] += 1
            self._troubled = True
            if self._barren[i] >= PATIENCE:
                raise EnvFailed(
                    f"{self._where(i)} failed {PATIENCE} times in a row without one step that "
                    "worked; the last "
                    f"time: {type(error).__name__}: "
                    f"{message(error)}{MASKED if self._masked else ''}"
                ) from error
            try:
                self._make_anew(i)
            except Exception as another:
                error = self._placed(i, another)
            else:
                self._lost.append(i)
                return
        self._record(i, error)
        raise error.advised(STOPPED) if isinstance(error, WrongValue) else error

    def _close_one(self, i: int, error: Exception) -> None:
        if i not in self._broken:
            self._broken.add(i)
            try:
                self.envs[i].close()
            except (Exception, SystemExit) as closing:  # it is broken already
                error.add_note(f"and its close raised {raised(closing)}")

    def _make_anew(self, i: int) -> None:
        self._incarnation[i] += 1
        seed = stream_seed(self._seed, int(self.ts.stream[i]), self._incarnation[i])
        env = self._makers[i]()
        same_spaces(self.envs[i], env)
        self.envs[i] = env
        self._broken.discard(i)
        self.log.begin(i, env, seed)
        self._past.resets(i, seed)
        answer: Any = env.reset(seed=seed)
        self._obs[i], info = answer
        if not self._masked and not self.spec.mask and isinstance(info, Mapping) and KEY in info:
            self._masked = True
            warnings.warn(
                f"{self._where(i)} failed{MASKED} (reported once)", RuntimeWarning, stacklevel=2
            )
        self._reward[i], self._terminated[i], self._truncated[i] = 0.0, False, False
        self._put(i)
        # the caller clamps the rest
        clamped = self.failures is not None and self.failures.on_nonfinite == "clamp"
        for wrong in self.checks.wrong([i]):
            if wrong.kind == "invalid" or (wrong.kind == "nonfinite" and not clamped):
                raise wrong

    def _course(self, i: int | None) -> dict[str, Any]:
        assert i is not None
        log, stream = self.log, int(self.ts.stream[i])
        return {
            "start": log.start(i),
            "streams": (stream,),
            "step": log.step(i),
            "actions": log.actions_of(i),
            "observations": log.observations_of(i),
            "state": {},
        }

    def _one(self, i: int | None) -> object:
        return self.envs[i or 0]

    def begin_as(self, start: Start) -> None:
        """Let the first ``recv`` answer the reset that ``start`` describes (one stream only)."""
        env = self.envs[0]
        if start.generator is not None:
            for n in range(start.resets - 1):  # an env may count its resets
                env.reset(seed=start.born if n == 0 else None)
            env.unwrapped.np_random = snapshot.generator_of(start.generator)
        self._seeds = [start.seed]

    def state(self) -> Tree:
        state = super().state()
        return state | {"incarnation": np.array(self._incarnation)} if state else state

    def load(self, state: Tree) -> None:
        super().load(state)
        if state:
            self._incarnation = state["incarnation"].tolist()

    def _capture(self) -> Tree:
        return self._past.state()

    def _restore(self, state: Tree) -> tuple[list[Resume], dict[int, str]]:
        self.log = Log(self.ts)  # until its next reset nothing of a stream can be played again
        return self._past.load(state, self.ts)

    def _closes(self) -> list[tuple[int | None, Callable[[], object]]]:
        return [(i, env.close) for i, env in enumerate(self.envs) if i not in self._broken]


class Log:
    """The envs' latest actions and observations: enough to write a capsule of a failure.

    A generator's state is costly, so it is kept at the first reset ``SPAN`` steps after the last
    one: a capsule may hold a few episodes before the failed one.
    """

    SPAN = 1000  # steps
    ACTIONS = 1 << 26  # most bytes; a longer episode cannot be played again
    # rows of observations that are kept; only the last one above this many bytes
    SHOWN, SMALL = 32, 1 << 17

    def __init__(self, ts: TimeStep) -> None:
        count = len(ts.stream)
        self._ts, self._count = ts, 0
        self._actions: deque[Tree] = deque()
        self._append = self._actions.append
        self._episode = [0] * count  # number of the first action of each stream's episode
        self._begin = [0] * count  # number of the first action that is kept
        self._seed: list[int | None] = [None] * count
        self._generator: list[dict[str, object] | None] = [None] * count
        # resets of the env so far, and when the first action was kept
        self._resets, self._since = [0] * count, [0] * count
        self._born = [0] * count  # seed of the env's first reset
        small = sum(x.nbytes for x in tree.leaves(ts.obs)) <= self.SMALL
        self._rings = (
            [(x, np.zeros((self.SHOWN, *x.shape), x.dtype)) for x in tree.leaves(ts.obs)]
            if small
            else []
        )

    def begin(self, i: int, env: gymnasium.Env, seed: int | None = None) -> None:
        """Note that the env of stream ``i`` is about to be reset."""
        self._episode[i] = self._count
        self._resets[i] += 1
        if seed is None and self._count - self._begin[i] < self.SPAN:
            return
        self._begin[i], self._seed[i], self._since[i] = self._count, seed, self._resets[i]
        self._generator[i] = None if seed is not None else snapshot.generator_dict(env)
        if seed is not None:
            self._resets[i], self._since[i], self._born[i] = 1, 1, seed

    def act(self, action: Tree) -> None:
        """Note that ``action`` [B, ...], kept without a copy, is about to be sent."""
        row = self._count % self.SHOWN
        for now, ring in self._rings:
            ring[row] = now
        self._append(action)
        self._count += 1
        if row == 0:
            self._forget(sum(x.nbytes for x in tree.leaves(action)))

    def _forget(self, nbytes: int) -> None:
        needed = self._count - min(self._begin)
        most = max(self.ACTIONS // (nbytes + 128), 1)
        for _ in range(len(self._actions) - min(needed, most)):
            self._actions.popleft()

    def start(self, i: int) -> Start:
        seed, generator, resets, born = (
            self._seed[i],
            self._generator[i],
            self._since[i],
            self._born[i],
        )
        if self._count - self._begin[i] > len(self._actions) or (
            seed is None and generator is None
        ):
            return Start(kind="lost", resets=resets, born=born)
        kind: Literal["seed", "generator"] = "generator" if seed is None else "seed"
        return Start(kind=kind, seed=seed, generator=generator, resets=resets, born=born)

    def step(self, i: int) -> int:
        """Return the steps of stream ``i``'s episode so far."""
        return self._count - self._episode[i]

    def actions_of(self, i: int) -> Tree:
        """Actions [n, ...] of stream ``i`` since ``start``, with those between two episodes."""
        n = min(self._count - self._begin[i], len(self._actions))
        rows = [tree.index(row, i) for row in list(self._actions)[len(self._actions) - n :]]
        return tree.stack(rows) if rows else np.zeros((0,))

    def observations_of(self, i: int) -> Tree:
        """Observations [k, ...] from which the episode's last actions were chosen."""
        if not self._rings:
            return tree.map(lambda x: np.array(x[i : i + 1]), self._ts.obs)
        rows = np.arange(max(self._episode[i], self._count - self.SHOWN), self._count) % self.SHOWN
        rings = iter(self._rings)
        return tree.map(lambda _: next(rings)[1][rows, i], self._ts.obs)


def same_spaces(one: gymnasium.Env, env: gymnasium.Env) -> None:
    if env.observation_space != one.observation_space or env.action_space != one.action_space:
        spaces = [f"{e.observation_space} and {e.action_space}" for e in (one, env)]
        raise ValueError(
            f"all streams of a worker need the same spaces; {one}: {spaces[0]}, another: "
            f"{spaces[1]}"
        )


def put(target: Tree, i: int, obs: Tree) -> None:
    """One stream's observation into row ``i`` of the arrays [B, ...] of ``target``."""
    if isinstance(target, dict):
        for key, inner in target.items():
            put(inner, i, obs[key])
    else:
        target[i] = obs


def gather(target: Tree, observations: list[Tree]) -> None:
    """Stack B observations into the arrays [B, ...] of ``target``; error if numbers may be lost."""
    if isinstance(target, dict):
        for key, inner in target.items():
            gather(inner, [member(obs, key) for obs in observations])
    elif hidden(observations):
        raise ValueError("some of it is masked")
    elif (
        target.dtype.kind == "f"
        or target.dtype.itemsize == 8
        or (isinstance(observations[0], np.ndarray) and observations[0].dtype == target.dtype)
    ):
        np.stack(observations, out=target, casting="same_kind")
    else:  # a small integer in a large dtype, for example
        np.stack(observations, out=target, casting="safe")
