// Answers of the server about the fleet, arranged for display. Pure functions without page elements.
import { atLeast, compare, count, hourly, plural, signed } from "./format.js";

const MONTH_HOURS = 720;

// `us-east 2, eu-west 1`
export function where(places) {
  const counts = new Map();
  for (const each of places) counts.set(each.pool, (counts.get(each.pool) ?? 0) + each.replicas);
  return [...counts].map(([pool, replicas]) => `${pool} ${replicas}`).join(", ") || "nowhere";
}

// Candidates × filters: every pool with a cell for every filter; `first` is the index of the first filter that rejects the pool.
export function matrix({ filters, pools, decisions }) {
  const chosen = new Map();
  const scores = new Map();
  for (const step of decisions) {
    if (step.chosen) chosen.set(step.chosen, (chosen.get(step.chosen) ?? 0) + step.replicas);
    for (const each of step.ranked) scores.set(each.name, Math.max(scores.get(each.name) ?? -Infinity, each.score));
  }
  const rows = pools.map((pool) => {
    const cells = filters.map((filter) => pool.reasons.filter((reason) => reason.filter === filter));
    const failing = cells.filter((cell) => cell.length).length;
    const first = cells.findIndex((cell) => cell.length);
    return { ...pool, cells, failing, first, chosen: chosen.get(pool.name) ?? 0, score: scores.get(pool.name) ?? -1 };
  });
  const order = (one, other) =>
    other.chosen - one.chosen || other.fits - one.fits || other.score - one.score || one.failing - other.failing
    || compare(one.name, other.name);
  const fails = (index) => rows.filter((row) => row.cells[index].length).length;
  return { filters: filters.map((name, index) => ({ name, fails: fails(index) })), rows: rows.sort(order) };
}

// The plugins that scored the pools, with their weights, in order.
export function weights(ranked) {
  const found = new Map();
  for (const each of ranked) for (const part of each.parts) found.set(part.plugin, part.weight);
  return [...found].map(([plugin, weight]) => ({ plugin, weight }));
}

// The numbers of the replicas of one decision, such as `Replicas 1–3`.
export function replicasOf({ firstReplica, replicas }) {
  return replicas === 1 ? `Replica ${firstReplica}` : `Replicas ${firstReplica}–${firstReplica + replicas - 1}`;
}

// Sets of requirements; the service would fit without any one of these sets.
export const ways = ({ conflicts = [] }, service) => conflicts.map((parts) => parts.map((part) => sourced(part, service)).join(" and "));

const sourced = ({ text, source }, service) => (source && source !== ownSource(service) ? `${text} (${source})` : text);

const ownSource = (service) => `service/${service.split("/").at(-1)}`;

// Text for a service without suggestions; the same text as `lattice fit` prints.
export function nothingFits({ isPlaced, conflicts = [] }) {
  if (isPlaced) return "The service fits without changes.";
  const fewest = Math.min(...conflicts.map((parts) => parts.length));
  if (!conflicts.length || fewest === 1) return "No tried change places the service.";
  return `No tried change places the service: ${fewest} requirements would have to change together.`;
}

// `2 new pools with region other than north; compliance gdpr; 1 node of cpu 250m, memory 128Mi`
export function required(wanted) {
  if (!wanted?.places) return "";
  const { machine, machines = 1, latency = {}, ...rest } = wanted.requiredProperties;
  const words = Object.entries(rest).map(([name, value]) => `${spaced(name)} ${told(value)}`);
  const within = (to) => (to.length ? ` in ${to.join(", ")}` : "");
  const near = Object.entries(latency).map(([name, each]) => `at most ${each.maxMs} ms to ${name}${within(each.to)}`);
  const sized = machine ? ` of ${told(machine)}` : "";
  const places = wanted.places === 1 ? "a new pool" : `${wanted.places} new pools`;
  return `${places} with ${[...words, ...near, plural(machines, "node") + sized].join("; ")}`;
}

const spaced = (name) => name.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);

export function told(value) {
  if (value == null) return "nothing";
  if (Array.isArray(value)) return value.map(told).join(", ");
  if (typeof value === "object") return Object.entries(value).map(([name, each]) => `${name} ${told(each)}`).join(", ");
  return String(value);
}

