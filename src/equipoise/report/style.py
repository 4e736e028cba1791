"""The style of the page: colours for light and dark, a hatching a state, a dash a line, cards on
narrow screens.

The states have the colours of the terminal (``console/bars.py``): worked is green, preempted red,
starved yellow, blocked blue.
"""

from __future__ import annotations

from equipoise.pages.colours import DARK, LIGHT

# of lines in the pictures of a study
STUDY = """
.line.dots { stroke-width: 5; stroke-dasharray: none; opacity: .6 }
.line.dots.best { stroke-width: 10; opacity: 1 } .line.front.dots { stroke-width: 8; opacity: 1 }
.line.returns { stroke-width: 1; opacity: .25 } .line.front { stroke-dasharray: none }
.line.member, .line.join { stroke-dasharray: none; opacity: .6 } .line.join { stroke-width: 1 }
.line.best { stroke-width: 4; stroke-dasharray: none; opacity: 1 } .line.join.best { stroke-width: 2.5 }
.line.q0, .line.q1, .line.q2, .line.q3, .line.q4 { stroke-width: 1.2; stroke-dasharray: none }
.line.q0 { opacity: .12 } .line.q1 { opacity: .2 } .line.q2 { opacity: .32 } .line.q3 { opacity: .5 }
.line.q4 { opacity: .85 }
"""  # noqa: E501
DASHES = ("none", "8 4", "2 4", "11 3 2 3", "14 4", "5 3", "1 3 6 3", "3 2")
RULES = """
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif }
main { max-width: 1080px; margin: 0 auto; padding: 28px 24px 60px }
h1 { font-size: 1.35rem; font-weight: 600; line-height: 1.25; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1.02rem; font-weight: 600; margin: 0 0 10px }
section { margin-top: 34px; padding-top: 20px; border-top: 1px solid var(--rule) }
p { margin: 0 0 8px } bdi { overflow-wrap: anywhere }
.note { color: var(--soft); font-size: 13px } section > .note { max-width: 46rem; margin-bottom: 12px }
.still { margin: 10px 0 0; padding: 6px 12px; border: 1px dashed var(--soft); border-radius: 6px }
.verdict { margin-top: 18px; padding-left: 14px; border-left: 3px solid var(--ink) }
.verdict .sentence { font-size: 1.22rem; line-height: 1.4; max-width: 50rem; overflow-wrap: anywhere }
.of .sample { margin-right: 8px } .whole { white-space: nowrap }
.verdict .of { font-size: 13px; color: var(--soft); margin: 0 } .verdict p:last-child { margin-bottom: 0 }
.remedies { list-style: none; margin: 4px 0 0; padding: 0; font-size: 14px; max-width: 50rem }
.remedies li { display: grid; grid-template-columns: minmax(10rem, 2fr) 10.5rem minmax(0, 3fr); gap: 0 16px; padding: 3px 0 }
.remedies .change { font-weight: 600 } .remedies .num { text-align: left }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; margin: 22px 0 0 }
.tiles > div { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 10px 14px }
.tiles dt { color: var(--soft); font-size: 13px } .tiles dd { margin: 0; font-variant-numeric: tabular-nums }
.tiles dd:not(.note) { font-size: 1.3rem; font-weight: 600; line-height: 1.35; white-space: nowrap }
.tiles dd span { font-size: .85rem; font-weight: 400; color: var(--soft) }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: 13px; margin: 4px 0 12px; font-variant-numeric: tabular-nums }
th { text-align: left; font-weight: 500; color: var(--soft); vertical-align: bottom; padding: 4px 12px 6px 0;
  border-bottom: 1px solid var(--rule) }
td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: anywhere }
th:last-child, td:last-child { padding-right: 0 } th.num { text-align: right }
.num { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.name { display: inline-flex; gap: 8px; align-items: baseline }
.name bdi { min-width: 5.5em }
code, pre { font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  overflow-wrap: anywhere }
pre { white-space: pre-wrap; margin: 8px 0 0; color: var(--soft) }
.folded { margin-top: 0; padding-top: 0 } .folded details { border: 0; margin: 0; padding: 4px 0 }
.folded h2 { display: inline; margin: 0 } .folded summary ~ .note { margin: 8px 0 12px; max-width: 46rem }
.results { margin-top: 18px } section > .verdict:first-of-type { margin-top: 0 }
summary { cursor: pointer; font-size: 13.5px; padding: 5px 0; overflow-wrap: anywhere }
details { border-top: 1px solid var(--rule); margin-top: 6px } details[open] { padding-bottom: 12px }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 0 0 14px; padding: 0; font-size: 13px }
.legend li { display: flex; gap: 7px; align-items: center; overflow-wrap: anywhere; min-width: 0 }
.swatch { width: 14px; height: 14px; flex: none; border: 1px solid var(--rule); border-radius: 2px }
.sample { width: 26px; height: 10px; flex: none } .note .sample { margin: 0 6px 0 10px }
.hatchings { position: absolute }
figure { margin: 0 0 18px } figcaption { font-size: 13px; color: var(--soft); margin-bottom: 6px; overflow-wrap: anywhere }
.rings { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 12px 24px }
.rings figure { text-align: center; max-width: 420px; justify-self: center; width: 100% }
.ring { width: 100%; display: block; font-size: 12.5px; fill: var(--soft) }
.ring .middle { text-anchor: middle } .ring .end { text-anchor: end }
.ring .strong { font-weight: 600; font-size: 14px; fill: var(--ink) }
.ring .none { fill: none; stroke: var(--rule); stroke-dasharray: 3 4 }
.track { fill: var(--rule) } .arrow { fill: none; stroke: var(--soft); stroke-width: 1.5 }
.head { fill: var(--soft); stroke: none }
.worked { fill: var(--worked) } .preempted { fill: url(#fill-preempted) } .starved { fill: url(#fill-starved) }
.blocked { fill: url(#fill-blocked) }
.preempted-ground { fill: var(--preempted-ground) } .preempted-mark { fill: var(--preempted-mark) }
.starved-ground { fill: var(--starved-ground) } .starved-mark { fill: var(--starved-mark) }
.blocked-ground { fill: var(--blocked-ground) } .blocked-mark { fill: var(--blocked-mark) }
.span { fill: var(--soft) } .bar { fill: var(--worked) }
.parts rect { stroke: var(--paper); stroke-width: 1 }
.work { display: grid; grid-template-columns: 8.5rem minmax(0, 1fr); font-size: 13px; padding: 3px 0 }
.work .legend { margin: 4px 0 8px; gap: 2px 16px }
.row { display: grid; grid-template-columns: 8.5rem minmax(0, 1fr) repeat(4, 5.3rem); align-items: center;
  font-size: 13px; padding: 3px 0 }
.row.head { color: var(--soft); text-align: right; padding-top: 8px } .row.head .note { text-align: left }
.row .wide { grid-column: 3 / 5; padding-left: 1.2rem; text-align: left; white-space: nowrap } .row.axis { padding: 0 }
.strip { display: block; width: 100%; height: 24px; background: var(--rule); shape-rendering: crispEdges;
  border-radius: 2px }
.chart { display: grid; grid-template-columns: 3.6rem minmax(0, 1fr); grid-template-rows: 240px 1.3rem auto;
  font-size: 12px; color: var(--soft) }
.small .chart { grid-template-rows: 130px 1.3rem auto }
.plot { border-left: 1px solid var(--rule); border-bottom: 1px solid var(--rule); min-height: 0 }
.plot svg { width: 100%; height: 100%; display: block }
.ys, .xs { position: relative; font-variant-numeric: tabular-nums }
.ys span { position: absolute; right: 8px; transform: translateY(-50%) }
.xs { grid-column: 2; height: 1.3rem }
.xs span { position: absolute; top: 3px; transform: translateX(-50%); white-space: nowrap }
.xs .first { transform: none } .xs .last { transform: translateX(-100%) }
.xname { grid-column: 2; text-align: right }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 4px 28px }
.line { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; stroke-linecap: round; stroke-linejoin: round }
.faint { stroke-width: 1; opacity: .38 } .band { stroke: none; opacity: .16 } .grid path, path.grid { fill: none }
path.grid { stroke: var(--rule); stroke-width: 1; vector-effect: non-scaling-stroke }
 .line.front { stroke-dasharray: none }
.importance .strip { min-width: 8rem; height: 14px } .importance td:first-child { width: 30% }
.notes { list-style: none; margin: 0; padding: 0; font-size: 14px }
.notes li { display: grid; grid-template-columns: 1.4rem minmax(0, 1fr); padding: 6px 0;
  border-bottom: 1px solid var(--rule) }
.notes .note { grid-column: 2 } .mark { font-weight: 700; color: var(--soft) }
.warning .mark, .alarm .mark { color: var(--preempted-mark) }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
@media (max-width: 640px) {
  main { padding: 18px 14px 40px } .verdict .sentence { font-size: 1.08rem }
  .tiles { grid-template-columns: 1fr 1fr }
  .remedies li { grid-template-columns: minmax(0, 1fr) auto } .remedies li > .note { grid-column: 1 / -1 }
  .row { grid-template-columns: minmax(0, 1fr) repeat(4, 4rem) }
  .row > svg, .row.axis > div { grid-column: 1 / -1; grid-row: 2 } .row.axis > div { grid-row: 1 }
  .row.head { font-size: 11.5px; letter-spacing: -.02em }
  .row.head > span:nth-child(2), .row.axis > span { display: none }
  .work { grid-template-columns: minmax(0, 1fr) }
  .row .wide { grid-column: 2 / -1; text-align: right }
  .row:not(.head) .num:last-child { grid-column-end: -1 }
  .chart { grid-template-columns: 3rem minmax(0, 1fr); grid-template-rows: 200px 1.3rem auto }
  .cards, .cards tbody, .cards tr, .cards td { display: block } .cards thead { display: none }
  .cards tr { border: 1px solid var(--rule); border-radius: 8px; background: var(--card); padding: 8px 12px;
    margin-bottom: 10px;
    display: grid; grid-template-columns: 1fr 1fr; gap: 2px 16px }
  .cards td { border: 0; padding: 1px 0; display: flex; justify-content: space-between; gap: 10px; text-align: right }
  .cards td::before { content: attr(data-label); color: var(--soft); flex: none }
  .cards td:first-child { grid-column: 1 / -1; font-weight: 600; justify-content: flex-start; text-align: left;
    padding-bottom: 4px }
  .cards td:first-child::before { content: none } .cards .num { white-space: normal }
}
@media print { section { break-inside: avoid } }
"""  # noqa: E501


def style() -> str:
    """The whole style sheet."""
    lines = [
        f".s{i} {{ stroke: var(--s{i}); stroke-dasharray: {dash} }} .band.s{i}, .part{i} {{ fill: "
        f"var(--s{i}) }}"
        for i, dash in enumerate(DASHES)
    ]
    faint = ".faint { stroke-dasharray: none }"
    return "\n".join(
        [
            f":root {{{LIGHT}}}",
            f"@media (prefers-color-scheme: dark) {{ :root {{{DARK}}} }}",
            *lines,
            faint,
            RULES,
            STUDY,
        ]
    )
