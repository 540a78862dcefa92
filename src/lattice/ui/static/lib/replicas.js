// The replicas of a service: state, node, ports, restarts, age, and the reason of a failure or of a missing node.
import { html } from "./dom.js";
import { bytes, cpu } from "./format.js";
import { Ago, State, Table } from "./parts.js";
import { href } from "./route.js";

const HIGH = 86; // pixels of a row with a reason

const COLUMNS = [
  { name: "name", title: "Replica", value: (row) => row.name },
  { name: "state", title: "State", value: (row) => row.state, cell: state },
  { name: "node", title: "Node", value: (row) => row.node, cell: node },
  { name: "restarts", title: "Restarts", value: (row) => row.restarts ?? 0, end: true, wide: 500 },
  { name: "ports", title: "Ports", value: ports, wide: 700 },
  { name: "asks", title: "Requests", value: (row) => row.cpu, cell: asks, end: true, wide: 500 },
  { name: "since", title: "Since", value: (row) => row.since, cell: since, end: true },
];

function state(row) {
  const failure = row.ready ? "" : row.reason;
  if (!failure) return html`<${State} word=${row.state} />`;
  const code = row.exitCode == null ? "" : `, exit code ${row.exitCode}`;
  return html`<span class="two"><${State} word=${row.state} /><span class="quiet" title=${row.failure}>${failure}${code}</span></span>`;
}

function ports(row) {
  return Object.entries(row.ports ?? {}).map(([name, number]) => `${name} ${number}`).join(", ");
}

function node(row) {
  if (row.node) return html`<a href=${href("nodes", row.node)}>${row.node}</a>`;
  if (!row.why) return html`<span class="quiet">none yet</span>`;
  return html`<span class="two"><span>none</span><span class="quiet whole" title=${row.why}>${row.why}</span></span>`;
}

function since(row) {
  return html`<${Ago} stamp=${row.since ?? row.created} />`;
}

function asks(row) {
  return row.cpu || row.memory ? `${cpu(row.cpu)} cpu, ${bytes(row.memory)}` : "none";
}

// rows: workloads as summarized by the stream.
export function Replicas({ rows }) {
  const high = rows.some((row) => (row.why && !row.node) || (row.reason && !row.ready)) ? HIGH : undefined;
  return html`<section class="stack-tight"><h2>Replicas</h2>
    <${Table} label="Replicas" columns=${COLUMNS} rows=${rows} height=${360} row=${high} empty="no replicas yet" /></section>`;
}
