// Amounts as text. The inputs are integers: micro-dollars, milli-cores, bytes, milliseconds.
const MONTH_HOURS = 720;
const GROUPED = new Intl.NumberFormat("en-US");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (number) => GROUPED.format(number);

export const plural = (number, word, words = `${word}s`) => `${count(number)} ${number === 1 ? word : words}`;

// $1,234.50; amounts below a dollar have more digits: $0.0052
export function money(micros) {
  if (micros == null) return "–";
  const dollars = Math.abs(micros) / 1e6;
  const digits = dollars === 0 || dollars >= 1 ? 2 : dollars >= 0.01 ? 3 : 5;
  const text = dollars.toLocaleString("en-US", { minimumFractionDigits: Math.min(2, digits), maximumFractionDigits: digits });
  return `${micros < 0 ? "−" : ""}$${text}`;
}

export const hourly = (micros) => (micros == null ? "–" : `${money(micros)}/h`);

// A rate to which machines of unknown price add: a lower bound, or unknown if nothing else does.
export function atLeast(micros, unpriced, how = money) {
  if (!unpriced) return how(micros);
  return micros ? `≥ ${how(micros)}` : "unknown";
}

// The cost of an hourly price in 30 days.
export const monthly = (micros) => (micros == null ? "–" : `${money(micros * MONTH_HOURS)} in 30 days`);

export const signed = (micros, how = money) => (micros > 0 ? `+${how(micros)}` : how(micros));

export function cpu(milli) {
  if (milli == null) return "–";
  const cores = milli / 1000;
  return count(Number(cores.toFixed(cores >= 100 ? 0 : cores >= 10 ? 1 : cores >= 0.01 ? 2 : 3)));
}

// 1 core, 0.25 cores
export const cores = (milli) => `${cpu(milli)} ${milli === 1000 ? "core" : "cores"}`;

export function bytes(amount) {
  if (amount == null) return "–";
  let size = amount;
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 10 || Number.isInteger(size) ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

export const share = (part, whole) => (whole > 0 ? part / whole : 0);

export function percent(ratio) {
  const whole = ratio * 100;
  return `${whole > 0 && whole < 1 ? "<1" : Math.round(whole)}%`;
}

export function ago(stamp, now = Date.now()) {
  const at = Date.parse(stamp ?? "");
  return Number.isNaN(at) ? "–" : span(Math.max(0, Math.floor((now - at) / 1000)));
}

export function span(seconds) {
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

// Natural order: web-2 before web-10.
const NATURAL = new Intl.Collator("en", { numeric: true });

export function compare(one, other) {
  if (one === other) return 0;
  if (one == null || other == null) return (one == null) - (other == null);
  if (typeof one === "number" && typeof other === "number") return one - other;
  return NATURAL.compare(String(one), String(other));
}
