"""``equipoise recipes``: the tuned settings, by env and algorithm."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.place import say


@app.command(
    cls=Sections,
    epilog="""Examples:
  equipoise recipes
  equipoise recipes CartPole-v1              with all their settings
  equipoise recipes CartPole-v1 --algorithm ppo""",
)
def recipes(
    env: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="Env to show the recipes of, in full")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Algorithm to show the recipes of")
    ] = None,
    debug: Debug = False,
) -> None:
    """List the tuned settings, by env.

    'train' uses them by itself, unless it has --no-recipe.
    """
    with plain_errors("equipoise recipes", debug):
        from equipoise.hints import hint
        from equipoise.programs.program import to_plain
        from equipoise.recipes import RECIPES

        named = {of for of, _ in RECIPES}
        if env is not None and env not in named:
            raise ValueError(f"no recipe for {env!r}{hint(env, named)}")
        of_algorithm = {of for _, of in RECIPES}
        if algorithm is not None and algorithm not in of_algorithm:
            raise ValueError(
                f"no recipe for the algorithm {algorithm!r}{hint(algorithm, of_algorithm)}"
            )
        found = {
            key: made
            for key, made in RECIPES.items()
            if env in (None, key[0]) and algorithm in (None, key[1])
        }
        if not found:
            raise ValueError(
                f"no recipe for {env} by {algorithm}; there are "
                f"{', '.join(a for e, a in RECIPES if e == env)}"
            )
        if env is None:
            by_env: dict[str, list[str]] = {}
            for of, by in found:
                by_env.setdefault(of, []).append(by)
            width = max(map(len, by_env))
            for of, names in by_env.items():
                say(f"{of:<{width}}  {', '.join(sorted(names))}", indent=" " * (width + 2))
            return
        for (of, by), made in found.items():
            print(f"equipoise train {of} --algorithm {by}")
            for key, value in made.items():
                said = to_plain(value, key)
                print(f"  {key} = {','.join(map(str, said)) if isinstance(said, list) else said}")
