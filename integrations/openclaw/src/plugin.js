/**
 * An OpenClaw plugin that adds to every request of the provider "clawrl":
 *
 *   X-Session-Id   the conversation that it belongs to
 *   X-Turn-Type    "main" or "side", see kinds.js; left out where no run is known, so that the server decides
 *
 * and that tells the server when a session is over. A session is over when OpenClaw starts it anew, resets, deletes or
 * retires it, and when a sub-agent has ended; not when OpenClaw itself stops, because its sessions go on afterwards.
 * With `doneAfterRun` it is also over when its main run is: for programs that ask one thing in each session.
 */

import { MAIN, turnKind } from "./kinds.js";
import { serverSettings, tellDone } from "./server.js";
import { Sessions } from "./sessions.js";

export const ID = "clawrl";
const GOES_ON = new Set(["shutdown", "restart"]);

// Anything else would break the request or be refused by the server; then the session has to be told by other means.
const SENDABLE = /^[\x21-\x7e]([\x20-\x7e]{0,254}[\x21-\x7e])?$/;

/** `fetch` is given in tests. */
export function createPlugin({ fetch = (...request) => globalThis.fetch(...request) } = {}) {
  const sessions = new Sessions();
  return {
    id: ID,
    name: ID,
    description: "Tells a clawrl server which session and which kind of turn each request belongs to.",
    register(api) {
      const settings = serverSettings(api.config, api.pluginConfig, ID);
      const over = async (sessionId) => {
        if (sessionId && sessions.forget(sessionId)) await tellDone(fetch, settings, sessionId);
      };
      registerRuns(api, sessions, settings, over);
      registerSummaries(api, sessions);
      registerEnds(api, sessions, over);
      api.registerProvider({
        id: ID,
        label: ID,
        auth: [],
        resolveTransportTurnState: (context) => ({ headers: turnHeaders(sessions, context), metadata: {} }),
      });
    },
  };
}

function turnHeaders(sessions, { sessionId }) {
  if (!SENDABLE.test(sessionId ?? "")) return {};
  const headers = { "X-Session-Id": sessionId };
  const kind = sessions.kindOf(sessionId);
  if (kind) headers["X-Turn-Type"] = kind;
  sessions.served(sessionId);
  return headers;
}

function registerRuns(api, sessions, settings, over) {
  api.on("before_prompt_build", (_event, context) => {
    if (!context?.sessionId) return;
    sessions.name(context.sessionId, context.sessionKey);
    sessions.beginRun(context.sessionId, context.runId, turnKind(context));
  });
  api.on("agent_end", async (event, context) => {
    if (!context?.sessionId) return;
    const kind = sessions.endRun(context.sessionId, context.runId ?? event?.runId);
    if (settings.doneAfterRun && kind === MAIN && !sessions.isRunning(context.sessionId)) await over(context.sessionId);
  });
}

function registerSummaries(api, sessions) {
  const report = (now) => (_event, context) => {
    const sessionId = idIn(sessions, context);
    if (sessionId) sessions.summarising(sessionId, now);
  };
  api.on("before_compaction", report(true));
  api.on("after_compaction", report(false));
}

function registerEnds(api, sessions, over) {
  api.on("session_start", (event, context) => {
    const sessionId = event?.sessionId ?? context?.sessionId;
    if (sessionId) sessions.name(sessionId, event?.sessionKey ?? context?.sessionKey);
  });
  api.on("session_end", async (event, context) => {
    if (!GOES_ON.has(event?.reason)) await over(event?.sessionId ?? context?.sessionId);
  });
  api.on("subagent_ended", async (event) => {
    await over(sessions.idOf(event?.targetSessionKey));
  });
}

// A summary that is made within a run comes with the key of its session only.
function idIn(sessions, context) {
  return context?.sessionId ?? sessions.idOf(context?.sessionKey);
}
