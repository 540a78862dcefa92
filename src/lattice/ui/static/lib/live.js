// Live changes: one event stream for the whole page, with all kinds that any view subscribes to.
import { HEADERS, SIGNED_OUT } from "./api.js";
import { useEffect, useRef, useState } from "./dom.js";

const RETRY = [500, 1000, 2000, 5000]; // milliseconds until the next attempt
const SILENCE = 11_000; // milliseconds without data after which the stream is broken; the server sends something every 4 s
const LOST = 3; // failed attempts after which the page shows that the server does not answer
const WHILE_LISTING = 120; // milliseconds between two redraws while a list still arrives
const AT_ONCE = 12; // milliseconds of parsing after which the browser may handle input
const AWAY = 15_000; // milliseconds after which a hidden page closes its connection; browsers allow six per server
const wanted = new Map(); // kind -> its rows and listeners: see `blank`
const watchers = new Set(); // of the connection's state

const stream = { abort: null, revision: 0, attempt: 0, timer: 0, state: "idle", key: "" };

// rows: by path, or null if no listener needs rows; scope: filter for the objects of the kind, as JSON; begins: the next list replaces all
// rows; cut: the server has more rows than it listed; listeners: every listener with the scope of its rows, or null.
const blank = () => ({ rows: null, array: null, ready: false, scope: "", begins: false, cut: false, listeners: new Map() });

// ---- for views ----

// Calls back with {kind: {rows, gone}} whenever objects of these kinds change: rows as summarized by the server, gone as paths.
// `{kind: {again: true}}`: changes may be missing, so the view must load everything again.
export function useLive(kinds, callback) {
  const latest = useRef(callback);
  latest.current = callback;
  useEffect(() => {
    const leave = kinds.map((kind) => join(kind, null, (note) => latest.current({ [kind]: note })));
    return () => leave.forEach((each) => each());
  }, [kinds.join()]);
}

// All rows of a kind, kept up to date: {rows, ready, cut}. `rows` is a new array after every change.
// only: {service, node, unplaced, type, words, newest} filters the rows; there may be more if another part of the view needs more.
// onNote: called for every change with {rows, gone, anew}; anew: discard all earlier rows.
export function useRows(kind, only, onNote) {
  const [, setTick] = useState(0);
  const [entry, setEntry] = useState(null);
  const latest = useRef(onNote);
  latest.current = onNote;
  const scope = only ? JSON.stringify(only) : "";
  useEffect(() => {
    let timer = 0;
    const leave = join(kind, scope, (note) => {
      latest.current?.(note);
      timer ||= setTimeout(() => {
        timer = 0;
        setTick((tick) => tick + 1);
      }, wanted.get(kind)?.ready ? 0 : WHILE_LISTING);
    });
    const found = wanted.get(kind);
    if (found.rows.size) latest.current?.({ rows: [...found.rows.values()], gone: [], anew: true });
    setEntry(found);
    return () => {
      clearTimeout(timer);
      leave();
    };
  }, [kind, scope]);
  if (!entry) return { rows: [], ready: false, cut: false };
  entry.array ??= [...entry.rows.values()];
  return { rows: entry.array, ready: entry.ready, cut: entry.cut };
}

// "live", "connecting", "lost" while the server does not answer, "away" while the page is hidden, or "idle" without subscriptions.
export function useConnection() {
  const [state, setState] = useState(stream.state);
  useEffect(() => {
    watchers.add(setState);
    setState(stream.state);
    return () => watchers.delete(setState);
  }, []);
  return state;
}

// ---- the one stream ----

function join(kind, scope, listener) {
  let entry = wanted.get(kind);
  if (!entry) wanted.set(kind, (entry = blank()));
  if (scope !== null) entry.rows ??= new Map();
  entry.listeners.set(listener, scope);
  soon();
  return () => {
    entry.listeners.delete(listener);
    soon();
  };
}

// When one view replaces another, one new stream is opened, not two.
let planned = 0;
function soon() {
  planned ||= setTimeout(() => {
    planned = 0;
    wanted.forEach(settle);
    if (keyOf() !== stream.key) open();
  });
}

// Updates the scope of a kind from its listeners. A listener with a new scope sees the old rows until the new rows arrive.
function settle(entry, kind) {
  const wishes = [...entry.listeners.values()];
  if (!wishes.length) return void wanted.delete(kind);
  const scopes = new Set(wishes.map((each) => each ?? ""));
  const scope = scopes.size === 1 ? [...scopes][0] : "";
  const isHeld = wishes.some((each) => each !== null);
  if (!isHeld) Object.assign(entry, { rows: null, array: null });
  if (!isHeld || scope !== entry.scope) entry.ready = false;
  entry.scope = scope;
}

function keyOf() {
  return [...wanted].map(([kind, entry]) => `${kind}${entry.rows ? "+" : ""}${entry.scope}`).sort().join();
}

function show(state) {
  if (stream.state === state) return;
  stream.state = state;
  watchers.forEach((each) => each(state));
}

