// What people declare otherwise than before, field by field: also what leaves everything in its place.
import { MARKS, some, told } from "./answers.js";
import { html } from "./dom.js";
import { plural } from "./format.js";
import { Badge } from "./parts.js";

const FIRST = 6; // fields of an object that are shown at once
const LONG = 120; // characters of a value
const BEFORE = 20; // of them before the first that differs

const named = ({ kind, namespace, name }) => [kind, namespace, name].filter(Boolean).join("/");
const isService = ({ kind }) => kind === "LatticeService";

export const serviceOf = ({ namespace, name }) => `${namespace}/${name}`;

// Services that are there and are written otherwise.
export const rewritten = ({ declared = [] }) => declared.filter((each) => each.mark === "~" && isService(each));

// Both sides from a little before the first difference on, so that two long texts do not look alike.
export function contrasted(before, after) {
  const [one, other] = [told(before), told(after)];
  if (Math.max(one.length, other.length) <= LONG) return [one, other];
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  const from = Math.max(0, same - BEFORE);
  return [one, other].map((text) => `${from ? "…" : ""}${text.slice(from, from + LONG)}${text.length > from + LONG ? "…" : ""}`);
}

// New and gone services are told with where they go; all else that is written otherwise is told here.
export function Declared({ plan: { declared = [], services } }) {
  const placed = new Set(services.map((each) => each.name));
  const shown = declared.filter((each) => each.mark === "~" || !isService(each) || !placed.has(serviceOf(each)));
  return shown.length > 0 && html`<section class="card" aria-label="Declared"><h2>Declared otherwise</h2>
    <ul class="verdicts">${shown.map((each) => html`<${One} key=${named(each)} each=${each} />`)}</ul></section>`;
}

function One({ each }) {
  const rest = each.fields.slice(FIRST);
  return html`<li><div class="row"><strong>${named(each)}</strong>
      <${Badge}>${each.mark === "-" ? "−" : each.mark} ${MARKS[each.mark]}<//>
      ${each.isRestarted && html`<${Badge} tone="warn">restarted replica by replica<//>`}</div>
    <${Fields} fields=${each.fields.slice(0, FIRST)} />
    ${rest.length > 0 && html`<details><summary>${plural(rest.length, "more field")}</summary>
      <${Fields} fields=${rest} /></details>`}</li>`;
}

function Fields({ fields }) {
  return fields.length > 0 && html`<ul class="fields">${fields.map(({ path, before, after }) => {
    const [one, other] = contrasted(before, after);
    return html`<li key=${path} class="mono">${path}:${" "}
      <del title=${told(before)}>${one}</del> → <ins title=${told(after)}>${other}</ins></li>`;
  })}</ul>`;
}

// For who is about to apply it: what is overwritten, in a few lines.
export function Overwritten({ plan: { declared = [] } }) {
  const changed = declared.filter((each) => each.mark === "~");
  const gone = declared.filter((each) => each.mark === "-");
  const services = changed.filter(isService);
  const others = changed.filter((each) => !isService(each));
  const line = (found, one, many) => found.length > 0 && html`<p>${plural(found.length, one, many)} declared otherwise:
    ${` ${some(found.map(fieldsOf), 5)}`}</p>`;
  return html`${line(services, "service is", "services are")}${line(others, "other object is", "other objects are")}
    ${gone.length > 0 && html`<p>${plural(gone.length, "object is", "objects are")} deleted: ${some(gone.map(named), 5)}</p>`}`;
}

const fieldsOf = (each) => `${each.name} (${some(each.fields.map(({ path }) => path))})`;
