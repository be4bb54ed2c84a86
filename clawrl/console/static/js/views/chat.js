// Talking to the policy. Every answer is a turn: it can be rated with a comment, followed until a version has learned from
// it, and asked for again to see what that changed. The conversation lives in this page and nowhere else in the browser.

import { api, chat } from "../api.js";
import { h, icon, replace, setText, stamped } from "../dom.js";
import { notice } from "../dialogs.js";
import { bind } from "../keys.js";
import { Followed } from "../followed.js";
import { Poll } from "../live.js";
import { statePill, turnLink, verdict } from "../widgets.js";

const MOST_FOLLOWED = 12;
// Rows of the conversation that are looked at for them.
const ROWS = 2 * MOST_FOLLOWED;
// A step has learned from it; it counts as trained once a checkpoint holds that step.
const LEARNED = ["applied", "trained"];
const TOO_LATE = "What you said is written down, but came too late to be learned from: the turn was already lent to the trainer.";

export function view() {
  let session = newName();
  let messages = [];
  let answers = [];
  let running = null;
  let model = null;
  let refused = false;
  // What is being asked again.
  const asking = new Set();

  const log = h("div", { class: "chat-log", role: "log", "aria-label": "Conversation", tabindex: "0" });
  const hello = h("div", { class: "chat-empty" }, h("h2", {}, "Say something"),
    h("p", {}, "Each answer can be rated. A comment says what should have been different: it becomes the hint that the policy learns from."));
  const input = h("textarea", { id: "say", rows: "2", placeholder: "Write a message", "aria-label": "Message", autocomplete: "off" });
  const send = h("button", { class: "primary", type: "submit" }, icon("send"), "Send");
  const stop = h("button", { type: "button", hidden: true, onclick: () => running?.abort() }, icon("stop"), "Stop");
  const form = h("form", { class: "composer" }, input, h("div", { class: "buttons" }, stop, send));
  const temperature = h("input", { id: "temperature", type: "number", min: "0", max: "2", step: "0.1", placeholder: "default" });
  const tokens = h("input", { id: "max-tokens", type: "number", min: "1", step: "1", placeholder: "default" });
  const system = h("textarea", { id: "system", rows: "2", placeholder: "none" });
  const train = h("input", { id: "train", type: "checkbox", checked: true });
  const fresh = h("button", { type: "button", onclick: startOver }, "New conversation");
  const named = h("a", { class: "mono" });
  const settings = h("details", { class: "settings", open: innerWidth > 1000 }, h("summary", {}, "Settings"), h("div", { class: "fields" },
    field("Temperature", temperature), field("Most tokens", tokens), field("System message", system)),
    h("label", { class: "check", for: "train" }, train, "May be learned from"),
    h("p", { class: "muted" }, "Answers at temperature 0 are never trained: they were not drawn from a distribution."));
  const head = h("div", { class: "panel-head" }, h("span", { class: "muted" }, "Session ", named), h("div", { class: "buttons" }, fresh));
  const element = h("div", { class: "chat" }, h("section", { class: "panel chat-panel", "aria-label": "Chat" }, head, log, form),
    h("aside", { class: "panel", "aria-label": "Settings" }, settings));

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  });
  show();

  function show() {
    replace(log, hello);
    named.textContent = session;
    named.href = `#/sessions/${encodeURIComponent(session)}`;
  }

  function sampling() {
    const chosen = {};
    if (temperature.value !== "") chosen.temperature = Number(temperature.value);
    if (tokens.value !== "") chosen.max_tokens = Number(tokens.value);
    return chosen;
  }

  // `send(model)` with the name that is served; after a redeploy that may be another.
  async function toServed(send, signal) {
    const name = model ?? (await api.models(signal)).data[0].id;
    try {
      model = name;
      return await send(name);
    } catch (error) {
      if (error.status !== 404) throw error;
      model = null;
      const now = (await api.models(signal)).data[0].id;
      if (now === name) throw error;
      model = now;
      return send(now);
    }
  }

  // Whatever was said here while the box was off is never learned from, also where it is asked for again.
  const againTrain = () => (refused || !train.checked ? false : undefined);

  async function say() {
    const text = input.value.trim();
    if (!text || running) return;
    hello.remove();
    input.value = "";
    const before = messages;
    const first = !messages.length && system.value.trim() ? [{ role: "system", content: system.value.trim() }] : messages;
    messages = [...first, { role: "user", content: text }];
    const asked = h("div", { class: "said user" }, h("p", { class: "role" }, "You"), h("p", { class: "text" }, text));
    const answer = new Answer({ sampling, toServed, train: againTrain, asking, look: () => poll.now() });
    answer.asked = [...messages];
    log.append(asked, answer.element);
    scroll(true);
    running = new AbortController();
    busy(true);
    try {
      // Said only where somebody does not want it, and once they want it again: otherwise the key's own permission holds.
      refused ||= !train.checked;
      const may = refused ? train.checked : undefined;
      const { signal } = running;
      await toServed((name) => answer.stream(name, session, may, signal, () => scroll(false)), signal);
      messages = [...messages, { role: "assistant", content: answer.text }];
      answers = [...answers, answer].slice(-MOST_FOLLOWED);
      poll.now();
    } catch (error) {
      // What was not answered is not part of the conversation: it can be said again.
      messages = before;
      if (!input.value) input.value = text;
      answer.broke(error);
    } finally {
      running = null;
      busy(false);
      input.focus();
    }
  }

  function busy(now) {
    stop.hidden = !now;
    send.disabled = now;
    fresh.disabled = now;
    log.setAttribute("aria-busy", String(now));
  }

  function scroll(always) {
    const near = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
    if (always || near) log.scrollTop = log.scrollHeight;
  }

  async function startOver() {
    const ended = session;
    const spoke = messages.length > 0;
    session = newName();
    messages = [];
    answers = [];
    refused = false;
    show();
    input.focus();
    // Its last answer waits for no reply any more.
    if (spoke) await api.endSession(ended).catch((error) => notice(error.message, "error"));
  }

  const poll = new Poll(
    async (signal) => {
      const open = answers.filter((answer) => !answer.settled);
      if (!open.length) return;
      // A conversation of another key's may have the same name: rows are matched by the turn.
      const rows = new Map((await api.turns({ session, limit: ROWS }, signal)).map((row) => [row.turn_id, row]));
      const news = open.filter((answer) => answer.followed.isNews(rows.get(answer.turn)));
      await Promise.all(news.map((answer) => answer.look(signal)));
      if (open.some((answer) => LEARNED.includes(answer.life?.state) && answer.learnedBy === null)) {
        const versions = await api.versions({ limit: 50 }, signal);
        for (const answer of open) answer.published(versions);
      }
    },
    { everyMs: 2000, onValue: () => {} },
  );
  let unbind = () => {};
  return {
    title: "Chat",
    element,
    keep: true,
    start() {
      poll.start();
      unbind = bind("/", () => input.focus());
      input.focus();
    },
    stop() {
      poll.stop();
      unbind();
    },
    // For good: nothing is answered any more.
    close() {
      running?.abort();
      for (const one of asking) one.abort();
    },
  };
}

