// One service: where it is and why there, or why it waits and what would help.
import { matrix, replicasOf, told, weights, where } from "../lib/answers.js";
import { ask, get, objectPath, withQuery } from "../lib/api.js";
import { html, useMemo, useState } from "../lib/dom.js";
import { bytes, count, cpu, hourly, money, plural, signed } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { InTheWay } from "../lib/outcome.js";
import { Ago, Badge, Crumbs, Empty, Figures, Heading, Loading, Problem, State, Table, useAsked, usePaced } from "../lib/parts.js";
import { href } from "../lib/route.js";

const SUPPLY = ["latticepools", "latticenodeclasses", "latticeplacementpolicies", "cloudinfrastructures", "staticinfrastructures"];
const FIRST_ROWS = 30; // of the matrix
const DECISIONS = new Set(["Placed", "NotPlaced", "PlacementStale", "ScaledUp", "ScaledDown", "ClusterCreated", "ClusterGrown", "NoNodeFits"]);

export default function Service({ params: [namespace, name] }) {
  const path = `${namespace}/${name}`;
  const service = useAsked(() => get(objectPath("latticeservices", namespace, name)), [path]);
  const why = useAsked(() => ask("why", { service: path }), [path]);
  const events = useAsked(() => eventsOf(namespace, name), [path]);
  const replicas = useAsked(() => get(withQuery(objectPath("latticeworkloads", namespace), { labelSelector: `lattice.dev/service=${name}` })), [path]);
  const anew = usePaced(() => [service, why, events].forEach((each) => each.again()), 1000);
  const recount = usePaced(() => replicas.again(), 1000);
  const reason = usePaced(() => why.busy || why.again(), 4000);
  useLive(["latticeservices"], ({ latticeservices: note }) => concerns(note, (row) => row.path === path) && anew());
  useLive(["latticeworkloads"], ({ latticeworkloads: note }) => concerns(note, (row) => row.namespace === namespace && row.service === name) && recount());
  useLive(SUPPLY, () => reason());
  if (service.error?.status === 404) return html`<${Heading} title=${name} /><${Empty}>There is no service ${name} in ${namespace}. <a href=${href("services")}>See all services</a>.<//>`;
  if (service.error) return html`<${Trail} namespace=${namespace} name=${name} /><${Problem} error=${service.error} retry=${service.again} />`;
  if (!service.value) return html`<${Loading} what="Reading the service" />`;
  return html`<${Trail} namespace=${namespace} name=${name} />
    <${Head} service=${service.value} why=${why.value} />
    <div class="stack">
      ${why.error && html`<${Problem} error=${why.error} retry=${why.again} />`}
      ${!why.value && !why.error && html`<${Loading} what="Asking why" />`}
      ${why.value && html`<${Verdict} why=${why.value} />
        ${!why.value.isPlaced && html`<${Fit} path=${path} revision=${why.value.revision} />`}
        <${Matrix} why=${why.value} /><${Scores} why=${why.value} />`}
      <div class="columns"><${Timeline} events=${events} /><${Replicas} replicas=${replicas} /></div>
    </div>`;
}

const concerns = (note, isOurs) => note.again || note.rows.some(isOurs) || note.gone.length > 0;

async function eventsOf(namespace, name) {
  const fieldSelector = `involvedObject.kind=LatticeService,involvedObject.name=${name}`;
  const { items } = await get(withQuery(objectPath("events", namespace), { fieldSelector }));
  return items.sort((one, other) => (other.lastTimestamp ?? "").localeCompare(one.lastTimestamp ?? "") || other.metadata.resourceVersion - one.metadata.resourceVersion);
}

const Trail = ({ namespace, name }) => html`<${Crumbs} items=${[{ name: "Services", href: "#/services" }, { name: `${namespace}/${name}`, href: href("services", namespace, name) }]} />`;

function Head({ service, why }) {
  const { status = {}, metadata } = service;
  const wanted = why?.replicas ?? service.spec.replicas?.min ?? 1;
  const cost = status.totalCost?.hourly;
  return html`<header class="heading"><h1>${metadata.name}</h1><${State} word=${status.phase} />
      ${status.schedulerDecision?.verdict && html`<${State} word=${status.schedulerDecision.verdict} />`}
      ${Object.entries(metadata.labels ?? {}).map(([key, value]) => html`<span class="label mono" key=${key}>${key}=${value}</span>`)}</header>
    <${Figures} items=${[
      { title: "Replicas ready", value: `${status.health?.ready ?? 0} of ${wanted}` },
      { title: "Where", value: where(status.placements ?? []) },
      { title: "Cost", value: hourly(cost == null ? null : Math.round(cost * 1e6)), note: cost == null ? "" : `${money(Math.round(cost * 720e6))} in 30 days` },
      { title: "Last decided", value: status.lastScheduled ? html`<${Ago} stamp=${status.lastScheduled} /> ago` : "–" },
    ]} />`;
}

