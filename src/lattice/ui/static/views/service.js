// One service: its placement and the reason, or why it is not placed and which changes would help.
import { nothingFits, told, where } from "../lib/answers.js";
import { ask, get, objectPath, withQuery } from "../lib/api.js";
import { html, useMemo } from "../lib/dom.js";
import { hourly, monthly, signed } from "../lib/format.js";
import { Matrix, Scores } from "../lib/grounds.js";
import { Health } from "../lib/health.js";
import { useLive, useRows } from "../lib/live.js";
import { InTheWay } from "../lib/outcome.js";
import { Ago, Badge, Crumbs, Empty, Figures, Heading, Loading, Problem, State, useAsked, usePaced } from "../lib/parts.js";
import { Replicas } from "../lib/replicas.js";
import { href } from "../lib/route.js";

const SUPPLY = ["latticepools", "latticenodeclasses", "latticeplacementpolicies", "cloudinfrastructures", "staticinfrastructures"];
const DECISIONS = new Set(
  ["Placed", "NotPlaced", "PlacementStale", "ScaledUp", "ScaledDown", "ClusterCreated", "ClusterGrown", "NoNodeFits"],
);

export default function Service({ params: [namespace, name] }) {
  const path = `${namespace}/${name}`;
  const service = useAsked(() => get(objectPath("latticeservices", namespace, name)), [path]);
  const why = useAsked(() => ask("why", { service: path }), [path]);
  const events = useAsked(() => eventsOf(namespace, name), [path]);
  const { rows: workloads } = useRows("latticeworkloads", { service: path });
  const replicas = useMemo(() => workloads.filter((each) => `${each.namespace}/${each.service}` === path), [workloads, path]);
  const anew = usePaced(() => [service, why, events].forEach((each) => each.again()), 1000);
  const reason = usePaced(why.again, 4000);
  useLive(["latticeservices"], ({ latticeservices: note }) => concerns(note, path) && anew());
  useLive(SUPPLY, () => reason());
  if (service.error?.status === 404) {
    return html`<${Heading} title=${name} />
      <${Empty}>There is no service ${name} in ${namespace}. <a href=${href("services")}>See all services</a>.<//>`;
  }
  if (service.error) {
    return html`<${Trail} namespace=${namespace} name=${name} /><${Problem} error=${service.error} retry=${service.again} />`;
  }
  if (!service.value) return html`<${Loading} what="Loading the service" />`;
  return html`<${Trail} namespace=${namespace} name=${name} />
    <${Head} service=${service.value} why=${why.value} />
    <div class="stack">
      <${Health} path=${path} />
      ${why.error && html`<${Problem} error=${why.error} retry=${why.again} />`}
      ${!why.value && !why.error && html`<${Loading} what="Loading the decision" />`}
      ${why.value && html`<${Verdict} why=${why.value} />
        ${!why.value.isPlaced && html`<${Fit} path=${path} revision=${why.value.revision} />`}
        <${Matrix} why=${why.value} /><${Scores} why=${why.value} />`}
      <div class="columns"><${Timeline} events=${events} /><${Replicas} rows=${replicas} /></div>
    </div>`;
}

const concerns = (note, path) => note.again || note.rows.some((row) => row.path === path) || note.gone.includes(path);

async function eventsOf(namespace, name) {
  const fieldSelector = `involvedObject.kind=LatticeService,involvedObject.name=${name}`;
  const { items } = await get(withQuery(objectPath("events", namespace), { fieldSelector }));
  const when = (each) => each.lastTimestamp ?? "";
  return items.sort((one, other) => when(other).localeCompare(when(one)) || other.metadata.resourceVersion - one.metadata.resourceVersion);
}

function Trail({ namespace, name }) {
  const items = [{ name: "Services", href: "#/services" }, { name: `${namespace}/${name}`, href: href("services", namespace, name) }];
  return html`<${Crumbs} items=${items} />`;
}

