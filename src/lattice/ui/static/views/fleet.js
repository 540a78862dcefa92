// The fleet as a treemap: regions › pools › clusters › nodes. Size is capacity, shade is utilization.
import { top } from "../lib/api.js";
import { html, useEffect, useMemo, useRef } from "../lib/dom.js";
import { atLeast, bytes, cores, count, cpu, hourly, monthly, percent, plural, share } from "../lib/format.js";
import { Wrong } from "../lib/health.js";
import { useLive } from "../lib/live.js";
import { Legend, PackedMap } from "../lib/map.js";
import { Choice, Crumbs, Empty, Figures, Heading, Loading, Problem, useAsked, usePaced } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

const LEVELS = ["region", "pool", "cluster"];
const KINDS = ["latticenodes", "latticeclusters", "latticepools", "latticeworkloads"];
const AT_MOST = 1000; // least milliseconds between two reloads after changes
const USED_AGAIN = 10_000; // milliseconds between reloads of measured usage, whose changes the stream does not report
const BY = [{ value: "cpu", title: "CPU" }, { value: "memory", title: "Memory" }];
const OF = [{ value: "asked", title: "Requested" }, { value: "used", title: "Measured" }];
const NO_POOL = "nodes without a pool";
const NO_REGION = "no region";

export default function Fleet({ params, query }) {
  const { value, error, again } = useAsked(() => top("pools", "clusters", "nodes"), []);
  const soon = usePaced(again, AT_MOST);
  useLive(KINDS, soon);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || again(), USED_AGAIN);
    return () => clearInterval(timer);
  }, []);
  const by = query.by === "memory" ? "memory" : "cpu";
  const of = query.of === "used" ? "used" : "asked";
  const tree = useMemo(() => value && fleetTree(value, { by, of }), [value, by, of]);
  const choose = (more) => replaceQuery({ ...query, ...more });
  const here = tree && find(tree, params);
  return html`
    <${Heading} title="Fleet">
      <${Choice} label="Shade by" options=${OF} value=${of} onChange=${(next) => choose({ of: next })} />
      <${Choice} label="Size and shade by" options=${BY} value=${by} onChange=${(next) => choose({ by: next })} />
    <//>
    <${Problem} error=${error} retry=${again} />
    ${!tree && !error && html`<${Loading} />`}
    ${!params.length && html`<${Wrong} />`}
    ${here && html`<${Totals} of=${here} what=${of} /><${Path} params=${params} query=${query} />
      <${Drawn} here=${here} by=${by} of=${of} />`}
    ${tree && !here && html`<${Empty}>This part of the fleet no longer exists. <a href=${href("fleet")}>See the whole fleet</a>.<//>`}`;
}

function Totals({ of, what }) {
  const word = what === "used" ? "measured" : "requested";
  const memory = `${bytes(of.memory[what])} of ${bytes(of.memory.of)}`;
  const items = [
    { title: "Nodes", value: count(of.nodes), note: of.ready === of.nodes ? "all ready" : `${count(of.ready)} ready` },
    { title: `CPU ${word}`, value: percent(share(of.cpu[what], of.cpu.of)), note: `${cpu(of.cpu[what])} of ${cores(of.cpu.of)}` },
    { title: `Memory ${word}`, value: percent(share(of.memory[what], of.memory.of)), note: memory },
    { title: "Workloads", value: count(of.workloads) },
  ];
  if (of.hourly || of.unpriced) {
    const note = of.unpriced ? "a price is unknown" : monthly(of.hourly);
    items.push({ title: "Cost", value: atLeast(of.hourly, of.unpriced, hourly), note });
  }
  return html`<${Figures} items=${items} />`;
}

function Path({ params, query }) {
  const parts = params.map((name, at) => ({ name, href: href("fleet", ...params.slice(0, at + 1), query) }));
  const items = [{ name: "All", href: href("fleet", query) }, ...parts];
  return html`<div class="row map-path"><${Crumbs} items=${items} /></div>`;
}

function Drawn({ here, by, of }) {
  const parent = useRef();
  parent.current = here.parent; // the key handler must see the parent of the current drawing, not of an earlier one
  useEffect(() => {
    const up = ({ key }) => {
      if (key === "Escape" && parent.current && !document.querySelector("dialog[open]")) location.hash = parent.current;
    };
    addEventListener("keydown", up);
    return () => removeEventListener("keydown", up);
  }, []);
  const from = useFollowedFocus(here.key);
  if (!here.children.length) return html`<${Empty}>No nodes here yet. Lattice creates nodes when it places a service here.<//>`;
  const height = Math.max(320, Math.min(620, innerHeight - 330));
  return html`<${PackedMap} items=${here.children.map(shortened)} label=${`${here.name}, sized by ${by}`} height=${height} from=${from} />
    <${Legend} of=${`${by === "cpu" ? "CPU" : "Memory"} ${of === "asked" ? "requested" : "measured"}`} />`;
}

// The key of the part that was shown before, for the map to focus, if the focus was on the map and not on a link or button beside it.
function useFollowedFocus(key) {
  const last = useRef(key);
  const from = useRef({ key: null });
  if (last.current !== key) {
    const active = document.activeElement;
    if (active === document.body || active.closest(".map")) from.current.key = last.current;
    last.current = key;
  }
  return from.current;
}

// ---- from rows to a tree: pure functions ----

