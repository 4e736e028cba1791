"""Conversations: the share of an engine's rows that draw while tools are at work.

    .venv/bin/python benchmarks/turns.py [--open 200] [--rows 64] [--tool 0.05] [--seconds 20]

Conversations of three turns, with a tool that sleeps, on the engine of a simulated device: a step
takes 10 ms, a turn has 20 tokens (median). ``open`` conversations are under way all the time, as a
generator has them; a row of the engine draws, or waits. ``held`` is the share that would draw if a
conversation kept its row while its tool is at work.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from equipoise.actors.engine.conversing import Bounds, ConversationSettings, Conversing
from equipoise.actors.engine.sim_engine import SimEngine, latency
from equipoise.language.tokenizers import CharTokenizer
from equipoise.types import Example

TURNS, STEP_S, MEDIAN = 3, 0.01, 20
TOKENS = CharTokenizer("abcdefgh")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=200)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--tool", type=float, default=0.05)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()

    class Tool:
        def reset(self, row: Mapping[str, object]) -> str:
            self.turns = 0
            return "ab"

        def step(self, text: str) -> tuple[str | None, float]:
            time.sleep(given.tool)
            self.turns += 1
            return (None if self.turns == TURNS else "abc"), 0.0

    model = latency(f"sim:step_s={STEP_S},sample_s=0,median={MEDIAN},sigma=0.5")
    inner = SimEngine(model, rows=given.rows, vocabulary=9, eos=TOKENS.eos[0], seed=1)
    bounds = Bounds(turns=TURNS, turn_tokens=200, answer_bytes=1000, step_s=60.0)
    talk = ConversationSettings(
        make=Tool,
        tokenizer=TOKENS,
        template={},
        bounds=bounds,
        row=lambda group: Example(prompt="ab"),
    )
    engine, group, under_way = Conversing(inner, talk), 0, 0
    drawn, steps, idle, ended = 0, 0, 0, 0
    until = time.perf_counter() + given.seconds
    while time.perf_counter() < until:
        while under_way < given.open:
            engine.submit(group, [0, 1], 1, limit=1000)
            group, under_way = group + 1, under_way + 1
        done = len(engine.step())
        under_way, ended = under_way - done, ended + done
        if inner.live or inner.waiting:
            steps, drawn = steps + 1, drawn + inner.live
        else:
            idle += 1
            time.sleep(0.001)
    engine.close()
    busy, turn = drawn / max(steps, 1) / given.rows, STEP_S * MEDIAN
    print(
        f"{given.open} conversations, {given.rows} rows, a tool of {given.tool * 1e3:g} ms: "
        f"busy {busy:.1%}, held {turn / (turn + given.tool):.1%}, "
        f"{ended / given.seconds:.1f} conversations/s, {idle} ticks without a row to draw"
    )


if __name__ == "__main__":
    main()
