// What-if scenarios: a lost pool, changed prices, a lost compliance standard. Shows moves, unplaced services and cost.
import { eventWords, some } from "../lib/answers.js";
import { ask, top } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/dom.js";
import { count, hourly, plural, signed } from "../lib/format.js";
import { useRows } from "../lib/live.js";
import { Outcome } from "../lib/outcome.js";
import { Badge, Heading, Loading, Problem, Search, Table } from "../lib/parts.js";
import { href, replaceQuery } from "../lib/route.js";
import { ChangedSince, useChangedSince } from "../lib/since.js";

const SHOWN = 30; // pools that are listed to choose from
const MANY = 12; // pools from which on a search field is shown

// The address holds the whole scenario: `#/whatif?lose=south,north&price=20&drop=east:gdpr`, or `?each=1`.
export default function WhatIf({ query }) {
  const chosen = { lose: words(query.lose), price: Number(query.price) || 0, drop: words(query.drop), each: query.each === "1" };
  const asked = chosen.each || chosen.lose.length > 0 || chosen.price !== 0 || chosen.drop.length > 0;
  const [state, setState] = useState({});
  const [turn, setTurn] = useState(0);
  const moved = useChangedSince(state.answer ?? null);
  useEffect(() => {
    if (!asked) return setState({});
    let wanted = true;
    setState((before) => ({ ...before, busy: true, error: null }));
    Promise.all([top("clusters"), ask("whatif", body(chosen))]).then(
      ([{ clusters }, answer]) => wanted && setState({ clusters, answer }),
      (error) => wanted && setState({ error }),
    );
    return () => { wanted = false; };
  }, [query.lose, query.price, query.drop, query.each, turn]);
  const { answer, clusters, error, busy } = state;
  return html`<${Heading} title="What if" note="What-if changes nothing." />
    <${Asking} chosen=${chosen} busy=${busy} />
    <${Problem} error=${error} />
    ${busy && !answer && html`<${Loading} what="Computing" />`}
    ${!asked && html`<p class="empty">Choose a scenario: lose a pool, change prices or drop a compliance standard;
      or lose each pool in turn to see which loss leaves services not fully placed.</p>`}
    ${asked && moved && !busy && html`<p class="row next"><${ChangedSince} again="Compute again" onAgain=${() => setTurn(turn + 1)} /></p>`}
    ${asked && answer?.ask === "whatif" && html`<${Outcome} document=${answer} clusters=${clusters} words=${eventWords(answer.event)} />`}
    ${asked && answer?.ask === "drill" && html`<${Drill} losses=${answer.losses} />`}`;
}

const words = (text) => (text ?? "").split(",").filter(Boolean);

function body({ lose, price, drop, each }) {
  if (each) return { loseEach: true };
  return { lose, priceMillionths: Math.round((1 + price / 100) * 1e6), drop: drop.map(poolAndCompliance) };
}

function poolAndCompliance(pair) {
  const at = pair.lastIndexOf(":");
  return [pair.slice(0, at), pair.slice(at + 1)];
}

function Asking({ chosen, busy }) {
  const put = (change) => {
    const { lose, price, drop, each } = { ...chosen, each: false, ...change };
    replaceQuery({ lose: lose.join(), price: price || "", drop: drop.join(), each: each ? "1" : "" });
  };
  return html`<section class="card asking">
    <${Lose} lose=${chosen.lose} onChange=${(lose) => put({ lose })} />
    <${Price} price=${chosen.price} onChange=${(price) => put({ price })} />
    <${Drop} drop=${chosen.drop} onChange=${(drop) => put({ drop })} />
    <div class="row"><button type="button" disabled=${busy} aria-pressed=${chosen.each}
        onClick=${() => put({ lose: [], price: 0, drop: [], each: true })}>Lose each pool in turn</button>
      <button type="button" class="plain" onClick=${() => put({ lose: [], price: 0, drop: [] })}>Clear</button>
      ${busy && html`<span class="quiet" role="status">Computing…</span>`}</div>
  </section>`;
}

// All offers that have or may have machines: pools, and cloud regions with clusters.
function useOffers() {
  const pools = useRows("latticepools").rows;
  const clusters = useRows("latticeclusters").rows;
  return [...new Set([...pools.map((each) => each.name), ...clusters.map((each) => each.pool)])].filter(Boolean).sort();
}

