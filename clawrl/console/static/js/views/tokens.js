// The tokens of an answer as colours, beside the text that they make. Two scales, neither of which needs red from green:
// log-probs from plain (certain) to violet (unlikely), credit from orange (less of this) over plain to blue (more).

import { h, replace } from "../dom.js";
import { number, percent, signed, whole } from "../format.js";

// Lower bounds of the bins, in nats: probabilities of about 0.9, 0.6, 0.37, 0.14, 0.05 and 0.007.
const LOGP_BINS = [-0.1, -0.5, -1, -2, -3, -5, -Infinity];
const SIDES = 4;
const PIECE = 2000;

const logpBin = (logp) => LOGP_BINS.findIndex((least) => logp >= least);

// -4..4 of the largest absolute value; what is nearly nothing is 0.
function advantageBin(value, most) {
  if (!most) return 0;
  const share = Math.abs(value) / most;
  return share < 0.02 ? 0 : Math.sign(value) * Math.min(SIDES, Math.ceil(share * SIDES));
}

const SCALES = {
  logp: {
    name: "Log-prob",
    has: (tokens) => tokens.some((token) => typeof token.logp === "number"),
    of: (token) => token.logp,
    bin: (value) => `lp-${logpBin(value)}`,
    legend: () => LOGP_BINS.map((least, at) => [`lp-${at}`, at === LOGP_BINS.length - 1 ? `below ${signed(LOGP_BINS[at - 1], 1)}` : `≥ ${signed(least, 1)}`]),
    words: "nats; the stronger the colour, the less likely it was",
  },
  advantage: {
    name: "Advantage",
    has: (tokens) => tokens.some((token) => typeof token.advantage === "number"),
    of: (token) => token.advantage,
    most: (tokens) => Math.max(0, ...tokens.map((token) => Math.abs(token.advantage ?? 0))),
    bin: (value, most) => `adv${advantageBin(value, most)}`,
    legend: (most) =>
      Array.from({ length: 2 * SIDES + 1 }, (_, at) => at - SIDES).map((bin) => [`adv${bin}`, bin === 0 ? "0" : signed((most * bin) / SIDES)]),
    words: "orange: made less likely; blue: made more likely",
  },
  teacher: {
    name: "Teacher − policy",
    has: (tokens) => tokens.some((token) => typeof token.teacher_logp === "number"),
    of: (token) => (typeof token.teacher_logp === "number" ? token.teacher_logp - token.logp : null),
    most: (tokens) => Math.max(0, ...tokens.map((token) => Math.abs((token.teacher_logp ?? token.logp) - token.logp))),
    bin: (value, most) => `adv${advantageBin(value, most)}`,
    legend: (most) => SCALES.advantage.legend(most),
    words: "nats; blue: the teacher, who knows the hint, finds it more likely",
  },
};

// White space that would not be seen is drawn; the text itself stays what it is.
const shown = (token) => (token.piece === null || token.piece === undefined ? `#${token.id} ` : token.piece.replaceAll("\n", "⏎\n"));

