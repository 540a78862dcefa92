// What is wrong now, on the landing view; and why a service does not run, at the top of its view.
import { diagnosis, problems } from "./api.js";
import { html, useEffect, useState } from "./dom.js";
import { plural } from "./format.js";
import { useLive } from "./live.js";
import { Ago, Badge, State, useAsked, usePaced } from "./parts.js";
import { href } from "./route.js";

const KINDS = ["latticeservices", "latticenodes", "latticeclusters", "latticepools", "latticeworkloads"];
const AT_MOST = 2000; // least milliseconds between two reloads after changes
const AGAIN = 15_000; // milliseconds between reloads: some problems begin when time has passed
const FIRST = 5; // problems that are listed without a click
const TONES = { critical: "bad", warning: "warn", info: "quiet" };

function useReloaded(again, kinds) {
  const soon = usePaced(again, AT_MOST);
  useLive(kinds, soon);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || again(), AGAIN);
    return () => clearInterval(timer);
  }, []);
}

// A small strip: nothing but one line while nothing is wrong.
export function Wrong() {
  const { value, again } = useAsked(problems, []);
  const [all, setAll] = useState(false);
  useReloaded(again, KINDS);
  if (!value) return null;
  const listed = value.problems.filter((each) => each.severity !== "info");
  if (!listed.length) return html`<p class="wrong quiet" data-test="wrong" role="status">Nothing is wrong.</p>`;
  const shown = all ? listed : listed.slice(0, FIRST);
  return html`<section class="wrong card" data-tone=${value.counts.critical ? "bad" : "warn"} data-test="wrong" aria-label="What is wrong">
    <h2>What is wrong</h2>
    <ul class="plain-list">${shown.map((each) => html`<${Wrongness} key=${each.object + each.namespace + each.title} ...${each} />`)}</ul>
    ${listed.length > shown.length && html`<button type="button" class="plain" onClick=${() => setAll(true)}>
      Show ${listed.length - shown.length} more</button>`}
  </section>`;
}

function Wrongness({ severity, object, namespace, title, cause, since, command }) {
  const [kind, name] = [object.slice(0, object.indexOf("/")), object.slice(object.indexOf("/") + 1)];
  const view = { service: href("services", namespace, name), node: href("nodes", name) }[kind];
  const text = namespace && namespace !== "default" ? `${kind}/${namespace}/${name}` : object;
  return html`<li><div class="row"><${Badge} tone=${TONES[severity]}>${title}<//>
      ${view ? html`<a href=${view}>${text}</a>` : html`<span>${text}</span>`}
      ${since && html`<span class="quiet">for <${Ago} stamp=${since} /></span>`}</div>
    <p class="whole">${cause}${command && html` <code>${command}</code>`}</p></li>`;
}

// The ready bar, what blocks first, the exit code and the last lines of the log.
export function Health({ path }) {
  const { value, error, again } = useAsked(() => diagnosis({ service: path }), [path]);
  useReloaded(again, ["latticeservices", "latticeworkloads", "latticenodes"]);
  if (error || !value) return null;
  const { ready, wanted, blockers, phase } = value;
  const calm = !blockers.length && phase === "Running";
  const tone = calm ? "" : value.isAvailable ? "warn" : "bad";
  return html`<section class="card" data-test="health" data-tone=${tone}>
    <div class="row"><h2>${calm ? "It runs" : "Why it is not running"}</h2><${State} word=${phase} />
      <span>${ready} of ${wanted} ready</span>
      ${value.restarts > 0 && html`<span class="quiet">${plural(value.restarts, "restart")}</span>`}
      ${value.since && html`<span class="quiet">
        ${value.isAvailable ? "available" : "not available"} for <${Ago} stamp=${value.since} /></span>`}</div>
    ${calm && value.restarts > 0 && html`<p>${value.answer}</p>`}
    ${blockers.map((each) => html`<${Blocker} key=${each.stage + each.cause} ...${each} />`)}
  </section>`;
}

function Blocker({ stage, cause, need, have, since, next, nextAt, fix, command, exitCode, log, replicas, first }) {
  return html`<div class="blocker">
    <p class="whole"><strong>${stage}</strong>${first && ` · ${first}${replicas > 1 ? ` and ${replicas - 1} more` : ""}`}: ${cause}
      ${exitCode != null && html` <${Badge} tone="bad">exit code ${exitCode}<//>`}
      ${since && html` <span class="quiet">for <${Ago} stamp=${since} /></span>`}</p>
    ${need && html`<p>Need ${need}; have ${have}.</p>`}
    ${log && html`<pre class="log" tabindex="0" aria-label="Last lines of the log">${log.split("\n").slice(-10).join("\n")}</pre>`}
    ${next && html`<p class="quiet">Next: ${next}${nextAt && html` (<${Until} stamp=${nextAt} />)`}.</p>`}
    ${fix && html`<p class="quiet">What would help: ${fix}. ${command && html`<code>${command}</code>`}</p>`}
  </div>`;
}

// Seconds until a time, updated every second.
function Until({ stamp }) {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.round((Date.parse(stamp) - now) / 1000);
  return html`<span>${seconds > 0 ? `in ${seconds} s` : "now"}</span>`;
}
