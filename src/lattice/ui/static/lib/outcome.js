// The outcome of a plan, a what-if scenario or an optimisation: all have the same document and the same view.
import { beforeAfter, changeText, MARKS, machinesOf, required, serviceRows, some, summary, unpricedOf, ways, where } from "./answers.js";
import { Declared, rewritten, serviceOf } from "./declared.js";
import { html, memo, useMemo } from "./dom.js";
import { atLeast, count, hourly, money, percent, plural, signed } from "./format.js";
import { PackedMap } from "./map.js";
import { Badge, Figures, Table } from "./parts.js";
import { href } from "./route.js";

const TONES = { "+": "good", "~": "warn", "-": "bad" };
const NAMED = 20; // unplaced services that are shown with details

// document: a plan; clusters: the current clusters, for the map; words: the what-if scenario, if any. Drawn once for every answer.
export const Outcome = memo(Whole, (before, now) => before.document === now.document);

function Whole({ document: plan, clusters, words = [] }) {
  return html`<section class="stack" aria-label="Outcome">
    <p class="lead" data-test="summary">${words.length ? `${capital(words.join(", "))}: ` : ""}${summary(plan)}</p>
    <${Totals} plan=${plan} />
    ${plan.pending && html`<p class="note">Before and after count pending work as done.
      ${` You pay ${atLeast(plan.pending.cost.before.hourlyMicros, plan.pending.unpricedMachines, hourly)} now.`}</p>`}
    <${Declared} plan=${plan} />
    <${Unplaced} found=${plan.unplaced.filter((each) => each.isNew)} />
    ${clusters && html`<${Maps} clusters=${clusters} plan=${plan} />`}
    <${Changes} plan=${plan} />
    ${plan.budgets.length > 0 && html`<${Budgets} budgets=${plan.budgets} />`}
    <${AsBefore} found=${plan.unplaced.filter((each) => !each.isNew)} />
    <${Notes} plan=${plan} />
  </section>`;
}

function Totals({ plan }) {
  const { before, after, change } = plan.total;
  const unpriced = unpricedOf(plan.total);
  const inMonth = atLeast(change.projected30DayMicros, isUnpriced(plan.total), signed);
  const changed = new Set([...plan.services.map((each) => each.name), ...rewritten(plan).map(serviceOf)]);
  const old = plan.unplaced.filter((each) => !each.isNew).length;
  const tone = change.hourlyMicros > 0 ? "warn" : change.hourlyMicros < 0 ? "good" : "";
  return html`<${Figures} items=${[
    { title: "Before", value: atLeast(before.hourlyMicros, unpriced.before, hourly) },
    { title: "After", value: atLeast(after.hourlyMicros, unpriced.after, hourly) },
    { title: "In 30 days", value: html`<span class="change" data-tone=${tone}>${inMonth}</span>` },
    { title: "Services changed", value: count(changed.size) },
    { title: "Not fully placed", value: count(plan.unplaced.length), note: old ? `${count(old)} unchanged` : "" },
  ]} />`;
}

function Maps({ clusters, plan }) {
  const maps = useMemo(() => beforeAfter(clusters, plan), [clusters, plan]);
  const part = (title, items, nodes) => html`<figure class="card">
    <figcaption><h2>${title}</h2> <span class="quiet">${plural(nodes, "node")}</span></figcaption>
    ${items.length
      ? html`<${PackedMap} items=${items} label=${`Map of the fleet, ${title.toLowerCase()}`} height=${240} />`
      : html`<p class="quiet">no machines</p>`}
  </figure>`;
  return html`<div class="columns maps">${part("Before", maps.before, maps.nodesBefore)}${part("After", maps.after, maps.nodesAfter)}</div>
    <p class="legend" aria-hidden="true">
      <span class="key"><i class="box" data-shade="none" data-mark="plus"></i><span>gains machines or replicas</span></span>
      <span class="key"><i class="box" data-shade="none" data-mark="minus"></i><span>loses machines or replicas</span></span></p>`;
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);
const Mark = ({ mark }) => html`<${Badge} tone=${TONES[mark] ?? "quiet"}>${mark === "-" ? "−" : mark} ${MARKS[mark]}<//>`;
const serviceLink = (name) => html`<a href=${href("services", ...name.split("/"))}>${name}</a>`;

const change = (row) => row.cost.change.hourlyMicros;
const month = (row) => row.cost.change.projected30DayMicros;
const hourChange = (row) => (row.isPriced === false && !change(row) ? "unknown" : changeText(row.cost.change));

