"""Drawn envs: each is checked, trained for two updates, and then resumed, collected, played,
evaluated or exported and served.

What is right: it works, and the rows that reached the learner prove themselves by what the env gave
(``env_law.BOOK``); or one sentence says what was expected, what was given and where. And ``check``
and ``train`` agree. Where they may differ:

- what the env did not give in a walk's or a run's few steps cannot be told by it;
- a note of ``check`` (something costs), a warning or nothing of ``train``: both count as fine;
- running statistics of a wrapper are seen by ``check`` alone;
- a time limit that is told as terminated, against the info of the same row, is for ``check`` alone
  to see;
- observations outside of bounds, casts, and flags that are no bools but can be read as some, are an
  error of ``check``, and a warning of ``train``, or nothing of it: it learns from them as they are.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.outside import env_grammar, env_law, envs_planted
from tests.outside.env_law import Broke
from tests.outside.env_rows import proven
from tests.outside.harness import Door, Fault

TARGET = "tests.outside.drawn_envs:make"
STREAMS = 2
UNREADABLE = {  # what nobody can read: whoever meets it has to say so
    "reward": {"none", "text", "number_text", "nan", "inf", "complex", "bytes", "huge"},
    "terminated": {"none", "text", "number_text", "nan"},
    "truncated": {"none", "text", "number_text", "nan"},
    "values": {
        "none",
        "text",
        "number_text",
        "nan",
        "inf",
        "short",
        "longer",
        "missing_key",
        "complex",
        "ragged",
        "one",
    },
    "mask_info": {"nan", "inf", "negative", "nothing", "short", "longer", "none", "text"},
    "mask_obs": {"nan", "inf", "negative", "nothing", "short", "longer", "none", "text"},
    "final": {"short", "half", "text", "nan"},
    "agents": {
        "reset_obs_only",
        "step_four",
        "missing_obs",
        "missing_reward",
        "missing_flag",
        "none_obs",
        "unknown_agent",
    },
}


@dataclass(slots=True)
class Outcome:
    """What became of one part: ``said`` are its words about what is wrong, ``warned`` those about
    what it goes on with.
    """

    said: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: bool = False
    bent: set[str] = field(default_factory=set)

    @property
    def fine(self) -> bool:
        return not self.said


def judged(error: BaseException, part: str) -> str:
    """The sentence of an error that a user may be shown; Fault where it is none."""
    from equipoise.envs.failures.capsule import EnvFailed
    from equipoise.envs.failures.row_checks import WrongValue
    from equipoise.envs.hints import NotMade
    from equipoise.errors import CannotStart
    from equipoise.learners.steps import NonFiniteUpdate

    chain = [error, error.__cause__, error.__context__]
    if any(isinstance(one, Broke) for one in chain):
        return f"Broke: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    here = [frame for frame in frames if "/equipoise/" in frame.filename]
    place = (
        f"{here[-1].filename.rpartition('/equipoise/')[2]}:{here[-1].name}" if here else "outside"
    )
    shown = "".join(traceback.format_exception(error))
    inner = error.__cause__ if isinstance(error, NotMade) and error.__cause__ is not None else error
    raised = traceback.extract_tb(inner.__traceback__)
    last = max((i for i, frame in enumerate(raised) if "/equipoise/" in frame.filename), default=-1)
    if isinstance(error, ValueError) and any(
        "/outside/drawn_" in frame.filename for frame in raised[last + 1 :]
    ):
        return str(error)  # by code of the env, or of a wrapper in it
    known = isinstance(
        error,
        ValueError | OSError | ImportError | EnvFailed | WrongValue | NonFiniteUpdate | CannotStart,
    )
    if not known:
        raise Fault(f"{part}: traceback {type(error).__name__} in {place}", shown)
    text = str(error)
    ours = bool(here) and frames[-1] == here[-1]
    told = any(
        word in text
        for word in (
            "expected",
            "supported",
            "must",
            "needs",
            "; set it",
            "disabled; make it",
            "no parallel env",
        )
    )
    if not ours or not told:
        raise Fault(f"{part}: no sentence: {type(error).__name__} in {place}", f"{text}\n{shown}")
    return text


@contextlib.contextmanager
def quiet() -> Any:
    """Warnings are kept, prints are not shown."""
    with (
        warnings.catch_warnings(record=True) as caught,
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("always")
        yield caught


def checked(said: dict[str, Any], mask: str) -> Outcome:
    from equipoise.envs.check.check import check_env
    from equipoise.types import EnvFactory

    book, out = env_law.new_book(), Outcome()
    try:
        with quiet():
            report = check_env(
                EnvFactory(target=TARGET, kwargs={"said": said}, action_mask=mask),
                steps=24,
                seconds=20.0,
            )
        out.said = [f"{one.what}: {one.seen}" for one in report.findings if one.severity == "error"]
        out.notes = [one.what for one in report.findings if one.severity == "note"]
    except Exception as error:
        out.said, out.refused = [judged(error, "check")], True
    out.bent = book.bent
    # Among its walks are some with actions at random, which its own masks are kept for, too.
    if book.complaints:
        raise Fault("check: an action that is none", "; ".join(book.complaints[:3]))
    return out


def options(said: dict[str, Any], mask: str) -> dict[str, Any]:
    sizes = {"ppo": {"unroll": 8, "batch": STREAMS}, "dqn": {"batch": 4}}[said["algorithm"]]
    settings = ["placement.precision=fp32", "placement.threads=1", "algorithm.hidden=[8]"]
    settings += (
        ["algorithm.epochs=1"]
        if said["algorithm"] == "ppo"
        else ["replay.starts_at=8", "replay.capacity=64", "replay.updates=8"]
    )
    return {
        "algorithm": said["algorithm"],
        "env_kwargs": {"said": said},
        "settings": settings,
        "recipe": False,
        "actors": 1,
        "envs_per_actor": STREAMS,
        "evaluate_episodes": 0,
        "action_mask": mask,
        **sizes,
        **({"metrics": ["speed"]} if said["metrics"] else {}),
    }


def finished(run: Any, steps: Any) -> tuple[list[str], bool]:
    """Run to the end with every batch in ``steps`` -> what was said on the way, and whether
    episodes were aborted.
    """
    said, aborted = list[str](), 0
    with steps, run:
        for report in run:
            aborted = max(aborted, report.aborted)
    if aborted:
        said.append(f"{aborted} episodes aborted")
    return said, bool(aborted)


class Batches(contextlib.AbstractContextManager[Any]):
    """Copies of what the learner got."""

    def __enter__(self) -> Batches:
        from equipoise.learners.learner import Learner

        self.seen: list[Any] = []
        self._patch = pytest.MonkeyPatch()
        before = Learner.step

        def step(learner: Any, batch: Any) -> Any:
            self.seen.append(copied(batch.data))
            return before(learner, batch)

        self._patch.setattr(Learner, "step", step)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()


def copied(value: Any) -> Any:
    import dataclasses

    if isinstance(value, dict):
        return {key: copied(one) for key, one in value.items()}
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(
            value, **{f.name: copied(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )  # type: ignore[type-var]
    return np.array(value) if hasattr(value, "shape") else value


def trained(said: dict[str, Any], mask: str, out: Path) -> Outcome:
    from equipoise import api
    from equipoise.tuning import sizing

    outcome, batches, book = Outcome(), Batches(), env_law.new_book()
    try:
        with quiet() as caught:
            # The look at an env's pace, which ``train`` takes where no sizes are named.
            with contextlib.suppress(sizing.NotMeasured):
                sizing.measured(api.program(TARGET, steps=48, **options(said, mask)))
            run = api.start(
                TARGET, steps=48, on="serial", out=out, tensorboard=False, **options(said, mask)
            )
            early, book = book.complaints, env_law.new_book()
            outcome.said, aborted = finished(run, batches)
        told = [str(one.message) for one in caught if issubclass(one.category, RuntimeWarning)]
        outcome.warned = [text for text in told if "Drawn" in text]
        if run.summary is None or run.summary["status"] != "completed":
            raise Fault("train: no end", str(run.summary))
        book.complaints += early
        if not batches.seen:
            raise Fault("train: no update")
        wrong = [] if aborted and said["kind"] != "env" else proven(said, batches.seen, book)
        if wrong:
            raise Fault(f"rows: {wrong[0].partition(' ')[0]}", "; ".join(wrong[:4]))
    except Exception as error:
        if isinstance(error, Fault):
            raise
        outcome.said, outcome.refused = [judged(error, "train")], True
    if book.complaints:
        raise Fault("train: an action that is none", "; ".join(book.complaints[:3]))
    outcome.bent = env_law.BOOK.bent
    return outcome


REFUSES = {  # what an env with which nothing is wrong may be refused for, all the same
    "collect": ("NEXT_STEP", "of one agent", "that Minari can keep"),
}


def after(said: dict[str, Any], out: Path, what: str) -> None:
    """Resume, collect, play, evaluate, or export and serve a run of an env with which nothing is
    wrong.
    """
    from equipoise import api

    env_law.new_book()
    try:
        with quiet():
            if what == "resume":
                with unheard_replays():
                    finished(api.start(resume=out, steps=80), Batches())
            elif what == "collect":
                made = api.collect(out, out.parent / "data", episodes=2)
                held(said, list(made))
            elif what == "evaluate":
                api.evaluate(out, episodes=2)
            elif what == "act":
                acts(said, api.load(out))
            else:
                api.export(out, out.parent / "artifact", rows=16)
                served(said, api.load(out).spec.observation, out.parent / "artifact")
    except Fault:
        raise
    except Exception as error:
        text = judged(error, what)
        if not any(part in text for part in REFUSES.get(what, ())):
            raise Fault(f"{what}: refused: {shape(text)}", text) from error
    if env_law.BOOK.complaints:
        raise Fault(f"{what}: an action that is none", "; ".join(env_law.BOOK.complaints[:3]))


@contextlib.contextmanager
def unheard_replays() -> Iterator[None]:
    """An env that is no function of its seed and its actions has other masks while a resume tries
    them, and then restarts.
    """
    from equipoise.envs.restore.record import Record

    before, patch = Record._replay, pytest.MonkeyPatch()

    def replay(record: Any, *given: Any) -> Any:
        heard = len(env_law.BOOK.complaints)
        came = before(record, *given)
        del env_law.BOOK.complaints[heard:]
        return came

    with patch.context() as patched:
        patched.setattr(Record, "_replay", replay)
        yield


def looked(said: dict[str, Any], space: Any, i: int) -> Any:
    """A member of the space that a policy was trained with,
    whose mask (if it has one) allows all.
    """
    value = env_grammar.member(space, "again", i)
    if (
        isinstance(value, dict)
        and "action_mask" in value
        and (set(said["odd"]) & {"mask_info", "mask_obs"})
    ):
        ones = value["action_mask"]
        value["action_mask"] = (
            tuple(np.ones_like(one) for one in ones)
            if isinstance(ones, tuple)
            else np.ones_like(ones)
        )
    return value


def acts(said: dict[str, Any], player: Any) -> None:
    for i in range(2):
        action = player.act(looked(said, player.spec.observation, i))
        if not player.spec.action.contains(action):
            raise Fault(
                "act: an action that is none", f"{action!r} is no member of {player.spec.action}"
            )


def held(said: dict[str, Any], episodes: list[Any]) -> None:
    """Two episodes with the rewards and the ends that the law gives, where nothing was bent."""
    if not episodes:
        raise Fault("collect: no episode")
    for one in episodes:
        ended = np.logical_or(one.terminated, one.truncated)
        if not ended[-1] or ended[:-1].any():
            raise Fault("collect: an episode that does not end with its end", str(ended))


def sendable(value: Any) -> Any:
    """An observation as JSON has it."""
    if isinstance(value, dict):
        return {key: sendable(one) for key, one in value.items()}
    return (
        [sendable(one) for one in value] if isinstance(value, tuple) else np.asarray(value).tolist()
    )


def served(said: dict[str, Any], space: Any, folder: Path) -> None:
    """One act of the exported policy, by the service without a socket."""
    import asyncio

    from equipoise.registry import Registry
    from equipoise.serving.messages import Act
    from equipoise.serving.service import Service
    from equipoise.serving.sessions import Sessions
    from equipoise.serving.settings import Rules
    from equipoise.serving.store import Store
    from equipoise.serving.versions import Versions

    made = Registry(folder.parent / "registry", create=True)
    made.alias("drawn", "champion", made.add(folder, "drawn"))
    sent = sendable(looked(said, space, 0))

    async def ask() -> Any:
        versions = Versions(made, "drawn", Rules(), batch=4)
        versions.start()
        try:
            answer = asyncio.get_running_loop().create_future()
            Service(versions, Store(None), Sessions(60.0, 10), seed=0).act(
                Act(sent), lambda found: answer.set_result(found[0])
            )
            return await asyncio.wait_for(answer, 10)
        finally:
            versions.stop(10.0)

    asyncio.run(ask())


def attempt(said: dict[str, Any]) -> None:
    way = said["odd"].get("mask_info")
    law = env_law.Law(said)
    mask = "info" if way is not None and law.counts else "auto"
    before = checked(said, mask)
    with tempfile.TemporaryDirectory(prefix="drawn-") as folder:
        out = Path(folder) / "run"
        then = trained(said, mask, out)
        agree(before, then, MILD + CHANGES * (said["since"] > 0), hidden="wrapper" in said["odd"])
        if then.fine:
            for what in said["then"]:
                after(said, out, what)


def agree(check: Outcome, train: Outcome, mild: tuple[str, ...], *, hidden: bool) -> None:
    for name, one in (("check", check), ("train", train)):
        # then nobody asks for a mask among the observations
        if any(way.startswith("mask_info") for way in one.bent):
            one.bent -= {way for way in one.bent if way.startswith("mask_obs")}
        unread = sorted(
            way
            for way in one.bent
            if way.partition(":")[2] in UNREADABLE.get(way.partition(":")[0], ())
        )
        if hidden:  # a wrapper may make something of it
            unread = [way for way in unread if not way.startswith("values:")]
        if one.fine and unread and not one.warned:
            raise Fault(f"{name} is fine with {unread[0]}")
    asked = train.refused and train.said[0].startswith(ASKED)
    large = (
        train.refused
        and "finite grad_norm" in train.said[0]
        and any("has large numbers" in note for note in check.notes)
    )
    if check.fine and not train.fine and not asked and not large and not (train.bent - check.bent):
        raise Fault(f"check is fine, train is not: {shape(train.said[0])}", "\n".join(train.said))
    if (
        train.fine
        and not train.warned
        and not check.fine
        and not (check.bent - train.bent)
        and not all(any(part in text for part in mild) for text in check.said)
    ):
        raise Fault(f"train is fine, check is not: {shape(check.said[0])}", "\n".join(check.said))


ASKED = (
    "metrics: ",
    "policies.",
    "action space: expected a Discrete",
)  # what is wrong with the run that was asked for, not with the env
MILD = (
    "bounds",
    "outside",
    "no bool",
    "dtype",
    "is no member",
    "cast",
    "a time limit is reported as terminated",
    "keeps running statistics",
    "a rule of PettingZoo's parallel_api_test",  # of those that training does not need
)
# An env whose odd form begins after its first calls: another number of digits, or outside of
# bounds, at which training looks in some rows only of a native vector env.
CHANGES = ("does not begin again", "leaves its space")


def shape(text: str) -> str:
    """A sentence without its values."""
    words = [word for word in text.split() if word.strip(".,:;()").isalpha()]
    return " ".join(words[:12])


DOORS = [
    Door(
        name="envs",
        examples=env_grammar.examples,
        attempt=attempt,
        hang_s=60.0,
        growth_mb=64.0,
        quick=12,
        full=250,
    )
]
PLANTED = envs_planted.PLANTED
