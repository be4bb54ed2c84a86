/** When the server is told that a session is over, how, and what becomes of its failures. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { SERVER, started } from "./fake_api.js";

const DONE = "http://127.0.0.1:8000/clawrl/sessions/s1/done";

function served(parts) {
  const { api, told } = started(parts);
  api.headers("s1");
  return { api, told };
}

for (const reason of ["new", "reset", "idle", "daily", "compaction", "deleted", "unknown", undefined]) {
  test(`a session that ends by ${reason} is over`, async () => {
    const { api, told } = served();
    await api.emit("session_end", { sessionId: "s1", reason });
    assert.deepEqual(told.map(({ url, method }) => [method, url]), [["POST", DONE]]);
    assert.equal(told[0].headers.Authorization, "Bearer key");
  });
}

for (const reason of ["shutdown", "restart"]) {
  test(`a session goes on after a ${reason} of OpenClaw`, async () => {
    const { api, told } = served();
    await api.emit("session_end", { sessionId: "s1", reason });
    assert.deepEqual(told, []);
  });
}

test("only the session that ended is over", async () => {
  const { api, told } = served();
  api.headers("s2");
  await api.emit("session_end", { sessionId: "s2", reason: "reset" });
  assert.deepEqual(told.map(({ url }) => url), [DONE.replace("s1", "s2")]);
});

test("the id may come in the context", async () => {
  const { api, told } = served();
  await api.emit("session_end", {}, { sessionId: "s1" });
  assert.equal(told.length, 1);
});

test("the server is not told of sessions that it never saw", async () => {
  const { api, told } = started();
  await api.begin("s1", "r1", "user");
  await api.emit("session_end", { sessionId: "s1", reason: "reset" });
  assert.deepEqual(told, []);
});

test("the server is told once", async () => {
  const { api, told } = served();
  await api.emit("session_end", { sessionId: "s1", reason: "reset" });
  await api.emit("session_end", { sessionId: "s1", reason: "deleted" });
  assert.equal(told.length, 1);
});

test("a sub-agent that ended is over, and its parent is not", async () => {
  const { api, told } = served();
  const sessionKey = "agent:main:subagent:5f";
  await api.begin("child", "r2", "user", { sessionKey });
  api.headers("child");
  await api.emit("subagent_ended", { targetSessionKey: sessionKey, outcome: "ok" });
  assert.deepEqual(told.map(({ url }) => url), [DONE.replace("s1", "child")]);
});

test("a sub-agent that is not known is nobody's end", async () => {
  const { api, told } = served();
  await api.emit("subagent_ended", { targetSessionKey: "agent:main:subagent:5f" });
  assert.deepEqual(told, []);
});

test("the end of a run is not the end of its session", async () => {
  const { api, told } = served();
  await api.begin("s1", "r1", "user");
  await api.end("s1", "r1");
  assert.deepEqual(told, []);
});

test("with doneAfterRun the end of the main run is the end of its session", async () => {
  const { api, told } = served({ pluginConfig: { doneAfterRun: true } });
  await api.begin("s1", "flush", "memory");
  await api.end("s1", "flush");
  await api.begin("s1", "r1", "user");
  await api.begin("s1", "r2", "user");
  await api.end("s1", "r2");
  assert.deepEqual(told, [], "another run is under way");
  await api.end("s1", "r1");
  assert.deepEqual(told.map(({ url }) => url), [DONE]);
});

test("an id with a slash or a space stays one part of the address", async () => {
  const { api, told } = started();
  api.headers("a/b c");
  await api.emit("session_end", { sessionId: "a/b c" });
  assert.equal(told[0].url, "http://127.0.0.1:8000/clawrl/sessions/a%2Fb%20c/done");
});

test("the plugin's own settings win over those of the provider", async () => {
  const { api, told } = served({ pluginConfig: { serverUrl: "http://box:9000/", apiKey: "mine" } });
  await api.emit("session_end", { sessionId: "s1" });
  assert.equal(told[0].url, "http://box:9000/clawrl/sessions/s1/done");
  assert.equal(told[0].headers.Authorization, "Bearer mine");
});

test("a key that is a reference to a secret is not sent", async () => {
  const provider = { ...SERVER, apiKey: { source: "env", provider: "default", id: "KEY" } };
  const { api, told } = served({ provider });
  await api.emit("session_end", { sessionId: "s1" });
  assert.deepEqual(told[0].headers, {});
});

test("without an address nobody is told", async () => {
  const { api, told } = served({ provider: {} });
  await api.emit("session_end", { sessionId: "s1" });
  assert.deepEqual(told, []);
});

for (const [what, answer] of [
  ["refuses", () => new Response("no", { status: 500 })],
  ["cannot be reached", () => Promise.reject(new TypeError("fetch failed"))],
]) {
  test(`a server that ${what} does not disturb the agent`, async () => {
    const { api, told } = served({ answer });
    await api.emit("session_end", { sessionId: "s1" });
    assert.equal(told.length, 1);
  });
}

test("a server that does not answer is given up", { timeout: 5000 }, async () => {
  const silence = ({ signal }) =>
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  const { api, told } = served({ answer: silence, pluginConfig: { timeoutMs: 20 } });
  await api.emit("session_end", { sessionId: "s1" });
  assert.equal(told[0].signal.aborted, true);
});
