// The list of nodes with their utilization; one node with its workloads, and the actions cordon, drain and uncordon.
import { some } from "../lib/answers.js";
import { html, useMemo, useRef, useState } from "../lib/dom.js";
import { bytes, cores, count, cpu, percent, plural, share } from "../lib/format.js";
import { useRows } from "../lib/live.js";
import { Loads } from "../lib/loads.js";
import { PackedMap } from "../lib/map.js";
import { cordoned, drained, mark, uncordoned } from "../lib/marks.js";
import { Ago, Bar, Crumbs, Dialog, Empty, Figures, Heading, Loading, Problem, Search, State, Table } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

const SEGMENTS = 24; // of a strip; the smaller workloads are drawn as one segment

export default function Nodes({ params, query, user }) {
  const { rows: nodes, ready } = useRows("latticenodes");
  const loads = useRef(null);
  loads.current ??= new Loads();
  const only = params.length ? { node: params[0] } : null;
  const { ready: all } = useRows("latticeworkloads", only, (note) => loads.current.take(note));
  if (!ready) return html`<${Heading} title="Nodes" /><${Loading} />`;
  if (!params.length) return html`<${List} nodes=${nodes} loads=${loads.current} query=${query} />`;
  const node = nodes.find((each) => each.name === params[0]);
  if (!node) {
    return html`<${Heading} title=${params[0]} />
      <${Empty}>This node no longer exists. <a href=${href("nodes")}>See all nodes</a>.<//>`;
  }
  return html`<${One} key=${node.name} node=${node} load=${loads.current.of(node.name)} complete=${all} user=${user} />`;
}

function stateOf(node) {
  if (node.leaves) return "Deleting";
  if (node.isDraining) return "Draining";
  if (!node.isReady) return node.phase && node.phase !== "Ready" ? node.phase : "NotReady";
  return node.unschedulable ? "Cordoned" : "Ready";
}

// ---- the list ----

function List({ nodes, loads, query }) {
  const rows = useLoaded(useMemo(() => found(nodes, query.q ?? ""), [nodes, query.q]), loads);
  const unready = nodes.filter((each) => !each.isReady).length;
  const shown = rows.length < nodes.length ? `, ${count(rows.length)} shown` : "";
  const note = `${plural(nodes.length, "node")}${unready ? `, ${unready} not ready` : ""}${shown}`;
  return html`
    <${Heading} title="Nodes" note=${note}>
      <${Search} label="Filter by words" value=${query.q ?? ""} onChange=${(q) => replaceQuery({ ...query, q })} />
    <//>
    <${Table} label="Nodes" columns=${COLUMNS} rows=${rows} href=${toNode} height=${Math.max(320, innerHeight - 170)}
      empty=${nodes.length ? "no node matches" : "no nodes yet: Lattice creates nodes when it places a service"} />`;
}

const toNode = (row) => href("nodes", row.name);

function found(nodes, q) {
  const words = q.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return nodes;
  const textOf = (each) => [each.name, each.pool, each.cluster, each.class, each.zone, stateOf(each)].join(" ").toLowerCase();
  return nodes.filter((each) => words.every((word) => textOf(each).includes(word)));
}

// Nodes with their workloads. A row object is replaced only if the node or its workloads changed, so that unchanged rows are not redrawn.
function useLoaded(nodes, loads) {
  const known = useRef(new Map());
  return useMemo(() => nodes.map((node) => {
    const load = loads.of(node.name);
    let row = known.current.get(node.path);
    if (row?.node !== node || row.load !== load) known.current.set(node.path, (row = { ...node, node, load }));
    return row;
  }), [nodes, loads.version]);
}

const busy = (row, what) => share(row.load[what], row[what]);
const amount = (row) => row.load.workloads.length;

const COLUMNS = [
  { name: "name", title: "Name", value: (row) => row.name },
  { name: "state", title: "State", value: stateOf, cell: (row) => html`<${State} word=${stateOf(row)} />` },
  { name: "pool", title: "Pool", wide: true, value: (row) => row.pool },
  { name: "class", title: "Class", wide: true, value: (row) => row.class },
  ...[["cpu", "CPU"], ["memory", "Memory"]].map(([what, title]) => ({
    name: what,
    title,
    end: true,
    wide: what === "memory",
    value: (row) => busy(row, what),
    cell: (row) => html`<${Bar} label=${`${title} requested`} ratio=${busy(row, what)} />`,
  })),
  { name: "packed", title: "Workloads by CPU", wide: true, value: amount, cell: (row) => html`<${Strip} node=${row} load=${row.load} />` },
  { name: "workloads", title: "Workloads", end: true, wide: true, value: amount },
];

// The node as one line: the width of a workload is its CPU request, the remainder is free.
function Strip({ node, load }) {
  const sorted = [...load.workloads].sort((one, other) => other.cpu - one.cpu);
  const rest = sorted.slice(SEGMENTS).reduce((sum, each) => sum + each.cpu, 0);
  const parts = [...sorted.slice(0, SEGMENTS).map((each) => each.cpu), ...(rest ? [rest] : [])];
  const width = (part) => ({ width: `${share(part, node.cpu) * 100}%` });
  return html`<span class="strip" aria-hidden="true">${parts.map((part, at) => html`<i key=${at} style=${width(part)}></i>`)}</span>`;
}

// ---- one node ----

