"""Vector envs and PettingZoo parallel envs of a description: groups of streams that are stepped
together.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.outside import bent, env_law
from tests.outside.drawn_envs import number_of
from tests.outside.env_law import Law, Row, plain

SAME = ("SAME_STEP", "SameStep")


def stacked(parts: list[Any]) -> Any:
    """Members of a space as a batch."""
    if isinstance(parts[0], dict):
        return {key: stacked([one[key] for one in parts]) for key in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(stacked(list(column)) for column in zip(*parts, strict=True))
    return np.stack(parts)


def picked(batch: Any, i: int) -> Any:
    """Row i of a batch of plain values."""
    if isinstance(batch, dict):
        return {key: picked(one, i) for key, one in batch.items()}
    return None if batch is None or np.ndim(batch) == 0 or len(batch) <= i else np.array(batch[i])


class DrawnVector(VectorEnv[Any, Any, Any]):
    """Streams that follow the same law, in NEXT_STEP or SAME_STEP."""

    def __init__(self, law: Law, streams: list[int]) -> None:
        self.law, self.streams, self.num_envs, self.calls = law, streams, len(streams), 0
        said = law.odd.get("autoreset", "NEXT_STEP")
        self.same = said in SAME
        mode = {
            name: getattr(AutoresetMode, name) for name in ("NEXT_STEP", "SAME_STEP", "DISABLED")
        } | {"none": None}
        self.metadata = {} if said == "missing" else {"autoreset_mode": mode.get(said, said)}
        self.single_observation_space, self.single_action_space = law.observation, law.action
        self.observation_space = batch_space(law.observation, self.num_envs)
        self.action_space = batch_space(law.action, self.num_envs)
        self.at = [(-1, 0)] * self.num_envs  # episode, t
        self.over = [False] * self.num_envs
        for stream in streams:
            env_law.BOOK.begins(stream)

    @property
    def late(self) -> bool:
        return self.calls > self.law.said["since"]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed if not isinstance(seed, list) else seed[0])
        self.calls += 1
        self.at = [(0 if seed is not None else number + 1, 0) for number, _ in self.at]
        self.over = [False] * self.num_envs
        obs, info = self.obs(), self.info({})
        for i, stream in enumerate(self.streams):
            env_law.BOOK.row(stream, Row(True, False, picked(plain(self.with_masks(obs)), i)))
        return obs, info

    def step(self, actions: Any) -> Any:
        self.calls += 1
        law, count, done = self.law, self.num_envs, list(self.over)
        if not self.action_space.contains(actions):
            env_law.BOOK.complaints.append(f"{actions!r} is no member of {self.action_space}")
        each = list(gymnasium.vector.utils.iterate(self.action_space, actions))
        reward, ends, cuts = np.zeros(count), np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        for i, (number, t) in enumerate(self.at):
            if done[i] and not self.same:
                self.at[i] = number + 1, 0
                continue
            law.judge(each[i], self.streams[i], number, t)
            reward[i] = law.reward(number, t, each[i])
            self.at[i] = number, t + 1
            length, terminates, truncates = law.episode(self.streams[i], number)
            if t + 1 >= length:
                ends[i], cuts[i] = terminates, truncates
        over = ends | cuts
        info: dict[str, Any] = {}
        if self.same and over.any():
            finals = [
                law.obs(False, stream, *at)
                for stream, at in zip(self.streams, self.at, strict=True)
            ]
            info = self.finals(finals, over, ends)
            held = plain(self.with_masks(stacked(finals)))
            if "mask_info" in law.odd and isinstance(held, dict) and "action_mask" in held:
                held["action_mask"][...] = 1  # nothing is given for it, and nobody acts there
            self.at = [
                (n + 1, 0) if ended else (n, t)
                for (n, t), ended in zip(self.at, over.tolist(), strict=True)
            ]
        else:
            held = None
        obs = self.obs()
        given = law.outcome(self.late, reward, ends, cuts)
        shown = plain(self.with_masks(obs))
        numbers = plain(given[0])
        for i, stream in enumerate(self.streams):
            each_own = (
                numbers is not None and numbers.dtype != object and numbers.size == len(reward)
            )
            value = number_of(np.ravel(numbers)[i], reward[i]) if each_own else float(reward[i])
            if done[i] and not self.same:
                row = Row(True, False, picked(shown, i))
            else:
                row = Row(False, True, picked(shown, i), value, bool(ends[i]), plain(each[i]))
            env_law.BOOK.row(stream, row)
        told = self.info(info)
        if self.same:
            self.hold(
                ends,
                cuts,
                held,
                shown,
                isinstance(told, Mapping) and any(key.startswith("final_obs") for key in info),
            )
        self.over = over.tolist()
        return obs, *given, told

    def hold(self, ends: Any, cuts: Any, held: Any, shown: Any, given: bool) -> None:
        """The rows that training sees of a step in SAME_STEP, by the table in ``adapter.py``."""
        hold = (cuts & ~ends) if given else np.zeros_like(cuts)
        for i, stream in enumerate(self.streams):
            row = env_law.BOOK.rows[stream][-1]
            if hold[i]:
                row.obs = picked(held, i)
            elif ends[i] or cuts[i]:
                row.first, row.terminated = True, True
            if hold.any():
                again = row.obs if not hold[i] else picked(shown, i)
                env_law.BOOK.row(stream, Row(bool(hold[i]) or row.first, False, again))

    def obs(self) -> Any:
        law = self.law
        members = [
            law.obs(False, stream, *at) for stream, at in zip(self.streams, self.at, strict=True)
        ]
        batch = stacked(members)
        if not self.late:
            return batch
        if "mask_obs" in law.odd and law.observation is not law.inner:
            masks = [
                law.mask("mask_obs", True, stream, *at)
                for stream, at in zip(self.streams, self.at, strict=True)
            ]
            batch["action_mask"] = masked_rows(masks)
        if "values" in law.odd:
            inner = batch["obs"] if law.observation is not law.inner else batch
            value, did = bent.observation(inner, law.inner, law.odd["values"], "batch")
            law.note("values", did)
            batch = {**batch, "obs": value} if law.observation is not law.inner else value
        return batch

    def with_masks(self, obs: Any) -> Any:
        if self.law.odd.get("mask_info", "absent") == "absent":
            return obs
        return {
            "obs": obs,
            "action_mask": np.stack(
                [self.law.allowed(s, *at) for s, at in zip(self.streams, self.at, strict=True)]
            ),
        }

    def info(self, info: dict[str, Any]) -> Any:
        law = self.law
        if self.late and "info" in law.odd:
            law.note("info", True)
            more = bent.info(self.calls, law.odd["info"])
            if not isinstance(more, Mapping):
                return more
            info = {**info, **more}
        if law.said["metrics"]:
            info = {
                **info,
                "speed": np.array([float(t) for _, t in self.at]),
                "_speed": np.ones(self.num_envs, np.bool_),
            }
        if law.odd.get("mask_info", "absent") != "absent":
            masks = [
                law.mask("mask_info", self.late, s, *at)
                for s, at in zip(self.streams, self.at, strict=True)
            ]
            info = {**info, "action_mask": masked_rows(masks)}
        return UserDict(info) if self.late and law.odd.get("info") == "mapping" else info

    def finals(self, members: list[Any], over: Any, ends: Any) -> dict[str, Any]:
        law, way = self.law, self.law.odd.get("final", "gymnasium")
        objects = np.full(self.num_envs, None, object)
        for i in np.flatnonzero(over):
            objects[i] = members[i]
        batch = stacked(members)
        first = members[0]
        bends = way not in ("half", "nan") or (
            isinstance(first, np.ndarray) and first.ndim and first.dtype.kind == "f"
        )
        # an info in which nothing can be
        hidden = self.late and self.law.odd.get("info") in ("none", "list", "text")
        # nobody asks for the value of what follows a termination
        if bends and not hidden and (over & ~ends).any():
            env_law.BOOK.bent.add(f"final:{way}")
        simple: dict[str, Any] = {
            "array": batch,
            "dict_of_arrays": batch,
            "tuple": tuple(objects),
            "list": list(objects),
            "list_of_arrays": members,
            "short": list(objects)[:-1],
            "text": "none",
            "done_rows": stacked([members[i] for i in np.flatnonzero(over)]),
            "half": objects,
            "masked": batch,
            "mask_list": objects,
            "old_name": objects,
        }
        if way == "none":
            return {}
        value = simple.get(way, objects)
        if way == "torch":
            value = bent.observation(batch, law.observation, "torch")[0]
        if way == "nan" and bends:
            value = batch * np.nan
        if way == "half" and bends:
            for i in np.flatnonzero(over):
                objects[i] = members[i][:-1]
        key = "final_observation" if way == "old_name" else "final_obs"
        flags = over.tolist() if way == "mask_list" else over
        return {key: value} if way in ("array", "list", "tuple") else {key: value, f"_{key}": flags}


def masked_rows(masks: list[Any]) -> Any:
    try:
        return stacked(masks)
    except Exception:
        return masks


class DrawnParallel:
    """Agents that act together; nothing here is PettingZoo's, whose ``ParallelEnv`` is a base of
    ``ByTheBook``.
    """

    metadata: Any = {"name": "drawn", "render_modes": []}

    @staticmethod
    def of(law: Law, stream: int) -> Any:
        way = law.odd.get("agents", "")
        made: Any = (
            ByTheBook(law, stream)
            if way not in ("dicts_of_spaces", "no_possible_agents", "no_metadata")
            else DrawnParallel(law, stream)
        )
        if way in ("OrderEnforcing", "BaseParallel"):
            from pettingzoo.utils.wrappers import BaseParallelWrapper

            made = BaseParallelWrapper(made)
        return made

    def __init__(self, law: Law, stream: int) -> None:
        self.law, self.stream, self.way, self.calls = law, stream, law.odd.get("agents", ""), 0
        names: dict[str, list[Any]] = {
            "int_names": [0, 1],
            "odd_names": ["a/b", "ü ."],
            "duplicate": ["red", "red"],
            "no_agents": [],
            "one_agent": ["red"],
            "tuple_agents": [("red", 1), ("blue", 2)],
        }
        self.names = names.get(self.way, ["red", "blue"])
        self.agents: list[Any] = []
        self.number, self.t = -1, 0
        if self.way != "no_possible_agents":
            self.possible_agents = list(self.names)
        if self.way == "dicts_of_spaces":
            self.observation_space: Any = dict.fromkeys(self.names, law.observation)
            self.action_space: Any = dict.fromkeys(self.names, law.action)
        else:
            self.observation_space, self.action_space = self._observes, self._acts
        if self.way == "no_metadata":
            self.metadata = None
        self.new_life()

    def new_life(self) -> None:
        for i in range(len(self.names)):
            env_law.BOOK.begins(self.index(i))

    def index(self, i: int) -> int:
        return self.stream * len(self.names) + i

    def _observes(self, agent: Any) -> Any:
        return (
            self.law.observation
            if self.way != "different_spaces" or agent == self.names[0]
            else spaces.Box(-1, 1, (3,))
        )

    def _acts(self, agent: Any) -> Any:
        return self.law.action

    @property
    def late(self) -> bool:
        return self.calls > self.law.said["since"]

    def look(self, agents: list[Any]) -> dict[Any, Any]:
        seen = {}
        for agent in agents:
            i = self.names.index(agent)
            seen[agent] = self.law.obs(self.late, self.index(i), self.number, self.t)
            if self.way == "different_spaces" and i:
                seen[agent] = np.full(3, 0.5, np.float32)
        return seen

    def rows(self) -> list[Row]:
        return [env_law.BOOK.row(self.index(i), Row(True, False)) for i in range(len(self.names))]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        rows, self.calls = self.rows(), self.calls + 1
        # A seed comes with every episode: it says which one.
        self.number, self.t = self.number + 1 if seed is None else seed % 64, 0
        self.agents = [] if self.way == "never_begins" else list(self.names)
        obs = self.look(self.agents)
        for row, agent in zip(rows, self.names, strict=True):
            row.obs = plain(obs.get(agent))
        self.bend("never_begins", "reset_obs_only", "no_agents", "duplicate")
        return obs if self.way == "reset_obs_only" else (obs, self.infos(self.names))

    def step(self, actions: dict[Any, Any]) -> Any:
        rows, self.calls, here = self.rows(), self.calls + 1, list(self.agents)
        reward, ends, cuts = {}, {}, {}
        self.t += 1
        length, terminates, truncates = self.law.episode(self.stream, self.number)
        for agent in here:
            i = self.names.index(agent)
            self.law.judge(actions[agent], self.index(i), self.number, self.t - 1)
            dies = self.way == "dies_early" and i == 1 and self.t == 1
            over = self.t >= length
            value = self.law.reward(self.number, self.t + i, actions[agent])
            given = self.law.outcome(
                self.late, value, (over and terminates) or dies, over and truncates
            )
            reward[agent], ends[agent], cuts[agent] = given
            rows[i].first, rows[i].valid, rows[i].action = False, True, plain(actions[agent])
            rows[i].reward, rows[i].terminated = (
                number_of(given[0], value),
                (over and terminates) or dies,
            )
            if over or dies:
                self.agents.remove(agent)
        obs = self.look(here)
        for i, agent in enumerate(self.names):
            rows[i].obs = plain(obs.get(agent))
            rows[i].first = False
        return self.answer(obs, reward, ends, cuts, here)

    def answer(self, obs: Any, reward: Any, ends: Any, cuts: Any, here: list[Any]) -> Any:
        way = self.way if self.late else ""
        dropped = {"missing_obs": obs, "missing_reward": reward, "missing_flag": ends}
        if way in dropped and here:
            del dropped[way][here[0]]
        if way == "none_obs" and here:
            obs[here[0]] = None
        if way == "extra_agent":
            reward["green"], ends["green"] = 1.0, True
        if way == "unknown_agent":
            self.agents = [*self.agents, "green"]
        if way == "all_flag":
            ends["__all__"], cuts["__all__"] = not self.agents, False
        if way == "order_changes":
            self.agents.reverse()
        if way == "agents_kept":
            self.agents = list(self.names)
        self.bend(
            "missing_obs",
            "missing_reward",
            "missing_flag",
            "none_obs",
            "unknown_agent",
            "step_four",
        )
        if self.way == "step_four":
            return obs, reward, ends, self.infos(here)
        return obs, reward, ends, cuts, self.infos(here)

    def bend(self, *ways: str) -> None:
        if self.way in ways and (
            self.late or self.way in ("step_four", "reset_obs_only", "never_begins")
        ):
            env_law.BOOK.bent.add(f"agents:{self.way}")

    def infos(self, agents: list[Any]) -> Any:
        return (
            None
            if self.way == "infos_none"
            else {agent: self.law.info(self.late, self.t) for agent in agents}
        )

    def close(self) -> None: ...

    def render(self) -> None: ...

    def __str__(self) -> str:
        return "Drawn agents"


def by_the_book() -> Any:
    from pettingzoo import ParallelEnv

    class Parallel(DrawnParallel, ParallelEnv): ...  # type: ignore[misc]

    return Parallel


def ByTheBook(law: Law, stream: int) -> Any:
    return by_the_book()(law, stream)
