// Budgets, cost over time, and possible savings.
import { budgetBar, budgetName, committed, monthsOf } from "../lib/answers.js";
import { ask, get, top, withQuery } from "../lib/api.js";
import { Stack } from "../lib/chart.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { atLeast, hourly, money, monthly, percent, plural, span } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Outcome, Track, shareOf } from "../lib/outcome.js";
import { Badge, Bar, Choice, Empty, Figures, Heading, Loading, Problem, State, Table, useAsked, usePaced } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";

const SPENDING = "/apis/lattice.dev/v1alpha1/spending";
const PAID = ["latticeclusters", "latticeservices", "latticeledgers"];
const SEARCH_SECONDS = 10;
const AT_MOST = 2000; // least milliseconds between two queries
const NOTED = 6000; // milliseconds after which the server has recorded the current cost, which it does every 5 s

export default function Money({ query }) {
  const by = query.by || "pool";
  const budgets = useAsked(() => top("budgets"), []);
  const cost = useAsked(() => ask("cost", { by }), [by]);
  const spending = useAsked(() => get(withQuery(SPENDING, { by })), [by]);
  const anew = usePaced(() => [budgets, cost].forEach((each) => each.again()), AT_MOST);
  const later = useLater(() => spending.again(), NOTED);
  useLive(PAID, () => { anew(); later(); });
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && [budgets, spending].forEach((each) => each.again()), 30_000);
    return () => clearInterval(timer);
  }, [by]);
  return html`<${Heading} title="Money"><${By} by=${by} labels=${spending.value?.labels ?? []} /><//>
    ${cost.value && budgets.value && html`<${Totals} cost=${cost.value} budgets=${budgets.value.budgets} />`}
    <div class="stack">
      ${[budgets, cost, spending].map((each) => each.error && html`<${Problem} error=${each.error} retry=${each.again} />`)}
      <${Budgets} found=${budgets.value?.budgets} />
      <${OverTime} found=${spending.value} />
      <${Costs} found=${cost.value} />
      <${Savings} />
    </div>`;
}

// Runs `call` once, `wait` milliseconds after the first request; requests in between need no second call.
function useLater(call, wait) {
  const timer = useRef(0);
  const latest = useRef(call);
  latest.current = call;
  useEffect(() => () => clearTimeout(timer.current), []);
  return () => {
    timer.current ||= setTimeout(() => {
      timer.current = 0;
      latest.current();
    }, wait);
  };
}

function By({ by, labels }) {
  const named = labels.slice(0, 6).map((key) => ({ value: `label:${key}`, title: `By label ${key}` }));
  const options = [{ value: "pool", title: "By pool" }, { value: "service", title: "By service" }, ...named];
  const choose = (value) => replaceQuery({ by: value === "pool" ? "" : value });
  return html`<${Choice} label="Group by" options=${options} value=${by} onChange=${choose} />`;
}

function Totals({ cost, budgets }) {
  const own = budgets.filter((each) => each.kind === "LatticePool" || (each.kind === "CloudInfrastructure" && !each.region));
  const sum = (of) => own.reduce((total, each) => total + each[of], 0);
  return html`<${Figures} items=${[
    { title: "Now", value: atLeast(cost.total.hourlyMicros, cost.unpricedMachines, hourly), note: monthly(cost.total.hourlyMicros) },
    { title: "Spent this month", value: money(sum("spentMicros")) },
    { title: "Projected this month", value: money(sum("projectedMicros")) },
    { title: "Machines without replicas", value: hourly(cost.overhead.hourlyMicros), note: idleNote(cost) },
    ...(cost.unplaced.length ? [{ title: "Not counted", value: plural(cost.unplaced.length, "service"), note: "not placed" }] : []),
  ]} />`;
}

// What the machines without replicas are: empty, being made, leaving.
function idleNote({ empty, beingMade, leaving }) {
  const parts = [[empty, "empty"], [beingMade, "being made"], [leaving, "leaving"]].filter(([rate]) => rate?.hourlyMicros);
  return parts.map(([rate, word]) => `${hourly(rate.hourlyMicros)} ${word}`).join(", ");
}

