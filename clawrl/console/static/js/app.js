// The frame: who is in, what serves, whether it learns; and which view is shown. One poll of the status feeds them all.

import { api, key } from "./api.js";
import { h, icon, replace, setText, stamped } from "./dom.js";
import { ask, closeDialogs, help, notice, noticeArea } from "./dialogs.js";
import { clock } from "./format.js";
import { bind, shortcuts, startKeys, unbindAll } from "./keys.js";
import { Poll } from "./live.js";
import { nextTheme, startTheme, themeButton } from "./theme.js";
import { view as chat } from "./views/chat.js";
import { view as overview } from "./views/overview.js";
import { view as replicas } from "./views/replicas.js";
import { view as sessions } from "./views/sessions.js";
import { view as turn } from "./views/turn.js";
import { view as turns } from "./views/turns.js";
import { rollBack, view as versions, wordsOfPublish } from "./views/versions.js";

const NAV = [["overview", "Overview"], ["chat", "Chat"], ["turns", "Turns"], ["sessions", "Sessions"], ["versions", "Versions"], ["replicas", "Replicas"]];
const VIEWS = { overview, chat, turns, sessions, versions, replicas };
const root = document.getElementById("app");
const ctx = { status: null, refresh: () => poll.now(), onChange: null };
const kept = new Map();
let shown = null;
// What `shown` was built from, and of what.
let from = null;
let frame = null;
let upSince = null;
let trouble = null;

const poll = new Poll((signal) => api.status(signal), { everyMs: 2000, onValue: onStatus, onTrouble });

startTheme();
startKeys();
window.addEventListener("hashchange", () => frame && navigate());
document.addEventListener("console:key-refused", () => lock(key.get() ? "This key is not known here." : ""));
poll.start();
setInterval(() => trouble && drawBanners(), 1000);

function onStatus(status) {
  trouble = null;
  ctx.status = status;
  if (!frame) build();
  const up = status.coordinator?.up_since ?? null;
  if (upSince !== null && up !== null && up !== upSince) notice(`The coordinator was restarted at ${clock(up)}. Nothing is lost.`);
  upSince = up ?? upSince;
  drawStatus();
  drawBanners();
  shown?.onStatus?.(status);
}

function onTrouble(error, retryAt) {
  if (error.status === 401) return;
  if (error.status === 403) return lock("This key may talk and give feedback; the console takes the operator's key or its own.");
  trouble = { error, retryAt };
  if (frame) {
    drawStatus();
    drawBanners();
  } else {
    const card = h("div", { class: "gate-card" });
    if (!root.querySelector("[data-unanswered]")) replace(root, h("main", { class: "gate", id: "main", data: { unanswered: "" } }, card));
    const wait = Math.max(1, Math.round((retryAt - Date.now()) / 1000));
    // Said again, it stays as it is: who is on its button stays there.
    stamped(root.querySelector(".gate-card"), error.message, () => [
      h("div", { role: "alert" }, h("h1", {}, "The server does not answer"), h("p", {}, error.message)),
      h("p", { class: "count" }), h("button", { class: "primary", type: "button", onclick: () => poll.now() }, "Try now")]);
    setText(root.querySelector(".count"), `Trying again in ${wait} s.`);
  }
}

// -- the key -----------------------------------------------------------------------------------------

function lock(why) {
  poll.stop();
  leave();
  key.clear();
  frame = null;
  ctx.status = null;
  trouble = null;
  // What was said and read goes with the key, and so does what could still act.
  kept.forEach((view) => view.close?.());
  kept.clear();
  unbindAll();
  closeDialogs();
  const input = h("input", { id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true });
  const note = h("p", { class: "trouble", role: "alert", hidden: !why }, why);
  const form = h("form", { class: "gate-card" }, h("h1", {}, "clawrl console"), h("p", {}, "Enter the console's key, or the operator's. It stays in this tab until you close it."),
    h("label", { for: "key" }, "Key"), input, note, h("button", { class: "primary", type: "submit" }, "Open"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = input.value.trim();
    // A header has no sure way to say more than ASCII.
    const wrong = !given ? "Enter a key." : /[^\x20-\x7e]/.test(given) ? "A key has only letters without accents, digits and ASCII signs in it." : null;
    if (wrong) {
      setText(note, wrong);
      note.hidden = false;
      return;
    }
    key.set(given);
    poll.start();
  });
  replace(root, h("main", { class: "gate", id: "main" }, form));
  document.title = "clawrl console";
  input.focus();
}

