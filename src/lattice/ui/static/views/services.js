// The list of services: health, pools, cost and placement decision.
import { html, useMemo, useState } from "../lib/dom.js";
import { atLeast, count, hourly, money, monthly, plural } from "../lib/format.js";
import { useRows } from "../lib/live.js";
import { Ago, Badge, Choice, Empty, Figures, Heading, Loading, Search, State, Table } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

// Sorted by severity, not by the alphabet.
const SEVEREST = [
  "Failed", "Down", "Degraded", "Placing", "Pending", "Provisioning", "Starting", "Updating", "Deleting", "Running",
];
const COLUMNS = [
  { name: "name", title: "Service", value: (row) => row.name },
  { name: "namespace", title: "Namespace", value: (row) => row.namespace, wide: true },
  { name: "ready", title: "Ready", value: (row) => row.ready - row.wanted, cell: health, end: true },
  { name: "phase", title: "Health", value: severity, cell: (row) => html`<${State} word=${row.phase} />`, wide: true },
  { name: "where", title: "Where", value: (row) => row.pools.join(", "), cell: where, wide: true },
  { name: "cost", title: "Cost/h", value: (row) => row.hourlyMicros ?? -1, cell: (row) => cost(row, money), end: true },
  { name: "month", title: "30 days", value: (row) => row.hourlyMicros ?? -1, cell: month, end: true, wide: 1000 },
  { name: "verdict", title: "Verdict", value: (row) => row.verdict, cell: (row) => html`<${State} word=${row.verdict} />` },
  { name: "why", title: "Why", value: (row) => row.why, cell: told, wide: true, fill: true },
  { name: "age", title: "Age", value: (row) => row.created, cell: age, end: true, wide: true },
];
const UNPLACED = { unplaced: true };
const TITLES = { all: "All", waiting: "Waiting", unwell: "Not ready" };
const SHOWN = { all: () => true, waiting: isWaiting, unwell: isUnwell };

function severity(row) {
  return SEVEREST.indexOf(row.phase);
}

function health(row) {
  const tone = row.ready >= row.wanted ? "good" : row.ready ? "warn" : "bad";
  return html`<${Badge} tone=${tone}>${row.ready}/${row.wanted}<//>`;
}

function where(row) {
  return row.pools.join(", ") || html`<span class="quiet">nowhere</span>`;
}

function told(row) {
  return html`<span class="quiet" title=${row.why}>${row.why}</span>`;
}

// The cost of a service; the price of one of its machines may be unknown.
function cost(row, how) {
  return row.isPriced === false ? "unknown" : how(row.hourlyMicros);
}

function month(row) {
  return cost(row, monthly).replace(" in 30 days", "");
}

function age(row) {
  return html`<${Ago} stamp=${row.created} />`;
}

// As the server says, or fewer replicas are ready than wanted, whatever the reason; a service that waits counts, too.
function isUnwell(row) {
  return ["Degraded", "Down", "Failed"].includes(row.phase) || row.ready < row.wanted;
}

// The service waits for a pool, or one of its replicas waits for a node.
function isWaiting(row) {
  return Boolean(row.unplaced) || (row.verdict !== "Placed" && row.verdict !== "");
}

// A placed service may have a replica without a node: then the reason of that replica is shown.
function withUnplaced(services, workloads) {
  const found = new Map();
  for (const each of workloads) {
    const path = `${each.namespace}/${each.service}`;
    if (each.why && !each.node && !each.leaves) found.set(path, [...(found.get(path) ?? []), each]);
  }
  return services.map((row) => {
    const unplaced = found.get(row.path);
    return unplaced ? { ...row, unplaced: unplaced.length, why: `${unplaced[0].name} has no node: ${unplaced[0].why}` } : row;
  });
}

export default function Services({ query }) {
  const { rows: services, ready } = useRows("latticeservices");
  const { rows: unplaced } = useRows("latticeworkloads", UNPLACED);
  const rows = useMemo(() => withUnplaced(services, unplaced), [services, unplaced]);
  const [word, setWord] = useState(query.find ?? "");
  const show = SHOWN[query.show] ? query.show : "all";
  const sums = useMemo(() => sum(rows), [rows]);
  const found = useMemo(() => rows.filter((row) => SHOWN[show](row) && isFound(row, word)), [rows, show, word]);
  if (!ready) return html`<${Loading} what="Loading services" />`;
  const options = Object.keys(SHOWN).map((value) => ({ value, title: `${TITLES[value]} ${count(sums[value])}` }));
  const choose = (value) => replaceQuery({ ...query, show: value === "all" ? "" : value });
  const search = (value) => {
    setWord(value);
    replaceQuery({ ...query, find: value });
  };
  return html`<${Heading} title="Services">
      <${Choice} label="Filter" options=${options} value=${show} onChange=${choose} />
      <${Search} label="Find by name, pool or label" value=${word} onChange=${search} />
    <//>
    <${Figures} items=${[
      { title: "Replicas ready", value: `${count(sums.ready)} of ${count(sums.wanted)}` },
      { title: "Cost", value: atLeast(sums.micros, sums.unpriced, hourly), note: `${monthly(sums.micros)}, without empty machines` },
      { title: "Waiting for placement", value: plural(sums.waiting, "service") },
    ]} />
    ${rows.length
      ? html`<${Table} label="Services" columns=${COLUMNS} rows=${found} href=${toService} empty="no matching services" />`
      : html`<${Empty}>No services yet. <a href="#/plan">Paste a manifest</a> to see its plan.<//>`}`;
}

const toService = (row) => href("services", row.namespace, row.name);

function sum(rows) {
  const sums = { all: rows.length, waiting: 0, unwell: 0, ready: 0, wanted: 0, micros: 0, unpriced: 0 };
  for (const row of rows) {
    sums.waiting += SHOWN.waiting(row);
    sums.unwell += SHOWN.unwell(row);
    sums.ready += row.ready;
    sums.wanted += row.wanted;
    sums.micros += row.hourlyMicros ?? 0;
    sums.unpriced += row.isPriced === false;
  }
  return sums;
}

function isFound(row, word) {
  if (!word) return true;
  const sought = word.toLowerCase();
  const labels = Object.entries(row.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return [row.path, row.verdict, row.phase, ...row.pools, ...labels].some((each) => each.toLowerCase().includes(sought));
}
