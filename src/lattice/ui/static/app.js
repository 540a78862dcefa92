// The shell of the page: the signed-in user, the current view, the header.
import { SIGNED_OUT, signIn, signOut, whoami } from "./lib/api.js";
import { Guarded, html, render, useEffect, useState } from "./lib/dom.js";
import { usePeers } from "./lib/peers.js";
import { useConnection } from "./lib/live.js";
import { Empty, Heading, Loading, Problem } from "./lib/parts.js";
import { href, useRoute } from "./lib/route.js";
import SignIn from "./views/signin.js";

// Views in the order of the menu. `#/services/NS/NAME` is views/service.js. words: how many words may follow in the address; none by
// default. stays: the view stays mounted with and without further words, so that it can keep the focus.
const VIEWS = {
  fleet: { title: "Fleet", load: () => import("./views/fleet.js"), words: [0, 1, 2, 3], stays: true },
  services: { title: "Services", load: () => import("./views/services.js"), one: () => import("./views/service.js"), words: [0, 2] },
  money: { title: "Money", load: () => import("./views/money.js") },
  plan: { title: "Plan", load: () => import("./views/plan.js") },
  whatif: { title: "What-if", load: () => import("./views/whatif.js") },
  nodes: { title: "Nodes", load: () => import("./views/nodes.js"), words: [0, 1] },
  events: { title: "Events", load: () => import("./views/events.js") },
};
const FIRST = "fleet";

function App({ arrived }) {
  const [user, setUser] = useState(arrived.user);
  const [note, setNote] = useState(arrived.note);
  const out = () => {
    forget();
    setUser(null);
  };
  const leave = async () => {
    forget();
    await signOut();
    tellPeers();
    setUser(null);
  };
  useEffect(() => {
    addEventListener(SIGNED_OUT, out);
    return () => removeEventListener(SIGNED_OUT, out);
  }, []);
  const tellPeers = usePeers(out);
  if (!user) return html`<${SignIn} note=${note} onSignedIn=${async () => { setNote(null); setUser(await whoami()); }} />`;
  return html`<${Shell} user=${user} onOut=${leave} />`;
}

// The next user of this browser must not see what the last user typed.
function forget() {
  sessionStorage.clear();
}

function Shell({ user, onOut }) {
  const { view, params, query } = useRoute();
  const name = view || FIRST;
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="top">
      <a class="brand" href="#/${FIRST}"><img src="icon.svg" alt="" width="22" height="22" />Lattice</a>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([key, each]) => html`<a key=${key} href=${`#/${key}`}
        aria-current=${key === name ? "page" : null}>${each.title}</a>`)}</nav>
      <div class="tools"><${Connection} /><${Theme} /><span class="who" title=${user.groups.join(", ")}>${user.name}</span>
        <button type="button" class="plain" onClick=${onOut}>Sign out</button></div>
    </header>
    <main id="main" tabindex="-1"><${Lost} /><${Guarded} at=${location.hash} otherwise=${broken}>${leadsSomewhere(name, params)
      ? html`<${Shown} key=${keyOf(name, params)} name=${name} params=${params} query=${query} user=${user} />`
      : html`<${Nowhere} key="nowhere" name=${name} params=${params} />`}<//></main>`;
}

const keyOf = (name, params) => `${name}/${params.length && !VIEWS[name].stays ? "one" : ""}`;
const leadsSomewhere = (name, params) => Object.hasOwn(VIEWS, name) && (VIEWS[name].words ?? [0]).includes(params.length);

const broken = (error) => html`<${Problem} error=${{ message: `this view failed: ${error.message}`, fix: "reload the page" }}
  retry=${() => location.reload()} />`;

function Nowhere({ name, params }) {
  useEffect(() => {
    document.title = "Not found · Lattice";
  }, []);
  const known = Object.hasOwn(VIEWS, name) ? VIEWS[name].title : "";
  return html`<${Heading} title="Not found" />
    ${known
      ? html`<${Empty}>There is no “${params.join("/")}” in ${known}. <a href=${href(name)}>See ${known.toLowerCase()}</a>.<//>`
      : html`<${Empty}>There is no view “${name}”. <a href=${href(FIRST)}>See the fleet</a>.<//>`}`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

// The browser loads the module of a view when the view is first shown. Every view gets {params, query, user}.
function Shown({ name, params, query, user }) {
  const [state, setState] = useState({});
  const load = params.length && VIEWS[name].one ? VIEWS[name].one : VIEWS[name].load;
  useEffect(() => {
    document.title = `${[...params].reverse().join(" · ")}${params.length ? " · " : ""}${VIEWS[name].title} · Lattice`;
  }, [name, params.join("/")]);
  const open = () => load().then((module) => setState({ View: module.default }), () => setState({ error: NOT_LOADED }));
  useEffect(() => {
    open().then(loadOthers);
  }, []);
  if (state.error) return html`<${Problem} error=${state.error} retry=${open} />`;
  return state.View ? html`<${state.View} params=${params} query=${query} user=${user} />` : html`<${Loading} />`;
}

const NOT_LOADED = { message: "the server does not respond, and this view is not loaded yet", fix: "retry when the server is back" };

// Load the modules of all views: another view opens then even while the server is down.
function loadOthers() {
  for (const { load, one } of Object.values(VIEWS)) for (const each of [load, one]) each?.().catch(() => {});
}

const SAID = { live: "Live", connecting: "Connecting…", lost: "No response", away: "Paused", idle: "" };

function Lost() {
  return useConnection() === "lost" && html`<p class="problem" role="alert">The server does not respond.
    Showing last known data. Retrying every few seconds.</p>`;
}

function Connection() {
  const state = useConnection();
  return html`<span class="live" data-state=${state} role="status">${SAID[state]}</span>`;
}

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "");
  const turn = () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(theme) + 1) % names.length];
    wear(next);
    setTheme(next);
  };
  return html`<button type="button" class="plain theme" onClick=${turn} title="Light, dark, or the system setting">
    <span aria-hidden="true">◐ </span>${THEMES[theme]}</button>`;
}

function wear(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("lattice-theme", theme);
}

// The one-time code is in the fragment of the address, which no server log contains. It is removed from the address immediately.
async function arrive() {
  const code = new URLSearchParams(location.hash.replace(/^#/, "")).get("code");
  let note = null;
  if (code) {
    forget();
    history.replaceState(null, "", `${location.pathname}#/${FIRST}`);
    await signIn({ code }).catch((error) => { note = error; });
  }
  try {
    const user = await whoami();
    if (!user) forget();
    return { user, note };
  } catch (error) {
    return { user: null, note: error };
  }
}

wear(localStorage.getItem("lattice-theme") ?? "");
arrive().then((arrived) => {
  const root = document.getElementById("app");
  root.textContent = "";
  render(html`<${App} arrived=${arrived} />`, root);
});