const newName = () => `console-${crypto.getRandomValues(new Uint32Array(2)).reduce((name, part) => name + part.toString(36), "")}`;

const field = (name, input) => h("div", { class: "field" }, h("label", { for: input.id }, name), input);

class Answer {
  constructor(tools) {
    Object.assign(this, { tools, text: "", turn: null, life: null, settled: false, asked: [], learnedBy: null, late: false });
    this.body = h("p", { class: "text" });
    this.thought = h("p", { class: "text" });
    this.reasoning = h("details", { hidden: true }, h("summary", {}, "Reasoning"), this.thought);
    this.about = h("span", { class: "muted num" });
    this.up = this.thumb("up", "Good answer", 1);
    this.down = this.thumb("down", "Bad answer", -1);
    this.againButton = h("button", { class: "quiet small", type: "button", onclick: () => this.again() }, icon("again"), "Ask again");
    this.againButton.title = "The same conversation, without chance (temperature 0), by the version that serves now; it is not trained";
    this.bar = h("div", { class: "answer-bar", hidden: true }, this.up, this.down, this.againButton, this.about);
    this.form = h("div", {});
    // Read aloud only where something happened; the sentence below it counts seconds.
    this.told = h("div", { class: "told", role: "status" });
    this.why = h("p", { class: "muted", "aria-live": "off" });
    this.fate = h("div", { class: "fate", hidden: true }, this.told, this.why);
    this.others = h("div", { class: "others" });
    this.element = h("div", { class: "said" }, h("p", { class: "role" }, "Policy"), this.reasoning, this.body, this.bar, this.form, this.fate, this.others);
    this.waiting = h("span", { class: "spinner" });
    this.body.append(this.waiting);
  }

