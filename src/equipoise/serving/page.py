"""The page at ``/``: the served version, a form that asks it, and the same question for curl.

Nothing on it comes from elsewhere: one script and one style, allowed by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from equipoise.edge import branches
from equipoise.serving.service import Service

MOST_NUMBERS = 256  # of an observation that is written out
LONGEST_SPACE = 4_000  # characters of a space's description
STYLE = """
:root { color-scheme: light dark; --ink: #1f262d; --soft: #626c76; --paper: #fcfcfa; --card: #fff; --rule: #e2e5e2 }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6e4; --soft: #9aa4ac; --paper: #14181b; --card: #1a1f23; --rule: #2b3237 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif }
main { max-width: 46rem; margin: 0 auto; padding: 2rem 1.2rem 4rem } h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem }
.note, dt { color: var(--soft) } p { margin: .3rem 0 } dl { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: .2rem 1.2rem; margin: 1rem 0 } dd { margin: 0; overflow-wrap: anywhere }
code, pre, textarea { font: .86rem/1.5 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace }
pre, textarea { width: 100%; background: var(--card); color: inherit; border: 1px solid var(--rule); border-radius: .5rem; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 }
button { font: inherit; padding: .4rem 1rem; border: 1px solid var(--ink); border-radius: .5rem; background: var(--ink); color: var(--paper); cursor: pointer } :focus-visible { outline: 2px solid #4878ad; outline-offset: 2px }
"""  # noqa: E501
SCRIPT = """
document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const shown = document.getElementById("answer");
  shown.textContent = "asking";
  try {
    const body = JSON.stringify({ obs: JSON.parse(document.getElementById("obs").value) });
    const answer = await fetch("v1/act", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    shown.textContent = JSON.stringify(await answer.json(), null, 2);
  } catch (error) { shown.textContent = String(error.message); }
});
"""  # noqa: E501


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; script-src 'sha256-{_hash(SCRIPT)}'; "
        f"style-src 'sha256-{_hash(STYLE)}'; img-src data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def page(service: Service, url: str, *, token: bool) -> str:
    """Return the page. ``url``: of this server as its caller names it; ``token``: is one needed?"""
    from equipoise import __version__

    version = service.versions.now.champion
    spec = version.model.spec
    policy = spec["policies"][spec["artifact"]["policy"]]
    obs = example(policy["observation"], tuple(policy["mask"] or ()))
    data = "@request.json" if obs is None else json.dumps({"obs": obs})
    secret = "-H 'Authorization: Bearer TOKEN' " if token else ""
    curl = (
        f"curl {shlex.quote(url + '/v1/act')} {secret}-H 'Content-Type: application/json' "
        f"-d {shlex.quote(data)}"
    )
    facts = {
        "policy": _code(str(service.versions.policy)),
        "version": _code(version.digest),
        "observation": _code(described(policy["observation"])),
        "action": _code(described(policy["action"])),
        "memory": "recurrent: send the same session with each step of an episode"
        if version.recurrent
        else "none: each observation stands alone",
        "server": f"equipoise {_escaped(__version__)}",
    }
    rows = "".join(f"<dt>{name}</dt><dd>{fact}</dd>" for name, fact in facts.items())
    large = (
        f'<p class="note">The observation has more than {MOST_NUMBERS} numbers. '
        'Write {"obs": ...} into request.json.</p>'
        if obs is None
        else ""
    )
    title = f"The policy {_escaped(str(service.versions.policy))}"
    given = "" if obs is None else _escaped(json.dumps(obs))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title} · equipoise</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{title}</h1>"
        f"<dl>{rows}</dl><h2>Ask it</h2>{large}<form>"
        f'<label for="obs">Observation, as JSON</label><textarea id="obs" rows="4" '
        f'spellcheck="false">{given}</textarea><button type="submit">Ask</button></form>'
        '<pre id="answer" role="status" aria-label="Answer">The answer appears here.</pre>'
        f"<h2>From a shell</h2><pre>{_escaped(curl)}</pre>"
        '<h2>More</h2><p><a href="openapi.json">openapi.json</a> lists every path and message, '
        '<a href="readyz">readyz</a> the versions, <a href="metrics">metrics</a> is for '
        f"Prometheus.</p></main><script>{SCRIPT}</script></body></html>\n"
    )


def example(space: Mapping[str, Any], mask: Sequence[str] = ()) -> object:
    """Return a value of a space as JSON has it, or None if it has more than ``MOST_NUMBERS``.

    ``mask``: the keys that lead to a mask, in which every choice is allowed.
    """
    return None if count(space) > MOST_NUMBERS else _example(space, (), tuple(mask))


def _example(space: Mapping[str, Any], path: tuple[str, ...], mask: tuple[str, ...]) -> object:
    if (inner := branches(space)) is not None:
        parts = {key: _example(one, (*path, key), mask) for key, one in inner.items()}
        return list(parts.values()) if space["type"] == "Tuple" else parts
    allowed = bool(mask) and path[: len(mask)] == mask
    fill = 1 if allowed else space.get("start", 0)
    return np.broadcast_to(fill, _shape(space)).tolist()


def count(space: Mapping[str, Any]) -> int:
    """Return how many numbers a value of the space has."""
    if (inner := branches(space)) is not None:
        return sum(count(one) for one in inner.values())
    return math.prod(_shape(space))


def described(space: Mapping[str, Any]) -> str:
    """Return a space in a line, such as "Box [4] float32"."""
    if (inner := branches(space)) is not None:
        found = "{" + ", ".join(f"{key}: {described(one)}" for key, one in inner.items()) + "}"
    elif space["type"] == "Discrete":
        found = f"Discrete {space['start']} to {space['start'] + space['n'] - 1}"
    else:
        found = f"{space['type']} {list(_shape(space))} {space.get('dtype', '')}".rstrip()
    return found if len(found) <= LONGEST_SPACE else f"{found[:LONGEST_SPACE]} ..."


def _shape(space: Mapping[str, Any]) -> tuple[int, ...]:
    kind = space["type"]
    if kind == "Discrete":
        return ()
    if kind == "MultiBinary":
        return tuple(np.ravel(space["n"]).tolist())
    if kind == "MultiDiscrete":
        return np.shape(space["nvec"])
    return tuple(space["shape"])


def _code(text: str) -> str:
    return f"<code>{_escaped(text)}</code>"


def _escaped(text: str) -> str:
    """Text from anywhere, as HTML shows it."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return html.escape(shown, quote=True)
