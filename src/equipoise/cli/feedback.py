"""``equipoise feedback``: a store of people's preferences, its annotators, import and export."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.app import Debug, app
from equipoise.console.help import Sections, plain_errors
from equipoise.console.mistakes import OneLineErrors
from equipoise.console.typed import Context

if TYPE_CHECKING:
    from equipoise.feedback import Store
    from equipoise.feedback.agreement import Agreement


class Feedback(OneLineErrors):
    """``equipoise feedback STORE`` is ``equipoise feedback show STORE``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help", "-h"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


feedback = typer.Typer(
    name="feedback",
    cls=Feedback,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Keep preferences of people between clips or texts.",
    epilog="""Examples:
  equipoise feedback import preferences pairs.jsonl
  equipoise feedback preferences
  equipoise feedback annotator preferences ann
  equipoise feedback export preferences out.jsonl --format trl""",
)
app.add_typer(feedback)

Place = Annotated[str, typer.Argument(metavar="STORE", help="Folder of the store")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the annotator")]


@feedback.command(
    cls=Sections,
    epilog="""Examples:
  equipoise feedback preferences
  equipoise feedback show preferences --json""",
)
def show(
    store: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
    debug: Debug = False,
) -> None:
    """Show the counts, the agreement and the annotators of a store.

    error is the share of an annotator's answers that are wrong, estimated from all answers; youden
    is 0 for answers at random.
    """
    with plain_errors("equipoise feedback show", debug):
        from equipoise.console.place import say
        from equipoise.feedback import Store
        from equipoise.feedback.agreement import agreement, gold_of
        from equipoise.files import json_bytes

        with Store.open(store) as opened:
            found = agreement(opened.answers(), gold_of(opened.queries()))
            if as_json:
                about = asdict(opened.counts()) | {"last_row": opened.last_row()}
                people = [asdict(one) for one in opened.annotators()]
                said = about | {"tokens": people, "agreement": asdict(found)}
                print(json_bytes(said).decode(), end="")
                return
            for line in (*_counts(opened, found), *_annotators(opened, found)):
                say(line)


@feedback.command(
    "import",
    cls=Sections,
    epilog="""Examples:
  equipoise feedback import preferences pairs.jsonl
  equipoise feedback import preferences label-studio.json""",
)
def import_(
    store: Place,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Pairs, as JSON or JSONL")],
    debug: Debug = False,
) -> None:
    """Import pairs and answers of a file; a missing store is created.

    A file of TRL or OpenRLHF has a pair of chosen and rejected a line, a file of Label Studio has a
    list of pairwise tasks. If a line is wrong, nothing is imported.
    """
    with plain_errors("equipoise feedback import", debug):
        from equipoise.feedback import Store
        from equipoise.feedback.formats import read_pairs

        pairs = read_pairs(file)
        with Store.open_or_create(store) as opened:
            queries, answers = opened.import_pairs(pairs)
        print(f"{store}: {queries:,} new queries, {answers:,} new answers")


@feedback.command(
    cls=Sections,
    epilog="""Examples:
  equipoise feedback export preferences pairs.jsonl --format trl
  equipoise feedback export preferences tasks.json --format label-studio""",
)
def export(
    store: Place,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write")],
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="Format: trl, openrlhf or label-studio")
    ] = "trl",
    debug: Debug = False,
) -> None:
    """Export the answers about texts, each with its annotator and time."""
    with plain_errors("equipoise feedback export", debug):
        from equipoise.feedback import Store
        from equipoise.feedback.formats import export_file

        with Store.open(store) as opened:
            written, left = export_file(opened, file, format_)
        print(f"{file}: {written:,} answers" + (f", {left:,} left out" if left else ""))
        if left:
            print("left out: answers about clips, and answers without a form in this format")


@feedback.command(
    cls=Sections,
    epilog="""Examples:
  equipoise feedback annotator preferences ann""",
)
def annotator(store: Place, name: Name, debug: Debug = False) -> None:
    """Add an annotator, and print the token of the link once.

    The store keeps a hash of the token. A lost token is replaced by revoke and annotator.
    """
    with plain_errors("equipoise feedback annotator", debug):
        from equipoise.feedback import Store

        with Store.open(store) as opened:
            print(opened.add_annotator(name))


@feedback.command(
    cls=Sections,
    epilog="""Examples:
  equipoise feedback revoke preferences ann""",
)
def revoke(store: Place, name: Name, debug: Debug = False) -> None:
    """Revoke the token of an annotator; earlier answers stay."""
    with plain_errors("equipoise feedback revoke", debug):
        from equipoise.console.place import printable
        from equipoise.feedback import Store

        with Store.open(store) as opened:
            opened.revoke(name)
        print(f"{printable(name)}: revoked")


def _counts(store: Store, found: Agreement) -> list[str]:
    counts = store.counts()
    purposes = ", ".join(f"{number:,} {name}" for name, number in counts.queries.items())
    total = sum(counts.queries.values())
    return [
        f"queries    {total:,}" + (f": {purposes}" if purposes else "") + f"; {counts.open:,} open",
        f"answers    {counts.answers:,}, and {counts.undone:,} undone",
        f"agreement  alpha {_number(found.nominal)} nominal, {_number(found.ordinal)} ordinal, of "
        f"{found.shared:,} queries with two answers",
    ]


def _annotators(store: Store, found: Agreement) -> list[str]:
    from equipoise.console.columns import columns
    from equipoise.console.place import width_of

    active = {one.name: one.active for one in store.annotators()}
    body = []
    for name in dict.fromkeys((*active, *found.annotators)):
        state = {True: "active", False: "revoked", None: "imported"}[active.get(name)]
        if (one := found.annotators.get(name)) is None:
            body.append((name, "0", *["-"] * 5, state))
            continue
        numbers = (one.error, one.youden, one.gold, one.repeats, one.left_on_screen)
        flags = [state, *(["spammer"] if one.spammer else [])]
        body.append((name, f"{one.answers:,}", *map(_number, numbers), ", ".join(flags)))
    head = ("annotator", "answers", "error", "youden", "gold", "repeats", "left", "state")
    return columns(head, body, left=1, width=width_of(sys.stdout)) if body else ["no annotators"]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
