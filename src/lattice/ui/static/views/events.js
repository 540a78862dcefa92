// What happened, newest first, as it happens.
import { html, useMemo } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { useRows } from "../lib/live.js";
import { Ago, Badge, Choice, Heading, Loading, Search, Table } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

const TYPES = [{ value: "", title: "All" }, { value: "Warning", title: "Warnings" }];

export default function Events({ query }) {
  const { rows, ready } = useRows("events");
  const words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const shown = useMemo(() => rows.filter((each) => (!query.type || each.type === query.type) && words.every((word) => textOf(each).includes(word))), [rows, query.type, query.q]);
  return html`
    <${Heading} title="Events" note=${ready ? `${count(shown.length)}${shown.length < rows.length ? ` of ${count(rows.length)}` : ""}` : ""}>
      <${Choice} label="Type" options=${TYPES} value=${query.type ?? ""} onChange=${(type) => replaceQuery({ ...query, type })} />
      <${Search} label="Filter by words" value=${query.q ?? ""} onChange=${(q) => replaceQuery({ ...query, q })} />
    <//>
    ${ready || rows.length
      ? html`<${Table} label="Events" columns=${COLUMNS} rows=${shown} sort=${{ by: "seen", down: true }} tall=${60} height=${Math.max(320, innerHeight - 170)} empty="nothing happened that matches" />`
      : html`<${Loading} />`}`;
}

const COLUMNS = [
  { name: "seen", title: "Seen", value: (row) => Date.parse(row.seen), cell: (row) => html`<${Ago} stamp=${row.seen} />` },
  { name: "what", title: "What", narrow: true, value: (row) => row.reason, cell: twoLines },
  { name: "type", title: "Type", wide: true, value: (row) => row.type, cell: (row) => html`<${Badge} tone=${row.type === "Warning" ? "warn" : "quiet"}>${row.type}<//>` },
  { name: "reason", title: "Reason", wide: true, value: (row) => row.reason },
  { name: "about", title: "About", wide: true, value: (row) => `${row.kind}/${row.about}`, cell: about },
  { name: "message", title: "Message", wide: true, value: (row) => row.message, cell: (row) => html`<span title=${row.message}>${row.message}</span>` },
  { name: "count", title: "Times", end: true, wide: true, value: (row) => row.count },
  { name: "by", title: "By", wide: true, value: (row) => row.by },
];

function twoLines(row) {
  return html`<span class="two"><span>${row.type === "Warning" && html`<${Badge} tone="warn">Warning<//> `}<strong>${row.reason}</strong> ${about(row)}</span>
    <span class="quiet">${row.message}</span></span>`;
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
