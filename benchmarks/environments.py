"""Environments from outside: does each give a first curve within a minute, and does every word
about it help?

    .venv/bin/python benchmarks/environments.py [--only NAME ...] [--seconds 120] [--home .outside]
    [--advice] [--list]

Each family of environments has a virtual environment of its own under ``--home``. It sees the
packages of the one that runs this script through a ``.pth`` file, so that torch is not installed
again. In it ``equipoise check ENV`` runs, and then ``equipoise train ENV`` for ``--seconds`` in a
pipe, until Ctrl-C. The times of its lines and the run directory say the rest. ``--advice`` trains
once more with what the verdict advised. Every result is kept in ``--json``, and ``--page`` is
written anew from all of them after each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from commands import Command
from environment_rows import ENVS, FAMILIES, Env
from harness import host, markdown

from equipoise.record.report import read_reports
from equipoise.record.summary import read_summary

ROOT = Path(__file__).parents[1]
# where the commands run, so that its modules are found
HOME_MADE = Path(__file__).parent / "outside"
LEAVE_S = 60.0  # from Ctrl-C to the end of a run, at most
PIP_S, CHECK_S = 900.0, 240.0
TOLD = re.compile(r"(?:\d+:)?\d+:\d\d  ")  # the beginning of a line of the view
NO_STEP = re.compile(r"  0 steps  ")


# --------------------------------------------------------------------------- environments by family


def built(home: Path, family: str) -> tuple[Path, dict[str, str]]:
    """The Python of a family's environment, which is made where there is none, and the versions of
    what is in it alone.
    """
    place = home / family
    python, done = place / "bin" / "python", place / "done"
    site = place / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    wanted = json.dumps(FAMILIES[family])
    if not done.is_file() or done.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
        (site / "ours.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n{ROOT / 'src'}\n")
        for words in FAMILIES[family]:
            command = [
                sys.executable,
                "-m",
                "pip",
                "--python",
                str(python),
                "install",
                "--no-input",
                *words,
            ]
            with (place / "pip.log").open("ab") as log:
                subprocess.run(
                    command, check=True, timeout=PIP_S, stdout=log, stderr=subprocess.STDOUT
                )
        done.write_text(wanted)
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--path", str(site), "--format", "json"],
        check=True,
        capture_output=True,
    ).stdout
    return python, {one["name"]: one["version"] for one in json.loads(listed)}


# --------------------------------------------------------------------------------- check, and train


def named(texts: Iterable[str]) -> list[str]:
    """The texts without where the project and its Python lie on this machine, and the first 300
    characters of a line.
    """
    short = (
        text.replace(f"{ROOT}/", "").replace(sys.base_prefix, "PYTHON").replace(sys.prefix, "VENV")
        for text in texts
    )
    return [text[:300] for text in short]


def checked(python: Path, env: Env, seconds: float) -> dict[str, Any]:
    """What ``equipoise check`` says: exit code, seconds, and each finding."""
    run = Command(python, ["check", env.target, "--seconds", f"{seconds:g}"], HOME_MADE)
    run.ended(CHECK_S)
    seconds = run.now()
    left = run.close()
    found = [text for _, text in run.lines if text.startswith(("error  ", "note   "))]
    text = "\n".join(named(text for _, text in run.lines))
    one = {
        "code": run.process.returncode,
        "seconds": seconds,
        "findings": found,
        "left": named(left),
    }
    return one | ({"text": text} if found else {})


def trained(
    python: Path, env: Env, words: Sequence[str], place: Path, seconds: float
) -> dict[str, Any]:
    """One run until Ctrl-C: what its lines and its directory say."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    out, count = place / "run", place / "ended"
    load = os.getloadavg()[0]
    run = Command(
        python,
        ["train", env.target, *env.words, *words, "--out", str(out)],
        HOME_MADE,
        ENDED=str(count),
    )
    recorded_at = returned_at = None
    while run.now() < seconds and not run.ended(0.5):
        if returned_at is None:
            records = [
                one for one in read_reports(out / "metrics.jsonl", damaged=[]) if one["taken"]
            ]
            recorded_at = recorded_at or (run.now() if records else None)
            returned_at = (
                run.now() if any(one["return_mean"] is not None for one in records) else None
            )
    asked = run.now() if run.process.poll() is None else None
    if asked is not None:
        os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does
        run.ended(LEAVE_S)
    over = run.now()
    left = run.close()
    (place / "lines.txt").write_text("".join(f"{at:7.2f}  {text}\n" for at, text in run.lines))
    found = {
        "code": run.process.returncode,
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "seconds": asked or over,
        "leaves_s": None if asked is None else over - asked,
        "left": named(left),
        "recorded_at": recorded_at,
        "returned_at": returned_at,
        "command": ["equipoise", "train", env.target, *env.words, *words],
        "last_lines": named(text for _, text in run.lines[-12:]),
    }
    return found | of_lines(run.lines, over, recorded_at) | of_directory(out, count)


