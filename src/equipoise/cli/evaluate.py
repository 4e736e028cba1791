"""``equipoise evaluate``: play a run's policy on fresh episodes, or on recorded observations."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from equipoise.cli.app import Debug, Trust, app, place, vouched
from equipoise.console.help import Sections, fail, plain_errors
from equipoise.console.place import say


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise evaluate runs/CartPole-v1-ppo-0-20260101-120000
  equipoise evaluate runs/NAME --episodes 100 --stochastic
  equipoise evaluate runs/NAME --episodes 1 --video
  equipoise evaluate runs/NAME --set env.gravity=5
  equipoise evaluate runs/NAME --recorded rows.npz --out actions.npz
                                               what it would do; needs no env""",
)
def evaluate(
    directory: Annotated[
        str,
        typer.Argument(metavar="DIR|URL", help="Run directory or its URL, such as runs/NAME"),
    ],
    episodes: Annotated[
        str, typer.Option(metavar="N", help="Episodes to play ('train' has --evaluate-episodes)")
    ] = "20",
    stochastic: Annotated[
        bool,
        typer.Option("--stochastic", help="Sample actions as in training"),
    ] = False,
    seed: Annotated[str, typer.Option(metavar="N", help="Seed of the episodes")] = "0",
    best: Annotated[
        bool,
        typer.Option("--best", help="Use the weights of the best evaluation, not the newest"),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="env.KEY=VALUE",
            help="Argument of the env; its spaces must stay the same",
        ),
    ] = None,
    video: Annotated[
        bool,
        typer.Option("--video", help='Write a video into DIR/videos (extra "video")'),
    ] = False,
    recorded: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|ID",
            help="Recorded observations to act on: npz or Minari id",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the actions (npz), with --recorded"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the return only")] = False,
    trust: Trust = None,
    debug: Debug = False,
) -> None:
    """Play fresh episodes with the policy of a run and print their return.

    The weights are the newest, or the weights that solved the task. With --recorded the policy acts
    on an npz file with obs [N, ...] (action, first) or on a Minari data set, without the env.
    """
    if recorded is not None:
        if settings:
            fail(
                f"--set {settings[0]}: expected fresh episodes, since recorded rows have no env",
                "equipoise evaluate",
            )
        given = {"deterministic": not stochastic, "best": best, **vouched(trust)}
        play_recorded(directory, recorded, out, seed=seed, video=video, debug=debug, **given)
        return
    with plain_errors("equipoise evaluate", debug):
        from equipoise.programs.settings import at_least, convert, pairs

        if out is not None:
            raise ValueError(
                f"--out {out}: expected --recorded FILE with it, since fresh episodes write no "
                "actions"
            )

        count, start = convert(episodes, int, "--episodes"), at_least(seed, "--seed", 0)
        from equipoise.api.evaluating import Asked, evaluated
        from equipoise.console.terminal import Progress

        told: dict[str, Any] = {} if quiet else {"tell": Progress()}
        asked = Asked(
            episodes=count,
            deterministic=not stochastic,
            seed=start,
            best=best,
            video=video,
            settings=dict(pairs(settings or ())),
            trust=trust or (),
        )
        result = evaluated(place(directory), asked, **told)
    policy = "stochastic" if stochastic else "deterministic"
    say(
        f"return {result.mean:,.1f} +/- {result.std:,.1f} over "
        f"{result.episodes:,} {'episode' if result.episodes == 1 else 'episodes'} "
        f"({policy} policy, weights of step {result.step:,})"
    )
    for name, mean in result.policies.items():
        print(f"  {name} {mean:,.1f}")
    from equipoise.record.report import repeated

    if said := repeated(result.info):
        print(f"  {said}" + ("" if stochastic else "; --stochastic plays others"))
    for name, value in result.info.items():
        print(f"  {name} {'—' if value is None else f'{value:.3g}'}")
    if video:
        print(f"video in {shlex.quote(str(Path(directory) / 'videos'))}")


def play_recorded(
    directory: str,
    recorded: str,
    out: Path | None,
    *,
    seed: str,
    video: bool,
    debug: bool,
    **given: Any,
) -> None:
    """Play recorded observations and print how the actions agree with the recorded ones."""
    with plain_errors("equipoise evaluate", debug):
        from equipoise import api
        from equipoise.programs.settings import at_least

        if video:
            raise ValueError(
                "--video: expected fresh episodes, since recorded observations are not drawn; "
                "leave --recorded out"
            )
        start = at_least(seed, "--seed", 0)
        played = api.play(place(directory), recorded, seed=start, **given)
        if out is not None:
            played.save(out)
    say(
        f"played {played.rows:,} rows of {played.episodes:,} episodes (weights of step "
        f"{played.step:,})"
    )
    for path, share in played.same.items():
        print(f"  {path}: {share:.1%} as recorded")
    for path, distance in played.distance.items():
        print(f"  {path}: {distance:.4g} from the recorded one on average")
    if out is not None:
        print(f"actions in {shlex.quote(str(out))}")
