"""Kills of a run that trains a language model: what becomes of each prompt, and of the weights.

    .venv/bin/python benchmarks/lm_kills.py [ours] [--moments 20] [--scenarios lockstep,async,turns]
        [--roles driver,learner] [--every 5] [--json FILE]
    .venv/bin/python benchmarks/lm_kills.py trl --python ~/.cache/equipoise-peers/trl/bin/python

The scenario asks nothing of a system but what each has: a list of prompts with unique ids, a reward
function that writes down the ids that it is given, and a line of the log for each update with the
ids that it learned from (``lm_kills_task.py`` has the form). One run of each scenario is left
alone. Others, one for each role, are killed: SIGKILL to that role, at ``--moments`` moments drawn
by a seed, each some hundredths of a second after an update. If the system does not go on by itself,
it is started again at once as its documentation recommends. Afterwards the log must show that

    each prompt that the run left alone learned from was also learned from here, each of its samples
    once in the updates that led to the last weights, or it was dropped for a reason that the system
    reports;
    no process was given the samples of a prompt twice (a prompt is issued again by a successor);
    at a lag of 0, the last weights have the same hash.

An update that was done again counts as it was done the last time, since what was learned before a
rollback is not in the weights.

lockstep  one turn, max_lag 0                    async  one turn, max_lag 4
turns     at most three turns, max_lag 1         lockstep-turns  the same, max_lag 0

To try another system, write a class with the methods of ``System``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from harness import host, markdown

HERE = Path(__file__).resolve().parent
POLL_S = 0.005
STALLED_S = 180.0  # without a line of the log a run is stuck
GONE_S = 20.0  # for what is left of a killed run
LATE_S = 0.15  # most seconds between an update and the kill after it
# Roles that each system has: the process of its command, the same while it evaluates, all processes
DRIVER, EVALUATOR, MACHINE = "driver", "evaluator", "machine"
NOBODY = "nobody"
HELD_OUT = "held_out"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Sizes of a run; ``max_lag``: updates that a sample may be older than the weights."""

    name: str
    max_lag: int
    turns: bool = False
    updates: int = 60
    prompts: int = 8  # of an update
    group: int = 4  # samples of a prompt
    every: int = 5  # updates between two checkpoints
    evaluated: int = 3  # updates between two evaluations; 0: none
    completion: int = 7  # tokens
    seed: int = 1

    @property
    def rows(self) -> int:
        """Prompts of the list: more than are learned from, so that none comes twice."""
        return self.prompts * (self.updates + 8)


SCENARIOS = {
    one.name: one
    for one in (
        Scenario(name="lockstep", max_lag=0),
        Scenario(name="async", max_lag=4),
        Scenario(name="turns", max_lag=1, turns=True, completion=12),
        Scenario(name="lockstep-turns", max_lag=0, turns=True, completion=12),
    )
}


class System(Protocol):
    """The adapter of a system that trains language models.

    Its processes get ``LM_KILLS_LOG`` in their environment. They write the lines of
    ``lm_kills_task.py``: "scored" by its reward function (or, in a scenario of several turns, by
    its partner ``Count``) and "trained" after each optimiser step, with the step's number, from 0,
    counted from the first step that led to these weights. A checkpoint is due after every
    ``scenario.every`` updates. All that is random comes from ``scenario.seed``.
    """

    name: str

    def roles(self, scenario: Scenario) -> Sequence[str]:
        """Names of the kinds of processes that are killed; "driver" is the command's own process,
        "evaluator" the same during an evaluation, "machine" all at once. Empty: the system has no
        such scenario."""

    def prepare(self, scenario: Scenario, place: Path) -> None:
        """Make models and files of prompts in ``place``, which all runs of a scenario share."""

    def command(self, scenario: Scenario, place: Path, out: Path, *, again: bool) -> list[str]:
        """The command that begins a run in the directory ``out``; ``again``: a run was killed
        there, and goes on as the system's documentation recommends."""

    def victims(self, role: str, tree: Mapping[int, str]) -> Sequence[int]:
        """The processes of a role among the driver and all that it started, which come as numbers
        and command lines."""

    def ids(self, line: Mapping[str, Any], out: Path) -> list[str]:
        """The ids of a line of the log, one for each sample."""

    def held_out(self, line: Mapping[str, Any]) -> bool:
        """Is the line of an evaluation?"""

    def dropped(self, out: Path) -> Mapping[str, str]:
        """The ids that the system reports as not learned from, and its reasons."""

    def digest(self, out: Path) -> str:
        """A hash of the last weights."""

    def mend(self, out: Path) -> bool:
        """Do what a person has to do if a run that was killed does not start again; False: nothing
        helps."""