function Verdict({ why }) {
  return html`<section class="card" data-test="verdict" data-tone=${why.isPlaced ? "" : "bad"}>
    <h2>${why.isPlaced ? "Why there" : "Why it waits"}</h2>
    <p><strong>${why.verdict}.</strong> ${why.reason}</p>
    ${why.isStale && html`<p class="note">Placed today, it would go to ${where(why.would)}; it stays until moving it is asked for.</p>`}
    ${!why.isPlaced && html`<${InTheWay} found=${why} service=${why.service} />`}
    <details><summary>What it asks for (${why.requirements.length})</summary><ul class="plain-list">${why.requirements.map((each) => html`<li key=${each.text}>${each.text} <span class="quiet">${each.source}</span></li>`)}</ul></details>
  </section>`;
}

function Fit({ path, revision }) {
  const { value, error, busy, again } = useAsked(() => ask("fit", { service: path }), [path, revision]);
  return html`<section class="card" data-test="fit"><h2>What would make it fit</h2>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${!value && busy && html`<${Loading} what="Trying changes" />`}
    ${value && !value.suggestions.length && html`<p class="quiet">Nothing that was tried makes it fit.</p>`}
    ${value?.suggestions.length > 0 && html`<p class="quiet">Each was tried: with it the service fits, and no part of it can be left out. The price is what would be paid more than now.</p>
      <ol class="fits">${value.suggestions.map((each) => html`<${Suggestion} key=${each.sentence} each=${each} />`)}</ol>`}
  </section>`;
}

function Suggestion({ each }) {
  const ahead = each.ahead.length ? `${each.isEnough ? "serves" : "not enough:"} ${each.ahead.slice(0, 3).join(", ")} ${each.isEnough ? "first" : "would be first, and take it"}` : "";
  return html`<li>
    <div class="row"><strong class="fit-words">${each.changes.map((change) => change.sentence).join(", and ")}</strong>
      ${each.who.map((who) => html`<${Badge} key=${who}>${who}<//>`)}
      <span class="price">${signed(each.cost.hourlyMicros, hourly)} <span class="quiet">${signed(each.cost.projected30DayMicros)} in 30 days</span></span></div>
    ${ahead && html`<p class="quiet">${ahead}</p>`}
    <ul class="fields">${each.changes.map((change) => html`<li key=${change.path} class="mono">${change.object.kind}/${change.object.name} ${change.path}: <del>${told(change.before)}</del> → <ins>${told(change.after)}</ins></li>`)}</ul>
  </li>`;
}

function Matrix({ why }) {
  const [all, setAll] = useState(false);
  const found = useMemo(() => matrix(why), [why]);
  const fit = found.rows.filter((row) => row.fits).length;
  const rows = all ? found.rows : found.rows.slice(0, FIRST_ROWS);
  return html`<section class="card"><h2>Candidates × filters</h2>
    <p class="quiet">${fit} of ${plural(found.rows.length, "pool")} could take it. A ✗ says what is needed, what there is and what is missing; the first that rules a pool out is outlined.</p>
    <div class="matrix" role="region" aria-label="Candidates by filters" tabindex="0"><table>
      <thead><tr><th scope="col">Pool</th>${found.filters.map((filter) => html`<th scope="col" key=${filter.name} class=${filter.fails ? "" : "slim"}>${filter.name}${filter.fails > 0 && html`<small>${count(filter.fails)} out</small>`}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.name} data-pool=${row.name} data-chosen=${row.chosen > 0 ? "" : null}>
        <th scope="row">${row.name}${row.region !== row.name && html` <small class="quiet">${row.region}</small>`}<br /><${Fate} row=${row} /></th>
        ${row.cells.map((cell, index) => html`<${Cell} key=${found.filters[index].name} filter=${found.filters[index].name} reasons=${cell} first=${index === row.first} />`)}
      </tr>`)}</tbody>
    </table></div>
    ${rows.length < found.rows.length && html`<button type="button" onClick=${() => setAll(true)}>Show all ${count(found.rows.length)} pools</button>`}
  </section>`;
}

function Fate({ row }) {
  if (row.chosen) return html`<${Badge} tone="good">chosen for ${row.chosen}<//>`;
  return row.fits ? html`<${Badge}>fits<//>` : html`<${Badge} tone="bad">ruled out<//>`;
}

function Cell({ filter, reasons, first }) {
  if (!reasons.length) return html`<td class="pass"><span aria-hidden="true">✓</span><span class="unseen">passes ${filter}</span></td>`;
  return html`<td class=${first ? "fail first" : "fail"} data-first=${first ? "" : null}>${reasons.map((each) => html`<div class="reason" key=${each.what + each.need}>
    <span class="what"><span aria-hidden="true">✗</span> ${each.what}${each.replicas && html` <small>replica ${each.replicas}</small>`}${first && html`<span class="unseen"> first that rules it out</span>`}</span>
    <dl><dt>need</dt><dd>${each.need}</dd><dt>have</dt><dd>${each.have}</dd><dt>missing</dt><dd class="missing">${each.missing}</dd></dl></div>`)}</td>`;
}

