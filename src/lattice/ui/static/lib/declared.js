// Changed declarations, field by field, including changes that move no replica.
import { MARKS, some, told } from "./answers.js";
import { html } from "./dom.js";
import { plural } from "./format.js";
import { Badge } from "./parts.js";

const FIRST = 6; // fields of an object that are shown without unfolding
const LONG = 120; // characters of a value
const BEFORE = 20; // characters shown before the first difference

const named = ({ kind, namespace, name }) => [kind, namespace, name].filter(Boolean).join("/");
const isService = ({ kind }) => kind === "LatticeService";

export const serviceOf = ({ namespace, name }) => `${namespace}/${name}`;

// Existing services whose declaration changes.
export const rewritten = ({ declared = [] }) => declared.filter((each) => each.mark === "~" && isService(each));

// Both values, cut to begin shortly before the first difference, so that long values do not look alike.
export function contrasted(before, after) {
  const [one, other] = [told(before), told(after)];
  if (Math.max(one.length, other.length) <= LONG) return [one, other];
  let same = 0;
  while (same < one.length && one[same] === other[same]) same += 1;
  const from = Math.max(0, same - BEFORE);
  return [one, other].map((text) => `${from ? "…" : ""}${text.slice(from, from + LONG)}${text.length > from + LONG ? "…" : ""}`);
}

// All changed declarations but new and deleted services, which the table of services shows.
export function Declared({ plan: { declared = [], services } }) {
  const placed = new Set(services.map((each) => each.name));
  const shown = declared.filter((each) => each.mark === "~" || !isService(each) || !placed.has(serviceOf(each)));
  return shown.length > 0 && html`<section class="card" aria-label="Declared"><h2>Changed declarations</h2>
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

// A short list of what the plan overwrites, for the dialog before it is applied.
export function Overwritten({ plan: { declared = [] } }) {
  const changed = declared.filter((each) => each.mark === "~");
  const gone = declared.filter((each) => each.mark === "-");
  const services = changed.filter(isService);
  const others = changed.filter((each) => !isService(each));
  const line = (found, one, many) => found.length > 0 && html`<p>${plural(found.length, one, many)} changed:
    ${` ${some(found.map(fieldsOf), 5)}`}</p>`;
  return html`${line(services, "service is", "services are")}${line(others, "other object is", "other objects are")}
    ${gone.length > 0 && html`<p>${plural(gone.length, "object is", "objects are")} deleted: ${some(gone.map(named), 5)}</p>`}`;
}

const fieldsOf = (each) => `${each.name} (${some(each.fields.map(({ path }) => path))})`;
