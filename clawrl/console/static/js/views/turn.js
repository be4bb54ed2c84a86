// One turn's life in one view: what was asked and answered, what came of it, and why it is where it is.

import { api } from "../api.js";
import { add, h, replace, setText, stamped } from "../dom.js";
import { clock, duration, fullTime, number, percent, signed, whole, words } from "../format.js";
import { FINAL, Followed } from "../followed.js";
import { Poll } from "../live.js";
import { measuresIn } from "../measures.js";
import { facts, loading, panel, sessionLink, showFailure, statePill, stepLink, turnLink, verdict, versionLink } from "../widgets.js";
import { tokensPanel } from "./tokens.js";

const FOLDED = 6;

export function view(ctx, [id]) {
  const tokens = tokensPanel();
  const head = headPanel();
  const note = h("div", {}, loading("the turn"));
  const talk = h("div", { class: "stack" });
  const after = h("div", { class: "stack", hidden: true });
  const side = SIDE.map(() => h("div", {}));
  const life = h("div", { class: "life", hidden: true }, h("div", { class: "stack" }, talk, tokens.element, after), h("div", { class: "stack" }, side));
  const element = h("div", { class: "stack" }, h("p", {}, h("a", { href: "#/turns" }, "← All turns")), note, head.element, life);
  const followed = new Followed(id);

  // Each panel is built anew only where what it shows has changed: what is opened, selected or focused in the others stays.
  function show(found) {
    note.hidden = true;
    replace(note);
    life.hidden = false;
    head.update(found);
    const { request, answer, evidence, feedback } = found;
    stamped(talk, [request, answer], () => talkOf(found));
    after.hidden = !(evidence || feedback || request);
    stamped(after, [evidence, feedback], () => panel("What came after it", evidenceOf(found)));
    SIDE.forEach(([build, shown], at) => stamped(side[at], shown(found), () => build(found)));
    tokens.update(found);
  }

  function gone(error) {
    for (const part of [head.element, life]) part.hidden = true;
    note.hidden = false;
    showFailure(note, error);
  }

  const poll = new Poll((signal) => followed.look(signal), {
    everyMs: 2000,
    // It can be megabytes.
    patienceMs: 60_000,
    onValue(found) {
      if (found) show(found);
      // Feedback may still bring a dropped one back, and a restored checkpoint a trained one: look now and then.
      poll.everyMs = FINAL.includes(followed.state) ? 10_000 : 2000;
    },
    onTrouble(error) {
      if (error.status === 404) gone(error);
      else if (life.hidden) showFailure(note, error, () => poll.now());
    },
  });
  return { title: "Turn", element, start: () => poll.start(), stop: () => poll.stop() };
}

function headPanel() {
  const line = h("div", { class: "turn-line" });
  const sentence = h("p", { class: "why" });
  const remedy = h("span", {});
  const toDo = h("p", { class: "remedy" }, h("b", {}, "What to do: "), remedy);
  const textGone = h("p", { class: "remedy" });
  const element = h("section", { class: "panel", "aria-label": "What became of it", hidden: true }, line, sentence, toDo, textGone);
  function update(life) {
    element.hidden = false;
    stamped(line, [life.state, life.drop_reason, life.verdict], () =>
      [statePill(life.state, life.drop_reason), verdict(life.verdict), h("span", { class: "mono muted" }, life.turn_id)]);
    // It counts seconds and places in a queue.
    setText(sentence, life.why?.sentence ?? "");
    setText(remedy, life.why?.remedy ?? "");
    toDo.hidden = !life.why?.remedy;
    setText(textGone, life.text_gone ? `${life.text_gone}.` : "");
    textGone.hidden = !life.text_gone;
  }
  return { element, update };
}

