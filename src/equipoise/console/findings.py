"""The report of an env check, as lines of at most 100 columns, and of fewer in a narrow
terminal.
"""

from __future__ import annotations

import textwrap

from equipoise.console.place import printable
from equipoise.envs.check.findings import Finding
from equipoise.envs.check.report import Report, Times

WIDTH = 100
LABEL = 13  # columns of a fact's name


def lines(report: Report, width: int = WIDTH) -> list[str]:
    """Return the verdict, the findings and the facts, in lines of at most ``width`` columns."""
    counts = {kind: sum(f.severity == kind for f in report.findings) for kind in ("error", "note")}
    said = ", ".join(
        f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count
    )
    wide = min(width, WIDTH)
    text = [
        f"{report.target}: "
        f"{said or ('nothing found in what was looked at' if report.left_out else 'ok')}"
    ]
    for finding in report.findings:
        text += ["", *_finding(finding, wide)]
    facts = dict(report.facts)
    if report.step_s is not None:
        facts["step"] = _times(report.step_s) + (
            f", {report.streams} envs at once" if report.streams > 1 else ""
        )
    if report.reset_s is not None and report.streams == 1:
        facts["reset"] = _times(report.reset_s)
    if report.left_out:
        facts["left out"] = f"{'; '.join(report.left_out)} ({report.why})"
    return [
        *text,
        "",
        *(
            line
            for name, fact in facts.items()
            for line in _wrapped(f"  {name:{LABEL - 1}} ", fact, wide)
        ),
    ]


def _finding(finding: Finding, width: int) -> list[str]:
    times = f" ({finding.times:,} times)" if finding.times > 1 else ""
    return [
        *_wrapped(f"{finding.severity:5}  ", f"{finding.what}{times}", width),
        *_wrapped(" " * 7, f"{finding.where}: {finding.seen}", width),
        *_wrapped(" " * 7, finding.cost, width),
    ]


def _wrapped(prefix: str, text: str, width: int) -> list[str]:
    after, said = " " * len(prefix), printable(text, lines=True)
    return textwrap.wrap(
        said, width, initial_indent=prefix, subsequent_indent=after, break_long_words=False
    )


def _times(times: Times) -> str:
    figures = ", ".join(
        f"{name} {_duration(getattr(times, name))}" for name in ("mean", "p50", "p99", "max")
    )
    return f"{figures} ({times.count:,} of them)"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
