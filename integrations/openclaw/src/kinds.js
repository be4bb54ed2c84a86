/**
 * Whether a run's answers are worth learning from.
 *
 * In: the context of a run as OpenClaw hands it to a hook. Out: "side" for what OpenClaw does on its own (heartbeats,
 * memory flushes, scheduled jobs, sub-agents, their announcements), "main" for everything else, a trigger that is
 * not known here included: a person may be behind it.
 */

export const MAIN = "main";
export const SIDE = "side";

const SIDE_TRIGGERS = new Set(["heartbeat", "memory", "cron", "subagent", "overflow"]);
const AUTOMATIC_INPUT = new Set(["inter_session", "internal_system"]);

export function turnKind(context) {
  const automatic =
    SIDE_TRIGGERS.has(context.trigger) ||
    isSubagent(context.sessionKey) ||
    AUTOMATIC_INPUT.has(context.inputProvenance?.kind) ||
    isAnnouncement(context.runId);
  return automatic ? SIDE : MAIN;
}

// A sub-agent's trigger is "user": only the key of its session tells.
function isSubagent(sessionKey) {
  return typeof sessionKey === "string" && sessionKey.split(":").includes("subagent");
}

// What a sub-agent reports comes to its parent as a run of its own, with the trigger "user" too.
function isAnnouncement(runId) {
  return typeof runId === "string" && runId.startsWith("announce:");
}
