// The fragment of the address, such as `#/services/default/api?tab=fit`, parsed into words and built from words.
import { useEffect, useState } from "./dom.js";

export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const words = path.split("/").filter(Boolean).map(decoded);
  return { view: words[0] ?? "", params: words.slice(1), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

// href("services", "default", "api") === "#/services/default/api"; an object as the last word is the query.
export function href(...words) {
  const query = typeof words.at(-1) === "object" ? words.pop() : {};
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null)).toString();
  return `#/${words.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

// The same view with another query, without a new entry in the history.
export function replaceQuery(query) {
  const { view, params } = parse(location.hash);
  history.replaceState(null, "", href(view, ...params, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useRoute() {
  const [drawn] = useState(location.hash);
  const [route, setRoute] = useState(() => parse(drawn));
  useEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    if (location.hash !== drawn) changed(); // the address changed before this listener was added
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
