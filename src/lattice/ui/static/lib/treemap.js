// Treemap layout: areas proportional to weights, shapes close to squares. Pure functions without page elements.

// Squarified treemap (Bruls, Huizing, van Wijk 2000): items with a `weight` > 0 → the same order of {item, x, y, w, h}, largest first.
export function squarify(items, { x, y, w, h }) {
  const left = items.filter((each) => each.weight > 0).sort((one, other) => other.weight - one.weight);
  const total = left.reduce((sum, each) => sum + each.weight, 0);
  if (!total || w <= 0 || h <= 0) return [];
  const scale = (w * h) / total;
  const placed = [];
  let room = { x, y, w, h };
  let start = 0;
  while (start < left.length) {
    const side = Math.min(room.w, room.h);
    let end = start + 1;
    let area = left[start].weight * scale;
    let worst = ratio(left[start].weight * scale, left[start].weight * scale, area, side);
    while (end < left.length) {
      const next = left[end].weight * scale;
      const then = ratio(left[start].weight * scale, next, area + next, side);
      if (then > worst) break;
      area += next;
      worst = then;
      end += 1;
    }
    room = lay(left.slice(start, end), area, scale, room, placed);
    start = end;
  }
  return placed;
}

// The worst ratio of length to width in a row with these largest and smallest areas.
function ratio(largest, smallest, area, side) {
  const thick = area / side;
  return Math.max(thick ** 2 / smallest, largest / thick ** 2);
}

function lay(row, area, scale, room, placed) {
  const across = room.w >= room.h;
  const thick = area / (across ? room.h : room.w);
  let at = across ? room.y : room.x;
  for (const item of row) {
    const long = (item.weight * scale) / thick;
    placed.push(across ? { item, x: room.x, y: at, w: thick, h: long } : { item, x: at, y: room.y, w: long, h: thick });
    at += long;
  }
  return across ? { ...room, x: room.x + thick, w: room.w - thick } : { ...room, y: room.y + thick, h: room.h - thick };
}

const HEAD = 22; // pixels for the name of an open box
const GAP = 3;
const LEAST = { w: 54, h: 44 }; // pixels; a smaller box is not opened

// A tree of {key, weight, children} → boxes from the outside in: {item, depth, x, y, w, h, open}. `open`: the children are shown.
// At most `most` boxes; further boxes stay closed.
export function nested(children, room, most = 1500) {
  const boxes = [];
  let level = squarify(children, room).map((each) => ({ ...each, depth: 0 }));
  while (level.length) {
    const next = [];
    for (const box of level) {
      const inside = box.item.children ?? [];
      const isRoomy = inside.length > 0 && box.w >= LEAST.w && box.h >= LEAST.h;
      box.open = isRoomy && boxes.length + level.length + next.length + inside.length <= most;
      boxes.push(box);
      if (box.open) next.push(...squarify(inside, within(box)).map((each) => ({ ...each, depth: box.depth + 1, parent: box.item })));
    }
    level = next;
  }
  return boxes;
}

function within({ x, y, w, h }) {
  return { x: x + GAP, y: y + HEAD, w: w - 2 * GAP, h: h - HEAD - GAP };
}