# ------------------------------------------------------------------------------------------ judging


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of the prompts of a run, as counts of prompts."""

    trained: int  # each sample once
    dropped: int  # with a reason
    again: int  # given to the reward function more than once, by different processes
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)  # in the last weights
    repeated: list[str] = field(default_factory=list)  # given twice by one process
    same: bool = True  # the hash, where it must be

    @property
    def passed(self) -> bool:
        return self.same and not (self.lost or self.twice or self.repeated)


def lineage(trained: Iterable[tuple[int, Sequence[str]]], updates: int) -> list[Sequence[str]]:
    """The ids of each update of the last weights; ValueError if one has no line."""
    last = dict(trained)
    if missing := sorted({*range(updates)} - {*last}):
        raise ValueError(
            f"log: expected a line for each of {updates} updates, got none for {missing}"
        )
    return [last[update] for update in range(updates)]


def judge(
    wanted: Collection[str],
    trained: Sequence[Sequence[str]],
    scored: Iterable[tuple[int, Sequence[str]]],
    dropped: Mapping[str, str],
    *,
    group: int,
    same: bool = True,
) -> Verdict:
    """Compare the updates of the last weights with what the run left alone learned from.

    ``scored``: process and ids of each call of the reward function; ``group``: samples of a prompt,
    which may be in several updates.
    """
    samples = Counter(one for ids in trained for one in ids)
    twice = [one for one, count in samples.items() if count > group]
    whole = {one for one, count in samples.items() if count == group}
    given = Counter((process, one) for process, ids in scored for one in ids)
    processes = Counter(one for _, one in given)
    return Verdict(
        trained=len(whole),
        dropped=sum(one in dropped for one in wanted if one not in whole),
        again=sum(count > 1 for count in processes.values()),
        lost=sorted(one for one in wanted if one not in {*whole, *twice, *dropped}),
        twice=sorted(twice),
        repeated=sorted({one for (_, one), count in given.items() if count > group}),
        same=same,
    )


# ------------------------------------------------------------------------------------------ running


def below(root: int) -> dict[int, str]:
    """``root`` and all living processes that it started, and theirs: number and command line."""
    parents, found = dict[int, int](), dict[int, str]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended while we looked
                state, parent = (entry / "stat").read_text().rpartition(") ")[2].split()[:2]
                if state not in "ZX":
                    parents[int(entry.name)] = int(parent)
    for pid in parents:
        at = pid
        while at in parents and at != root:
            at = parents[at]
        if at == root:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found[pid] = words.decode(errors="replace").strip()
    return found


class Stuck(Exception):
    """A run that neither ended nor went on."""


class Killed:
    """One run that is killed, and all commands that it took."""

    def __init__(self, system: System, scenario: Scenario, place: Path, out: Path) -> None:
        self._system, self._scenario, self._place, self._out = system, scenario, place, out
        self._log, self._printed = Path(f"{out}.log"), Path(f"{out}.txt")
        self._log.touch()
        self._read = 0  # bytes of the log
        self.lines: list[dict[str, Any]] = []
        self.kills = self.mended = 0
        self.errors: list[str] = []  # for which a person had to help
        self._heard = time.monotonic()
        self._process = self._start(again=False)

    def _start(self, *, again: bool) -> subprocess.Popen[bytes]:
        command = self._system.command(self._scenario, self._place, self._out, again=again)
        env = os.environ | {
            "LM_KILLS_LOG": str(self._log),
            "PYTHONPATH": f"{HERE}:{HERE.parent / 'src'}",
        }
        self._heard = time.monotonic()
        with self._printed.open("ab") as printed:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=env,
                cwd=self._place,
            )

    def look(self) -> list[dict[str, Any]]:
        """Read the lines that are new."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        if new:
            self._heard = time.monotonic()
        return new

    def evaluates(self, line: Mapping[str, Any]) -> bool:
        """Is it a line of an evaluation?"""
        return line["event"] == "scored" and self._system.held_out(line)

    def ended(self) -> bool:
        """Has the run ended? ``Stuck`` if it failed, or wrote no line for long."""
        code = self._process.poll()
        if code == 0:
            self.look()
            return True
        if code is not None and self.mended < self.kills and self._system.mend(self._out):
            self.mended += 1
            self.errors.append(self._last())
            self._process = self._start(again=True)
            return False
        quiet = time.monotonic() - self._heard
        if code is not None or quiet > STALLED_S:
            text = self._printed.read_text(errors="replace")[-1500:]
            self.close()
            why = (
                f"exit code {code}" if code is not None else f"no line of the log for {quiet:.0f} s"
            )
            raise Stuck(f"{self._out.name}: {why}\n{text}")
        time.sleep(POLL_S)
        return False

    def _last(self) -> str:
        """The last line that the commands printed."""
        return (self._printed.read_text(errors="replace").strip().splitlines() or [""])[-1]

    def kill(self, role: str, draw: random.Random) -> bool:
        """SIGKILL a process of the role -> was there one? Start again what does not go on."""
        root = self._process.pid
        tree = below(root)
        if role in (DRIVER, EVALUATOR):
            victims: Sequence[int] = [root]
        else:
            victims = [*tree] if role == MACHINE else self._system.victims(role, tree)
        if not victims:
            return False
        chosen = victims if role == MACHINE else [draw.choice(sorted(victims))]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kills += 1
        if root in chosen:
            self._process.wait()
            self._gone(tree)
            self._process = self._start(again=True)
        return True

    def _gone(self, tree: Mapping[int, str]) -> None:
        """Wait until the run's other processes have ended by themselves."""
        until = time.monotonic() + GONE_S
        while left := [pid for pid, words in tree.items() if words and words == _words(pid)]:
            if time.monotonic() > until:
                raise Stuck(
                    f"left behind {GONE_S:.0f} s after SIGKILL: {[tree[pid] for pid in left]}"
                )
            time.sleep(POLL_S)

    def close(self) -> None:
        for pid in below(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _words(pid: int) -> str:
    """The command line of a living process, else ""."""
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        return "" if state in "ZX" else words.decode(errors="replace").strip()
    return ""


def killed(run: Killed, role: str, moments: int, seed: int, updates: int) -> None:
    """Kill the role at moments drawn by ``seed``, then let the run end."""
    draw = random.Random(f"{seed} {role}")
    due = sorted(draw.sample(range(updates), min(moments, updates)))
    at, evaluates = -1, False  # the newest update; is an evaluation under way?
    while due and not run.ended():
        new = run.look()
        at = max([at, *(one["update"] for one in new if one["event"] == "trained")])
        evaluates = any(run.evaluates(one) for one in new)
        if at >= due[0] and (evaluates or role != EVALUATOR):
            until = time.monotonic() + draw.uniform(
                0.0, LATE_S if role != EVALUATOR else LATE_S / 5
            )
            while time.monotonic() < until and not run.ended():
                run.look()
            while not run.ended() and not run.kill(role, draw):
                run.look()
            due.pop(0)
    while not run.ended():
        run.look()


def verdict(
    system: System, scenario: Scenario, run: Killed, out: Path, wanted: Collection[str], digest: str
) -> Verdict:
    return judge(
        wanted,
        learned(system, scenario, run, out),
        [
            (one["process"], system.ids(one, out))
            for one in run.lines
            if one["event"] == "scored" and not system.held_out(one)
        ],
        system.dropped(out),
        group=scenario.group,
        same=scenario.max_lag > 0 or system.digest(out) == digest,
    )


def learned(system: System, scenario: Scenario, run: Killed, out: Path) -> list[Sequence[str]]:
    lines = [one for one in run.lines if one["event"] == "trained"]
    return lineage([(one["update"], system.ids(one, out)) for one in lines], scenario.updates)


# ---------------------------------------------------------------------------------------- equipoise


class Ours:
    """Equipoise: one learner, two generators, on processes."""

    name = "equipoise"
    titles: Mapping[str, str] = {
        "learner": "equipoise learner",
        "generator": "equipoise generator",
        "reward": "equipoise reward",
    }

    def roles(self, scenario: Scenario) -> Sequence[str]:
        # a partner of conversations runs in the generator
        workers = ["generator", "learner"] if scenario.turns else ["reward", "generator", "learner"]
        return [*workers, DRIVER, EVALUATOR, MACHINE]

    def __init__(self) -> None:
        self._held_out = set[str]()  # ids

    def prepare(self, scenario: Scenario, place: Path) -> None:
        if scenario.turns:
            from equipoise.language import tasks

            held_out = tasks.make("lm_kills_task:Count", seed=scenario.seed).held_out
            self._held_out = {str(one.columns["id"]) for one in held_out}
        else:
            self._held_out = _sorting(scenario, place)

    def held_out(self, line: Mapping[str, Any]) -> bool:
        return line["ids"][0] in self._held_out

    def command(self, scenario: Scenario, place: Path, out: Path, *, again: bool) -> list[str]:
        begin = [sys.executable, "-c", "from equipoise.cli import main; main()"]
        if again and any(out.glob("checkpoints/step_*/manifest.json")):
            return [*begin, "resume", str(out), "--quiet"]
        shutil.rmtree(out, ignore_errors=True)
        samples = scenario.prompts * scenario.group
        given = {
            "--algorithm": "lm_kills_ours:Logged",
            "--model": "tiny" if scenario.turns else place / "model",
            "--batch": samples,
            "--steps": samples * scenario.updates,
            "--max-lag": scenario.max_lag,
            "--actors": 2,
            "--max-completion-length": scenario.completion,
            "--checkpoint-every": samples * scenario.every,
            "--evaluate-episodes": scenario.prompts if scenario.evaluated else 0,
            "--seed": scenario.seed,
            "--on": "process",
            "--out": out,
        }
        if scenario.evaluated:
            given["--evaluate-every"] = samples * scenario.evaluated
        settings = [f"algorithm.num_generations={scenario.group}", "optimizer.learning_rate=1e-3"]
        if scenario.turns:
            settings += ["source.turn_tokens=2"]  # leaves tokens for three turns
        else:
            given["--reward"] = "lm_kills_task:reward"
            settings += [f"source.arguments=held_out={place / HELD_OUT}.jsonl"]
        task = "lm_kills_task:Count" if scenario.turns else str(place / "prompts.jsonl")
        words = [str(word) for option in given.items() for word in option]
        words += [word for one in settings for word in ("--set", one)]
        return [*begin, "train", task, *words, "--no-tensorboard", "--quiet"]

    def victims(self, role: str, tree: Mapping[int, str]) -> Sequence[int]:
        title = self.titles[role]
        return [pid for pid, words in tree.items() if words.startswith(title)]

    def ids(self, line: Mapping[str, Any], out: Path) -> list[str]:
        if "ids" in line:
            return [str(one) for one in line["ids"]]
        from equipoise.record.directory import RunDirectory
        from equipoise.sources.text import texts_of

        examples = texts_of(RunDirectory.open(out).program).text().train.examples
        return [str(examples[number].columns["id"]) for number in line["numbers"]]

    def dropped(self, out: Path) -> Mapping[str, str]:
        found = dict[str, str]()
        for path in out.glob("capsules/reward-*.json"):
            capsule = json.loads(path.read_text())
            found |= dict.fromkeys(capsule["samples"]["columns"]["id"], capsule["error"])
        return found

    def digest(self, out: Path) -> str:
        return str(json.loads((out / "summary.json").read_text())["params_sha256"])

    def mend(self, out: Path) -> bool:
        return False


def _sorting(scenario: Scenario, place: Path) -> set[str]:
    """Digits to be sorted, and a model of 0.09M parameters in the layout of the hub -> the ids of
    the held-out prompts.
    """
    from equipoise import api

    draw = random.Random(scenario.seed)
    texts = ["".join(one) for one in product("012", repeat=6)]
    draw.shuffle(texts)
    held_out = texts[scenario.rows : scenario.rows + scenario.prompts]
    for name, part in (("prompts", texts[: scenario.rows]), (HELD_OUT, held_out)):
        lines = [{"id": one, "prompt": f"{one}>", "answer": "".join(sorted(one))} for one in part]
        (place / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    given: dict[str, Any] = {"steps": 64, "batch": 64, "evaluate_episodes": 0}
    with api.start("sort", "grpo", out=place / "first", on="serial", **given) as run:
        for _ in run:
            pass
    api.export(place / "first", place / "model")
    return {*held_out}


# ---------------------------------------------------------------------------------------------- TRL


class Trl:
    """TRL's GRPOTrainer, which is one process. ``python``: that of its environment."""

    name = "TRL 1.16"

    def __init__(self, python: Path) -> None:
        self._python, self._held_out = python, set[str]()

    def roles(self, scenario: Scenario) -> Sequence[str]:
        return [] if scenario.turns else [DRIVER, EVALUATOR]

    def prepare(self, scenario: Scenario, place: Path) -> None:
        self._held_out = _sorting(scenario, place)

    def command(self, scenario: Scenario, place: Path, out: Path, *, again: bool) -> list[str]:
        if not again:
            shutil.rmtree(out, ignore_errors=True)
        script = HERE / "peers/run_trl_kills.py"
        return [str(self._python), str(script), json.dumps(asdict(scenario)), str(place), str(out)]

    def victims(self, role: str, tree: Mapping[int, str]) -> Sequence[int]:
        return []

    def ids(self, line: Mapping[str, Any], out: Path) -> list[str]:
        return [str(one) for one in line["ids"]]

    def held_out(self, line: Mapping[str, Any]) -> bool:
        return line["ids"][0] in self._held_out

    def dropped(self, out: Path) -> Mapping[str, str]:
        return {}

    def digest(self, out: Path) -> str:
        return hashlib.sha256((out / "final/model.safetensors").read_bytes()).hexdigest()

    def mend(self, out: Path) -> bool:
        """Remove the newest checkpoint, which the kill may have torn."""
        found = sorted(out.glob("checkpoint-*"), key=lambda one: int(one.name.rpartition("-")[2]))
        if found:
            shutil.rmtree(found[-1])
        return bool(found)


# ------------------------------------------------------------------------------------------ a table


HEAD = (
    "scenario", "role killed", "kills", "prompts", "trained once", "dropped", "again", "lost",
    "twice", "twice by one process", "hash", "by hand", "s",
)  # fmt: skip


def campaign(system: System, scenario: Scenario, a: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a scenario alone and with each role killed -> a row of each."""
    roles = [one for one in system.roles(scenario) if not a.roles or one in a.roles.split(",")]
    rows, alone = [], dict[int, tuple[list[str], str]]()
    with tempfile.TemporaryDirectory(prefix="equipoise-kills-") as folder:
        place = Path(folder)
        if roles:
            system.prepare(scenario, place)
        for role in roles:
            # only a run whose evaluator is killed has evaluations, and so has the run beside it
            sized = replace(scenario, evaluated=scenario.evaluated * (role == EVALUATOR))
            if sized.evaluated not in alone:
                row, alone[sized.evaluated] = attacked(system, sized, place, NOBODY, ([], ""), a)
                rows.append(row)
            rows.append(attacked(system, sized, place, role, alone[sized.evaluated], a)[0])
    return rows


def attacked(
    system: System,
    scenario: Scenario,
    place: Path,
    role: str,
    alone: tuple[list[str], str],
    a: argparse.Namespace,
) -> tuple[dict[str, Any], tuple[list[str], str]]:
    """Run a scenario and kill the role -> the row of the table, its prompts and its hash.

    ``alone``: prompts and hash of the run that nobody kills, which has them from itself.
    """
    out, began = place / f"run {role} {scenario.evaluated}", time.monotonic()
    run = Killed(system, scenario, place, out)
    row: dict[str, Any] = {"system": system.name, "scenario": scenario.name, "role": role}
    try:
        killed(run, role, 0 if role == NOBODY else a.moments, a.seed, scenario.updates)
        if role == NOBODY:
            ids = {one for update in learned(system, scenario, run, out) for one in update}
            alone = sorted(ids), system.digest(out)
        found = verdict(system, scenario, run, out, *alone)
        row |= asdict(found) | {"passed": found.passed}
    except (Stuck, ValueError) as error:
        row |= {"passed": False, "failed": str(error)}
    finally:
        run.close()
    row |= {"kills": run.kills, "by_hand": run.mended, "prompts": len(alone[0])}
    row["errors"] = run.errors
    row["seconds"] = round(time.monotonic() - began, 1)
    short = {k: len(v) if isinstance(v, list) else v for k, v in row.items()}
    print(json.dumps(short), flush=True)
    return row, alone


def cells(row: Mapping[str, Any], lag: int) -> list[object]:
    """A row of the table."""
    begin = [row["scenario"], row["role"], row["kills"], row["prompts"]]
    if "failed" in row:
        return [
            *begin,
            "failed: " + row["failed"].splitlines()[0][:80],
            *[""] * 6,
            row["by_hand"],
            row["seconds"],
        ]
    counts = [row["trained"], row["dropped"], row["again"]]
    counts += [len(row[name]) for name in ("lost", "twice", "repeated")]
    same = "-" if lag else "equal" if row["same"] else "another"
    return [*begin, *counts, same, row["by_hand"], row["seconds"]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("system", nargs="?", choices=["ours", "trl"], default="ours")
    parser.add_argument("--python", type=Path, help="of the system's environment")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--roles", default="", help="empty: all")
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="updates between two checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if a.system == "trl" and a.python is None:
        parser.error("trl: expected --python, the Python of TRL's environment (peers/setup.sh trl)")
    system: System = Trl(a.python) if a.system == "trl" else Ours()
    print(host(), flush=True)
    scenarios = [replace(SCENARIOS[name], every=a.every) for name in a.scenarios.split(",")]
    rows = [row for scenario in scenarios for row in campaign(system, scenario, a)]
    print(markdown(list(HEAD), [cells(row, SCENARIOS[row["scenario"]].max_lag) for row in rows]))
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
