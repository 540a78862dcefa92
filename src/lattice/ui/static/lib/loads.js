// Bound workloads and total requests of every node, updated per workload: one change among ten thousand workloads stays cheap.
const NONE = { workloads: [], cpu: 0, memory: 0 };

export class Loads {
  version = 0;
  #known = new Map(); // path -> the workload as last counted
  #loads = new Map(); // node -> {workloads, cpu, memory}; a new object after every change

  of(node) {
    return this.#loads.get(node) ?? NONE;
  }

  // A note in the form of the `onNote` of useRows.
  take({ rows, gone, anew }) {
    if (anew) [this.#known, this.#loads] = [new Map(), new Map()];
    gone.forEach((path) => this.#remove(path));
    for (const row of rows) {
      this.#remove(row.path);
      this.#add(row);
    }
    this.version += 1;
  }

  #add(row) {
    this.#known.set(row.path, row);
    if (!row.node) return;
    const { workloads, cpu, memory } = this.of(row.node);
    this.#loads.set(row.node, { workloads: [...workloads, row], cpu: cpu + row.cpu, memory: memory + row.memory });
  }

  #remove(path) {
    const row = this.#known.get(path);
    this.#known.delete(path);
    if (!row?.node) return;
    const { workloads, cpu, memory } = this.of(row.node);
    const rest = workloads.filter((each) => each.path !== path);
    if (rest.length) this.#loads.set(row.node, { workloads: rest, cpu: cpu - row.cpu, memory: memory - row.memory });
    else this.#loads.delete(row.node);
  }
}