// The summary of a plan in one sentence; the same text as `lattice plan` prints.
export function summary({ services, clusters, wouldMove, unplaced, total, declared = [] }) {
  const parts = [...tally(services, "service"), ...tally(clusters, "cluster")];
  const nodes = clusters.reduce((sum, each) => sum + machines(each.after) - machines(each.before), 0);
  if (nodes) parts.push(`${plural(Math.abs(nodes), "node")} ${nodes > 0 ? "more" : "fewer"}`);
  if (wouldMove.length) parts.push(`${plural(wouldMove.length, "service")} would move`);
  const before = unplaced.some((each) => each.isNew) ? "" : " (unchanged)";
  for (const [word, some] of [["partly", unplaced.filter(has)], ["not", unplaced.filter((each) => !has(each))]]) {
    if (some.length) parts.push(`${plural(some.length, "service")} ${word} placed${before}`);
  }
  return `${[...parts, ...besides(declared, !parts.length)].join(", ")}; ${totalChange(total)}`;
}

// The cost before and after in words; machines of unknown price make it a lower bound, or unknown.
function totalChange(total) {
  const unpriced = unpricedOf(total);
  const [then, now] = ["before", "after"].map((when) => atLeast(total[when].hourlyMicros, unpriced[when], hourly));
  const mark = unpriced.before === unpriced.after ? "" : "≥ ";
  const change = () => `${then} → ${now} (${mark}${signed(total.change.projected30DayMicros)} in 30 days)`;
  const same = () => (mark ? `${then} → ${now}` : `${now}, unchanged`);
  const text = total.change.hourlyMicros ? change() : same();
  return unpriced.after ? `${text}, with ${plural(unpriced.after, "node")} of unknown price` : text;
}

// The number of machines of unknown price before and after a change.
export const unpricedOf = ({ unpriced }) => unpriced ?? { before: 0, after: 0 };

// Changes other than placement: restarted services always, other declarations only if the summary has nothing else.
function besides(declared, isAll) {
  const restarted = declared.filter((each) => each.isRestarted).length;
  const others = declared.length - restarted;
  const parts = restarted ? [`${plural(restarted, "service")} restarted replica by replica`] : [];
  if (!isAll) return parts;
  if (others) parts.push(`${plural(others, restarted ? "other declaration" : "declaration")} changed`);
  return [...parts, declared.length ? "no placement changes" : "nothing changes"];
}

const has = (each) => each.replicas - each.missing;
const machines = (counts) => Object.values(counts).reduce((sum, each) => sum + each, 0);

function tally(rows, noun) {
  const verbs = { "+": noun === "service" ? "placed" : "created", "~": "changed", "-": "removed" };
  return Object.entries(verbs).flatMap(([mark, verb]) => {
    const found = rows.filter((each) => each.mark === mark && each.isPlaced !== false).length;
    return found ? [`${plural(found, noun)} ${verb}`] : [];
  });
}

// `3 × medium`, or `2 → 3 × medium`
export function machinesOf({ mark, before, after }) {
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].sort().map((name) => {
    const [then, now] = [before[name] ?? 0, after[name] ?? 0];
    if (mark === "+" || then === now) return `${now} × ${name}`;
    return mark === "-" ? `${then} × ${name}` : `${then} → ${now} × ${name}`;
  }).join(", ");
}

export const MARKS = { "+": "new", "~": "changed", "-": "removed" };

// The what-if scenario in words; the same text as `lattice whatif` prints.
export function eventWords({ lose, drop, priceMillionths }) {
  const words = [...lose.map((each) => `without ${each}`), ...drop.map((each) => `without compliance ${each.compliance} in ${each.pool}`)];
  const change = (priceMillionths - 1e6) / 1e4;
  return change ? [...words, `with prices ${change > 0 ? "+" : "−"}${Math.abs(change)} %`] : words;
}

// The fleet before and after a plan as two trees for the treemap: pools › clusters, sized by machines. `clusters`: the current clusters.
export function beforeAfter(clusters, plan) {
  const known = new Map(clusters.map(({ name, pool, nodes }) => [name, { name, pool, before: nodes, after: nodes, mark: "" }]));
  for (const each of plan.clusters) {
    known.set(each.name, { name: each.name, pool: each.pool, before: machines(each.before), after: machines(each.after), mark: each.mark });
  }
  for (const each of known.values()) each.replicas = 0;
  for (const service of plan.services) {
    for (const [places, sign] of [[service.before, -1], [service.after, 1]]) {
      for (const place of places) if (known.has(place.cluster)) known.get(place.cluster).replicas += sign * place.replicas;
    }
  }
  const all = [...known.values()];
  const total = (when) => all.reduce((sum, each) => sum + each[when], 0);
  return { before: tree(all, "before"), after: tree(all, "after"), nodesBefore: total("before"), nodesAfter: total("after") };
}

