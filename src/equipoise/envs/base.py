"""The base of all envs that run in the worker: buffers, the order of ``send`` and ``recv``, and the
rows of a reset.
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np

from equipoise import tree
from equipoise.envs import masks
from equipoise.envs.failures import capsule
from equipoise.envs.failures.capsule import Capsule, Failures
from equipoise.envs.failures.row_checks import Checks, WrongValue, of_answer
from equipoise.envs.infos import Infos
from equipoise.envs.spaces import ActionForm, observation_spec, timestep
from equipoise.hints import message, raised
from equipoise.schema import described
from equipoise.types import Array, EnvFactory, EnvSpec, Resume, TimeStep, Tree

# states: before the reset is returned, waiting for an action, an action was sent
RESET, ANSWERED, SENT = 0, 1, 2
RESUMES: tuple[Resume, ...] = ("exact", "replay", "restart")
# steps between two checks of float bounds; finite numbers are checked in every step
LOOK_EVERY = 64


class SyncEnv:
    """An ``equipoise.types.Env`` of B streams whose ``recv`` always answers.

    ``recv`` returns the same ``TimeStep`` with the same arrays each time, so a reader may keep
    views (also torch ones) of them. A subclass has ``_reset`` and ``_step``, which fill ``ts``,
    ``_closes``, and, unless its resume is restart, ``_capture`` and ``_restore``.

    After a ``load``: ``resumed`` counts the streams brought back "exact", by "replay", or
    "restart"; ``restarted`` [B] bool marks the last kind; ``restarts`` is {stream: why}.
    """

    def __init__(
        self,
        *,
        observation: gymnasium.Space[object],
        action: gymnasium.Space[object],
        streams: Array,
        resume: Resume = "restart",
        notes: tuple[str, ...] = (),
        action_mask: str = "auto",
    ) -> None:
        """``action_mask``: its place in the observation, one of ``masks.CHOICES``."""
        self.form = ActionForm(action, len(streams))
        self.ts: TimeStep  # of numpy arrays
        self.ts, floats = timestep(observation_spec(observation), streams)
        mask = masks.place_of(action_mask, observation, action)
        self.spec = EnvSpec(
            observation=observation, action=action, mask=mask, resume=resume, notes=notes
        )
        rows = functools.reduce(lambda part, key: part[key], mask, self.ts.obs)
        arrays = masks.counted(tree.path_of("obs", *mask), rows, action) if mask else ()
        self.checks = Checks(observation, self.ts, floats, every=LOOK_EVERY, masks=tuple(arrays))
        self.failures: Failures | None = None  # None: whatever goes wrong is raised
        self.infos: Infos | None = None  # None: information dicts are not touched
        # the factory that ``make`` was given, and the run's seed
        self.origin = (EnvFactory(target=type(self).__name__), 0)
        self.action = self.form.zeros()  # [B, ...] the last one, in the env's dtypes
        self.restarted = np.zeros(len(streams), np.bool_)  # streams that the last load restarted
        self.restarts: dict[int, str] = {}
        self.resumed: dict[str, int] = {}
        self._phase = RESET
        self._unsaid = False  # restarted streams still have to show their reset row
        self._closed = False

    def watch(self, names: Sequence[str]) -> None:
        """Put these numbers of ``info`` into ``ts.info``; call it before the first ``recv``."""
        self.infos = Infos(names, len(self.ts.stream))
        self.ts = replace(self.ts, info=self.infos.value)

    def send(self, action: Tree, stream: Array) -> None:
        """action [B, ...], copied; stream [B], all of this env's in order (``ts.stream``)."""
        if stream is not self.ts.stream and not np.array_equal(stream, self.ts.stream):
            raise ValueError(
                f"expected actions for all streams, {self.ts.stream.tolist()}, got "
                f"{np.asarray(stream).tolist()}"
            )
        if self._phase != ANSWERED:
            raise RuntimeError(
                "send: recv has not answered the "
                + ("reset" if self._phase == RESET else "last action")
            )
        self.action = self.form(action)
        self._phase = SENT
        if self._unsaid:
            self._end_restarted()

    def recv(self) -> TimeStep:
        """Return the outcome of the last action; the first call returns the reset."""
        if self._phase == SENT:
            self._step()
        elif self._phase == RESET:
            self._first()
        else:
            raise RuntimeError("recv: no action was sent")
        self._phase = ANSWERED
        return self.ts

    def fds(self) -> tuple[int, ...]:
        """Descriptors that become readable when ``recv`` may answer; none if it always does."""
        return ()

    @property
    def holding(self) -> bool:
        """Will the next action reach no env? Capsules do not have such actions."""
        return False

    def state(self) -> Tree:
        """Everything that the next rows depend on; {} if a resume makes the env again."""
        # before the first reset an env is like a new one
        if self.spec.resume == "restart" or self._phase == RESET:
            return {}
        return {
            "rows": copied(self.ts.rows()),
            "action": tree.map(np.array, self.action),
            "phase": np.array(self._phase),
            "env": self._capture(),
        }

    def load(self, state: Tree) -> None:
        """Restore a state into an env from the same ``make``; ValueError names what does not fit.

        ``ts`` then holds the last rows. A stream that could not be brought back ends there: its
        next action is ignored and answered by a reset row (``first``, not ``valid``, reward 0).
        After ``load({})`` all restart, and the next ``recv`` returns the reset.
        """
        self._unsaid = False
        if not state:
            self._phase = RESET
            self._report(["restart"] * len(self.ts.stream))
            return
        if self._phase == RESET:
            self._first()  # some arrays exist only after it
        if (phase := int(state["phase"])) not in (ANSWERED, SENT):
            raise ValueError(f"state of phase: expected {ANSWERED} or {SENT}, got {phase}")
        fill(self.ts.rows(), state["rows"])
        fill({"action": self.action}, state)
        self._report(*self._restore(state["env"]))
        self._phase, self._unsaid = phase, bool(self.restarted.any())
        if self._unsaid and self._phase == SENT:
            self._end_restarted()

    def _report(self, kinds: list[Resume], why: dict[int, str] | None = None) -> None:
        self.restarts = why or {}
        self.restarted = np.array([kind == "restart" for kind in kinds])
        self.resumed = {kind: kinds.count(kind) for kind in RESUMES}

    def _end_restarted(self) -> None:
        """End the episode of restarted streams, whose last row was returned already."""
        np.logical_or(self.ts.truncated, self.restarted, out=self.ts.truncated)
        self._unsaid = False

    def close(self, *, raises: bool = False) -> None:
        """Close every env. The first error of a call is a warning, or with ``raises`` raised in the
        end.
        """
        closes, self._closed = [] if self._closed else self._closes(), True
        first: BaseException | None = None
        for i, close in closes:
            try:
                close()
            except (Exception, SystemExit) as error:
                first = first or error
                if not raises:
                    said = (
                        f"{self._where(i)}: close() raised {raised(error)}; its resources may "
                        "stay open"
                    )
                    warnings.warn(said, RuntimeWarning, stacklevel=2)
        if raises and first is not None:
            raise first

    def _first(self) -> None:
        self._reset()
        for array in (self.ts.reward, self.ts.terminated, self.ts.truncated, self.ts.valid):
            array.fill(0)
        self.ts.first.fill(True)
        if not self.checks.fine(begins=True):
            self._judge()

    def _judge(self) -> None:
        """Find the wrong values of the rows: warn, clamp, or end the episode of each."""
        judged: set[int] = set()
        for wrong in self.checks.wrong():
            i, failures = wrong.index, self.failures
            assert i is not None  # it is of one row
            if i in judged:
                continue
            if failures is None:
                raise wrong.placed(self._where(i))
            if wrong.kind == "nonfinite" and failures.on_nonfinite == "clamp":
                failures.count("clamped", self.checks.clamp(i))
                continue
            judged.add(i)
            wrong = wrong.placed(self._where(i))
            if wrong.kind == "outside":
                self._tell(failures, i, wrong)
                continue
            self._abort(i, wrong)
            # the next episode's first observation may also be wrong
            if failures.on_nonfinite == "clamp":
                failures.count("clamped", self.checks.clamp(i))

    def _tell(self, failures: Failures, i: int, wrong: WrongValue) -> None:
        """Warn of a value that is odd but can be learned from, and count it."""
        failures.count("outside")
        if failures.warn_once(wrong):
            self._record(i, wrong)

    def _record(self, i: int | None, error: Exception) -> None:
        """Write a capsule of the failure of stream ``i`` (None: of all), and note its path."""
        failures = self.failures
        if failures is None or failures.capsules is None:
            return
        wrong = error if isinstance(error, WrongValue) else None
        factory, seed = self.origin
        made = Capsule(
            env=factory,
            stream=None if i is None else int(self.ts.stream[i]),
            seed=seed,
            error=type(error).__name__,
            message=message(error),
            kind="exception" if wrong is None else wrong.kind,
            key=None if wrong is None else wrong.key,
            wrappers=self._name(i),
            traceback="".join(traceback.format_exception(error)),
            versions=capsule.versions(self._one(i)),
            **self._course(i),
        )
        if (path := capsule.write(failures.capsules, made, error)) is not None:
            error.add_note(f"capsule: {path}")

    def _course(self, i: int | None) -> dict[str, Any]:
        """The capsule's start, streams, step, actions, observations and state of stream ``i``."""
        raise NotImplementedError

    def _abort(self, i: int, error: Exception) -> None:
        """End the episode of stream ``i``; its row becomes that of a seam."""
        raise NotImplementedError

    def _one(self, i: int | None) -> object:
        """The env behind stream ``i``."""
        raise NotImplementedError

    def _where(self, i: int | None) -> str:
        return self._name(i) if i is None else f"{self._name(i)}, stream {int(self.ts.stream[i])}"

    def _placed(self, i: int | None, error: Exception) -> Exception:
        """Add env and stream to an error, also to a wrong value that a wrapper of ours raised."""
        error = of_answer(error, i)
        return (
            error.placed(self._where(error.index if i is None else i))
            if isinstance(error, WrongValue)
            else error
        )

    def _name(self, i: int | None) -> str:
        try:
            return str(self._one(i))
        except Exception as error:  # a user's own class may do anything
            return f"{type(self._one(i)).__name__} (its name raised {type(error).__name__})"

    def _reset(self) -> None:
        """Fill ``ts.obs``."""
        raise NotImplementedError

    def _step(self) -> None:
        """Do ``action`` and fill every array of ``ts``."""
        raise NotImplementedError

    def _capture(self) -> Tree:
        raise NotImplementedError

    def _restore(self, state: Tree) -> tuple[list[Resume], dict[int, str]]:
        """The fate of each stream, and the reasons of the streams that restart. ``ts`` has its
        rows.
        """
        raise NotImplementedError

    def _closes(self) -> list[tuple[int | None, Callable[[], object]]]:
        """The functions that close each env, with its stream (None: all streams)."""
        raise NotImplementedError


def make_seam(ts: TimeStep, rows: int | Array) -> None:
    """Turn rows (an index or a mask) into the rows of a seam: nothing in them counts."""
    ts.reward[rows], ts.first[rows] = 0.0, True
    ts.terminated[rows] = ts.truncated[rows] = ts.valid[rows] = False


def copied(value: Tree) -> Tree:
    return (
        {key: copied(inner) for key, inner in value.items()}
        if isinstance(value, dict)
        else np.array(value)
    )


def fill(target: Tree, source: Tree) -> None:
    """Write ``source`` into the arrays of ``target``; ValueError if shapes or dtypes differ."""
    for key, array in target.items():
        if key not in source:
            raise ValueError(f"state without {key!r}; it has {sorted(source)}")
        value = source[key]
        if isinstance(array, dict):
            fill(array, value)
        elif (
            not isinstance(value, np.ndarray | np.generic)
            or array.shape != value.shape
            or array.dtype != value.dtype
        ):
            raise ValueError(
                f"state of {key}: expected {array.dtype} {list(array.shape)}, got "
                f"{described(value)}"
            )
        else:
            np.copyto(array, value)