  thumb(name, label, score) {
    const button = h("button", { class: `quiet small thumb ${name}`, type: "button", "aria-label": label, title: label, "aria-pressed": "false" }, icon(name));
    button.addEventListener("click", () => this.openForm(score));
    return button;
  }

  async stream(model, session, train, signal, onText) {
    const told = await chat({
      model, session, train, signal, messages: this.asked, sampling: this.tools.sampling(),
      onDelta: (delta) => {
        this.waiting.remove();
        if (delta.text) this.body.append(delta.text);
        this.text += delta.text;
        if (delta.reasoning) this.thought.append(delta.reasoning);
        this.reasoning.hidden = !this.thought.textContent;
        onText();
      },
    });
    this.waiting.remove();
    if (!this.text && !this.thought.textContent) this.body.append("(an empty answer)");
    this.turn = told.turn;
    this.followed = new Followed(told.turn);
    this.version = told.version;
    const cut = told.finish === "length" ? ", cut at the token limit" : "";
    replace(this.about, told.version === null ? "" : `version ${told.version}${cut} · `, turnLink(told.turn));
    this.bar.hidden = false;
    onText();
  }

  broke(error) {
    this.waiting.remove();
    const said = error.name === "AbortError" ? "You stopped this answer." : `${error.message}${error.retryAfter ? ` Try again in ${error.retryAfter} s.` : ""}`;
    this.element.append(h("p", { class: error.name === "AbortError" ? "muted" : "trouble", role: "alert" }, said));
  }

