"""Envs made from the descriptions of ``env_grammar.py``.

What each gives is written into ``env_law.BOOK``, from which rows are proven.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np

from tests.outside import env_law
from tests.outside.env_law import Broke, Law, Row, plain


class Drawn(gymnasium.Env[Any, Any]):
    """One stream."""

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, law: Law, stream: int, noted: bool = True) -> None:
        self.law, self.stream, self.calls, self.noted = law, stream, 0, noted
        self.number, self.t = -1, 0
        self.observation_space, self.action_space = law.observation, law.action
        self.shape = law.odd.get("shape", "")
        if noted:
            env_law.BOOK.begins(stream)
        if self.shape == "raises_init":
            raise Broke("no simulator here")

    @property
    def late(self) -> bool:
        return self.calls > self.law.said["since"]

    def note(self, row: Row) -> Row:
        return env_law.BOOK.row(self.stream, row) if self.noted else row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        row, self.calls = self.note(Row(True, False)), self.calls + 1
        if self.shape != "no_super_reset":
            super().reset(seed=seed)
        self.trouble("reset")
        self.number, self.t = self.number + 1 if seed is None else 0, 0
        obs = self.law.obs(self.late, self.stream, self.number, 0)
        info = self.info()
        row.obs = plain(self.with_mask(obs, info))
        if self.shape == "reset_obs_only":
            return obs
        return None if self.shape == "reset_none" else (obs, info)

    def step(self, action: Any) -> Any:
        row, self.calls = self.note(Row(False, True, action=plain(action))), self.calls + 1
        self.law.judge(action, self.stream, self.number, self.t)
        self.trouble("step")
        value = self.law.reward(self.number, self.t, action)
        self.t += 1
        length, terminates, truncates = self.law.episode(self.stream, self.number)
        over = self.t >= length
        obs = self.law.obs(self.late, self.stream, self.number, self.t)
        given = self.law.outcome(self.late, value, over and terminates, over and truncates)
        info = self.info()
        row.obs, row.terminated = plain(self.with_mask(obs, info)), over and terminates
        row.reward = number_of(given[0], value)
        if self.shape == "step_four":
            return obs, given[0], given[1], info
        if self.shape == "step_dict":
            return {"obs": obs, "reward": given[0]}
        return [obs, *given, info] if self.shape == "step_list" else (obs, *given, info)

    def with_mask(self, obs: Any, info: Any) -> Any:
        if "mask_info" not in self.law.odd or self.law.odd["mask_info"] == "absent":
            return obs
        allowed = self.law.allowed(self.stream, self.number, self.t)
        over = self.t >= self.law.episode(self.stream, self.number)[0]
        if over and (not isinstance(info, dict) or info.get("action_mask") is None):
            # nobody acts on an episode's last row: without a mask it allows all
            allowed = np.ones_like(allowed)
        return {"obs": obs, "action_mask": allowed}

    def info(self) -> Any:
        info = self.law.info(self.late, self.t)
        if (way := self.law.odd.get("mask_info", "absent")) != "absent" and isinstance(info, dict):
            if way != "sometimes" or self.t % 2 == 0:
                info = {
                    **info,
                    "action_mask": self.law.mask(
                        "mask_info", self.late, self.stream, self.number, self.t
                    ),
                }
            else:
                self.law.note("mask_info", True)
        return info

    def trouble(self, where: str) -> None:
        odd = self.shape if self.late else ""
        if odd in (f"raises_{where}", "raises_first_reset") and (
            where == "step" or odd == "raises_reset" or self.calls == 1
        ):
            env_law.BOOK.bent.add(f"shape:{odd}")
            raise Broke(f"the simulator stopped in {where}")
        if odd == "warns":
            warnings.warn("an env's own warning", UserWarning, stacklevel=2)
        if odd == "exits" and where == "step":
            env_law.BOOK.bent.add("shape:exits")
            raise SystemExit(3)

    def close(self) -> None:
        if self.shape == "raises_close":
            raise Broke("close is broken")

    def __str__(self) -> str:
        if self.law.odd.get("shape") == "str_raises":
            raise Broke("no name")
        return "Drawn"


def number_of(value: Any, otherwise: float) -> float:
    """The number that a reward says, where it says one."""
    try:
        return float(
            np.float32(
                np.asarray(value.detach() if hasattr(value, "detach") else value)
                .astype(np.float64)
                .reshape(())
            )
        )
    except Exception:
        return otherwise


def shaped(said: dict[str, Any], stream: int) -> Any:
    """An env whose class is odd."""
    law = Law(said)
    way = law.odd.get("shape", "")
    if (wrapper := law.odd.get("wrapper")) is not None:
        return wrapped(wrapper, law, stream)
    if way == "duck":
        return Duck(law, stream)
    made: Any = KINDS.get(way, Drawn)(law, stream)
    if way == "no_action_space":
        del made.action_space
    if way == "none_space":
        made.observation_space = None
    if way == "extra":
        (
            made.envs,
            made.num_envs,
            made.agents,
            made.state,
            made.spaces,
            made.single_observation_space,
        ) = (
            [],
            1,
            [],
            {},
            None,
            None,
        )
    return made


class Duck:
    """Not a ``gymnasium.Env``, and has its methods."""

    def __init__(self, law: Law, stream: int) -> None:
        self._env = Drawn(law, stream)
        self.observation_space, self.action_space = law.observation, law.action
        self.reset, self.step, self.close = self._env.reset, self._env.step, self._env.close


class NoOptions(Drawn):
    def reset(self, *, seed: int | None = None) -> Any:  # type: ignore[override]
        return super().reset(seed=seed)


class NoSeed(Drawn):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class Positional(Drawn):
    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


class NoMetadata(Drawn):
    metadata: Any = None


class EmptyMetadata(Drawn):
    metadata: dict[str, Any] = {}


class Properties(Drawn):
    """Its spaces are made anew each time that they are asked for."""

    @property
    def observation_space(self) -> Any:
        return Law(self.law.said).observation

    @observation_space.setter
    def observation_space(self, value: Any) -> None: ...

    @property
    def action_space(self) -> Any:
        return Law(self.law.said).action

    @action_space.setter
    def action_space(self, value: Any) -> None: ...


class NoRender(Drawn):
    render_mode = None
    spec = None


class Truth(Drawn):
    """An env that is False, and has no length."""

    def __bool__(self) -> bool:
        return False


class Prints(Drawn):
    def step(self, action: Any) -> Any:
        print("step", end="\r")
        return super().step(action)


KINDS: dict[str, type[Drawn]] = {
    "no_options": NoOptions,
    "no_seed": NoSeed,
    "positional": Positional,
    "none_metadata": NoMetadata,
    "no_metadata": EmptyMetadata,
    "property_spaces": Properties,
    "render_none": NoRender,
    "spec_none": NoRender,
    "bool_subclass_env": Truth,
    "prints": Prints,
}


class Outer(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down what comes out of the wrappers within."""

    def __init__(self, env: Any, stream: int, law: Law) -> None:
        super().__init__(env)
        self._stream, self._masked, self._ones = (
            stream,
            law.odd.get("mask_info", "absent") != "absent",
            np.ones(sum(law.counts), np.int8),
        )
        env_law.BOOK.begins(stream)

    def reset(self, **given: Any) -> Any:
        row = env_law.BOOK.row(self._stream, Row(True, False))
        obs, info = self.env.reset(**given)
        row.obs = plain(self._obs(obs, info))
        return obs, info

    def step(self, action: Any) -> Any:
        row = env_law.BOOK.row(self._stream, Row(False, True, action=plain(action)))
        if not self.action_space.contains(action):
            env_law.BOOK.complaints.append(f"{action!r} is no member of {self.action_space}")
        out = self.env.step(action)
        over = bool(out[2]) or bool(out[3])
        row.obs, row.reward, row.terminated = (
            plain(self._obs(out[0], out[4], over)),
            number_of(out[1], 0.0),
            bool(out[2]),
        )
        return out

    def _obs(self, obs: Any, info: Any, over: bool = False) -> Any:
        mask = info.get("action_mask") if self._masked and isinstance(info, dict) else None
        if mask is None and self._masked and over:
            mask = self._ones  # nobody acts there
        return obs if mask is None else {"obs": obs, "action_mask": np.ravel(plain(mask))}


