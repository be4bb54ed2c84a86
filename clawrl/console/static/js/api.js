// The server's routes. The key lives in this tab's sessionStorage and travels in a header, never in an address.

import { remembered } from "./storage.js";

// The page is at …/console/, the routes beside it, whatever prefix both have.
const BASE = new URL("../", document.baseURI);

class ApiError extends Error {
  // status 0: the server could not be reached.
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const stored = remembered(() => sessionStorage, "clawrl-console-key");
export const key = { ...stored, get: () => stored.get() ?? "" };

async function request(method, path, { query, body, headers = {}, signal } = {}) {
  const url = new URL(path, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  const sent = { ...headers };
  const used = key.get();
  if (used) sent.Authorization = `Bearer ${used}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(url, {
      method,
      headers: sent,
      signal,
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError" || error.name === "TimeoutError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await refusal(response, used);
  return response;
}

async function refusal(response, used) {
  let message = `The server answered ${response.status}.`;
  try {
    message = (await response.json()).error?.message ?? message;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // Not ours to word: a proxy in between, or Serve itself.
  }
  // Several requests are refused at once, the later ones maybe after another key was given: the first one counts.
  if (response.status === 401 && used === key.get()) document.dispatchEvent(new CustomEvent("console:key-refused"));
  return new ApiError(response.status, message, response.headers.get("Retry-After"));
}

const json = async (method, path, options) => (await request(method, path, options)).json();

export const api = {
  status: (signal) => json("GET", "clawrl/status", { signal }),
  turns: (query, signal) => json("GET", "clawrl/turns", { query, signal }),
  turn: (id, signal) => json("GET", `clawrl/turns/${encodeURIComponent(id)}`, { signal }),
  sessions: (query, signal) => json("GET", "clawrl/sessions", { query, signal }),
  // By a query: a path with `..` in it would be shortened.
  session: (name, query, signal) => json("GET", "clawrl/session", { query: { ...query, session: name }, signal }),
  versions: (query, signal) => json("GET", "clawrl/versions", { query, signal }),
  steps: (query, signal) => json("GET", "clawrl/steps", { query, signal }),
  models: (signal) => json("GET", "v1/models", { signal }),
  pause: (reason) => json("POST", "clawrl/pause", { body: { reason } }),
  resume: () => json("POST", "clawrl/resume", { body: {} }),
  publish: () => json("POST", "clawrl/publish", { body: {} }),
  rollback: (version) => json("POST", "clawrl/rollback", { body: { version } }),
  feedback: (turn, score, comment) =>
    json("POST", "v1/feedback", { body: { turn_id: turn, score, ...(comment ? { comment } : {}) } }),
  endSession: (name) => json("POST", "clawrl/session/done", { query: { session: name } }),
};

// A streamed answer: calls `onDelta({text, reasoning})`, returns {turn, version, finish}.
export async function chat({ model, messages, session, sampling, side, train, signal, onDelta }) {
  const headers = side ? { "X-Turn-Type": "side" } : {};
  if (session) headers["X-Session-Id"] = session;
  if (train !== undefined) headers["X-Clawrl-Train"] = train ? "yes" : "no";
  const body = { model, messages, stream: true, ...sampling };
  const response = await request("POST", "v1/chat/completions", { body, headers, signal });
  const told = { turn: response.headers.get("X-Clawrl-Turn-Id"), version: null, finish: null };
  let ended = false;
  for await (const data of events(response.body)) {
    if (data === "[DONE]") {
      ended = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.status ?? 500, chunk.error.message ?? "The answer broke off.");
    if (chunk.clawrl?.turn_id) told.turn = chunk.clawrl.turn_id;
    if (chunk.clawrl?.version !== undefined) told.version = chunk.clawrl.version;
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    if (choice.finish_reason) told.finish = choice.finish_reason;
    const delta = choice.delta ?? {};
    onDelta({ text: delta.content ?? "", reasoning: delta.reasoning_content ?? delta.reasoning ?? "" });
  }
  if (!ended && told.finish === null) throw new ApiError(0, "The answer broke off before its end.");
  return told;
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    while (true) {
      const { value, done } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        throw new ApiError(0, "The connection broke before the answer had ended.");
      });
      if (done) return;
      held += value.replaceAll("\r\n", "\n");
      const parts = held.split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        const data = part.split("\n").filter((line) => line.startsWith("data:"));
        if (data.length) yield data.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
