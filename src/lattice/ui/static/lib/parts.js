// Shared elements of the views: tables of up to ten thousand rows, bars, badges, errors with their fix.
import { html, memo, useEffect, useMemo, useRef, useState } from "./dom.js";
import { ago, compare, percent, plural } from "./format.js";
import { useWidth } from "./map.js";

const ROW = 34; // pixels, the same as in style.css
const AROUND = 8; // rows drawn above and below the visible rows
const LONG = 24; // characters beyond which a cell may be cut; hovering shows the whole text
const NARROW = 700; // pixels of table width below which columns marked `wide` are hidden

// columns: [{name, title, value: row => sort key, cell: row => content (value if absent), end: true for numbers,
// wide: true if hidden in narrow tables, or the least table width in pixels; narrow: true if shown only in narrow tables,
// fill: true for the text that gets what width the other columns leave}]
// rows have `path` as their key; href(row): target of a row. A click on a heading sorts; ↑ ↓ Enter work inside the table.
// row: pixels of a row; tall: the same in narrow tables, for cells of two lines.
export function Table({ columns, rows, label, href, sort: first, height = 560, row: usual = ROW, tall = usual, empty = "no entries" }) {
  const frame = useRef(null);
  const width = useWidth(frame);
  const [sort, setSort] = useState(first ?? { by: columns[0].name, down: false });
  const [top, setTop] = useState(0);
  const [active, setActive] = useState(null);
  const isNarrow = Boolean(width) && width < NARROW;
  const high = isNarrow ? tall : usual;
  const fits = ({ wide }) => (typeof wide === "number" ? width >= wide : !wide);
  const isWide = ({ wide }) => !width || typeof wide !== "number" || width >= wide;
  const shown = columns.filter((each) => (isNarrow ? fits(each) : !each.narrow && isWide(each)));
  const before = useRef([]);
  const sorted = useMemo(() => (before.current = sortedBy(rows, columns, sort, before.current)), [rows, columns, sort.by, sort.down]);
  const start = Math.max(0, Math.min(Math.floor(top / high) - AROUND, sorted.length - 1));
  const end = Math.min(sorted.length, Math.ceil((top + height) / high) + AROUND);
  const move = (event) => keyMove(event, { sorted, active, setActive, frame, href, high });
  const space = (key, many) => many > 0 && html`<tr key=${key} aria-hidden="true">
    <td class="space" colspan=${shown.length} style=${{ height: `${many * high}px` }}></td></tr>`;
  return html`<div class="table" ref=${frame} style=${{ maxHeight: `${height}px`, "--row": `${high}px` }} role="region" aria-label=${label}
      tabindex="0" onKeyDown=${move} onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <table aria-rowcount=${sorted.length + 1} aria-label=${label}>
      <thead><tr>${shown.map((each) => html`<${Head} key=${each.name} column=${each} sort=${sort} setSort=${setSort} />`)}</tr></thead>
      <tbody>
        ${space("before", start)}
        ${sorted.slice(start, end).map((row, index) => html`<${Row} key=${row.path} row=${row} columns=${shown} href=${href}
          index=${start + index + 2} active=${row.path === active} />`)}
        ${space("after", sorted.length - end)}
      </tbody>
    </table>
    ${!sorted.length && html`<p class="quiet pad">${empty}</p>`}
  </div>`;
}

function Head({ column, sort, setSort }) {
  const on = sort.by === column.name;
  const direction = on ? (sort.down ? "descending" : "ascending") : "none";
  const turn = () => setSort({ by: column.name, down: on ? !sort.down : Boolean(column.end) });
  return html`<th scope="col" class=${column.end ? "end" : ""} aria-sort=${direction}>
    <button type="button" class="head" onClick=${turn}>${column.title}
      <span aria-hidden="true">${on ? (sort.down ? " ↓" : " ↑") : ""}</span></button>
  </th>`;
}

const sameRow = (one, other) => ["row", "index", "active"].every((each) => one[each] === other[each])
  && one.columns.length === other.columns.length && one.columns.every((each, at) => each === other.columns[at]);