function close() {
  stream.abort?.abort();
  stream.abort = null;
  clearTimeout(stream.timer);
  stream.key = "";
}

async function open() {
  close();
  stream.key = keyOf();
  if (!wanted.size) return show("idle");
  if (document.hidden) return;
  if (stream.state !== "live" && stream.state !== "lost") show("connecting");
  const abort = (stream.abort = new AbortController());
  try {
    const headers = { ...HEADERS, Accept: "text/event-stream" };
    const response = await fetch(address(), { headers, credentials: "same-origin", signal: abort.signal });
    if (response.status === 401) return void dispatchEvent(new Event(SIGNED_OUT));
    if (response.status === 410) relist();
    if (!response.ok) throw new Error(`the stream was refused with ${response.status}`);
    show("live");
    stream.attempt = 0;
    await read(response.body.getReader(), abort);
  } catch {
    // the next attempt shows whether the server answers
  }
  if (stream.abort !== abort) return;
  show(stream.attempt < LOST ? "connecting" : "lost");
  stream.key = "";
  stream.timer = setTimeout(open, RETRY[Math.min(stream.attempt++, RETRY.length - 1)]);
}

function address() {
  const kinds = [...wanted.keys()];
  const list = kinds.filter((kind) => wanted.get(kind).rows && !wanted.get(kind).ready);
  list.forEach((kind) => { wanted.get(kind).begins = true; });
  const query = new URLSearchParams({ kinds: kinds.join() });
  const only = kinds.filter((kind) => wanted.get(kind).scope).map((kind) => [kind, JSON.parse(wanted.get(kind).scope)]);
  if (list.length) query.set("list", list.join());
  if (only.length) query.set("only", JSON.stringify(Object.fromEntries(only)));
  if (stream.revision) query.set("after", stream.revision);
  return `/ui/live?${query}`;
}

async function read(reader, abort) {
  const decoder = new TextDecoder();
  let text = "";
  let silence = 0;
  try {
    for (;;) {
      silence = setTimeout(() => abort.abort(), SILENCE);
      const { done, value } = await reader.read();
      clearTimeout(silence);
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const blocks = text.split("\n\n");
      text = blocks.pop();
      await takeAll(blocks, abort);
    }
  } finally {
    clearTimeout(silence);
  }
}

// Many blocks may arrive together: the browser may handle key presses in between.
async function takeAll(blocks, abort) {
  let began = performance.now();
  for (const block of blocks) {
    if (stream.abort !== abort) return;
    take(block);
    if (performance.now() - began < AT_ONCE) continue;
    await new Promise((done) => setTimeout(done));
    began = performance.now();
  }
}

function take(block) {
  const lines = block.split("\n").filter((line) => line && !line.startsWith(":"));
  const fields = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
  if (!fields.data) return;
  const data = JSON.parse(fields.data);
  if (fields.event === "rows") listed(data);
  else if (fields.event === "change") changed(data);
  else if (fields.event === "again") relist();
}

function listed({ kind, rows, more, cut }) {
  const entry = wanted.get(kind);
  if (!entry?.rows) return;
  const anew = entry.begins;
  if (anew) entry.rows.clear();
  rows.forEach((row) => entry.rows.set(row.path, row));
  Object.assign(entry, { array: null, begins: false, ready: entry.ready || !more, cut: Boolean(cut) });
  tell(entry, { rows, gone: [], anew });
}

function changed({ revision, changes }) {
  stream.revision = revision;
  for (const [kind, { rows = [], gone = [] }] of Object.entries(changes)) {
    const entry = wanted.get(kind);
    if (!entry) continue;
    if (entry.rows) {
      rows.forEach((row) => entry.rows.set(row.path, row));
      gone.forEach((path) => entry.rows.delete(path));
      entry.array = null;
      forgetOldest(entry);
    }
    tell(entry, { rows, gone });
  }
}

// Limits the rows of a scope with `newest`, so that a page that stays open for days does not collect all events.
function forgetOldest(entry) {
  const { newest } = entry.scope ? JSON.parse(entry.scope) : {};
  if (!newest || entry.rows.size < 2 * newest) return;
  const kept = [...entry.rows.values()].sort((one, other) => Date.parse(other.seen) - Date.parse(one.seen)).slice(0, newest);
  entry.rows.clear();
  kept.forEach((row) => entry.rows.set(row.path, row));
  entry.cut = true;
}

// The server's history does not reach back to the last known revision: everything is listed again.
function relist() {
  stream.revision = 0;
  for (const entry of wanted.values()) {
    entry.ready = false;
    tell(entry, { rows: [], gone: [], again: true });
  }
}

function tell(entry, note) {
  [...entry.listeners.keys()].forEach((each) => each(note));
}

let leaving = 0;
document.addEventListener("visibilitychange", () => {
  clearTimeout(leaving);
  if (!document.hidden) {
    if (!stream.abort) open();
    return;
  }
  leaving = setTimeout(() => {
    close();
    show("away");
  }, AWAY);
});