function Scores({ why }) {
  const steps = why.decisions.filter((step) => step.ranked.length);
  return steps.length > 0 && html`<section class="card"><h2>Scores</h2>
    <p class="quiet">Pools that fit, best first. Parts are from 0 to 100; each counts with its weight. The part that decided over the second is outlined.</p>
    ${steps.map((step) => html`<${Step} key=${step.firstReplica} step=${step} />`)}</section>`;
}

function Step({ step }) {
  const [all, setAll] = useState(false);
  const plugins = weights(step.ranked);
  const rows = all ? step.ranked : step.ranked.slice(0, 5);
  return html`<div class="step"><h3>${replicasOf(step)} <span class="quiet">${step.asked}</span></h3><p>${step.summary}</p>
    <div class="matrix" role="region" aria-label=${`Scores of ${replicasOf(step)}`} tabindex="0"><table class="scores">
      <thead><tr><th scope="col">Pool</th><th scope="col" class="end">Score</th>${plugins.map((each) => html`<th scope="col" key=${each.plugin}>${each.plugin} <small>×${each.weight}</small></th>`)}</tr></thead>
      <tbody>${rows.map((row, place) => html`<tr key=${row.name} data-chosen=${row.name === step.chosen ? "" : null}>
        <th scope="row">${row.name}${row.name === step.chosen && html` <${Badge} tone="good">chosen<//>`}</th><td class="end">${row.score.toFixed(2)}</td>
        ${plugins.map(({ plugin }) => html`<${Part} key=${plugin} part=${row.parts.find((each) => each.plugin === plugin)} deciding=${place === 0 && plugin === step.deciding} />`)}
      </tr>`)}</tbody></table></div>
    ${rows.length < step.ranked.length && html`<button type="button" onClick=${() => setAll(true)}>Show all ${count(step.ranked.length)}</button>`}</div>`;
}

function Part({ part, deciding }) {
  if (!part) return html`<td></td>`;
  return html`<td class=${deciding ? "part deciding" : "part"} title=${deciding ? "decided over the second" : null}>
    <span class="part-track"><span style=${{ width: `${Math.max(0, Math.min(100, part.score))}%` }}></span></span><span>${part.score.toFixed(1)}</span></td>`;
}

function Timeline({ events: { value, error, again } }) {
  return html`<section class="card"><h2>Decisions over time</h2>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    ${value && !value.length && html`<p class="quiet">Nothing was told of it lately.</p>`}
    ${value?.length > 0 && html`<ol class="timeline">${value.slice(0, 50).map((each) => html`<li key=${each.metadata.name} data-tone=${each.type === "Warning" ? "bad" : DECISIONS.has(each.reason) ? "good" : ""}>
      <span class="when"><${Ago} stamp=${each.lastTimestamp} /> ago</span>
      <div><strong>${each.reason}</strong>${each.count > 1 && html` <small class="quiet">×${each.count}</small>`}<p>${each.message}</p></div></li>`)}</ol>`}
  </section>`;
}

const COLUMNS = [
  { name: "name", title: "Replica", value: (row) => row.name },
  { name: "state", title: "State", value: (row) => row.state, cell: (row) => html`<${State} word=${row.state} />` },
  { name: "node", title: "Node", value: (row) => row.node, cell: (row) => (row.node ? html`<a href=${href("nodes", row.node)}>${row.node}</a>` : html`<span class="quiet" title=${row.why}>none yet</span>`) },
  { name: "asks", title: "Asks for", value: (row) => row.cpu, cell: (row) => `${cpu(row.cpu)} cpu, ${bytes(row.memory)}`, end: true, wide: true },
  { name: "since", title: "Since", value: (row) => row.since, cell: (row) => html`<${Ago} stamp=${row.since} />`, end: true },
];

function Replicas({ replicas: { value, error, again } }) {
  const rows = (value?.items ?? []).map(replica);
  return html`<section class="stack-tight"><h2>Replicas</h2>
    ${error && html`<${Problem} error=${error} retry=${again} />`}
    <${Table} label="Replicas" columns=${COLUMNS} rows=${rows} height=${360} empty="none exists yet" /></section>`;
}

function replica({ metadata, spec, status = {} }) {
  const scheduled = status.conditions?.find((each) => each.type === "Scheduled");
  return {
    path: `${metadata.namespace}/${metadata.name}`,
    name: metadata.name,
    node: status.binding?.node ?? "",
    state: status.actualState ?? "Pending",
    why: scheduled?.message ?? "",
    cpu: milli(spec.requests?.cpu),
    memory: Number(spec.requests?.memory) || null,
    since: status.stateSince ?? metadata.creationTimestamp,
  };
}

function milli(amount) {
  if (amount == null) return null;
  const text = String(amount);
  return text.endsWith("m") ? Number(text.slice(0, -1)) : Number(text) * 1000;
}
