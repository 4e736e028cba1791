"""Colours of pages and reports, light and dark, as properties of CSS.

The states have the colours of the terminal (``console/bars.py``): worked is green, preempted red,
starved yellow, blocked blue.
"""

from __future__ import annotations

LIGHT = """
  color-scheme: light dark;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1f262d; --soft: #626c76; --rule: #e2e5e2;
  --worked: #3f7d52;
  --preempted-ground: #f3d9d2; --preempted-mark: #b4513f;
  --starved-ground: #f6ecd0; --starved-mark: #a97b12;
  --blocked-ground: #dfe9f4; --blocked-mark: #4878ad;
  --s0: #2a6a8b; --s1: #b65c22; --s2: #55793a; --s3: #7b539c; --s4: #8d6b14; --s5: #a9455e; --s6: #23827a; --s7: #4d545c;
"""  # noqa: E501
DARK = """
  --paper: #14181b; --card: #1a1f23; --ink: #e3e6e4; --soft: #9aa4ac; --rule: #2b3237;
  --worked: #6fb487;
  --preempted-ground: #48271f; --preempted-mark: #e58b78;
  --starved-ground: #3b3115; --starved-mark: #d8b254;
  --blocked-ground: #1d2d40; --blocked-mark: #7ba7da;
  --s0: #6bb1d1; --s1: #e59a63; --s2: #9bc07c; --s3: #bd9bdc; --s4: #d3b25a; --s5: #e58fa4; --s6: #6cc7be; --s7: #b4bcc4;
"""  # noqa: E501


def palette() -> str:
    """The colours in CSS: as the system asks, or as a viewer has chosen."""
    dark = f":root:not([data-theme=light]) {{{DARK}}}"
    return "\n".join(
        [
            f":root {{{LIGHT}}}",
            f"@media (prefers-color-scheme: dark) {{ {dark} }}",
            f":root[data-theme=dark] {{{DARK}}}",
        ]
    )
