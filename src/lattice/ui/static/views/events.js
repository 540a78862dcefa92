// Events, newest first, live.
import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { count, plural } from "../lib/format.js";
import { useRows } from "../lib/live.js";
import { Ago, Badge, Choice, Dialog, Heading, Loading, Search, Table } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

const TYPES = [{ value: "", title: "All" }, { value: "Warning", title: "Warnings" }];
const NEWEST = 500; // events that are requested first; the server searches all stored events for the words
const MORE = 4; // factor by which "Show older" raises the number of events
const TYPED = 300; // milliseconds without another key press before the server is asked

export default function Events({ query }) {
  const [newest, setNewest] = useState(NEWEST);
  const q = useSettled(query.q ?? "", TYPED);
  const { rows, ready, cut } = useRows("events", { newest, type: query.type ?? "", words: q });
  const shown = useMemo(() => rows.filter((each) => isMeant(each, query)), [rows, query.type, query.q]);
  const [open, setOpen] = useState(null);
  const columns = useMemo(() => columnsWith(setOpen), []);
  const height = Math.max(320, innerHeight - 170);
  return html`
    <${Heading} title="Events" note=${ready ? `${cut ? "the newest " : ""}${count(shown.length)}` : ""}>
      ${ready && cut && html`<button type="button" class="plain" onClick=${() => setNewest(newest * MORE)}>Show older</button>`}
      <${Choice} label="Type" options=${TYPES} value=${query.type ?? ""} onChange=${(type) => replaceQuery({ ...query, type })} />
      <${Search} label="Filter by words" value=${query.q ?? ""} onChange=${(words) => replaceQuery({ ...query, q: words })} />
    <//>
    ${ready || shown.length
      ? html`<${Table} label="Events" columns=${columns} rows=${shown} sort=${{ by: "seen", down: true }} tall=${60} height=${height}
          empty="no matching events" />`
      : html`<${Loading} />`}
    ${open && html`<${One} event=${open} onClose=${() => setOpen(null)} />`}`;
}

// The value, once it has not changed for `wait` milliseconds.
function useSettled(value, wait) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), wait);
    return () => clearTimeout(timer);
  }, [value]);
  return settled;
}

function One({ event, onClose }) {
  return html`<${Dialog} title=${event.reason} onClose=${onClose}>
    <p>${event.message}</p>
    <p class="quiet"><${Ago} stamp=${event.seen} /> ago, ${plural(event.count, "time")}, by ${event.by}, about ${about(event)}</p>
  <//>`;
}

const seen = (row) => html`<${Ago} stamp=${row.seen} />`;
const type = (row) => html`<${Badge} tone=${row.type === "Warning" ? "warn" : "quiet"}>${row.type}<//>`;

const columnsWith = (onOpen) => [
  { name: "seen", title: "Last seen", value: (row) => Date.parse(row.seen), cell: seen },
  { name: "what", title: "Event", narrow: true, value: (row) => row.reason, cell: (row) => twoLines(row, onOpen) },
  { name: "type", title: "Type", wide: true, value: (row) => row.type, cell: type },
  { name: "reason", title: "Reason", wide: true, value: (row) => row.reason },
  { name: "about", title: "Object", wide: true, value: (row) => `${row.kind}/${row.about}`, cell: about },
  { name: "message", title: "Message", wide: true, value: (row) => row.message, cell: (row) => message(row, onOpen) },
  { name: "count", title: "Count", end: true, wide: true, value: (row) => row.count },
  { name: "by", title: "Source", wide: true, value: (row) => row.by },
];

function message(row, onOpen) {
  return html`<button type="button" class="plain told" title=${row.message} onClick=${() => onOpen(row)}>${row.message}</button>`;
}

function twoLines(row, onOpen) {
  const warning = row.type === "Warning" && html`<${Badge} tone="warn">Warning<//> `;
  return html`<span class="two"><span>${warning}<strong>${row.reason}</strong> ${about(row)}</span>
    ${message(row, onOpen)}</span>`;
}

function about(row) {
  const what = `${row.kind.replace(/^Lattice/, "").toLowerCase()}/${row.about}`;
  if (row.kind === "LatticeService") return html`<a href=${href("services", row.namespace, row.about)}>${what}</a>`;
  if (row.kind === "LatticeNode") return html`<a href=${href("nodes", row.about)}>${what}</a>`;
  return what;
}

// The same search as on the server, so that loaded events are filtered without waiting for an answer.
function isMeant(row, query) {
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  return (!query.type || row.type === query.type) && words.every((word) => textOf(row).includes(word));
}

const texts = new WeakMap();
function textOf(row) {
  let text = texts.get(row);
  const parts = () => [row.type, row.reason, row.kind, row.about, row.namespace, row.message, row.by];
  if (!text) texts.set(row, (text = parts().join(" ").toLowerCase()));
  return text;
}