function talkOf(life) {
  const parts = [];
  if (life.request) {
    const all = life.request.messages ?? [];
    const said = all.map((message) => messageOf(message));
    // A long conversation opens at its end, which is what was answered.
    const early = said.length > FOLDED ? said.splice(0, said.length - FOLDED) : [];
    const tools = life.request.tools ?? [];
    parts.push(panel("Request",
      tools.length ? h("details", {}, h("summary", {}, `${tools.length} tools`), h("pre", { tabindex: "0" }, JSON.stringify(tools, null, 2))) : null,
      early.length ? h("details", {}, h("summary", {}, `${early.length} earlier messages`), early) : null, said));
  }
  if (life.answer) parts.push(panel("Answer", messageOf(life.answer, "answer")));
  return parts;
}

function evidenceOf(life) {
  const found = [];
  if (life.evidence) {
    found.push(...life.evidence.messages.map((message) => messageOf(message)));
    found.push(h("p", { class: "muted" }, "It came with turn ", turnLink(life.evidence.from_turn), "."));
  }
  if (life.feedback) {
    const { score, comment, given_at: at, taken } = life.feedback;
    const said = h("div", { class: `message feedback ${score > 0 ? "good" : score < 0 ? "bad" : ""}` },
      h("p", { class: "role" }, `A person's feedback, ${clock(at)}`), h("p", { class: "num" }, `score ${signed(score, 1)}`));
    if (comment) said.append(h("p", { class: "text" }, comment));
    if (!taken) said.append(h("p", { class: "muted" }, "It came too late to be learned from, and is only written down."));
    found.push(said);
  }
  return found.length ? found : h("p", { class: "muted" }, "Nothing has come after it so far.");
}

function messageOf(message, kind = "") {
  const element = h("div", { class: `message from-${message.role} ${kind}` }, h("p", { class: "role" }, message.name ? `${message.role} (${message.name})` : message.role));
  const thought = message.reasoning_content;
  if (thought) element.append(h("details", {}, h("summary", {}, "Reasoning"), h("p", { class: "text" }, thought)));
  const content = typeof message.content === "string" ? message.content : message.content ? JSON.stringify(message.content, null, 2) : "";
  if (content) element.append(h("p", { class: "text" }, content));
  for (const call of message.tool_calls ?? []) {
    element.append(h("pre", { tabindex: "0", "aria-label": `Call of ${call.function.name}` }, `${call.function.name}(${call.function.arguments})`));
  }
  if (!content && !thought && !message.tool_calls?.length) element.append(h("p", { class: "muted" }, "(empty)"));
  return element;
}

function judgedOf(life) {
  const judgement = life.judgement;
  if (!judgement && life.text_gone && life.verdict !== null) {
    return panel("Judgement",
      facts([["Verdict", verdict(life.verdict)], ["Reward", life.reward === null ? null : signed(life.reward)]]),
      h("p", { class: "muted" }, "What the judge wrote is gone, too."));
  }
  if (!judgement) return panel("Judgement", h("p", { class: "muted" }, "Nobody has judged it so far."));
  const votes = h("ul", { class: "votes", "aria-label": "Votes" }, (judgement.votes ?? []).map((vote) => h("li", {}, verdict(vote))));
  const hints = judgement.hints ?? [];
  return panel("Judgement",
    facts([
      ["Verdict", verdict(judgement.verdict)],
      ["Reward", judgement.reward === null ? null : signed(judgement.reward)],
      ["Score", judgement.score === null ? null : number(judgement.score, 3)],
      ["Votes", judgement.votes?.length ? votes : null],
      ["Judge", judgement.judge],
      ["Took", duration(judgement.seconds)],
    ]),
    h("h3", {}, hints.length === 1 ? "Hint" : "Hints"),
    hints.length ? h("ul", { class: "hints" }, hints.map((hint) => h("li", {}, hint))) : h("p", { class: "muted" }, "None."),
    judgement.reasoning && h("details", {}, h("summary", {}, "The judge's reasoning"), h("p", { class: "text" }, judgement.reasoning)));
}

const STEP_FIGURES = [
  ["loss", "Loss", 4], ["entropy", "Entropy", 3], ["clip_fraction", "Clip fraction", 3], ["grad_norm", "Grad norm", 3],
  ["train_rollout_logprob_abs_diff", "Trainer to engine, nats", 5], ["lag_mean", "Mean lag", 1],
];

