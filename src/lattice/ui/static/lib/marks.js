// Cordon, drain and uncordon: changes of a node's spec. The write carries the revision that was read, so that no other change is lost.
import { get, objectPath, put } from "./api.js";

const DRAINING = "lattice.dev/draining";
const ATTEMPTS = 10;

export const cordoned = (spec) => ({ ...spec, unschedulable: true });

export function uncordoned({ unschedulable, taints = [], ...spec }) {
  const rest = taints.filter((each) => each.key !== DRAINING);
  return rest.length ? { ...spec, taints: rest } : spec;
}

export function drained({ taints = [], ...spec }) {
  const rest = taints.filter((each) => each.key !== DRAINING);
  return { ...spec, unschedulable: true, taints: [...rest, { key: DRAINING, effect: "NoExecute" }] };
}

// Changes the spec of a node; after a conflict the node is read again.
export async function mark(name, change) {
  const path = objectPath("latticenodes", "", name);
  for (let attempt = 1; ; attempt += 1) {
    const node = await get(path);
    try {
      return await put(path, { ...node, spec: change(node.spec ?? {}) });
    } catch (error) {
      if (error.status !== 409 || attempt === ATTEMPTS) throw error;
    }
  }
}