const SERVICES = [
  { name: "name", title: "Service", value: (row) => row.name, cell: named, wide: true },
  { name: "both", title: "Service", value: (row) => row.name, cell: twoLines, narrow: true },
  { name: "mark", title: "Change", value: (row) => row.mark, cell: (row) => row.mark && html`<${Mark} mark=${row.mark} />`, wide: true },
  { name: "where", title: "Where", value: (row) => where(row.after), cell: (row) => (row.isEmptyMachines ? "" : moved(row)), wide: true },
  { name: "cost", title: "$/h", value: change, cell: hourChange, end: true },
  { name: "month", title: "30 days", value: month, cell: monthChange, end: true, wide: true },
];

function monthChange(row) {
  return row.isPriced === false && !month(row) ? "unknown" : signed(month(row));
}

function named(row) {
  return row.isEmptyMachines ? row.name : serviceLink(row.name);
}

function twoLines(row) {
  if (row.isEmptyMachines) return row.name;
  return html`<span class="two"><span>${serviceLink(row.name)} <${Mark} mark=${row.mark} /></span>
    <span class="quiet whole brief" title=${moved(row)}>${moved(row)}</span></span>`;
}

function moved(row) {
  const [before, after] = [where(row.before), where(row.after)];
  const told = !row.before.length ? after : before === after ? `${after}, unchanged` : `${before} → ${after}`;
  const placed = row.after.reduce((sum, each) => sum + each.replicas, 0);
  return !row.isPlaced && placed ? `${told} (${placed} of ${plural(row.replicas, "replica")})` : told;
}

const CLUSTERS = [
  { name: "name", title: "Cluster", value: (row) => row.name },
  { name: "mark", title: "Change", value: (row) => row.mark, cell: (row) => html`<${Mark} mark=${row.mark} />` },
  { name: "pool", title: "Pool", value: (row) => row.pool, wide: true },
  { name: "nodes", title: "Nodes", value: machinesOf },
  { name: "cost", title: "$/h", value: change, cell: hourChange, end: true },
];

const amount = (name, title, value, how, more) => ({ name, title, value, cell: (row) => how(value(row), row), end: true, ...more });

const POOLS = [
  { name: "name", title: "Pool", value: (row) => row.name },
  amount("before", "Before $/h", (row) => row.before.hourlyMicros, known("before"), { wide: true }),
  amount("after", "After $/h", (row) => row.after.hourlyMicros, known("after")),
  amount("change", "Change $/h", (row) => row.change.hourlyMicros, changed),
  amount("month", "30 days", (row) => row.change.projected30DayMicros, changed),
];

function known(when) {
  return (micros, row) => atLeast(micros, unpricedOf(row)[when]);
}

function changed(micros, row) {
  return atLeast(micros, isUnpriced(row), signed);
}

// Whether the number of machines of unknown price changes.
function isUnpriced(row) {
  return unpricedOf(row).before !== unpricedOf(row).after;
}

const MOVES = [
  { name: "name", title: "Would move", value: (row) => row.name, cell: (row) => serviceLink(row.name) },
  { name: "to", title: "To", value: (row) => (row.to ? where(row.to) : "nowhere") },
  { name: "why", title: "Reason", value: (row) => row.reasons.join("; ") },
];

const keyed = (rows) => rows.map((row) => ({ ...row, path: row.name }));
const Part = ({ title, columns, rows, note, tall }) => rows.length > 0 && html`<section class="stack-tight">
  <h2>${title}</h2><${Table} label=${title} columns=${columns} rows=${keyed(rows)} height=${380} tall=${tall} />
  ${note && html`<p class="quiet">${note}</p>`}</section>`;

function Changes({ plan }) {
  const pools = plan.pools.filter((each) => each.change.hourlyMicros || isUnpriced(each));
  return html`<${Part} title="Services" columns=${SERVICES} rows=${serviceRows(plan)} tall=${60} />
    <${Part} title="Clusters" columns=${CLUSTERS} rows=${plan.clusters} />
    <${Part} title="Money by pool" columns=${POOLS} rows=${pools} />
    <${Part} title="Would move" columns=${MOVES} rows=${plan.wouldMove} note="Running replicas are not moved automatically." />`;
}

function Budgets({ budgets }) {
  const shown = budgets.filter((each) => each.before.micros !== each.after.micros || each.limit.micros !== each.limitBefore.micros);
  return shown.length > 0 && html`<section class="card"><h2>Budgets</h2><ul class="budgets">${shown.map((each) => {
    const over = each.percentAfter >= 100 ? "bad" : each.percentAfter >= each.alertPercent || each.isUsedUp ? "warn" : "";
    const word = over === "bad" ? "over the limit" : each.isUsedUp ? "no budget for another machine" : "alert";
    const text = `${each.percentBefore}% → ${each.percentAfter}%`;
    const marks = [{ ratio: each.alertPercent / 100, title: `alert at ${each.alertPercent}%` }];
    const hard = each.isHard ? "hard" : "soft";
    return html`<li key=${each.ledger}><div class="budget-head"><strong>${each.subject}</strong>
        <span class="quiet">${text} of ${money(each.limit.micros)} a month · alert at ${each.alertPercent}% · ${hard} limit</span>
        ${over && html`<${Badge} tone=${over}>${word}<//>`}</div>
      ${each.left && html`<p class="quiet">${leftText(each)}</p>`}
      <${Track} label=${`${each.subject}: ${text}`} tone=${over} solid=${each.percentBefore / 100} light=${each.percentAfter / 100}
        marks=${marks} /></li>`;
  })}</ul></section>`;
}

