"""The messages between a world and a run (docs/guides/protocol.md): their kinds and bounds, and
the faults of a received message.
"""

from __future__ import annotations

from array import array as floats
from collections.abc import Mapping
from dataclasses import dataclass

import gymnasium
import numpy as np

from equipoise import tree
from equipoise.access import same
from equipoise.envs import space_json
from equipoise.envs.hints import UnsupportedSpace
from equipoise.envs.spaces import ActionForm, action_spec, differ, member, observation_spec
from equipoise.foreign import listed
from equipoise.frames import BadFrame, Message, array
from equipoise.schema import Anything, Text, check, count
from equipoise.tree import ArraySpec
from equipoise.types import Array, Tree

VERSION = 1
HELLO_BYTES = 1 << 22  # of a hello: spaces may state a bound for each number
OTHER_BYTES = 1 << 16  # of an observation's frame, besides its numbers
IN_LISTS = 3  # most bytes of a number in a list, for each of its bytes in an array
CHOICES = 1 << 18  # values of Discrete spaces: a policy has a weight for each
OBSERVATION_BYTES = 1 << 26  # of one observation
NAME = 100  # letters
SESSION = 64  # letters

HELLO = {
    "kind": Text(),
    "version": count(),
    "session": Text(SESSION),
    "observation": Anything(),
    "action": Anything(),
    "name?": Text(NAME),
    "token?": Text(1000),
    "*": Anything(),
}


class Refused(Exception):
    """A message that cannot be taken: code and text go to the world, which is disconnected."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text

    @property
    def message(self) -> Message:
        return {"kind": "refuse", "code": self.code, "text": self.text[:2000]}


@dataclass(frozen=True, slots=True)
class Spaces:
    """The spaces of a world, as it states them."""

    observation: gymnasium.Space[object]
    action: gymnasium.Space[object]

    @classmethod
    def read(cls, said: Mapping[str, object], where: str = "") -> Spaces:
        """ValueError names the place of a value that is no space, or of a space that cannot be
        learned from.
        """
        read = [
            space_json.from_json(said.get(name), f"{where}{name}")
            for name in ("observation", "action")
        ]
        spaces = cls(*read)
        size = sum(
            one.nbytes
            for one in tree.leaves(observation_spec(spaces.observation, f"{where}observation"))
        )
        if size > OBSERVATION_BYTES:
            raise ValueError(
                f"{where}observation: expected at most {OBSERVATION_BYTES:,} bytes, got {size:,}"
            )
        action_spec(spaces.action, f"{where}action")
        for name, space in spaces.by_name.items():
            if (count := choices(space)) > CHOICES:
                raise ValueError(
                    f"{where}{name}: expected Discrete spaces of at most {CHOICES:,} values in "
                    f"all, got {count:,}"
                )
        return spaces

    @property
    def by_name(self) -> dict[str, gymnasium.Space[object]]:
        return {"observation": self.observation, "action": self.action}

    @property
    def json(self) -> dict[str, object]:
        return {name: space_json.to_json(space) for name, space in self.by_name.items()}

    @property
    def frame_bytes(self) -> int:
        """The most bytes of a frame of a world."""
        specs = {"obs": observation_spec(self.observation), "took": action_spec(self.action)}
        return int(OTHER_BYTES + IN_LISTS * sum(one.nbytes for one in tree.leaves(specs)))


def choices(space: gymnasium.Space[object]) -> int:
    """The values of all Discrete parts of a space, added up: a policy has a number for each."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return sum(map(int, space.nvec.flat))
    if isinstance(space, gymnasium.spaces.Dict):
        return sum(map(choices, space.spaces.values()))
    return sum(map(choices, space.spaces)) if isinstance(space, gymnasium.spaces.Tuple) else 0


def read_hello(message: Message, token: str | None, spaces: Spaces | None) -> Spaces:
    """The spaces of a world's hello; ``spaces``: the run's, None before the first. ``Refused``."""
    if message.get("kind") != "hello":
        raise Refused(
            "frame", f"expected the kind 'hello' first, got {str(message.get('kind'))[:40]!r}"
        )
    if message.get("version") != VERSION:  # before all else: another version may have other keys
        raise Refused(
            "version",
            f"expected version {VERSION} of the protocol, got {str(message.get('version'))[:40]}",
        )
    if token is not None and not same(str(message.get("token", "")), token):
        raise Refused(
            "token",
            f"expected the token of this run, got {'another' if message.get('token') else 'none'}",
        )
    try:
        check(message, HELLO, "hello")
    except ValueError as error:
        raise Refused("frame", str(error)) from error
    if not message["session"]:
        raise Refused(
            "frame", "hello.session: expected a random text of the world's own, got an empty one"
        )
    try:
        stated = Spaces.read(message, "hello.")
    except (ValueError, UnsupportedSpace) as error:
        raise Refused("space", str(error)) from error
    for name, space in spaces.by_name.items() if spaces is not None else ():
        if (found := differ(name, space, stated.by_name[name])) is not None:
            place, got, expected = found
            raise Refused(
                "space", f"{place}: expected {expected}, as this run began with, got {got}"
            )
    return stated


