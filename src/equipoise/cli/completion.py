"""``equipoise completion``: what a shell needs to complete commands and options."""

from __future__ import annotations

from typing import Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors

SHELLS = ("bash", "zsh", "fish")


@app.command(
    cls=Sections,
    epilog="""Put it where your shell reads it, in zsh below compinit:
  bash   echo 'eval "$(equipoise completion bash)"' >> ~/.bashrc
  zsh    echo 'eval "$(equipoise completion zsh)"' >> ~/.zshrc
  fish   equipoise completion fish > ~/.config/fish/completions/equipoise.fish""",
)
def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Name of the shell")],
    debug: Debug = False,
) -> None:
    """Print the script that makes a shell complete commands and options."""
    with plain_errors("equipoise completion", debug):
        from typer.completion import get_completion_script  # type: ignore[attr-defined]

        from equipoise.hints import hint

        if shell not in SHELLS:
            raise ValueError(
                f"expected one of {', '.join(SHELLS)}, got {shell!r}{hint(shell, SHELLS)}"
            )
        print(
            get_completion_script(
                prog_name="equipoise", complete_var="_EQUIPOISE_COMPLETE", shell=shell
            )
        )