def of_lines(
    lines: Sequence[tuple[float, str]], over: float, recorded_at: float | None
) -> dict[str, Any]:
    """What the times of the lines say. Steps begin after the last line that knows of none, or up to
    5 s later.
    """
    times = [0.0, *(at for at, _ in lines), over]
    silences = [(b - a, a) for a, b in pairwise(times)]
    before = [
        at
        for at, text in lines
        if text.startswith("starting:") or (TOLD.match(text) and NO_STEP.search(text))
    ]
    steps_at = next(
        (at for at, text in lines if TOLD.match(text) and not NO_STEP.search(text)), None
    )
    no_step = max((at for at in before if steps_at is None or at < steps_at), default=0.0)
    longest, when = max(silences)
    return {
        "first_line": lines[0][0] if lines else None,
        "silence": longest,
        "silence_at": when,
        "steps_at": steps_at,
        "record_s": None if recorded_at is None else max(recorded_at - no_step, 0.0),
        "sizes": next((text for _, text in lines if "so the defaults are" in text), None),
    }


def of_directory(out: Path, count: Path) -> dict[str, Any]:
    """What the run directory says: steps, returns, the verdict, and whether the summary has every
    ended episode.
    """
    records = [one for one in read_reports(out / "metrics.jsonl", damaged=[]) if one["taken"]]
    summary = read_summary(out)
    returns = [one["return_mean"] for one in records if one["return_mean"] is not None]
    found: dict[str, Any] = {
        "records": len(records),
        "first_return": next(iter(returns), None),
        "last_return": next(reversed(returns), None),
        "ended": count.stat().st_size if count.is_file() else None,
        "summary": summary is not None,
        "recorded_episodes": records[-1]["episodes"] if records else 0,
    }
    if len(records) > 1:
        first, last = records[0], records[-1]
        span = max(last["wall_s"] - first["wall_s"], 1e-9)
        found["steps_per_s"] = (last["taken"] - first["taken"]) / span
    if (out / "run.json").is_file():
        found["placement"] = json.loads((out / "run.json").read_text())["program"]["placement"]
    if summary is not None:
        keys = (
            "status",
            "taken",
            "env_steps",
            "updates",
            "episodes",
            "return_mean",
            "verdict",
            "failures",
            "aborted",
            "notes",
        )
        found |= {key: summary[key] for key in keys} | {"printed": sum(summary["printed"].values())}
        found["logs_mib"] = sum(file.stat().st_size for file in (out / "logs").glob("*")) / 2**20
    return found


# --------------------------------------------------------------------------------------- the advice