// -- the frame ---------------------------------------------------------------------------------------

function build() {
  const links = NAV.map(([name, label], at) => h("a", { href: `#/${name}`, data: { name }, title: `${label} (${at + 1})` }, icon(name), h("span", { class: "label" }, label)));
  const lockButton = h("button", { class: "quiet", type: "button", title: "Forget the key", "aria-label": "Lock: forget the key", hidden: !key.get(), onclick: () => lock("") },
    icon("lock"), h("span", { class: "label" }, "Lock"));
  const keysButton = h("button", { class: "quiet", type: "button", title: "Keyboard shortcuts (?)", "aria-label": "Keyboard shortcuts", onclick: showHelp },
    icon("keyboard"), h("span", { class: "label" }, "Shortcuts"));
  frame = {
    links,
    name: h("span", { class: "brand-name" }),
    title: h("h1", { tabindex: "-1" }),
    pill: h("span", { class: "pill", role: "status" }),
    version: h("a", { class: "pill plain num", href: "#/versions" }),
    toggle: h("button", { type: "button", onclick: toggle }),
    publish: h("button", { type: "button", title: "Publish what was learned", onclick: publish }, icon("publish"), h("span", { class: "label" }, "Publish")),
    banners: h("div", { class: "banners", role: "region", "aria-label": "Warnings", "aria-live": "polite" }),
    content: h("div", { id: "content" }),
  };
  const side = h("header", { class: "side" },
    h("a", { class: "brand", href: "#/overview" }, h("img", { src: "icon.svg", alt: "", width: "28", height: "28" }), h("span", {}, h("b", {}, "clawrl"), frame.name)),
    h("nav", { "aria-label": "Views" }, links), h("div", { class: "side-end" }, themeButton(), keysButton, lockButton));
  const top = h("div", { class: "top" }, frame.title, h("div", { class: "top-end" }, frame.pill, frame.version, frame.publish, frame.toggle));
  replace(root, h("div", { class: "frame" }, side, h("main", { class: "page", id: "main", tabindex: "-1" }, top, frame.banners, frame.content)), noticeArea());
  NAV.forEach(([name], at) => bind(String(at + 1), () => (location.hash = `#/${name}`)));
  bind("?", showHelp);
  bind("t", () => notice(`Theme: ${nextTheme()}`));
  bind("p", toggle);
  navigate();
}

function leave() {
  shown?.stop?.();
  ctx.onChange = null;
  shown = null;
}

function navigate() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(unescaped);
  const found = Object.hasOwn(VIEWS, name) ? name : "overview";
  const params = rest.filter((part) => part !== "");
  const build = found === "turns" && params.length ? turn : VIEWS[found];
  const asked = new URLSearchParams(query ?? "");
  const place = JSON.stringify([found, params]);
  // Another filter is no other view: who walks through its choices stays there.
  if (shown?.onQuery && from === place) return shown.onQuery(asked);
  const moved = shown !== null;
  leave();
  from = place;
  shown = kept.get(found) ?? build(ctx, params, asked);
  if (shown.keep) kept.set(found, shown);
  setText(frame.title, shown.title);
  document.title = `${shown.title} · clawrl console`;
  for (const link of frame.links) {
    if (link.dataset.name === found) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  replace(frame.content, shown.element);
  // Who reads by ear is told where they are; who types in a field of the view stays there.
  if (moved) frame.title.focus({ preventScroll: true });
  if (moved) scrollTo(0, 0);
  if (ctx.status) shown.onStatus?.(ctx.status);
  shown.start?.();
}