def check_observe(message: Message, after_end: bool) -> None:
    """Check an observation's flags and reward. ``after_end``: only a first one may come."""
    get = message.get
    first, ended = get("first", False), False
    for name in ("first", "terminated", "truncated"):
        if (value := get(name, False)) is True:
            ended |= name != "first"
        elif value is not False:
            raise Refused(
                "observe", f"observe.{name}: expected true or false, got {str(value)[:40]!r}"
            )
    if type(reward := get("reward", 0.0)) not in (float, int):
        raise Refused("observe", f"observe.reward: expected a number, got {str(reward)[:40]!r}")
    if after_end and not first:
        raise Refused(
            "observe", "observe.first: expected true, since no episode is running, got false"
        )
    if first and ended:
        raise Refused("observe", "observe.first: expected false where an episode ends, got true")


class Reader:
    """Writes the arrays of messages into row i of preallocated arrays [B, ...]."""

    def __init__(self, spec: Tree, rows: Tree, place: str) -> None:
        self._spec, self._rows, self._place = spec, rows, place

        flat = isinstance(spec, ArraySpec) and spec.dtype == "float32" and len(spec.shape) == 1
        self._length = spec.shape[0] if flat else -1  # of a list of numbers, the usual case

    def __call__(self, i: int, value: Tree) -> None:
        """``value``: of a message. BadFrame names the place that differs from the spec."""
        if type(value) is list and len(value) == self._length:
            try:
                self._rows[i] = np.frombuffer(floats("f", value), np.float32)
                return
            except TypeError:  # something in it is no number: the other way finds it
                pass
        self._put(i, self._spec, self._rows, value, self._place)

    def _put(self, i: int, spec: Tree, rows: Array, value: Tree, place: str) -> None:
        if type(spec) is ArraySpec:
            read = array(value, place)
            if read.shape != spec.shape:
                raise BadFrame(
                    f"{place}: expected {spec.dtype} {list(spec.shape)}, got {read.dtype} "
                    f"{list(read.shape)}"
                )
            rows[i] = cast(read, spec.dtype, place)
            return
        of_list = isinstance(value, list) and list(spec) == [str(n) for n in range(len(value))]
        if not of_list and (not isinstance(value, Mapping) or value.keys() != spec.keys()):
            got = (
                sorted(map(str, value))[:20] if isinstance(value, Mapping) else type(value).__name__
            )
            raise BadFrame(f"{place}: expected a map with the keys {sorted(spec)}, got {got}")
        for name, inner in spec.items():
            self._put(i, inner, rows[name], member(value, name), f"{place}/{name}")


def cast(read: np.ndarray, dtype: str, place: str) -> np.ndarray:
    """Cast to ``dtype`` what loses nothing but digits; a whole number has to fit."""
    to = np.dtype(dtype)
    if read.dtype == to:
        return read
    if to.kind == "f":
        with np.errstate(over="ignore"):  # an infinity, which the checks of the rows find
            return read.astype(to)
    if to.kind == "b":
        fits = not read.size or (read.dtype.kind in "biu" and bool(np.isin(read, (0, 1)).all()))
    else:
        limits = np.iinfo(to)
        whole = read.dtype.kind in "biu" or not read.size
        fits = whole and (
            not read.size or (int(read.min()) >= limits.min and int(read.max()) <= limits.max)
        )
    if not fits:
        raise BadFrame(
            f"{place}: expected numbers of {dtype}, got {read.dtype}"
            + (f" up to {read.max()}" if read.size else "")
        )
    return read.astype(to)


def plain_rows(form: ActionForm, actions: Tree) -> list[object]:
    """Each row of actions [B, ...] as plain numbers, lists and maps."""
    return actions.tolist() if form.inner is None else [plain(one) for one in form.each(actions)]


def plain(action: object) -> object:
    """An action, or a row of its arrays, as plain numbers, lists and maps."""
    if isinstance(action, Mapping):
        return {key: plain(inner) for key, inner in action.items()}
    return [plain(inner) for inner in action] if isinstance(action, tuple) else listed(action)
