// The treemap: nested boxes, sized by weight, shaded by utilization. Every box also has its name as text.
import { html, memo, useEffect, useRef, useState } from "./dom.js";
import { percent } from "./format.js";
import { nested } from "./treemap.js";

const AT_ONCE = 250; // boxes that are drawn per turn
const STEPS = 6; // shades, from empty to full
const ROOMY = 150; // pixels; in narrower boxes a name that does not fit loses the common prefix of its neighbours' names
const LETTER = 7.5; // pixels per letter, generously
const BESIDE = 55; // pixels for the utilization beside the name of an open box

export const shade = (ratio) => (ratio == null ? "none" : Math.min(STEPS - 1, Math.floor(Math.max(0, ratio) * STEPS)));

// items: [{key, name, short, weight, ratio, text, note, mark, href, children}].
// ratio: 0..1 or null; text: replaces the percentage; note: shown if the box is large enough, else on hover;
// mark: "bad", "held", "plus", "minus" or empty; href: target of a click.
// from: {key} of the part that was shown before, if the focus continues from there; cleared once the focus is set.
export function PackedMap({ items, label, height = 520, most = 1500, from }) {
  const frame = useRef(null);
  const width = useWidth(frame);
  const boxes = width ? nested(items, { x: 0, y: 0, w: width, h: height }, most) : [];
  const drawn = useGrowing(boxes.length);
  useEffect(() => {
    if (from?.key == null || !boxes.length) return;
    focusFrom(frame.current, from.key);
    from.key = null;
  });
  return html`<div class="map" ref=${frame} role="group" aria-label=${label} style=${{ height: `${height}px` }} onKeyDown=${step}>
    ${boxes.slice(0, drawn).map((box) => html`<${Box} key=${box.item.key} ...${box} />`)}
  </div>`;
}

// Number of boxes to draw: grows by a few hundred per turn, so that the browser can handle key presses in between.
function useGrowing(whole) {
  const [drawn, setDrawn] = useState(AT_ONCE);
  useEffect(() => {
    if (drawn >= whole) return undefined;
    const timer = setTimeout(() => setDrawn(drawn + AT_ONCE));
    return () => clearTimeout(timer);
  }, [drawn, whole]);
  return drawn;
}

const PLACE = ["x", "y", "w", "h", "depth", "open"];
const SHOWN = ["name", "short", "ratio", "text", "note", "mark", "href"];
const same = (one, other) => PLACE.every((each) => one[each] === other[each]) && SHOWN.every((each) => one.item[each] === other.item[each]);

const Box = memo(({ item, depth, x, y, w, h, open }) => {
  const place = { left: `${x}px`, top: `${y}px`, width: `${Math.max(1, w - 1)}px`, height: `${Math.max(1, h - 1)}px` };
  const full = item.text ?? (item.ratio == null ? "" : percent(item.ratio));
  const title = [item.name, full, item.note].filter(Boolean).join(" · ");
  const named = open || (w > 46 && h > 20);
  const roomFor = (text, beside) => text.length * LETTER + 14 + beside <= w;
  const name = w >= ROOMY || roomFor(item.name, 0) ? item.name : item.short || item.name;
  const figured = w > 70 && (open ? w >= ROOMY || roomFor(name, BESIDE) : h > 36);
  return html`<a class="box" href=${item.href} style=${place} title=${title} aria-label=${title} tabindex=${depth ? -1 : 0}
      data-depth=${depth} data-open=${open ? "" : null} data-shade=${shade(item.ratio)} data-mark=${item.mark || null} data-key=${item.key}>
    ${named && html`<span class="box-name" data-alone=${figured ? null : ""}>${name}</span>`}
    ${named && figured && html`<span class="box-full">${full}</span>`}
    ${!open && h > 64 && w > 120 && html`<span class="box-note">${item.note}</span>`}
  </a>`;
}, same);

// After leaving a box the focus is on that box; after entering a box the focus is on the first box inside.
function focusFrom(frame, key) {
  const outermost = [...frame.querySelectorAll('[data-depth="0"]')];
  const left = outermost.find((each) => key === each.dataset.key || key.startsWith(`${each.dataset.key}/`));
  (left ?? outermost[0])?.focus();
}

// Arrow keys move the focus between boxes of the outermost level.
function step(event) {
  const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  if (!(event.key in moves)) return;
  const boxes = [...event.currentTarget.querySelectorAll('[data-depth="0"]')];
  const at = boxes.indexOf(document.activeElement);
  boxes[(at + moves[event.key] + boxes.length) % boxes.length]?.focus();
  event.preventDefault();
}

export function Legend({ of }) {
  return html`<p class="legend" aria-hidden="true">
    <span>${of}: 0%</span>
    ${Array.from({ length: STEPS }, (_, step) => html`<i class="box" data-shade=${step}></i>`)}
    <span>100%</span>
    <span class="key"><i class="box" data-shade="0" data-mark="bad"></i><span>not ready</span></span>
    <span class="key"><i class="box" data-shade="0" data-mark="held"></i><span>cordoned</span></span>
  </p>`;
}

// The width of an element, updated when it changes.
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const seen = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    seen.observe(ref.current);
    return () => seen.disconnect();
  }, []);
  return width;
}