function Head({ service, why }) {
  const { status = {}, metadata } = service;
  const wanted = why?.replicas ?? service.spec.replicas?.min ?? 1;
  const cost = status.totalCost?.hourly;
  const micros = cost == null ? null : Math.round(cost * 1e6);
  const unpriced = (status.placements ?? []).some((each) => each.replicas && each.cost?.hourly == null);
  return html`<header class="heading"><h1>${metadata.name}</h1><${State} word=${status.phase} />
      ${status.schedulerDecision?.verdict && html`<${State} word=${status.schedulerDecision.verdict} />`}
      ${Object.entries(metadata.labels ?? {}).map(([key, value]) => html`<span class="label mono" key=${key}>${key}=${value}</span>`)}
    </header>
    <${Figures} items=${[
      { title: "Replicas ready", value: `${status.health?.ready ?? 0} of ${wanted}` },
      { title: "Where", value: where(status.placements ?? []) },
      { title: "Cost", value: unpriced ? "unknown" : hourly(micros), note: micros == null ? "" : monthly(micros) },
      { title: "Last decision", value: status.lastScheduled ? html`<${Ago} stamp=${status.lastScheduled} /> ago` : "–" },
    ]} />`;
}

function Verdict({ why }) {
  return html`<section class="card" data-test="verdict" data-tone=${why.isPlaced ? "" : "bad"}>
    <h2>${why.isPlaced ? "Why these pools" : "Why it is not placed"}</h2>
    <p><strong>${why.verdict}.</strong> ${why.reason}</p>
    ${why.isStale && html`<p class="note">A new placement would choose ${where(why.would)}.
      Running replicas are not moved automatically.</p>`}
    ${!why.isPlaced && html`<${InTheWay} found=${why} service=${why.service} />`}
    <details><summary>Requirements (${why.requirements.length})</summary>
      <ul class="plain-list">${why.requirements.map((each) => html`<li key=${each.text}>
        ${each.text} <span class="quiet">${each.source}</span></li>`)}</ul></details>
  </section>`;
}

function Fit({ path, revision }) {
  const { value, error, busy, again } = useAsked(() => ask("fit", { service: path }), [path, revision]);
  return html`<section class="card" data-test="fit"><h2>Changes that would make it fit</h2>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${!value && busy && html`<${Loading} what="Trying changes" />`}
    ${value && !value.suggestions.length && html`<p class="quiet">${nothingFits(value)}</p>`}
    ${value?.suggestions.length > 0 && html`<p class="quiet">Lattice tried every change in this list:
        the service fits with it, and needs all of its parts. The price is the increase of the total cost.</p>
      <ol class="fits">${value.suggestions.map((each) => html`<${Suggestion} key=${each.sentence} each=${each} />`)}</ol>`}
  </section>`;
}

function Suggestion({ each }) {
  const first = each.ahead.slice(0, 3).join(", ");
  const ahead = first && (each.isEnough ? `${first} would be placed first` : `not enough: ${first} would be placed first and use it up`);
  return html`<li>
    <div class="row"><strong class="fit-words">${each.changes.map((change) => change.sentence).join(", and ")}</strong>
      ${each.who.map((who) => html`<${Badge} key=${who}>${who}<//>`)}
      <span class="price">${signed(each.cost.hourlyMicros, hourly)}
        <span class="quiet"> ${signed(each.cost.projected30DayMicros)} in 30 days</span></span></div>
    ${ahead && html`<p class="quiet">${ahead}</p>`}
    <ul class="fields">${each.changes.map(({ path, object, before, after }) => html`<li key=${path} class="mono">
      ${object.kind}/${object.name} ${path}: <del>${told(before)}</del> → <ins>${told(after)}</ins></li>`)}</ul>
  </li>`;
}

function Timeline({ events: { value, error, again } }) {
  return html`<section class="card"><h2>Decisions over time</h2>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${value && !value.length && html`<p class="quiet">No recent events.</p>`}
    ${value?.length > 0 && html`<ol class="timeline">
      ${value.slice(0, 50).map((each) => html`<${Moment} key=${each.metadata.name} ...${each} />`)}</ol>`}
  </section>`;
}

function Moment({ type, reason, message, count, lastTimestamp }) {
  return html`<li data-tone=${type === "Warning" ? "bad" : DECISIONS.has(reason) ? "good" : ""}>
    <span class="when"><${Ago} stamp=${lastTimestamp} /> ago</span>
    <div><strong>${reason}</strong>${count > 1 && html` <small class="quiet">×${count}</small>`}<p>${message}</p></div></li>`;
}