function leftText({ left, cheapestMachine, isUsedUp }) {
  if (!isUsedUp) return `${hourly(left.hourlyMicros)} left for more machines`;
  const [need, have] = [cheapestMachine.hourlyMicros, left.hourlyMicros];
  const machine = `another machine needs ${hourly(need)}, the budget has ${hourly(have)}, missing ${hourly(need - have)}`;
  return `${machine}.`;
}

// A bar with a solid and a light part, and marks: [{ratio, title, of}].
export function Track({ label, solid, light, marks = [], tone = "" }) {
  const wide = (ratio) => ({ width: `${Math.max(0, Math.min(1, ratio)) * 100}%` });
  return html`<div class="track" role="img" aria-label=${label} data-tone=${tone}>
    <span class="track-light" style=${wide(light)}></span><span class="track-solid" style=${wide(Math.min(solid, light || solid))}></span>
    ${marks.map(({ of, title, ratio }) => html`<i class="track-mark" key=${title} data-of=${of} title=${title}
      style=${{ left: `${Math.min(1, ratio) * 100}%` }}></i>`)}
  </div>`;
}

function Unplaced({ found }) {
  return found.length > 0 && html`<section class="card problem-card" aria-label="Not fully placed"><h2>Not fully placed</h2>
    <${Verdicts} found=${found} /></section>`;
}

// Services that were unplaced before the change are listed separately.
function AsBefore({ found }) {
  return found.length > 0 && html`<details class="card" aria-label="Not fully placed, unchanged">
    <summary>${plural(found.length, "service is", "services are")} not fully placed (unchanged)</summary>
    <${Verdicts} found=${found} /></details>`;
}

function Verdicts({ found }) {
  return html`<ul class="verdicts">
    ${found.slice(0, NAMED).map((each) => html`<li key=${each.name}>
      <div class="row">${serviceLink(each.name)}
        <${Badge} tone=${each.isNew ? "bad" : "quiet"}>${each.verdict}${each.isNew ? "" : " (unchanged)"}<//>
        <span class="quiet">${each.replicas - each.missing} of ${plural(each.replicas, "replica")} placed</span></div>
      <p>${each.reason}</p><${InTheWay} found=${each} service=${each.name} />
    </li>`)}
    ${found.length > NAMED && html`<li class="quiet">and ${count(found.length - NAMED)} more</li>`}
  </ul>`;
}

// Requirements without which the service would fit, conflicting requirements, and the properties of a new pool that would fit.
export function InTheWay({ found, service }) {
  const listed = [
    ...ways(found, service).map((way, index) => [index ? "or without" : "Fits without", way]),
    ...(found.contradictions ?? []).map((each) => ["Conflict", each.text]),
    ...(found.waits?.length ? [["Waits for", found.waits.join("; ")]] : []),
    ...(required(found.required) ? [["Fits in", required(found.required)]] : []),
  ];
  return listed.length > 0 && html`<dl class="ways">
    ${listed.map(([term, text]) => html`<div key=${term + text}><dt>${term}</dt><dd>${text}</dd></div>`)}</dl>`;
}

function Notes({ plan }) {
  const estimates = plan.latencies.filter((each) => each.isEstimate).length;
  const ignored = Object.entries(plan.ignored ?? {}).map(([kind, number]) => `${number} ${kind}`).join(", ");
  const lines = [
    ...plan.risks,
    ...plan.findings.map((each) => `${each.subject}: ${each.message}`),
    ...(ignored ? [`ignored ${ignored}: placement does not use these kinds`] : []),
    ...(estimates ? [`${estimates} of ${plan.latencies.length} latencies are estimates`] : []),
    ...(plan.prices.unknown.length ? [`no price known for ${some(plan.prices.unknown)}`] : []),
  ];
  const sources = plan.prices.sources.map((each) => `${each.source}${each.asOf ? ` as of ${each.asOf}` : ""}`).join("; ");
  return html`${lines.length > 0 && html`<ul class="notes">${lines.map((line) => html`<li key=${line}>${line}</li>`)}</ul>`}
    <p class="quiet">${sources && `Prices: ${sources}. `}As of revision ${plan.revision}.</p>`;
}

export const shareOf = (millionths) => percent(millionths / 1e6);
