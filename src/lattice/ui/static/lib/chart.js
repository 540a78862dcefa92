// Cost over time: stacked steps, drawn by uPlot.
import { stacked } from "./answers.js";
import { html, useEffect, useRef, useState } from "./dom.js";
import { hourly } from "./format.js";
import { useWidth } from "./map.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 260;
const COLOURS = 8; // --series-0 … in style.css
const GREYS = { "(empty nodes)": "--line" };

// Only views with a chart load this style sheet.
document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "vendor/uplot.css" }));

// series: [{name, points: [[seconds, micros]]}], the largest first; since and at: begin and end of the time axis.
export function Stack({ series, since, at, label }) {
  const frame = useRef(null);
  const width = useWidth(frame);
  const theme = useTheme();
  useEffect(() => {
    if (!width || !series.length) return undefined;
    const plot = new uPlot(options(frame.current, width, series), columnsOf(series, since, at), frame.current);
    return () => plot.destroy();
  }, [series, width, theme, at]);
  return html`<div class="chart" ref=${frame} role="img" aria-label=${label}></div>`;
}

// Drawn from the top of the stack down, so that every series covers the larger series behind it.
function columnsOf(series, since, at) {
  const { times, columns } = stacked(series, at);
  const from = times[0] > since ? [since] : [];
  return [[...from, ...times], ...columns.map((column) => [...from.map(() => 0), ...column]).reverse()];
}

function options(element, width, series) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(name).trim();
  const steps = uPlot.paths.stepped({ align: 1 });
  const drawn = series.map((each, index) => {
    const paint = colour(each.name.startsWith("(") ? GREYS[each.name] ?? "--series-rest" : `--series-${index % COLOURS}`);
    const below = (plot, at, row) => (at + 1 < plot.data.length ? plot.data[at + 1][row] : 0);
    const own = (plot, total, at, row) => (row == null ? "–" : hourly(Math.round((total - below(plot, at, row)) * 1e6)));
    return { label: each.name, stroke: paint, fill: paint, width: 1, paths: steps, points: { show: false }, value: own };
  });
  const line = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--quiet"), grid: line, ticks: line, font: "12px system-ui, sans-serif" };
  const dollars = (_, marks) => marks.map((each) => `$${each.toLocaleString("en-US", { maximumFractionDigits: 4 })}/h`);
  return {
    width,
    height: HEIGHT,
    padding: [null, 28, null, null], // space for the last label of the time axis
    series: [{ value: (_, seconds) => (seconds == null ? "–" : new Date(seconds * 1000).toLocaleString()) }, ...drawn.reverse()],
    scales: { y: { range: (_, low, high) => [0, (high || 1) * 1.08] } },
    axes: [{ ...axis, space: 90, values: times }, { ...axis, size: 70, values: dollars }],
    hooks: { ready: [latest], setLegend: [latest] },
  };
}

// Without a pointer on the chart, the legend shows the latest values.
function latest(plot) {
  const last = plot.data[0].length - 1;
  if (plot.legend.idx == null) plot.setLegend({ idx: last }, false);
}

function times(_, marks, __, ___, step) {
  const day = { month: "short", day: "numeric" };
  const hour = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(step < 60 ? { second: "2-digit" } : {}) };
  const part = step >= 86400 ? day : hour;
  const format = new Intl.DateTimeFormat("en", part);
  return marks.map((each) => format.format(each * 1000));
}

// A number that changes with the colours of the page, so that the chart is drawn again.
function useTheme() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const next = () => setTurn((before) => before + 1);
    const seen = new MutationObserver(next);
    seen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", next);
    return () => {
      seen.disconnect();
      dark.removeEventListener("change", next);
    };
  }, []);
  return turn;
}