function One({ node, load, complete, user }) {
  const items = [
    { title: "State", value: html`<${State} word=${stateOf(node)} />` },
    { title: "CPU requested", value: percent(share(load.cpu, node.cpu)), note: `${cpu(load.cpu)} of ${cores(node.cpu)}` },
    { title: "Memory requested", value: percent(share(load.memory, node.memory)), note: `${bytes(load.memory)} of ${bytes(node.memory)}` },
    { title: "Workloads", value: complete ? count(load.workloads.length) : "…" },
    { title: "Class", value: node.class || "–" },
    { title: "Age", value: html`<${Ago} stamp=${node.created} />` },
  ];
  const place = [node.region, node.pool, node.cluster].filter(Boolean);
  const path = place.join(" › ");
  return html`
    <${Crumbs} items=${[{ name: "Nodes", href: href("nodes") }, { name: node.name }]} />
    <${Heading} title=${node.name} note=${place.length === 3 ? html`in <a href=${href("fleet", ...place)}>${path}</a>` : path}>
      ${user.mayWrite ? html`<${Actions} node=${node} load=${load} />` : html`<span class="quiet">read only</span>`}
    <//>
    <${Figures} items=${items} />
    <div class="stack">
      <section class="card"><h2>Workloads by CPU</h2><${Packed} node=${node} load=${load} /></section>
      <section><h2>Workloads</h2>
        <${Table} label="Workloads" columns=${WORKLOADS} rows=${load.workloads} href=${toService} height=${420}
          empty=${stateOf(node) === "Draining" ? "drained: no workloads remain" : "no workloads are bound to this node"} /></section>
    </div>`;
}

const toService = (row) => row.service && href("services", row.namespace, row.service);

function stateAndReason(row) {
  return html`<${State} word=${row.leaves ? "Deleting" : row.state} /> ${row.reason && html`<span class="quiet">${row.reason}</span>`}`;
}

const since = (row) => html`<${Ago} stamp=${row.since} />`;

const WORKLOADS = [
  { name: "name", title: "Name", value: (row) => row.name },
  { name: "service", title: "Service", wide: true, value: (row) => row.service },
  { name: "state", title: "State", value: (row) => row.state, cell: stateAndReason },
  { name: "ready", title: "Ready", value: (row) => (row.ready ? "yes" : "no") },
  { name: "cpu", title: "CPU", end: true, value: (row) => row.cpu, cell: (row) => cpu(row.cpu) },
  { name: "memory", title: "Memory", end: true, wide: true, value: (row) => row.memory, cell: (row) => bytes(row.memory) },
  { name: "since", title: "Since", end: true, wide: true, value: (row) => Date.parse(row.since), cell: since },
];

function Packed({ node, load }) {
  const free = Math.max(0, node.cpu - load.cpu);
  const least = node.cpu / 200 || 1; // workloads without a CPU request are drawn as well
  const items = load.workloads.map((each) => ({
    key: each.path,
    name: each.name,
    weight: Math.max(each.cpu, least),
    ratio: 0.75,
    text: each.cpu ? cores(each.cpu) : "no CPU requested",
    mark: each.state === "Failed" ? "bad" : "",
    note: `${bytes(each.memory)}, ${each.state}`,
    href: each.service ? href("services", each.namespace, each.service) : href("nodes", node.name),
  }));
  const here = href("nodes", node.name);
  if (free) items.push({ key: "free", name: "free", weight: free, ratio: null, text: cores(free), note: "", href: here });
  return html`<${PackedMap} items=${items} label=${`Workloads on ${node.name}`} height=${180} most=${600} />`;
}

const named = (workloads) => some(workloads.map((each) => `${each.namespace}/${each.name}`).sort(), 10);

// What a drain does: replicas of services are replaced; workloads without a service stop, and start again if another node fits.
function Leaving({ node, load: { workloads } }) {
  const replicas = workloads.filter((each) => each.service);
  const bare = workloads.filter((each) => !each.service);
  return html`
    ${!workloads.length && html`<p>No workloads are bound to this node.</p>`}
    ${replicas.length > 0 && html`<p>${plural(replicas.length, "replica")} will move to other nodes: ${named(replicas)}.
      Lattice moves one replica of a service at a time, and starts its replacement first. If no other node of the cluster has enough free
      capacity, Lattice creates new machines, which cost money.${" "}
      <a href=${href("whatif", { lose: node.pool })}>What-if</a> shows the cost of losing all of ${node.pool || "a pool"}.</p>`}
    ${bare.length > 0 && html`<p class="note">${plural(bare.length, "workload")} without a service will stop: ${named(bare)}.
      Lattice starts no replacement first and creates no machine: each workload waits until another node has enough free capacity.</p>`}
    <p>The node gets no new workloads until you uncordon it.${node.cluster && ` When the node is empty, its cluster ${node.cluster} may
      decommission it; a node that is only cordoned stays.`}</p>`;
}

function Actions({ node, load }) {
  const [asking, setAsking] = useState(false);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(null);
  const run = async (change) => {
    setBusy(true);
    setError(null);
    try {
      await mark(node.name, change);
      setAsking(false);
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return html`
    ${node.unschedulable || node.isDraining
      ? html`<button type="button" disabled=${busy} onClick=${() => run(uncordoned)}>Uncordon</button>`
      : html`<button type="button" disabled=${busy} onClick=${() => run(cordoned)}
          title="No new workloads; running workloads stay">Cordon</button>`}
    ${!node.isDraining && html`<button type="button" class="danger" disabled=${busy} onClick=${() => setAsking(true)}>Drain…</button>`}
    ${!asking && html`<${Problem} error=${error} />`}
    ${asking && html`<${Dialog} title=${`Drain ${node.name}?`} onClose=${() => setAsking(false)}>
      <${Leaving} node=${node} load=${load} />
      <${Problem} error=${error} />
      <div class="row dialog-end"><button type="button" onClick=${() => setAsking(false)}>Cancel</button>
        <button type="button" class="main" disabled=${busy} onClick=${() => run(drained)}>Drain</button></div>
    <//>`}`;
}
