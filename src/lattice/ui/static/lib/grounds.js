// The decision record of a placement: every pool against every filter, and the scores of the pools that fit.
import { matrix, replicasOf, weights } from "./answers.js";
import { html, useMemo, useState } from "./dom.js";
import { count, plural } from "./format.js";
import { Badge } from "./parts.js";

const FIRST_ROWS = 30; // of the matrix
const FIRST_SCORES = 5;

export function Matrix({ why }) {
  const [all, setAll] = useState(false);
  const found = useMemo(() => matrix(why), [why]);
  const fit = found.rows.filter((row) => row.fits).length;
  const rows = all ? found.rows : found.rows.slice(0, FIRST_ROWS);
  return html`<section class="card"><h2>Candidates × filters</h2>
    <p class="quiet">${fit} of ${plural(found.rows.length, "pool")} can take the service.
      A ✗ shows what the service needs, what the pool has and what is missing. The first filter that rejects a pool is outlined.</p>
    <div class="matrix" role="region" aria-label="Candidates by filters" tabindex="0"><table class="candidates">
      <thead><tr><th scope="col">Pool</th>
        ${found.filters.map(({ name, fails }) => html`<th scope="col" key=${name} class=${fails ? "" : "slim"}>
        ${name}${fails > 0 && html`<small>${count(fails)} out</small>`}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.name} data-pool=${row.name} data-chosen=${row.chosen > 0 ? "" : null}>
        <th scope="row">${row.name}${row.region !== row.name && html` <small class="quiet">${row.region}</small>`}<br />
          <${Fate} row=${row} /></th>
        ${row.cells.map((cell, at) => html`<${Cell} key=${found.filters[at].name} filter=${found.filters[at].name} reasons=${cell}
          first=${at === row.first} />`)}
      </tr>`)}</tbody>
    </table></div>
    ${rows.length < found.rows.length && html`<button type="button" onClick=${() => setAll(true)}>
      Show all ${count(found.rows.length)} pools</button>`}
  </section>`;
}

function Fate({ row }) {
  if (row.chosen) return html`<${Badge} tone="good">chosen for ${row.chosen}<//>`;
  return row.fits ? html`<${Badge}>fits<//>` : html`<${Badge} tone="bad">rejected<//>`;
}

function Cell({ filter, reasons, first }) {
  if (!reasons.length) return html`<td class="pass"><span aria-hidden="true">✓</span><span class="unseen">passes ${filter}</span></td>`;
  return html`<td class=${first ? "fail first" : "fail"} data-filter=${filter}
      data-first=${first ? "" : null}>${reasons.map((each) => html`<div class="reason"
      key=${each.what + each.need}>
    <span class="what"><span aria-hidden="true">✗</span> ${each.what}${each.replicas && html` <small>replica ${each.replicas}</small>`}
      ${first && html`<span class="unseen"> first filter that rejects the pool</span>`}</span>
    <dl><dt>need</dt><dd>${each.need}</dd><dt>have</dt><dd>${each.have}</dd><dt>missing</dt><dd class="missing">${each.missing}</dd></dl>
  </div>`)}</td>`;
}

export function Scores({ why }) {
  const steps = why.decisions.filter((step) => step.ranked.length);
  return steps.length > 0 && html`<section class="card"><h2>Scores</h2>
    <p class="quiet">Pools that fit, best first. Every plugin scores from 0 to 100 and counts with its weight.
      The plugin that decided against the second pool is outlined.</p>
    ${steps.map((step) => html`<${Step} key=${step.firstReplica} step=${step} />`)}</section>`;
}

function Step({ step }) {
  const [all, setAll] = useState(false);
  const plugins = weights(step.ranked);
  const rows = all ? step.ranked : step.ranked.slice(0, FIRST_SCORES);
  return html`<div class="step"><h3>${replicasOf(step)} <span class="quiet">${step.asked}</span></h3><p>${step.summary}</p>
    ${step.isTie && html`<p class="quiet">The first two pools have equal scores: a hash of the names decides.</p>`}
    <div class="matrix" role="region" aria-label=${`Scores of ${replicasOf(step)}`} tabindex="0"><table class="scores">
      <thead><tr><th scope="col">Pool</th><th scope="col" class="end">Score</th>
        ${plugins.map(({ plugin, weight }) => html`<th scope="col" key=${plugin}>${plugin} <small>×${weight}</small></th>`)}</tr></thead>
      <tbody>${rows.map((row, place) => html`<tr key=${row.name} data-chosen=${row.name === step.chosen ? "" : null}>
        <th scope="row">${row.name}${row.name === step.chosen && html` <${Badge} tone="good">chosen<//>`}</th>
        <td class="end">${row.score.toFixed(2)}</td>
        ${plugins.map(({ plugin }) => html`<${Part} key=${plugin} part=${row.parts.find((each) => each.plugin === plugin)}
          deciding=${!step.isTie && place === 0 && plugin === step.deciding} />`)}
      </tr>`)}</tbody></table></div>
    ${rows.length < step.ranked.length && html`<button type="button" onClick=${() => setAll(true)}>
      Show all ${count(step.ranked.length)}</button>`}</div>`;
}

function Part({ part, deciding }) {
  if (!part) return html`<td></td>`;
  return html`<td class=${deciding ? "part deciding" : "part"} title=${deciding ? "decided against the second pool" : null}>
    <span class="part-name">${part.plugin} ×${part.weight}</span>
    <span class="part-track"><span style=${{ width: `${Math.max(0, Math.min(100, part.score))}%` }}></span></span>
    <span>${part.score.toFixed(1)}</span></td>`;
}