function stepOf(life) {
  const step = life.trained_by;
  if (!step) {
    const waits = life.step === null || life.step === undefined;
    return panel("Training", h("p", { class: "muted" }, waits ? "No step has it." : `It is in the batch of step ${life.step}, which is being taken.`));
  }
  const stats = step.stats ?? {};
  return panel("Training",
    facts([
      ["Step", h("span", {}, stepLink(step.step), ` (${words(step.state)})`)],
      ["Taken", h("time", { title: fullTime(step.at) }, clock(step.at))],
      ["Turns in it", whole(step.turns)],
      ["Mean reward", number(step.reward_mean)],
      ["Accepted", percent(step.accepted_share)],
      ...measuresIn([step]).map(({ field, name }) => [name, number(stats[field], 4)]),
      ...STEP_FIGURES.filter(([name]) => typeof stats[name] === "number").map(([name, label, digits]) => [label, number(stats[name], digits)]),
    ]),
    creditOf(life.credit));
}

function creditOf(credit) {
  if (!credit || typeof credit !== "object") return null;
  const rows = Object.entries(credit).filter(([, value]) => value !== null && typeof value !== "object");
  return rows.length ? h("details", {}, h("summary", {}, "What the tokens are credited with"),
    facts(rows.map(([name, value]) => [words(name), typeof value === "number" ? number(value, 4) : String(value)]))) : null;
}

function timelineOf(life) {
  const moves = life.transitions ?? [];
  const list = h("ol", { class: "timeline" });
  moves.forEach((move, at) => {
    const since = at ? move.at - moves[at - 1].at : null;
    add(list, h("li", {}, statePill(move.to), h("time", { class: "num", title: fullTime(move.at) }, clock(move.at)),
      since !== null && h("span", { class: "muted num" }, `after ${duration(Math.max(0, since))}`),
      move.detail && h("span", { class: "detail" }, words(move.detail))));
  });
  return panel("Timeline", list);
}

function factsOf(life) {
  const sampling = life.sampling ?? {};
  const spans = life.spans ?? [];
  const versions = spans.length
    ? h("span", {}, spans.map((span, at) => [at ? ", " : "", versionLink(span.version), spans.length > 1 ? ` (tokens ${span.start + 1} to ${span.end})` : ""]))
    : versionLink(life.version);
  const cuts = ["top_p", "top_k"].filter((name) => sampling[name] !== undefined && sampling[name] !== (name === "top_p" ? 1 : 0));
  return panel("Facts", facts([
    ["Session", sessionLink(life.session)],
    ["Came after", life.parent ? turnLink(life.parent) : "nothing, it is the first"],
    ["Kind", life.kind],
    ["Owner", h("span", { class: "mono" }, life.owner)],
    ["Version", versions],
    ["Tokens", `${whole(life.prompt_tokens)} asked, ${whole(life.response_tokens)} answered`],
    ["Temperature", sampling.temperature === undefined ? undefined : number(sampling.temperature)],
    ...cuts.map((name) => [name.replace("_", "-"), String(sampling[name])]),
    ["Ended by", sampling.finish_reason],
    ["Replica", sampling.replica && h("span", { class: "mono" }, sampling.replica)],
    ["Sampling", sampling.imposed ? "imposed by the deployment" : undefined],
    ["Answered", h("time", { title: fullTime(life.finished_at) }, clock(life.finished_at))],
    ["Took", sampling.started_at ? duration(life.finished_at - sampling.started_at) : undefined],
  ]));
}

// The panels beside it, each with what it shows of a life.
const SIDE = [
  [judgedOf, (life) => [life.judgement, life.text_gone, life.verdict, life.reward]],
  [stepOf, (life) => [life.step, life.trained_by, life.credit]],
  [timelineOf, (life) => life.transitions],
  [factsOf, (life) => [life.session, life.parent, life.kind, life.owner, life.version, life.spans, life.sampling, life.prompt_tokens, life.response_tokens, life.finished_at]],
];