function unescaped(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function drawStatus() {
  const status = ctx.status ?? {};
  const alarm = status.guards?.alarm;
  const [kind, text] = trouble ? ["bad", "not connected"] : status.paused ? (alarm ? ["bad", "frozen by the guard"] : ["warn", "paused"]) : ["live", "learning"];
  frame.pill.className = `pill ${kind}`;
  setText(frame.pill, text);
  setText(frame.name, status.name ?? "");
  setText(frame.version, `version ${status.version ?? "–"} · step ${status.step ?? "–"}`);
  const label = status.paused ? "Resume" : "Pause";
  if (frame.toggle.dataset.label !== label) {
    frame.toggle.dataset.label = label;
    frame.toggle.className = status.paused ? "primary" : "";
    frame.toggle.title = `${label} learning (p)`;
    replace(frame.toggle, icon(status.paused ? "play" : "pause"), label);
  }
}

function drawBanners() {
  if (!frame) return;
  const status = ctx.status ?? {};
  const found = [];
  if (trouble) {
    const wait = Math.max(0, Math.round((trouble.retryAt - Date.now()) / 1000));
    found.push({ kind: "bad", title: "Not connected", text: `${trouble.error.message} What you see is as it was.`, count: wait ? `Trying again in ${wait} s.` : "Trying again…",
      actions: [["Try now", () => poll.now()]] });
  }
  const alarm = status.guards?.alarm;
  const good = status.guards?.good_version ?? null;
  if (alarm) {
    found.push({ kind: "bad", title: `Frozen by the guard: ${String(alarm.name).replaceAll("_", " ")}`, text: alarm.reason,
      actions: [["Resume", toggle], ...(good !== null && good !== status.version ? [[`Roll back to ${good}`, () => rollBack(ctx, good)]] : []), ["Look at the health", () => (location.hash = "#/overview")]] });
  } else if (status.paused) {
    found.push({ kind: "warn", title: "Learning is paused", text: `${sentence(status.pause_reason || "No reason was given")} Answers are still served and recorded; nothing is lent to the trainer.`, actions: [["Resume", toggle]] });
  }
  if (status.turns?.adds_up === false) found.push({ kind: "bad", title: "The counts do not add up", text: "Please report this with the ledger.", actions: [] });
  if (status.unrecorded) found.push({ kind: "warn", title: `${status.unrecorded} answers could not be recorded`, text: "They were served, and will not be trained.", actions: [] });
  // Only what changed is written: a screen reader would read it all again each second.
  const stamp = JSON.stringify(found.map(({ kind, title, text, actions }) => [kind, title, text, actions.map(([name]) => name)]));
  if (frame.banners.dataset.stamp !== stamp) {
    frame.banners.dataset.stamp = stamp;
    replace(frame.banners, found.map(banner));
  }
  if (trouble) setText(frame.banners.querySelector(".count"), found[0].count);
}

const sentence = (text) => (/[.!?]$/.test(text.trim()) ? text.trim() : `${text.trim()}.`);

function banner({ kind, title, text, count, actions }) {
  const buttons = actions.map(([name, act]) => h("button", { class: "small", type: "button", onclick: act }, name));
  return h("div", { class: `banner ${kind}` }, h("p", {}, h("b", {}, title), " – ", text, " ", count !== undefined && h("span", { class: "count", "aria-live": "off" }, count)), h("div", { class: "buttons" }, buttons));
}

// -- operating ---------------------------------------------------------------------------------------

async function toggle() {
  if (!ctx.status?.paused) {
    await ask({ title: "Pause learning?", text: "Answers are still served and recorded. No turn enters the queue and no step is begun until you resume.",
      field: "Reason (shown to everybody who looks)", action: "Pause", act: (reason) => api.pause(reason) });
  } else {
    const alarm = ctx.status.guards?.alarm;
    await ask({ title: "Resume learning?", text: alarm ? `The guard stopped it: ${alarm.reason}` : "Turns that were judged meanwhile enter the queue.",
      action: "Resume", danger: Boolean(alarm), act: async () => {
        const { released } = await api.resume();
        notice(typeof released === "number" ? `Learning goes on; ${released} judged turns entered the queue.` : "Learning goes on.");
      } });
  }
  poll.now();
}

async function publish() {
  try {
    notice(wordsOfPublish(await api.publish()));
  } catch (error) {
    notice(error.message, "error");
  }
}

function showHelp() {
  const rows = [
    ...NAV.map(([, label], at) => [[String(at + 1)], label]),
    [["/"], "The filter of a table, or the message in the chat"],
    [["j"], "Next row"], [["k"], "Previous row"], [["Enter"], "Open the row's turn, send a message"],
    [["p"], "Pause or resume learning"], [["t"], "Theme: as the system, light, dark"],
    [["←", "→"], "Along a curve or the tokens, when they have the focus"], [["+", "−", "0"], "Zoom of a curve, whole range"],
    [["Esc"], "Close"], [["?"], "This list"],
  ];
  help(rows, shortcuts.on, (on) => (shortcuts.on = on));
}