const Row = memo(({ row, columns, href, index, active }) => {
  const to = href?.(row);
  const open = (event) => to && !event.target.closest("a,button") && (location.hash = to);
  return html`<tr aria-rowindex=${index} class=${active ? "active" : ""} data-path=${row.path} onClick=${open}>
    ${columns.map((each, at) => {
      const shown = each.cell ? each.cell(row) : each.value(row);
      const title = typeof shown === "string" && shown.length > LONG ? shown : null;
      return html`<td key=${each.name} class=${each.fill ? "fill" : each.end ? "end" : ""} title=${title}>
        ${at === 0 && to ? html`<a href=${to}>${shown}</a>` : shown}</td>`;
    })}
  </tr>`;
}, sameRow);

// before: the rows in their last order, which is nearly sorted and therefore fast to sort.
export function sortedBy(rows, columns, { by, down }, before = []) {
  const column = columns.find((each) => each.name === by) ?? columns[0];
  const sign = down ? -1 : 1;
  const keyed = asBefore(rows, before).map((row) => ({ row, key: column.value(row) }));
  keyed.sort((one, other) => sign * compare(one.key, other.key) || (one.row.path < other.row.path ? -1 : 1));
  return keyed.map((each) => each.row);
}

function asBefore(rows, before) {
  const places = new Map(before.map((row, at) => [row.path, at]));
  const known = new Array(before.length);
  const fresh = [];
  for (const row of rows) {
    const at = places.get(row.path);
    if (at === undefined) fresh.push(row);
    else known[at] = row;
  }
  return [...known.filter(Boolean), ...fresh];
}

function keyMove(event, { sorted, active, setActive, frame, href, high }) {
  const jumps = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity };
  const at = sorted.findIndex((each) => each.path === active);
  if (event.key === "Enter" && at >= 0 && event.target === frame.current && href) location.hash = href(sorted[at]);
  if (!(event.key in jumps) || !sorted.length) return;
  event.preventDefault();
  const next = Math.max(0, Math.min(sorted.length - 1, at + jumps[event.key]));
  setActive(sorted[next].path);
  const y = next * high;
  const box = frame.current;
  if (y < box.scrollTop) box.scrollTop = y;
  else if (y + 2 * high > box.scrollTop + box.clientHeight) box.scrollTop = y + 2 * high - box.clientHeight;
}

// A utilization bar with its percentage.
export function Bar({ ratio, text = percent(ratio || 0), tone = "", label }) {
  const shown = Math.max(0, Math.min(1, ratio || 0));
  return html`<span class="bar" data-tone=${tone} role="img" aria-label=${`${label ? `${label}: ` : ""}${text}`}>
    <span class="bar-track"><span class="bar-fill" style=${{ width: `${shown * 100}%` }}></span></span>
    <span class="bar-text" aria-hidden="true">${text}</span>
  </span>`;
}

// A state as one word. tone: good, warn, bad, quiet; the colour only repeats the meaning of the word.
export const Badge = ({ tone = "quiet", children }) => html`<span class="badge" data-tone=${tone}>${children}</span>`;

const TONES = {
  good: ["Ready", "Running", "Healthy", "Active", "Placed", "Normal", "Ok", "Now", "Available", "Succeeded"],
  warn: [
    "Pending", "Placing", "Provisioning", "Starting", "Updating", "Deleting", "Draining", "Cordoned", "Creating", "Degraded", "NotNow",
    "OverBudget", "Alert", "Warning",
    "Scaling",
  ],
  bad: ["Failed", "Down", "NotReady", "Lost", "Unplaceable", "Unschedulable", "Never", "NotHere", "Unknown", "Exceeded", "Unhealthy"],
};
export const toneOf = (word) => Object.keys(TONES).find((tone) => TONES[tone].includes(word)) ?? "quiet";
export const State = ({ word }) => (word ? html`<${Badge} tone=${toneOf(word)}>${word}<//>` : html`<span class="quiet">–</span>`);

// Time since `stamp`, updated every second.
export function Ago({ stamp }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return html`<time datetime=${stamp} title=${stamp}>${ago(stamp, now)}</time>`;
}

export const Loading = ({ what = "Loading" }) => html`<p class="quiet pad" role="status">${what}…</p>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// An error and its fix.
export function Problem({ error, retry }) {
  if (!error) return null;
  const causes = error.causes ?? [];
  const said = error.fix && causes.some((each) => each.message.includes(error.fix));
  return html`<div class="problem" role="alert">
    <strong>${worded(headline(error.message, causes))}</strong>
    ${causes.length > 0 && html`<ul>${causes.map(({ field, message }) => html`<li>
      ${field && html`<code>${field}</code>: `}${worded(message)}</li>`)}</ul>`}
    ${error.fix && !said && html`<p>Fix: ${worded(error.fix)}</p>`}
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