def followed(verdict: str, place: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The options that a verdict advises, for a run that was placed so; None where it advises
    nothing that is an option.
    """
    actors, envs = int(place["actors"]), int(place["envs_per_actor"])
    if given := re.search(r"--actors \d+( --envs-per-actor \d+)?", verdict):
        return tuple(given[0].split())
    if "add envs per actor" in verdict:
        return "--envs-per-actor", str(2 * envs)
    if "add actors" in verdict or "more actors" in verdict:
        return "--actors", str(2 * actors)
    if "fewer actors" in verdict and actors > 1:
        return "--actors", str(actors // 2)
    if "raise --max-lag" in verdict:
        return "--max-lag", str((place["max_lag"] or 0) + 1)
    if "--on serial" in verdict:
        return "--on", "serial"
    return ("--threads", "2") if "more learner threads" in verdict else None


# ----------------------------------------------------------------------------------------- the page


HEAD = (
    "environment",
    "check",
    "first line",
    "longest silence",
    "first record",
    "first return",
    "run",
    "steps",
    "steps/s",
    "return, first → last",
    "episodes",
    "after Ctrl-C",
    "load",
)
COLUMNS = {
    "check": "what it found, and how long it took",
    "first line, first return": "from the command on",
    "longest silence": "between two lines, from the command to its end",
    "first record": "in `metrics.jsonl`, at most so long after the first steps (after the last "
    "line that knew of none)",
    "run": "from the command to Ctrl-C, start included",
    "episodes": "in `summary.json`; of those that the envs counted themselves, where they do. One "
    "more of each agent ended "
    "before the run, when the env's pace was measured",
    "after Ctrl-C": "until the command had ended",
}


def seconds_of(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f} s"


def row(name: str, one: Mapping[str, Any]) -> list[str]:
    check, run = one["check"], one["run"]
    count = {
        kind: sum(text.startswith(kind) for text in check["findings"]) for kind in ("error", "note")
    }
    said = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in count.items() if n) or "ok"
    returns = [
        f"{run[key]:,.2f}" if run[key] is not None else "—"
        for key in ("first_return", "last_return")
    ]
    episodes = f"{run['episodes']:,}" if "episodes" in run else "no summary"
    if run["ended"] is not None and "episodes" in run:
        episodes += f" of {run['ended']:,}"
    rate = f"{run['steps_per_s']:,.0f}" if "steps_per_s" in run else "—"
    load = "–".join(f"{x:.0f}" for x in run["load"])
    return [
        name,
        f"{said} ({check['seconds']:.0f} s)",
        seconds_of(run["first_line"]),
        seconds_of(run["silence"]),
        seconds_of(run["record_s"]),
        seconds_of(run["returned_at"]),
        f"{run['seconds']:.0f} s",
        f"{run.get('taken', 0):,}",
        rate,
        " → ".join(returns),
        episodes,
        seconds_of(run["leaves_s"]),
        load,
    ]


def sentences(env: Env, one: Mapping[str, Any]) -> str:
    """A paragraph on one environment: versions, the verdict, what its advice brought, and what is
    known of it.
    """
    asked = {
        re.split(r"[<=>\[]", word)[0].replace("_", "-").lower()
        for words in FAMILIES[env.family]
        for word in words
    }
    named = {
        x: version for x, version in one["versions"].items() if x.replace("_", "-").lower() in asked
    }
    versions = ", ".join(f"{x} {version}" for x, version in (named or one["versions"]).items())
    if "failed" in one:
        return f"**{env.name}**: not run. {one['failed']} {env.said}".rstrip()
    run = one["run"]
    text = [f"**{env.name}** (`{' '.join(run['command'])}`{f'; {versions}' if versions else ''})."]
    text += [
        run["verdict"]
        if "verdict" in run
        else f"No summary; the last line: {run['last_lines'][-1:]}"
    ]
    if (again := one.get("advice")) is not None:
        before, after = (x.get("steps_per_s", 0.0) for x in (run, again["run"]))
        text.append(
            f"With `{' '.join(again['words'])}`: {after:,.0f} steps/s in place of {before:,.0f}."
        )
    if one["check"]["findings"]:
        found = (re.sub(r"\s+", " ", text) for text in one["check"]["findings"])
        text.append(f"`check`: {'; '.join(found)}.")
    if run["silence"] > 5.5:
        text.append(f"The longest silence began {run['silence_at']:.0f} s after the command.")
    if run["left"]:
        text.append(
            f"Processes left behind: {'; '.join(command[:100] for command in run['left'])}."
        )
    return " ".join([*text, *([env.said] if env.said else [])])


def kept(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many rows keep each line that the benchmark was written for."""
    runs = [row["run"] for row in rows]
    stepped = [run for run in runs if run.get("taken")]
    tests = {
        "took steps, and had a first record at most 30 s after the first of them": [
            run["record_s"] is not None and run["record_s"] <= 30.0 for run in stepped
        ],
        "were never silent for more than 6 s (a line comes every 5 s)": [
            run["silence"] <= 6.0 for run in runs
        ],
        "left a summary within 30 s of Ctrl-C": [
            run["summary"] and run["leaves_s"] <= 30.0 for run in runs
        ],
        "left no process": [not run["left"] for run in runs],
    }
    return [f"- {sum(map(bool, held))} of {len(rows)} {what}." for what, held in tests.items()]


def page(found: Mapping[str, Any]) -> str:
    envs = [env for env in ENVS if env.name in found]
    there = [env for env in envs if "failed" not in found[env.name]]
    machine = found[there[0].name]["host"] if there else host()
    loads = [load for env in there for load in found[env.name]["run"]["load"]]
    lines = [
        "# Environments from outside",
        "",
        "Each row is one environment: `equipoise check ENV`, then `equipoise train ENV` with "
        "defaults until Ctrl-C, on "
        f"{machine['cores']} cores ({machine['cpu']}, Python {machine['python']}) that other work "
        "shared; `load` is the load "
        f"average at the beginning and at the end, {min(loads, default=0):.0f} to "
        f"{max(loads, default=0):.0f} in all. "
        "Where it is far above the number of cores, a second here is a fraction of one on an idle "
        "machine. Written by "
        "`benchmarks/environments.py --advice --seconds S --check-seconds C`, with S as in the "
        "column `run` and C of 15 to 60.",
        "",
        markdown(HEAD, [row(env.name, found[env.name]) for env in there]),
        "",
        *(f"- *{name}*: {said}" for name, said in COLUMNS.items()),
        "",
        *kept([found[env.name] for env in there]),
        "",
        *(part for env in envs for part in (sentences(env, found[env.name]), "")),
    ]
    return "\n".join(lines).rstrip() + "\n"


def measured(
    env: Env, home: Path, seconds: float, check_s: float, *, advice: bool
) -> dict[str, Any]:
    """All of one environment."""
    try:
        python, versions = built(home, env.family)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        log = home / env.family / "pip.log"
        tail = log.read_text(errors="replace").strip().splitlines()[-3:] if log.is_file() else []
        return {"failed": f"pip could not install it: {' '.join(tail) or error}", "versions": {}}
    place = home / "runs" / env.name.replace(" ", "-")
    one: dict[str, Any] = {
        "versions": versions,
        "host": host(),
        "asked_s": seconds,
        "check": checked(python, env, check_s),
    }
    one["run"] = trained(python, env, (), place / "defaults", seconds)
    run = one["run"]
    if (
        advice
        and "verdict" in run
        and (words := followed(run["verdict"], run["placement"])) is not None
    ):
        one["advice"] = {
            "words": list(words),
            "run": trained(python, env, words, place / "advised", seconds),
        }
    return one


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        help="the names of some, as --list prints them, or parts of them",
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument(
        "--check-seconds", type=float, default=60.0, help="what `equipoise check` has for its walks"
    )
    parser.add_argument("--home", type=Path, default=ROOT / ".outside")
    parser.add_argument(
        "--advice", action="store_true", help="train again with what the verdict advised"
    )
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results" / "environments.md")
    parser.add_argument(
        "--json", type=Path, default=ROOT / "docs" / "results" / "environments.json"
    )
    parser.add_argument("--list", action="store_true")
    a = parser.parse_args()
    chosen = [
        env
        for env in ENVS
        if a.only is None or any(part.lower() in env.name.lower() for part in a.only)
    ]
    if a.list or not chosen:
        print("\n".join(f"{env.name:26} {env.target}" for env in ENVS))
        return 0 if a.list else 2
    found = json.loads(a.json.read_text()) if a.json.is_file() else {}
    for env in chosen:
        found[env.name] = measured(
            env, a.home.resolve(), a.seconds, a.check_seconds, advice=a.advice
        )
        print(sentences(env, found[env.name]), flush=True)
        a.json.write_text(json.dumps(found, indent=1) + "\n")
        a.page.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