function Lose({ lose, onChange }) {
  const [word, setWord] = useState("");
  const offers = useOffers();
  const found = offers.filter((name) => name.includes(word.trim()) || lose.includes(name));
  const turn = (name) => onChange(lose.includes(name) ? lose.filter((each) => each !== name) : [...lose, name]);
  return html`<fieldset class=${offers.length > MANY ? "many" : ""}><legend>Lose a pool</legend>
    ${offers.length > MANY && html`<${Search} label="Find a pool" value=${word} onChange=${setWord} />`}
    <div class="chips">${found.slice(0, SHOWN).map((name) => html`<button type="button" class="chip" key=${name}
        title=${name} aria-pressed=${lose.includes(name)} onClick=${() => turn(name)}>${name}</button>`)}
      ${found.length > SHOWN && html`<span class="quiet">and ${count(found.length - SHOWN)} more</span>`}</div></fieldset>`;
}

function Price({ price, onChange }) {
  const [shown, setShown] = useState(price);
  useEffect(() => setShown(price), [price]);
  const given = (event) => Number(event.currentTarget.value);
  return html`<fieldset><legend>Change all prices</legend><div class="row">
    <input type="range" min="-50" max="200" step="5" value=${shown} aria-label="Change of prices in percent"
      onInput=${(event) => setShown(given(event))} onChange=${(event) => onChange(given(event))} />
    <output>${shown > 0 ? "+" : shown < 0 ? "−" : ""}${Math.abs(shown)} %</output></div></fieldset>`;
}

function Drop({ drop, onChange }) {
  const offers = useOffers();
  const add = (event) => {
    event.preventDefault();
    const { pool, compliance } = Object.fromEntries(new FormData(event.currentTarget));
    event.currentTarget.reset();
    if (pool && compliance.trim()) onChange([...new Set([...drop, `${pool}:${compliance.trim()}`])]);
  };
  return html`<fieldset><legend>Drop a compliance standard</legend>
    <form class="row" onSubmit=${add}>
      <select name="pool" aria-label="Pool">${offers.map((name) => html`<option key=${name}>${name}</option>`)}</select>
      <input name="compliance" size="10" placeholder="gdpr" aria-label="Compliance" required /><button type="submit">Drop</button></form>
    <div class="chips">${drop.map((pair) => html`<button type="button" class="chip" key=${pair} aria-pressed="true"
      onClick=${() => onChange(drop.filter((each) => each !== pair))}>${pair} ✕</button>`)}</div></fieldset>`;
}

function without(row) {
  if (!row.leftWithout.length) return html`<span class="quiet">none</span>`;
  return html`<${Badge} tone="bad">${count(row.leftWithout.length)}<//> ${some(row.leftWithout)}`;
}

const after = (row) => row.cost.after.hourlyMicros;
const change = (row) => row.cost.change.hourlyMicros;

const LOSSES = [
  { name: "pool", title: "Lost pool", value: (row) => row.pool },
  { name: "without", title: "Not fully placed", value: (row) => row.leftWithout.length, cell: without },
  { name: "moved", title: "Moved", value: (row) => row.moved.length, cell: (row) => count(row.moved.length), end: true },
  { name: "after", title: "Cost after", value: after, cell: (row) => hourly(after(row)), end: true, wide: true },
  { name: "change", title: "Change", value: change, cell: (row) => signed(change(row), hourly), end: true },
];

function Drill({ losses }) {
  const hurting = losses.filter((each) => each.leftWithout.length).length;
  const pools = plural(losses.length, "pool");
  const told = hurting
    ? `The loss of ${hurting} of ${pools} would leave services not fully placed.`
    : `After the loss of any one of ${pools}, all services could be placed elsewhere.`;
  const rows = losses.map((each) => ({ ...each, path: each.pool }));
  return html`<section class="stack-tight" aria-label="Outcome"><p class="lead" data-test="summary">${told}</p>
    <${Table} label="Losses" columns=${LOSSES} rows=${rows} href=${(row) => href("whatif", { lose: row.pool })}
      sort=${{ by: "without", down: true }} /></section>`;
}
