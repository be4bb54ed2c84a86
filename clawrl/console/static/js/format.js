// Figures, times and names for people. A dash stands for what is not known; it is never a zero.

const DASH = "–";

export function number(value, digits = 2) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  const shown = Math.abs(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return value < 0 ? `−${shown}` : shown;
}

export const whole = (value) => number(value, 0);

export function percent(value, digits = 0) {
  return typeof value === "number" && Number.isFinite(value) ? `${number(value * 100, digits)} %` : DASH;
}

export function signed(value, digits = 2) {
  if (typeof value !== "number" || !Number.isFinite(value)) return DASH;
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(value), digits)}`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const fullTime = (seconds) => (seconds ? FULL.format(seconds * 1000) : DASH);

const HOUR = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

// A tick of an axis whose ticks are `apart` seconds from each other.
export function hour(seconds, apart) {
  const date = new Date(seconds * 1000);
  if (apart >= 86400 || (date.getHours() === 0 && date.getMinutes() === 0 && apart >= 60)) return DAY.format(date);
  return (apart < 60 ? CLOCK : HOUR).format(date);
}

export function clock(seconds) {
  if (!seconds) return DASH;
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
}

export function duration(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return DASH;
  if (seconds < 0.001) return `${number(seconds * 1e6, 0)} µs`;
  if (seconds < 1) return `${number(seconds * 1000, 0)} ms`;
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export function short(text, most = 14) {
  return text && text.length > most ? `${text.slice(0, most - 1)}…` : text || DASH;
}

export const words = (name) => String(name).replaceAll("_", " ");

export const plural = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

export const STATES = [
  "served", "awaiting_next", "judging", "judged", "queued", "leased", "applied", "trained", "dropped",
];

export const REASONS = [
  "side", "aborted", "failed", "empty", "greedy", "filtered", "not_permitted", "redacted", "forgotten", "too_long",
  "session_ended", "no_evidence", "judge_abstained", "neutral", "no_hint", "teacher_failed", "too_short", "truncated",
  "repetitive", "duplicate", "refused_by_filter", "stale", "malformed",
];