// Errors in a manifest are listed line by line; the message would repeat them.
function headline(message, causes) {
  const isText = causes.length && causes.every((each) => each.field?.startsWith("yaml:"));
  if (isText) return `${plural(causes.length, "error")} in the manifests`;
  return message.replace(/^yaml:(\d+): /, "line $1 ");
}

// Text between backquotes is shown as code.
const worded = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

// The heading of a view: h1, a note, and actions on the right.
export const Heading = ({ title, note, children }) => html`<header class="heading">
  <h1>${title}</h1>${note && html`<p class="quiet">${note}</p>`}<div class="actions">${children}</div>
</header>`;

// A choice of one option: [{value, title}].
export const Choice = ({ label, options, value, onChange }) => html`<div class="choice" role="radiogroup" aria-label=${label}>
  ${options.map((each) => html`<button type="button" role="radio" key=${each.value} aria-checked=${each.value === value}
    onClick=${() => onChange(each.value)}>${each.title}</button>`)}
</div>`;

export const Search = ({ label, value, onChange }) => html`<input class="search" type="search" placeholder=${label} aria-label=${label}
  value=${value} onInput=${(event) => onChange(event.currentTarget.value)} />`;

// Figures in a row: [{title, value, note}].
export const Figures = ({ items }) => html`<dl class="figures">
  ${items.map(({ title, value, note }) => html`<div key=${title}>
    <dt>${title}</dt><dd>${value}${note && html`<small>${note}</small>`}</dd></div>`)}
</dl>`;

export const Crumbs = ({ items }) => html`<nav class="crumbs" aria-label="Path"><ol>
  ${items.map((each, at) => html`<li key=${each.name}>
    ${at < items.length - 1 ? html`<a href=${each.href}>${each.name}</a>` : html`<span aria-current="page">${each.name}</span>`}</li>`)}
</ol></nav>`;

// A modal dialog; Esc and a click on the background close it, and the focus returns to the previous element.
export function Dialog({ title, onClose, children }) {
  const ref = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => before?.focus?.();
  }, []);
  const outside = (event) => event.target === ref.current && onClose();
  return html`<dialog ref=${ref} aria-label=${title} onCancel=${onClose} onClose=${onClose} onClick=${outside}>
    <div class="dialog-body"><header class="heading"><h2>${title}</h2>
      <button type="button" class="plain" aria-label="Close" onClick=${onClose}>✕</button></header>${children}</div>
  </dialog>`;
}

// Loads a value from the server, and again when `keys` change or `again()` is called: {value, error, busy, again}. The old value stays
// until the new value arrives. Calls of `again()` during a request cause one more request after it.
export function useAsked(load, keys) {
  const [state, setState] = useState({ value: null, error: null, busy: true });
  const asked = useRef({ turn: 0, busy: false, more: false });
  const latest = useRef(load);
  latest.current = load;
  const run = () => {
    const now = asked.current;
    const mine = (now.turn += 1);
    Object.assign(now, { busy: true, more: false });
    setState((before) => ({ ...before, busy: true }));
    const done = (next) => {
      if (now.turn !== mine) return;
      now.busy = false;
      setState((before) => ({ ...before, ...next, busy: now.more }));
      if (now.more) run();
    };
    Promise.resolve(latest.current()).then((value) => done({ value, error: null }), (error) => done({ error }));
  };
  const again = () => {
    if (asked.current.busy) asked.current.more = true;
    else run();
  };
  useEffect(() => {
    run();
    return () => {
      asked.current.turn += 1;
    };
  }, keys);
  return { ...state, again };
}

// Calls at most once in `wait` milliseconds and never drops the last call; for changes that arrive many times a second.
export function usePaced(call, wait) {
  const state = useRef({ timer: 0, at: 0 });
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => () => clearTimeout(state.current.timer), []);
  return () => {
    const now = state.current;
    if (now.timer) return;
    now.timer = setTimeout(() => {
      now.timer = 0;
      now.at = performance.now();
      latest.current();
    }, Math.max(0, now.at + wait - performance.now()));
  };
}
