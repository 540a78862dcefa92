// What changes, as it changes: one stream for the whole page, of all kinds that any part of it wants to hear of.
import { HEADERS, SIGNED_OUT } from "./api.js";
import { useEffect, useRef, useState } from "./dom.js";

const RETRY = [500, 1000, 2000, 5000]; // milliseconds until the next attempt
const SILENCE = 40_000; // the server says something every 15 s
const WHILE_LISTING = 120; // milliseconds between two looks at a list that still arrives
const AWAY = 15_000; // a page that nobody sees for so long lets go of its connection; browsers have six for each server
const wanted = new Map(); // kind -> {rows: Map or null, listeners: Set, ready}
const watchers = new Set(); // of the connection's state

const stream = { abort: null, revision: 0, attempt: 0, timer: 0, state: "idle", key: "" };

// ---- for views ----

// Calls back with {kind: {rows, gone}} whenever objects of these kinds changed: rows as the server sums them up, gone as paths.
// `{kind: {again: true}}`: changes may have been missed, ask for everything anew.
export function useLive(kinds, callback) {
  const latest = useRef(callback);
  latest.current = callback;
  useEffect(() => {
    const leave = kinds.map((kind) => join(kind, false, (note) => latest.current({ [kind]: note })));
    return () => leave.forEach((each) => each());
  }, [kinds.join()]);
}

// Everything of a kind, kept up to date: {rows, ready}. `rows` is another array whenever something changed.
export function useRows(kind) {
  const [, setTick] = useState(0);
  const [entry, setEntry] = useState(null);
  useEffect(() => {
    let timer = 0;
    const leave = join(kind, true, () => {
      timer ||= setTimeout(() => {
        timer = 0;
        setTick((tick) => tick + 1);
      }, wanted.get(kind)?.ready ? 0 : WHILE_LISTING);
    });
    setEntry(wanted.get(kind));
    return () => {
      clearTimeout(timer);
      leave();
    };
  }, [kind]);
  if (!entry) return { rows: [], ready: false };
  entry.array ??= [...entry.rows.values()];
  return { rows: entry.array, ready: entry.ready };
}

// "live", "connecting", "away" while nobody looks, or "idle" while nothing shown can change.
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

function join(kind, withRows, listener) {
  let entry = wanted.get(kind);
  if (!entry) wanted.set(kind, (entry = { rows: null, array: null, listeners: new Set(), ready: false }));
  if (withRows && !entry.rows) Object.assign(entry, { rows: new Map(), array: null, ready: false });
  entry.listeners.add(listener);
  soon();
  return () => {
    entry.listeners.delete(listener);
    if (!entry.listeners.size && wanted.get(kind) === entry) {
      wanted.delete(kind);
      soon();
    }
  };
}

// A view that goes and one that comes in the same moment want one new stream, not two.
let planned = 0;
function soon() {
  planned ||= setTimeout(() => {
    planned = 0;
    if (keyOf() !== stream.key) open();
  });
}

function keyOf() {
  return [...wanted].map(([kind, entry]) => `${kind}${entry.rows ? "+" : ""}`).sort().join();
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
  if (stream.state !== "live") show("connecting");
  const abort = (stream.abort = new AbortController());
  try {
    const response = await fetch(address(), { headers: { ...HEADERS, Accept: "text/event-stream" }, credentials: "same-origin", signal: abort.signal });
    if (response.status === 401) return void dispatchEvent(new Event(SIGNED_OUT));
    if (response.status === 410) relist();
    if (!response.ok) throw new Error(`the stream was refused with ${response.status}`);
    show("live");
    stream.attempt = 0;
    await read(response.body.getReader(), abort);
  } catch {
    // whatever broke it, the next attempt tells
  }
  if (stream.abort !== abort) return;
  show("connecting");
  stream.key = "";
  stream.timer = setTimeout(open, RETRY[Math.min(stream.attempt++, RETRY.length - 1)]);
}

function address() {
  const kinds = [...wanted.keys()];
  const list = kinds.filter((kind) => wanted.get(kind).rows && !wanted.get(kind).ready);
  const query = new URLSearchParams({ kinds: kinds.join() });
  if (list.length) query.set("list", list.join());
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
      if (stream.abort === abort) blocks.forEach(take);
    }
  } finally {
    clearTimeout(silence);
  }
}

function take(block) {
  const fields = Object.fromEntries(block.split("\n").filter((line) => line && !line.startsWith(":")).map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 1).trim()]));
  if (!fields.data) return;
  const data = JSON.parse(fields.data);
  if (fields.event === "rows") listed(data);
  else if (fields.event === "change") changed(data);
  else if (fields.event === "again") relist();
}

function listed({ kind, rows, more }) {
  const entry = wanted.get(kind);
  if (!entry?.rows) return;
  rows.forEach((row) => entry.rows.set(row.path, row));
  entry.array = null;
  entry.ready ||= !more;
  tell(entry, { rows, gone: [] });
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
    }
    tell(entry, { rows, gone });
  }
}

// The server's history does not reach back to what we know: everything is listed once more.
function relist() {
  stream.revision = 0;
  for (const entry of wanted.values()) {
    if (entry.rows) Object.assign(entry, { rows: new Map(), array: null, ready: false });
    tell(entry, { rows: [], gone: [], again: true });
  }
}

function tell(entry, note) {
  entry.listeners.forEach((each) => each(note));
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