export function tokensPanel() {
  let scale = "logp";
  let tokens = [];
  let credit = {};
  let limit = PIECE;
  let active = -1;
  const choices = h("div", { class: "segments", role: "radiogroup", "aria-label": "Colour the tokens by" });
  const list = h("div", { class: "tokens", role: "listbox", tabindex: "0", "aria-label": "Tokens of the answer" });
  const legend = h("ul", { class: "scale", "aria-label": "Scale" });
  const told = h("p", { class: "muted" });
  const inspect = h("p", { class: "inspect num", role: "status", "aria-live": "polite" }, "Point at a token, or walk along with the arrow keys.");
  const tip = h("div", { class: "tip num", role: "tooltip", hidden: true });
  const more = h("button", { type: "button", hidden: true, onclick: () => ((limit += PIECE), draw()) });
  const raw = h("pre", { class: "raw", tabindex: "0", "aria-label": "The answer as text" });
  const note = h("p", { class: "muted" });
  const left = h("div", { class: "token-side" }, h("h3", {}, "Tokens"), list, more, inspect);
  const right = h("div", { class: "token-side" }, h("h3", {}, "Text"), raw);
  const element = h("section", { class: "panel", "aria-label": "Tokens" },
    h("div", { class: "panel-head" }, h("h2", {}, "Tokens"), choices), h("div", { class: "scale-row" }, legend, told),
    h("div", { class: "two tokens-two" }, left, right), note, tip);

  list.addEventListener("pointerover", (event) => event.target.closest("[role=option]") && point(Number(event.target.closest("[role=option]").dataset.at), true, false));
  list.addEventListener("pointerleave", () => (tip.hidden = true));
  list.addEventListener("blur", () => (tip.hidden = true));
  list.addEventListener("focus", () => list.matches(":focus-visible") && point(Math.max(active, 0), true));
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 10, ArrowLeft: -1, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") tip.hidden = true;
    if (!by) return;
    event.preventDefault();
    point(Math.min(list.children.length - 1, Math.max(0, (active < 0 ? 0 : active) + by)), true);
  });

  // The mouse is where it points; keys may lead out of sight.
  function point(at, withTip, scrolls = withTip) {
    const token = tokens[at];
    const option = list.children[at];
    if (!token || !option) return;
    list.querySelector(".active")?.classList.remove("active");
    list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    active = at;
    option.classList.add("active");
    option.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", option.id);
    const lines = facts(token, at);
    inspect.textContent = lines.map(([name, value]) => `${name} ${value}`).join(" · ");
    replace(tip, h("dl", {}, lines.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
    tip.hidden = !withTip;
    if (scrolls) option.scrollIntoView({ block: "nearest" });
    place(option);
  }

  function place(option) {
    const now = option.getClientRects()[0];
    if (!now || tip.hidden) return;
    const { width, height } = tip.getBoundingClientRect();
    const above = now.top - height - 8;
    tip.style.left = `${Math.max(8, Math.min(now.left, innerWidth - width - 8))}px`;
    tip.style.top = `${above > 8 ? above : now.bottom + 8}px`;
  }

  function pick(name, focus) {
    scale = name;
    draw();
    if (focus) choices.querySelector("[aria-checked=true]").focus();
  }

  function drawChoices() {
    const known = Object.keys(SCALES).filter((name) => SCALES[name].has(tokens));
    if (!known.includes(scale)) scale = known[0] ?? "logp";
    const buttons = known.map((name, at) => {
      const chosen = name === scale;
      const button = h("button", { type: "button", role: "radio", "aria-checked": String(chosen), tabindex: chosen ? "0" : "-1" }, SCALES[name].name);
      button.addEventListener("click", () => pick(name, true));
      button.addEventListener("keydown", (event) => {
        const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!by) return;
        event.preventDefault();
        pick(known[(at + by + known.length) % known.length], true);
      });
      return button;
    });
    replace(choices, buttons);
  }

  function draw() {
    drawChoices();
    const chosen = SCALES[scale];
    const most = chosen.most?.(tokens);
    const spans = tokens.slice(0, limit).map((token, at) => {
      const value = chosen.of(token);
      const kind = typeof value === "number" ? chosen.bin(value, most) : "unknown";
      const fresh = at > 0 && tokens[at - 1].version !== token.version;
      return h("span", { role: "option", "aria-selected": "false", id: `token-${at}`, class: `token ${kind}${fresh ? " new-version" : ""}`, data: { at } }, shown(token));
    });
    replace(list, spans);
    more.hidden = tokens.length <= limit;
    more.textContent = `Show ${whole(Math.min(PIECE, tokens.length - limit))} more of ${whole(tokens.length)} tokens`;
    replace(legend, chosen.legend(most).map(([kind, text]) => h("li", { class: `token ${kind}` }, text)));
    told.textContent = scale === "advantage" && credit.advantage_of ? `${chosen.words}: ${credit.advantage_of}` : chosen.words;
  }

  let stamp = null;

  function update(life) {
    const now = JSON.stringify([life.tokens, life.response_text]);
    if (now === stamp) return;
    stamp = now;
    tokens = life.tokens ?? [];
    credit = life.credit ?? {};
    element.hidden = tokens.length === 0 && !life.response_text;
    draw();
    if (raw.textContent !== (life.response_text ?? "")) raw.textContent = life.response_text ?? "";
    const versions = new Set(tokens.map((token) => token.version));
    const notes = [versions.size > 1 ? "A mark before a token says that another version wrote from there on." : ""];
    if (tokens.length && credit.advantage_note) notes.push(`${credit.advantage_of ? "Of the advantage" : "No advantage"}: ${credit.advantage_note}.`);
    note.textContent = notes.filter(Boolean).join(" ");
    if (active >= 0) point(active, false);
  }

  return { element, update };
}

function facts(token, at) {
  const lines = [
    ["token", `${at + 1}, id ${token.id}`],
    ["log-prob", `${number(token.logp, 4)} (${percent(Math.exp(token.logp), 1)})`],
  ];
  if (typeof token.advantage === "number") lines.push(["advantage", signed(token.advantage, 4)]);
  if (typeof token.teacher_logp === "number") lines.push(["teacher", `${number(token.teacher_logp, 4)} (${percent(Math.exp(token.teacher_logp), 1)})`]);
  if (token.version !== null && token.version !== undefined) lines.push(["version", String(token.version)]);
  return lines;
}
