"""``equipoise reproduce``: do again what an env or a reward did up to its failure."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.app import Debug, Trust, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.place import printable


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise reproduce runs/NAME/capsules/exception-ValueError-my_env.py-42-01
  equipoise reproduce runs/NAME           the newest capsule of a run
  equipoise reproduce CAPSULE --pdb       look around where it failed""",
)
def reproduce(
    path: Annotated[
        Path,
        typer.Argument(metavar="CAPSULE|RUN", help="Capsule, or a run for its newest capsule"),
    ],
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Start Python's debugger at the failure")
    ] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Repeat an env, a reward or a conversation up to its failure.

    Modules of envs and partners are imported here; a reward runs in a process of its own. The exit
    code is 1 if the same failure comes again, and 3 if it does not.
    """
    with plain_errors("equipoise reproduce", debug):
        path = newest(path)
        if path.is_file() and path.name != "capsule.json":  # an env's, which lies beside its arrays
            sys.exit(judged_again(path, trust or ()))
        from equipoise import tree
        from equipoise.envs.failures import capsule as capsules

        capsule = capsules.read(path, trust or ())
        say(f"env       {capsule.env.target} {dict(capsule.env.kwargs) or ''}".rstrip())
        say(
            f"stream    {'all' if capsule.stream is None else capsule.stream}, step "
            f"{capsule.step}; "
            f"{len(tree.leaves(capsule.actions)[0])} actions since its {capsule.start.kind}"
        )
        say(f"failed    {capsule.error}: {capsule.message}")
        say(f"importing {imported(capsule.env.target)}")
        from equipoise.envs.failures.reproduce import reproduce as play

        played = play(capsule)
    error = played.error
    if error is not None:
        import traceback

        print(
            printable("".join(traceback.format_exception(error)), lines=True),
            end="",
            file=sys.stderr,
        )
        if pdb:
            from pdb import post_mortem

            post_mortem(error.__traceback__)
    if played.same:
        say(f"reproduced: {type(error).__name__}: {error}")
        sys.exit(1)
    came = (
        "nothing was raised"
        if error is None
        else f"another exception came, {type(error).__name__}: {error}"
    )
    say(f"not reproduced: {played.steps} steps were done and {came}")
    say(f"expected: {capsule.error}: {capsule.message}")
    sys.exit(3)


def newest(path: Path) -> Path:
    """The newest capsule of a run, where ``path`` is a run's directory or its capsules/; else the
    path itself.
    """
    from equipoise.record.paths import CAPSULES

    if not os.path.lexists(path):
        raise FileNotFoundError(
            f"{path}: expected a capsule or a run with capsules, got no such file or directory"
        )
    folder = next(
        (one for one in (path / CAPSULES, path) if one.is_dir() and one.name == CAPSULES), None
    )
    if folder is None:
        return path
    found = [
        one for one in folder.iterdir() if one.suffix == ".json" or (one / "capsule.json").is_file()
    ]
    if not found:
        raise ValueError(
            f"{path}: expected a run with a capsule, got none in {folder}; no env, no reward and "
            "no partner of it has failed"
        )
    latest = max(found, key=lambda one: (one.stat().st_mtime_ns, one.name))
    if len(found) > 1:
        say(f"capsule   {latest}, the newest of {len(found)}; name another one to reproduce that")
    return latest


def judged_again(path: Path, trusted: Sequence[str]) -> int:
    """Call a reward again, or say the turns of a conversation again -> the exit code."""
    from equipoise.language.scoring.replay import replay
    from equipoise.language.turns import capsules

    if capsules.is_one(path):
        talked = capsules.replay(path, trusted)
        say(f"partner   {talked.capsule.partner}, {len(talked.capsule.turns)} turns")
        say(f"failed    {talked.capsule.error}")
        if talked.now == talked.capsule.error:
            say(f"reproduced: {talked.now}")
            return 1
        say(f"not reproduced: {talked.now or 'it answered'}")
        return 3

    replayed = replay(path, trusted)
    say(f"reward    {replayed.reward}")
    say(f"failed    {replayed.then}")
    if replayed.now == replayed.then:
        say(f"reproduced: {replayed.now}")
        return 1
    say(f"not reproduced: {replayed.now or f'it gave {replayed.given}'}")
    return 3


def say(text: str) -> None:
    """What a capsule says may come from anywhere."""
    print(printable(text, lines=True), flush=True)


def imported(target: str) -> str:
    """The module that an env's target makes Python import, in words."""
    from gymnasium import registry

    name = target.removeprefix("python:")
    module, _, rest = name.rpartition(":")
    if module:
        return module if module != "envpool" else f"envpool, for its env {rest}"
    entry = registry[name].entry_point if name in registry else None
    return (
        f"{str(entry).partition(':')[0]}, which Gymnasium names for {name}"
        if entry
        else f"nothing: Gymnasium has no {name}"
    )
