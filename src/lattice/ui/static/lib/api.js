// Calls of the public API. The cookie identifies the user; the header proves that the request comes from this page.
const GROUP = "/apis/lattice.dev/v1alpha1";
const CORE = new Set(["events", "namespaces", "secrets", "configmaps"]);
export const SIGNED_OUT = "lattice:signed-out";
export const HEADERS = { "X-Lattice-Page": "1" };

// An error of the server: the message, how to `fix` the problem, and `causes` field by field.
export class Refused extends Error {
  constructor(status, body) {
    const [what, fix = ""] = splitFix(body?.message ?? `the server answered ${status}`);
    super(what);
    this.status = status;
    this.reason = body?.reason ?? "";
    this.fix = fix;
    this.causes = body?.details?.causes ?? [];
  }
}

function splitFix(message) {
  const at = message.lastIndexOf(" (fix: ");
  return at < 0 ? [message] : [message.slice(0, at), message.slice(at + 7).replace(/\)$/, "")];
}

async function send(method, path, given) {
  const headers = { ...HEADERS, Accept: "application/json" };
  if (given !== undefined) headers["Content-Type"] = "application/json";
  const body = given === undefined ? undefined : JSON.stringify(given);
  let response;
  try {
    response = await fetch(path, { method, headers, credentials: "same-origin", body });
  } catch {
    throw new Refused(0, { message: "the server does not respond (fix: check that the server runs)" });
  }
  const text = await response.text();
  const isJson = (response.headers.get("Content-Type") ?? "").includes("json");
  const value = isJson && text ? JSON.parse(text) : text;
  if (!response.ok) {
    if (response.status === 401 && !path.startsWith("/ui/session")) dispatchEvent(new Event(SIGNED_OUT));
    throw new Refused(response.status, isJson ? value : null);
  }
  return value;
}

export const get = (path) => send("GET", path);
export const post = (path, body) => send("POST", path, body);
export const put = (path, body) => send("PUT", path, body);
export const remove = (path) => send("DELETE", path);

// Path of a kind, of a kind in one namespace, or of one object: objectPath("latticenodes", "", "n1").
export function objectPath(resource, namespace = "", name = "") {
  const home = CORE.has(resource) ? "/api/v1" : GROUP;
  const within = namespace ? `/namespaces/${encodeURIComponent(namespace)}` : "";
  return `${home}${within}/${resource}${name ? `/${encodeURIComponent(name)}` : ""}`;
}

export function withQuery(path, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null)).toString();
  return search ? `${path}?${search}` : path;
}

// plan, why, fit, whatif, cost, optimise, apply: the queries of the commands with these names.
export const ask = (question, body = {}) => post(`${GROUP}/fleet/${question}`, body);

// Current usage of pools, clusters, nodes, services or budgets.
export const top = (...of) => get(withQuery(`${GROUP}/top`, { of: of.join(",") }));

// What is wrong now; and why a service or a workload does not run.
export const problems = () => get(`${GROUP}/problems`);
export const diagnosis = (of) => get(withQuery(`${GROUP}/diagnosis`, of));

export const signIn = (proof) => post("/ui/session", proof);
export const signOut = () => remove("/ui/session");

// The signed-in user: {name, groups, mayWrite}; null without a session.
export async function whoami() {
  const { name, groups } = await get("/ui/session");
  return name ? { name, groups, mayWrite: groups.some((each) => each === "lattice:admins" || each === "lattice:system") } : null;
}
