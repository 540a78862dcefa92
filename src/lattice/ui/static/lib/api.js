// The public API, as everybody uses it. The cookie says who asks; the header says that it is this page and no other.
const GROUP = "/apis/lattice.dev/v1alpha1";
const CORE = new Set(["events", "namespaces", "secrets", "configmaps"]);
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

async function send(method, path, given) {
  const headers = { ...HEADERS, Accept: "application/json" };
  if (given !== undefined) headers["Content-Type"] = "application/json";
  const body = given === undefined ? undefined : JSON.stringify(given);
  let response;
  try {
    response = await fetch(path, { method, headers, credentials: "same-origin", body });
  } catch {
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

export const get = (path) => send("GET", path);
export const post = (path, body) => send("POST", path, body);
export const put = (path, body) => send("PUT", path, body);
export const remove = (path) => send("DELETE", path);

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

// plan, why, fit, whatif, cost, optimise, apply: what the commands of these names ask.
export const ask = (question, body = {}) => post(`${GROUP}/fleet/${question}`, body);

// What is used at this moment: of some of pools, clusters, nodes, services.
export const top = (...of) => get(withQuery(`${GROUP}/top`, { of: of.join(",") }));

export const signIn = (proof) => post("/ui/session", proof);
export const signOut = () => remove("/ui/session");

// Who is signed in: {name, groups, mayWrite}; null when nobody is.
export async function whoami() {
  const { name, groups } = await get("/ui/session");
  return name ? { name, groups, mayWrite: groups.some((each) => each === "lattice:admins" || each === "lattice:system") } : null;
}