const none = () => ({ used: 0, of: 0, asked: 0 });
const nothing = () => ({ nodes: 0, ready: 0, workloads: 0, hourly: 0, unpriced: 0, cpu: none(), memory: none() });

// {name, children, figures…}: every part with the sums of its children, ready for the map.
export function fleetTree({ pools, clusters, nodes }, how) {
  const regions = new Map(pools.map((each) => [each.name, each.region]));
  const root = branch("All");
  for (const pool of pools) enter(root, [regionOf(pool, nodes), pool.name]);
  for (const node of nodes) {
    const names = [regions.get(node.pool) || node.region || NO_REGION, node.pool || NO_POOL, node.cluster || "no cluster"];
    enter(root, names).inside.set(node.name, leaf(node));
  }
  for (const each of clusters) {
    // A cluster whose machines are still being made has no nodes, but costs money.
    const part = enter(root, [regions.get(each.pool) || each.region || NO_REGION, each.pool, each.name]);
    part.own = each.knownMicros ?? each.hourlyMicros ?? 0;
    part.unknown = each.unpricedMachines ?? (each.isPriced === false ? 1 : 0);
  }
  return shown(root, [], how, spareWeight(root, how));
}

const regionOf = (pool, nodes) => pool.region || nodes.find((each) => each.pool === pool.name)?.region || NO_REGION;
const branch = (name) => ({ name, inside: new Map() });
const leaf = (node) => ({ name: node.name, node, inside: new Map() });

function enter(root, names) {
  return names.reduce((part, name) => {
    if (!part.inside.has(name)) part.inside.set(name, branch(name));
    return part.inside.get(name);
  }, root);
}

// Parts without machines are drawn as well, with a twentieth of the total weight.
function spareWeight(root, { by }) {
  let sum = 0;
  const walk = (part) => {
    sum += part.node?.[by].of ?? 0;
    part.inside.forEach(walk);
  };
  walk(root);
  return Math.max(1, sum / 20);
}

function shown(part, path, how, spare) {
  const parts = [...part.inside.values()];
  const query = { by: how.by === "cpu" ? "" : how.by, of: how.of === "asked" ? "" : how.of };
  const names = parts.map((each) => each.name);
  // An only child fills the frame of its parent, whose name may not be drawn: it keeps its whole name.
  const start = parts.length > 1 ? sharedStart([`${part.name}-`, ...names]) || sharedStart(names) : 0;
  const children = parts.map((each) => ({ ...shown(each, [...path, each.name], how, spare), short: each.name.slice(start) }));
  const parent = path.length ? href("fleet", ...path.slice(0, -1), query) : "";
  if (isFrame(part.name, children)) children[0].parent = parent;
  const total = children.reduce(plus, part.node ? figuresOf(part.node) : nothing());
  total.hourly += part.own ?? 0;
  total.unpriced += part.unknown ?? 0;
  const amount = total[how.by];
  return {
    ...total,
    key: path.join("/") || "all",
    name: part.name,
    weight: amount.of || (part.node ? spare / 10 : children.reduce((sum, each) => sum + each.weight, 0) || spare),
    ratio: total.nodes && amount.of ? share(amount[how.of], amount.of) : null,
    note: noteOf(part, total, how),
    mark: part.node ? markOf(part.node) : "",
    href: part.node ? href("nodes", part.name) : href("fleet", ...path, query),
    parent,
    children,
  };
}

// Length of the common prefix of the names, up to a dash. Narrow boxes show names without this prefix.
function sharedStart(names) {
  let length = 0;
  if (names.length < 2) return 0;
  while (length < names[0].length && names.every((each) => each[length] === names[0][length])) length += 1;
  return names[0].lastIndexOf("-", length - 1) + 1;
}

function figuresOf(node) {
  const figures = { nodes: 1, ready: node.isReady ? 1 : 0, workloads: node.workloads, cpu: { ...node.cpu }, memory: { ...node.memory } };
  return { ...nothing(), ...figures };
}

function plus(total, part) {
  for (const name of ["nodes", "ready", "workloads", "hourly", "unpriced"]) total[name] += part[name];
  for (const name of ["cpu", "memory"]) for (const what of ["used", "of", "asked"]) total[name][what] += part[name][what] ?? 0;
  return total;
}

function noteOf(part, total, { by }) {
  if (!total.nodes) return "no nodes yet";
  const room = by === "cpu" ? cores(total.cpu.of) : bytes(total.memory.of);
  const words = [room, plural(total.workloads, "workload")];
  if (part.node && !part.node.isReady) words.push("not ready");
  if (part.node?.unschedulable) words.push("cordoned");
  if (part.node) return words.join(", ");
  const unready = total.nodes - total.ready;
  return [plural(total.nodes, "node"), ...words, ...(unready ? [`${unready} not ready`] : [])].join(", ");
}

const markOf = (node) => (node.isReady ? (node.unschedulable ? "held" : "") : "bad");

// A region whose only pool has the same name is drawn as that pool, without a second frame.
const isFrame = (name, children) => children.length === 1 && children[0].name === name;

function shortened(part) {
  if (isFrame(part.name, part.children)) return shortened({ ...part.children[0], key: part.key });
  return { ...part, children: part.children.map(shortened) };
}

function find(tree, path) {
  return path.slice(0, LEVELS.length).reduce((part, name) => part?.children.find((each) => each.name === name), tree);
}
