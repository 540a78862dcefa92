// The public API, as everybody uses it. The cookie says who asks; the header says that it is this page and no other.
const GROUP = "/apis/lattice.dev/v1alpha1";
const CORE = new Set(["events", "namespaces", "secrets", "configmaps"]);
const TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1";
export const SIGNED_OUT = "lattice:signed-out";
export const HEADERS = { "X-Lattice-Page": "1" };

// What the server refused: `what` went wrong, how to `fix` it, and `causes` field by field.
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

async function send(method, path, { body, type = "application/json", accept = "application/json", signal } = {}) {
  const headers = { ...HEADERS, Accept: accept };
  if (body !== undefined) headers["Content-Type"] = type;
  let response;
  try {
    response = await fetch(path, { method, headers, signal, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: "the server does not answer (fix: see whether it still runs)" });
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

export const get = (path, options) => send("GET", path, options);
export const post = (path, body, options) => send("POST", path, { ...options, body });
export const put = (path, body, options) => send("PUT", path, { ...options, body });
export const patch = (path, body, options) => send("PATCH", path, { type: "application/merge-patch+json", ...options, body });
export const remove = (path, options) => send("DELETE", path, options);

// Address of a kind, of one namespace of it, or of one object: objectPath("latticenodes", "", "n1").
export function objectPath(resource, namespace = "", name = "") {
  const home = CORE.has(resource) ? "/api/v1" : GROUP;
  const within = namespace ? `/namespaces/${encodeURIComponent(namespace)}` : "";
  return `${home}${within}/${resource}${name ? `/${encodeURIComponent(name)}` : ""}`;
}

export function withQuery(path, query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null)).toString();
  return search ? `${path}?${search}` : path;
}

// A list as `kubectl get` prints it: {columns, rows: [{namespace, name, cells: {Head: value}}]}.
export async function table(resource, { namespace = "", query = {}, signal } = {}) {
  const found = await get(withQuery(objectPath(resource, namespace), query), { accept: TABLE, signal });
  const columns = (found.columnDefinitions ?? []).map((each) => each.name);
  const rows = (found.rows ?? []).map(({ cells, object }) => ({
    namespace: object?.metadata?.namespace ?? "",
    name: object?.metadata?.name ?? "",
    created: object?.metadata?.creationTimestamp,
    cells: Object.fromEntries(columns.map((name, index) => [name, cells[index]])),
  }));
  return { columns, rows, revision: found.metadata?.resourceVersion };
}

// plan, why, fit, whatif, cost, optimise, apply: what the commands of these names ask.
export const ask = (question, body = {}, options) => post(`${GROUP}/fleet/${question}`, body, options);

// What is used at this moment: of some of pools, clusters, nodes, services.
export const top = (...of) => get(withQuery(`${GROUP}/top`, { of: of.join(",") }));

export const signIn = (proof) => post("/ui/session", proof);
export const signOut = () => remove("/ui/session");

// Who is signed in: {name, groups, mayWrite}; null when nobody is.
export async function whoami() {
  const { name, groups } = await get("/ui/session");
  return name ? { name, groups, mayWrite: groups.some((each) => each === "lattice:admins" || each === "lattice:system") } : null;
}
