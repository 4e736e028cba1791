"""Study folders as a study writes them, made without one: settings, a journal, and a few runs."""

from __future__ import annotations

import json
import math
import random
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from equipoise.programs.config_file import for_toml
from equipoise.studies.history import Clone, End, Entry, GoOn, Result, Start, Stop
from equipoise.studies.journal import JOURNAL, line_of
from equipoise.studies.settings import STUDY, TRIALS
from equipoise.studies.space import Value, read_space
from tests.report import made

SPACE = (
    "optimizer.learning_rate=log:1e-5..1e-2",
    "algorithm.gamma=0.9,0.99",
    "policy.unroll=8..64",
)
STEPS = 10_000


def study(
    folder: Path,
    entries: Sequence[Entry],
    *,
    strategy: str = "random",
    env: str = "CartPole-v1",
    space: Sequence[str] = SPACE,
    jobs: int = 2,
    runs: int = 0,
) -> Path:
    """A study folder whose journal has ``entries``; its first ``runs`` trials have a directory."""
    folder.mkdir(parents=True)
    settings = {"strategy": strategy, "space": [*space], "trials": 8, "jobs": jobs}
    data = {"study": settings, "program": for_toml(made.program(env=env))}
    (folder / STUDY).write_text(tomli_w.dumps(data))
    write(folder, entries)
    for trial in [one.trial for one in entries if isinstance(one, Start)][:runs]:
        made.run(folder / TRIALS / trial, env=env)
    return folder


def write(folder: Path, entries: Sequence[Entry]) -> None:
    lines = [line_of(entry, n, time.time()) for n, entry in enumerate(entries)]
    (folder / JOURNAL).write_bytes(b"".join(lines))


def score(settings: Mapping[str, Value], draw: random.Random) -> float:
    """A score that depends on the learning rate alone, with noise."""
    return (
        100 - 20 * abs(math.log10(float(settings["optimizer.learning_rate"])) + 3) + draw.random()
    )


def searched(trials: int, *, seed: int = 0, end: bool = True) -> list[Entry]:
    """A search at random: each trial begins and ends, and every tenth fails."""
    draw, space, entries = random.Random(seed), read_space(SPACE), list[Entry]()
    for n in range(trials):
        name, settings = f"t{n:04}", space.at([draw.random() for _ in space])
        entries.append(Start(trial=name, settings=settings, to=STEPS, reason="the next draw"))
        if n % 10 == 9:
            entries.append(Result(trial=name, steps=100, state="failed", error="the env broke"))
            continue
        entries.append(
            Result(
                trial=name,
                steps=STEPS,
                state="paused",
                score=score(settings, draw),
                seconds=10.0,
                core_seconds=20.0 * draw.random(),
            )
        )
    return [*entries, End(best=None, reason="every setting was tried")] if end else entries


def halved(trials: int, *, seed: int = 0) -> list[Entry]:
    """Successive halving: all trials train for a while, and the better half of them goes on."""
    draw, space, entries = random.Random(seed), read_space(SPACE), list[Entry]()
    names = [f"t{n:04}" for n in range(trials)]
    settings = {name: space.at([draw.random() for _ in space]) for name in names}
    steps = STEPS // 4
    for name in names:
        entries.append(Start(trial=name, settings=settings[name], to=steps, reason="rung 0"))
        entries.append(_result(name, steps, score(settings[name], draw)))
    while len(names) > 1 and steps < STEPS:
        names.sort(key=lambda name: -score(settings[name], draw))
        names, out, steps = names[: len(names) // 2], names[len(names) // 2 :], 2 * steps
        entries += [Stop(trial=name, reason="below the better half") for name in out]
        for name in names:
            entries.append(GoOn(trial=name, to=steps, reason="the better half"))
            entries.append(_result(name, steps, score(settings[name], draw)))
    return entries


def bred(members: int, generations: int, *, seed: int = 0) -> list[Entry]:
    """A population: in each generation the best member's clone takes the worst one's place."""
    draw, space, entries = random.Random(seed), read_space(SPACE), list[Entry]()
    live = [f"m{n:02}" for n in range(members)]
    settings = {name: space.at([draw.random() for _ in space]) for name in live}
    gain = dict[str, float]()  # of a clone over the trials that it comes from
    length = STEPS // (generations + 1)
    for name in live:
        entries.append(Start(trial=name, settings=settings[name], to=length, reason="a member"))
        entries.append(_result(name, length, score(settings[name], draw)))
    for g in range(1, generations + 1):
        live.sort(key=lambda name: -gain.get(name, 0) - score(settings[name], draw))
        worst, clone, to = live.pop(), f"g{g:02}", (g + 1) * length
        gain[clone] = gain.get(live[0], 0) + 5
        rate = float(settings[live[0]]["optimizer.learning_rate"]) * 0.8
        settings[clone] = {**settings[live[0]], "optimizer.learning_rate": rate}
        reason = f"{worst} is the worst, and {live[0]} the best"
        entries.append(Stop(trial=worst, reason=reason))
        entries.append(
            Clone(trial=clone, source=live[0], settings=settings[clone], to=to, reason=reason)
        )
        entries += [GoOn(trial=name, to=to, reason="the next generation") for name in live]
        live.append(clone)
        entries += [
            _result(name, to, gain.get(name, 0) + score(settings[name], draw)) for name in live
        ]
    return entries


def _result(name: str, steps: int, value: float) -> Result:
    return Result(
        trial=name, steps=steps, state="paused", score=value, seconds=5.0, core_seconds=8.0
    )


def raw_line(number: int, **fields: object) -> bytes:
    """A line with a right checksum and any fields, as another program might write it."""
    text = json.dumps({"n": number, **fields})
    return f'{text[:-1]}, "crc": {zlib.crc32(text.encode())}}}\n'.encode()
