// The plan of manifests, as from `lattice plan -f`: what a change would do, before it happens.
import { summary } from "../lib/answers.js";
import { ask, top } from "../lib/api.js";
import { Overwritten } from "../lib/declared.js";
import { html, useRef, useState } from "../lib/dom.js";
import { plural, signed } from "../lib/format.js";
import { Outcome } from "../lib/outcome.js";
import { Dialog, Heading, Problem } from "../lib/parts.js";
import { href } from "../lib/route.js";
import { ChangedSince, useChangedSince } from "../lib/since.js";

const KEPT = "lattice-plan"; // the typed text stays while the page is open, until the user signs out
const SAMPLE = `apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata:
  name: sample
spec:
  containers:
    main:
      command: [sleep, infinity]
  placement:
    resources:
      cores: 0.1
      memoryGi: 0.0625
  replicas:
    min: 2
`;

export default function Plan({ user }) {
  const [yaml, setYaml] = useState(sessionStorage.getItem(KEPT) ?? "");
  const [namespace, setNamespace] = useState("default");
  const [state, setState] = useState({});
  const [over, setOver] = useState(false);
  const turn = useRef(0);
  const moved = useChangedSince(state.plan ?? null);
  const write = (text) => {
    sessionStorage.setItem(KEPT, text);
    setYaml(text);
  };
  const run = async (text = yaml) => {
    const mine = (turn.current += 1);
    setState({ busy: true });
    try {
      const [{ clusters }, plan] = await Promise.all([top("clusters"), ask("plan", { yaml: text, namespace })]);
      if (turn.current === mine) setState({ plan, clusters, yaml: text, namespace });
    } catch (error) {
      if (turn.current === mine) setState({ error });
    }
  };
  const take = async (files) => {
    if (!files.length) return;
    const text = (await Promise.all([...files].map((file) => file.text()))).join("\n---\n");
    write(text);
    run(text);
  };
  const drop = (event) => {
    event.preventDefault();
    setOver(false);
    if (event.dataTransfer.files.length) take(event.dataTransfer.files);
    else write(event.dataTransfer.getData("text/plain"));
  };
  const hover = (event) => {
    event.preventDefault();
    setOver(true);
  };
  const keyed = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run();
  const clear = () => {
    write("");
    setState({});
  };
  return html`<${Heading} title="Plan" note="See what a change does to placement and cost before you apply it." />
    <section class="card drop" data-over=${over ? "" : null} onDrop=${drop} onDragOver=${hover} onDragLeave=${() => setOver(false)}>
      <label for="manifests">Manifests: paste them or drop files here.
        Allowed: services, pools, node classes, infrastructure, policies.</label>
      <textarea id="manifests" rows="12" spellcheck="false" value=${yaml} placeholder=${SAMPLE}
        onInput=${(event) => write(event.currentTarget.value)} onKeyDown=${keyed}></textarea>
      <div class="row">
        <button type="button" class="main" disabled=${state.busy || !yaml.trim()} onClick=${() => run()}>Plan</button>
        <label class="button file">Choose files
          <input type="file" multiple accept=".yaml,.yml,.json" onChange=${(event) => take(event.currentTarget.files)} /></label>
        ${!yaml && html`<button type="button" class="plain" onClick=${() => write(SAMPLE)}>Try a sample</button>`}
        ${yaml && html`<button type="button" class="plain" onClick=${clear}>Clear</button>`}
        <label class="inline">Namespace${" "}
          <input size="12" value=${namespace} onInput=${(event) => setNamespace(event.currentTarget.value.trim())} /></label>
        ${state.busy && html`<span class="quiet" role="status">Planning…</span>`}
      </div>
    </section>
    <${Problem} error=${state.error} />
    ${state.plan && html`<${Next} state=${state} user=${user} moved=${moved} stale=${state.yaml !== yaml}
        onAgain=${() => run(state.yaml)} />
      <${Outcome} document=${state.plan} clusters=${state.clusters} />`}`;
}

// Applies exactly this plan: the server rejects the request if the outcome would differ from the plan.
function Next({ state: { plan, yaml, namespace }, user, moved, stale, onAgain }) {
  const [done, setDone] = useState({});
  const [asking, setAsking] = useState(false);
  const apply = async () => {
    setAsking(false);
    setDone({ busy: true });
    try {
      const { objects } = await ask("apply", { yaml, namespace, expect: plan.id });
      setDone({ id: plan.id, objects });
    } catch (error) {
      setDone({ id: plan.id, error });
    }
  };
  const now = done.busy || done.id === plan.id ? done : {};
  const applicable = user.mayWrite && !now.objects;
  return html`<div class="row next"><code data-test="plan-id">${plan.id}</code>
      ${applicable && html`<button type="button" disabled=${now.busy || stale} onClick=${() => setAsking(true)}>Apply this plan…</button>`}
      ${stale && html`<span class="quiet">The text has changed. Plan again.</span>`}
      ${!stale && moved && !now.objects && html`<${ChangedSince} again="Plan again" onAgain=${onAgain} />`}
      ${!user.mayWrite && html`<span class="quiet">You have read-only access. An administrator can apply this plan.</span>`}</div>
    ${asking && html`<${Dialog} title="Apply this plan?" onClose=${() => setAsking(false)}>
      <p>${summary(plan)}</p>
      <${Overwritten} plan=${plan} />
      <p>The change takes effect immediately: ${signed(plan.total.change.projected30DayMicros)} in 30 days.</p>
      <div class="row dialog-end"><button type="button" onClick=${() => setAsking(false)}>Cancel</button>
        <button type="button" class="main" onClick=${apply}>Apply</button></div>
    <//>`}
    <${Problem} error=${now.error} retry=${onAgain} />
    ${now.objects && html`<p class="done" role="status">${plural(now.objects.length, "object")} applied:
      ${now.objects.map(({ verdict, object }) => html`<span key=${object.metadata.uid}> ${link(object)} ${verdict}</span>`)}</p>`}`;
}

function link({ kind, metadata }) {
  const named = `${kind}/${metadata.name}`;
  return kind === "LatticeService" ? html`<a href=${href("services", metadata.namespace, metadata.name)}>${named}</a>` : named;
}