  openForm(score) {
    const id = `comment-${this.turn}`;
    const ask = score < 0 ? "What should have been different? (optional)" : "What was good about it? (optional)";
    const comment = h("textarea", { id, rows: "2", maxlength: "4000", placeholder: score < 0 ? "For example: Answer in one sentence." : "" });
    comment.value = this.form.querySelector("textarea")?.value ?? "";
    const trouble = h("p", { class: "trouble", role: "alert", hidden: true });
    const go = h("button", { class: "primary small", type: "submit" }, "Send feedback");
    const form = h("form", { class: "comment" }, h("label", { for: id }, ask), comment, trouble,
      h("div", { class: "buttons" }, go, h("button", { class: "small", type: "button", onclick: () => this.closeForm() }, "Cancel")));
    const submit = async () => {
      if (go.disabled) return;
      go.disabled = true;
      try {
        const taken = await api.feedback(this.turn, score, comment.value.trim());
        this.press(score);
        this.closeForm();
        this.settled = false;
        this.followed.forget();
        this.late = taken.outcome === "too_late";
        this.tell(["thanks", taken.state, this.late], () => h("p", {}, "Thank you. ", this.late ? TOO_LATE : statePill(taken.state)));
        this.tools.look();
      } catch (error) {
        setText(trouble, error.message);
        trouble.hidden = false;
        go.disabled = false;
      }
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      submit();
    });
    comment.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.closeForm();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        submit();
      }
    });
    this.opened = score < 0 ? this.down : this.up;
    replace(this.form, form);
    comment.focus();
    form.scrollIntoView({ block: "nearest" });
  }

  closeForm() {
    this.form.replaceChildren();
    this.opened?.focus();
  }

  press(score) {
    this.up.setAttribute("aria-pressed", String(score > 0));
    this.down.setAttribute("aria-pressed", String(score < 0));
  }

  tell(what, build, why = "") {
    this.fate.hidden = false;
    stamped(this.told, what, build);
    setText(this.why, why);
    this.why.hidden = !why;
  }

  async look(signal) {
    try {
      this.follow(await this.followed.fetch(signal));
    } catch (error) {
      if (error.status !== 404) throw error;
      this.settled = true;
      this.tell("gone", () => h("p", {}, "This turn is no longer in the ledger: it was forgotten, or removed with the oldest finished ones."));
    }
  }

  follow(life) {
    this.life = life;
    if (!LEARNED.includes(life.state)) this.learnedBy = null;
    this.settled = life.state === "dropped" || (life.state === "trained" && this.learnedBy !== null);
    const learned = LEARNED.includes(life.state) && this.learnedBy !== null;
    this.tell([life.state, life.drop_reason, life.verdict, this.hints, learned, this.late], () => [this.standing(), learned && this.lesson()],
      learned ? "" : life.why?.sentence);
  }

  get hints() {
    return this.life.judgement?.hints ?? [];
  }

  standing() {
    const { state, drop_reason: reason, verdict: said } = this.life;
    return [h("div", { class: "turn-line" }, statePill(state, reason), said === null ? null : verdict(said)),
      this.hints.map((hint) => h("p", { class: "hint" }, h("b", {}, "Hint: "), hint)), this.late && h("p", {}, TOO_LATE)];
  }

  // The first version that was made by this turn's step or a later one, and that was not taken back.
  published(versions) {
    const { state, step } = this.life ?? {};
    if (!LEARNED.includes(state) || this.learnedBy !== null) return;
    const later = versions.filter((one) => one.step >= step && (one.rolled_back_to ?? null) === null && one.published_at > this.life.finished_at);
    const first = later.at(-1);
    if (!first) return;
    this.learnedBy = first.version;
    this.follow(this.life);
  }

  lesson() {
    return h("p", {}, `Learned in step ${this.life.step} and published as version ${this.learnedBy}. `, h("b", {}, "Ask again"), " to see what it changed.");
  }

  async again() {
    const text = h("p", { class: "text" }, h("span", { class: "spinner" }));
    const role = h("p", { class: "role" }, "Asked again…");
    const other = h("div", { class: "other" }, role, text);
    this.others.append(other);
    this.againButton.disabled = true;
    let said = "";
    const asking = new AbortController();
    const { signal } = asking;
    this.tools.asking.add(asking);
    try {
      const told = await this.tools.toServed((model) => chat({
        model, messages: this.asked, side: true, train: this.tools.train(), signal,
        sampling: { ...this.tools.sampling(), temperature: 0 },
        onDelta: (delta) => {
          said += delta.text;
          setText(text, said);
        },
      }), signal);
      setText(text, said || "(an empty answer)");
      role.textContent = `Version ${told.version}, without chance`;
      other.dataset.version = told.version;
      const before = [...this.others.querySelectorAll(".other[data-version]")].at(-2);
      if (before) other.append(h("p", { class: "muted" }, before.querySelector(".text").textContent === said
        ? `The same as version ${before.dataset.version} said.` : `Another answer than that of version ${before.dataset.version}.`));
    } catch (error) {
      role.textContent = "Asked again";
      replace(text, h("span", { class: "trouble", role: "alert" }, error.message));
    } finally {
      this.tools.asking.delete(asking);
      this.againButton.disabled = false;
      other.scrollIntoView({ block: "nearest" });
    }
  }
}