def wrapped(name: str, law: Law, stream: int) -> Any:
    w = gymnasium.wrappers
    env: Any = Drawn(law, stream, noted=False)
    arguments: dict[str, Any] = {
        "FrameStackObservation": {"stack_size": 2},
        "DelayObservation": {"delay": 1},
        "RescaleAction": {"min_action": -2.0, "max_action": 2.0},
        "TimeLimit": {"max_episode_steps": 3},
        "StickyAction": {"repeat_action_probability": 0.5},
        "RepeatAction": {"num_repeats": 2},
        "DtypeObservation": {"dtype": np.float64},
        "RescaleObservation": {"min_obs": np.float32(-1), "max_obs": np.float32(1)},
        "DiscretizeObservation": {"bins": 3},
        "DiscretizeAction": {"bins": 3},
        "ReshapeObservation": {"shape": (1, 2)},
        "MaxAndSkipObservation": {"skip": 2},
        "ClipReward": {"min_reward": -1.0, "max_reward": 3.0},
    }
    if name == "TimeAwareObservation":
        env = w.TimeLimit(env, 20)
    if name == "SyncVectorEnv":
        return gymnasium.vector.SyncVectorEnv([lambda: env])
    return Outer(getattr(w, name)(env, **arguments.get(name, {})), stream, law)


def make(said: dict[str, Any], num_envs: int = 1, streams: Any = None, stream: int = 0) -> Any:
    """The env of a description; a vector env takes all streams at once."""
    from tests.outside.drawn_groups import DrawnParallel, DrawnVector

    if said["kind"] == "vector":
        return DrawnVector(
            Law(said), [*range(num_envs)] if streams is None else [int(s) for s in streams]
        )
    return shaped(said, stream) if said["kind"] == "env" else DrawnParallel.of(Law(said), stream)