const LEGEND = [
  ["solid", "spent"],
  ["light", "projected"],
  ["committed", "committed for 30 days (compared with the limit)"],
  ["mark", "alert"],
  ["limit", "limit"],
];

function Budgets({ found }) {
  if (!found) return html`<${Loading} what="Loading budgets" />`;
  if (!found.length) return html`<${Empty}>No machine has cost money yet.<//>`;
  const used = (each) => budgetBar(each).used ?? -1;
  const worst = [...found].sort((one, other) => used(other) - used(one) || other.projectedMicros - one.projectedMicros);
  return html`<section class="card"><h2>Budgets of this month</h2>
    <p class="legend" aria-hidden="true">${LEGEND.map(([of, text]) => html`<span class="key" key=${of}>
      <i class="swatch" data-of=${of}></i><span>${text}</span></span>`)}</p>
    <ul class="budgets">${worst.slice(0, 40).map((each) => html`<${Budget} key=${each.ledger} each=${each} />`)}</ul>
    ${worst.length > 40 && html`<p class="quiet">and ${worst.length - 40} more with lower use</p>`}</section>`;
}

function Budget({ each }) {
  const bar = budgetBar(each);
  // Red means that the limit refuses a purchase or is exceeded.
  const tone = each.isRefusing || each.state === "Exceeded" ? "bad" : each.state === "Alert" ? "warn" : "";
  const strict = each.isHard ? "hard" : "soft";
  const rule = each.rule ? ` by the ${each.rule}` : "";
  const limit = each.limitMicros == null ? "no limit" : `${percent(bar.used)} of ${money(each.limitMicros)}${rule}, ${strict}`;
  const text = `${money(each.spentMicros)} spent, ${money(each.projectedMicros)} projected; ${limit}`;
  const left = each.leftHourlyMicros == null ? "" : `; ${hourly(each.leftHourlyMicros)} left for more machines`;
  const held = `committed ${hourly(each.hourlyMicros)}, ${money(committed(each))} in 30 days`;
  const marks = bar.limit != null && [
    { ratio: bar.committed, title: `committed ${money(committed(each))} in 30 days`, of: "committed" },
    { ratio: bar.alert, title: `alert at ${money((each.limitMicros * each.alertMillionths) / 1e6)}` },
    { ratio: bar.limit, title: `limit ${money(each.limitMicros)}`, of: "limit" },
  ];
  const past = monthsOf([each]).map(({ month, micros }) => `${month} ${money(micros)}`).join(", ");
  const label = `${budgetName(each)}: ${text}`;
  return html`<li><div class="budget-head"><strong>${budgetName(each)}</strong><span class="quiet">${text} · ${held}${left}</span>
      <${State} word=${each.state} />${each.isRefusing && html`<${Badge} tone="bad">refuses a purchase<//>`}</div>
    ${each.isRefusing && html`<p class="quiet">${each.message}</p>`}
    ${marks && html`<${Track} label=${label} tone=${tone} solid=${bar.spent} light=${bar.projected} marks=${marks} />`}
    ${Object.keys(each.pastMicros).length > 0 && html`<p class="quiet">Earlier months: ${past}</p>`}</li>`;
}

function OverTime({ found }) {
  if (!found) return html`<${Loading} what="Loading the cost history" />`;
  const now = found.series.map((each) => `${each.name} ${hourly(each.points.at(-1)?.[1] ?? 0)}`).join(", ");
  const label = `Cost over time by ${found.by.replace("label:", "label ")}: ${now || "nothing"}`;
  return html`<section class="card"><h2>Cost over time</h2>
    <p class="quiet">Dollars per hour over the last ${span(Math.max(0, found.at - found.since))}. The history covers seven days.</p>
    ${found.series.length
      ? html`<${Stack} series=${found.series} since=${found.since} at=${found.at} label=${label} />`
      : html`<p class="quiet">No costs in this period.</p>`}</section>`;
}

function Costs({ found }) {
  const columns = useMemo(() => costColumns(found?.by ?? "pool"), [found?.by]);
  const rows = useMemo(() => found?.rows.map((row) => ({ ...row, path: row.name })), [found]);
  if (!found) return html`<${Loading} what="Loading costs" />`;
  const what = found.by.replace("label:", "");
  const link = found.by === "service" ? (row) => (row.name.startsWith("(") ? null : href("services", ...row.name.split("/"))) : undefined;
  const partly = found.partlyPlaced.map((each) => `${each.name} ${each.placed} of ${each.replicas}`).join(", ");
  return html`<section class="stack-tight"><h2>Current cost</h2>
    <${Table} label=${`Cost by ${what}`} columns=${columns} rows=${rows} href=${link} sort=${{ by: "hour", down: true }} height=${420}
      empty="no costs" />
    ${partly && html`<p class="quiet">Only placed replicas are counted: ${partly}</p>`}</section>`;
}

function costColumns(by) {
  const what = by.replace("label:", "");
  const month = (row) => row.projected30DayMicros;
  const empty = { name: "empty", title: "Empty $/h", value: (row) => row.overhead.hourlyMicros, end: true, wide: true };
  const part = (row) => html`<${Bar} ratio=${row.shareMillionths / 1e6} text=${shareOf(row.shareMillionths)} label=${row.name} />`;
  const rate = (row) => atLeast(row.hourlyMicros, row.unpricedMachines);
  return [
    { name: "name", title: what[0].toUpperCase() + what.slice(1), value: (row) => row.name },
    { name: "hour", title: "$/h", value: (row) => row.hourlyMicros, cell: rate, end: true },
    { name: "month", title: "30 days", value: month, cell: (row) => atLeast(month(row), row.unpricedMachines), end: true },
    { name: "share", title: "Share", value: (row) => row.shareMillionths, cell: part, end: true },
    ...(by === "pool" ? [{ ...empty, cell: (row) => money(row.overhead.hourlyMicros) }] : []),
  ];
}

// Two plans: pending changes of the declared services, and savings by moving replicas.
function Savings() {
  const [asked, setAsked] = useState(null);
  const [found, setFound] = useState({});
  const run = async (name, question) => {
    setAsked(name);
    setFound({});
    try {
      const [{ clusters }, plan] = await Promise.all([top("clusters"), question()]);
      setFound({ name, plan, clusters });
    } catch (error) {
      setFound({ error });
    }
    setAsked(null);
  };
  const pending = () => run("pending", () => ask("plan"));
  const optimise = () => run("optimise", () => ask("optimise", { timeLimitSeconds: SEARCH_SECONDS }));
  const said = asked === "optimise" ? `Searching, at most ${SEARCH_SECONDS} s…` : "Planning…";
  return html`<section class="card"><h2>Plan differences</h2>
    <div class="row"><button type="button" disabled=${asked} onClick=${pending}>Pending changes</button>
      <button type="button" disabled=${asked} onClick=${optimise}>Find savings</button>
      ${asked && html`<span class="quiet" role="status">${said}</span>`}</div>
    <${Problem} error=${found.error} />
    ${found.plan && html`<${Saved} plan=${found.plan} />`}
    ${found.plan && !found.plan.isEmpty && html`<${Outcome} document=${found.plan} clusters=${found.clusters} />`}
  </section>`;
}

function Saved({ plan }) {
  const rate = hourly(plan.total.after.hourlyMicros);
  if (plan.ask !== "optimise") {
    return plan.isEmpty && html`<p class="lead">No changes are pending. The current cost is ${rate}.</p>`;
  }
  const gap = `${(plan.gapMillionths / 1e4).toFixed(2)} %`;
  const bound = `No placement costs less than ${hourly(plan.bound.hourlyMicros)}: the gap is at most ${gap}.`;
  const saved = () => `${plural(plan.moves, "move")} would save ${money(plan.saving.projected30DayMicros)} in 30 days.`;
  const saving = plan.moves ? saved() : `No move would save money. The current cost is ${rate}.`;
  return html`<p class="lead">${saving} <span class="quiet">${bound} ${plan.solver.note}</span> <${Badge}>${plan.solver.status}<//></p>`;
}