// The map of before marks clusters that lose machines or replicas, the map of after marks clusters that gain.
function fate({ mark, before, after, replicas }, when) {
  const gain = after - before || replicas;
  if (when === "before") return mark === "-" || gain < 0 ? "minus" : "";
  return mark === "+" || gain > 0 ? "plus" : "";
}

function tree(clusters, when) {
  const pools = new Map();
  for (const each of clusters) {
    if (!each[when]) continue;
    const mark = fate(each, when);
    const text = mark && each.replicas ? `${each.replicas > 0 ? "+" : "−"}${plural(Math.abs(each.replicas), "replica")}` : "";
    const name = `${each.mark === "+" ? "+ " : each.mark === "-" ? "− " : ""}${each.name}`;
    const box = { key: `${when}/${each.name}`, name, weight: each[when], ratio: null, text, note: plural(each[when], "node"), mark };
    pools.set(each.pool, [...(pools.get(each.pool) ?? []), box]);
  }
  return [...pools].sort(([one], [other]) => compare(one, other)).map(([pool, children]) => {
    const weight = children.reduce((sum, each) => sum + each.weight, 0);
    return { key: `${when}:${pool}`, name: pool, weight, ratio: null, note: plural(weight, "node"), children };
  });
}

// Services that change, and machines without workloads: together they add up to the total change.
export function serviceRows({ services, overhead }) {
  const rows = services.filter((each) => each.before.length || each.after.length);
  const empty = { name: "(empty nodes)", mark: "", before: [], after: [], isPlaced: true, isEmptyMachines: true, cost: overhead };
  return overhead.change.hourlyMicros ? [...rows, empty] : rows;
}

// One budget as shares of the largest of limit, projection and 30 days at the current rate. The limit is compared with the last of these.
// Shares: spent, projected for this month, alert, limit, committed.
// `used` is the use of the limit under the rule that binds: the larger of the projection and 30 days at the current rate.
export function budgetBar({ spentMicros, projectedMicros, limitMicros, alertMillionths, hourlyMicros = 0, usedMillionths }) {
  const whole = Math.max(limitMicros ?? 0, projectedMicros, hourlyMicros * MONTH_HOURS, 1);
  // A server of an earlier version does not state the use.
  const larger = limitMicros ? Math.max(projectedMicros, hourlyMicros * MONTH_HOURS) / limitMicros : null;
  const alert = limitMicros == null ? null : (limitMicros * alertMillionths) / 1e6;
  return {
    spent: spentMicros / whole,
    projected: projectedMicros / whole,
    alert: alert == null ? null : alert / whole,
    limit: limitMicros == null ? null : limitMicros / whole,
    committed: (hourlyMicros * MONTH_HOURS) / whole,
    used: usedMillionths == null ? larger : usedMillionths / 1e6,
  };
}

const WORDS = { LatticePool: "pool", CloudInfrastructure: "cloud", StaticInfrastructure: "overflow of" };
export const budgetName = ({ kind, name, region }) => `${WORDS[kind] ?? kind} ${name}${region ? ` ${region}` : ""}`;

export const committed = ({ hourlyMicros }) => hourlyMicros * MONTH_HOURS;

// Series of steps as columns of a stacked chart: times, and for every series the sum of it and the series below.
export function stacked(series, at) {
  const times = [...new Set([...series.flatMap((each) => each.points.map(([time]) => time)), at])].sort((one, other) => one - other);
  const below = times.map(() => 0);
  const columns = series.map(({ points }) => {
    let next = 0;
    let rate = 0;
    return times.map((time, index) => {
      while (next < points.length && points[next][0] <= time) rate = points[next++][1];
      below[index] += rate / 1e6;
      return below[index];
    });
  });
  return { times, columns };
}

// Spending in earlier months, summed over budgets that do not contain one another.
export function monthsOf(budgets) {
  const sums = new Map();
  for (const each of budgets) {
    if (each.kind === "StaticInfrastructure" || (each.kind === "CloudInfrastructure" && each.region)) continue;
    for (const [month, micros] of Object.entries(each.pastMicros)) sums.set(month, (sums.get(month) ?? 0) + micros);
  }
  return [...sums].sort(([one], [other]) => compare(one, other)).map(([month, micros]) => ({ month, micros }));
}

export const changeText = (change) => `${signed(change.hourlyMicros, hourly)}`;

export function some(words, most = 3) {
  const rest = words.length > most ? ` and ${count(words.length - most)} more` : "";
  return `${words.slice(0, most).join(", ")}${rest}`;
}
