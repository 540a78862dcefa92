// What happened, newest first, as it happens.
import { html, useMemo, useState } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { useRows } from "../lib/live.js";
import { Ago, Badge, Choice, Dialog, Heading, Loading, Search, Table } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

const TYPES = [{ value: "", title: "All" }, { value: "Warning", title: "Warnings" }];

export default function Events({ query }) {
  const { rows, ready } = useRows("events");
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const shown = useMemo(() => rows.filter((each) => (!query.type || each.type === query.type) && words.every((word) => textOf(each).includes(word))), [rows, query.type, query.q]);
  const [open, setOpen] = useState(null);
  const columns = useMemo(() => columnsWith(setOpen), []);
  return html`
    <${Heading} title="Events" note=${ready ? `${count(shown.length)}${shown.length < rows.length ? ` of ${count(rows.length)}` : ""}` : ""}>
      <${Choice} label="Type" options=${TYPES} value=${query.type ?? ""} onChange=${(type) => replaceQuery({ ...query, type })} />
      <${Search} label="Filter by words" value=${query.q ?? ""} onChange=${(q) => replaceQuery({ ...query, q })} />
    <//>
    ${ready || rows.length
      ? html`<${Table} label="Events" columns=${columns} rows=${shown} sort=${{ by: "seen", down: true }} tall=${60} height=${Math.max(320, innerHeight - 170)} empty="nothing happened that matches" />`
      : html`<${Loading} />`}
    ${open && html`<${One} event=${open} onClose=${() => setOpen(null)} />`}`;
}

function One({ event, onClose }) {
  return html`<${Dialog} title=${event.reason} onClose=${onClose}>
    <p>${event.message}</p>
    <p class="quiet"><${Ago} stamp=${event.seen} /> ago, ${plural(event.count, "time")}, by ${event.by}, about ${about(event)}</p>
  <//>`;
}

const columnsWith = (onOpen) => [
  { name: "seen", title: "Seen", value: (row) => Date.parse(row.seen), cell: (row) => html`<${Ago} stamp=${row.seen} />` },
  { name: "what", title: "What", narrow: true, value: (row) => row.reason, cell: (row) => twoLines(row, onOpen) },
  { name: "type", title: "Type", wide: true, value: (row) => row.type, cell: (row) => html`<${Badge} tone=${row.type === "Warning" ? "warn" : "quiet"}>${row.type}<//>` },
  { name: "reason", title: "Reason", wide: true, value: (row) => row.reason },
  { name: "about", title: "About", wide: true, value: (row) => `${row.kind}/${row.about}`, cell: about },
  { name: "message", title: "Message", wide: true, value: (row) => row.message, cell: (row) => message(row, onOpen) },
  { name: "count", title: "Times", end: true, wide: true, value: (row) => row.count },
  { name: "by", title: "By", wide: true, value: (row) => row.by },
];

function message(row, onOpen) {
  return html`<button type="button" class="plain told" title=${row.message} onClick=${() => onOpen(row)}>${row.message}</button>`;
}

function twoLines(row, onOpen) {
  return html`<span class="two"><span>${row.type === "Warning" && html`<${Badge} tone="warn">Warning<//> `}<strong>${row.reason}</strong> ${about(row)}</span>
    ${message(row, onOpen)}</span>`;
}

function about(row) {
  const what = `${row.kind.replace(/^Lattice/, "").toLowerCase()}/${row.about}`;
  if (row.kind === "LatticeService") return html`<a href=${href("services", row.namespace, row.about)}>${what}</a>`;
  if (row.kind === "LatticeNode") return html`<a href=${href("nodes", row.about)}>${what}</a>`;
  return what;
}

const texts = new WeakMap();
function textOf(row) {
  let text = texts.get(row);
  if (!text) texts.set(row, (text = [row.type, row.reason, row.kind, row.about, row.namespace, row.message, row.by].join(" ").toLowerCase()));
  return text;
}
