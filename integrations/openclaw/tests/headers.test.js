/** What is added to requests, by who asked for the turn. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { started } from "./fake_api.js";

test("a request carries its session and its kind", async () => {
  const { api } = started();
  await api.begin("s1", "r1", "user");
  assert.deepEqual(api.headers("s1"), { "X-Session-Id": "s1", "X-Turn-Type": "main" });
});

test("every request of a tool loop is of the same kind", async () => {
  const { api } = started();
  await api.begin("s1", "r1", "heartbeat");
  assert.deepEqual([api.kind("s1"), api.kind("s1")], ["side", "side"]);
});

for (const trigger of ["heartbeat", "memory", "cron", "subagent", "overflow"]) {
  test(`the trigger ${trigger} makes a side turn`, async () => {
    const { api } = started();
    await api.begin("s1", "r1", trigger);
    assert.equal(api.kind("s1"), "side");
  });
}

for (const trigger of ["user", "manual", "something-new", undefined]) {
  test(`the trigger ${trigger} makes a main turn`, async () => {
    const { api } = started();
    await api.begin("s1", "r1", trigger);
    assert.equal(api.kind("s1"), "main");
  });
}

for (const [what, context] of [
  ["the session of a sub-agent", { sessionKey: "agent:main:subagent:5f" }],
  ["input from another session", { inputProvenance: { kind: "inter_session" } }],
  ["input from the system", { inputProvenance: { kind: "internal_system" } }],
  ["the announcement of a sub-agent", { runId: "announce:v1:agent:main:subagent:5f:r0" }],
]) {
  test(`${what} makes a side turn although its trigger is user`, async () => {
    const { api } = started();
    await api.begin("s1", "r1", "user", context);
    assert.equal(api.kind("s1"), "side");
  });
}

for (const [what, context] of [
  ["a session that is only named like a sub-agent", { sessionKey: "agent:main:subagents-talk" }],
  ["input from a person", { inputProvenance: { kind: "external_user" } }],
]) {
  test(`${what} makes a main turn`, async () => {
    const { api } = started();
    await api.begin("s1", "r1", "user", context);
    assert.equal(api.kind("s1"), "main");
  });
}

test("interleaved sessions do not mix", async () => {
  const { api } = started();
  await api.begin("a", "r1", "user");
  await api.begin("b", "r2", "heartbeat");
  assert.deepEqual([api.kind("a"), api.kind("b"), api.kind("a")], ["main", "side", "main"]);
  await api.end("b", "r2");
  await api.begin("b", "r3", "user");
  await api.end("a", "r1");
  await api.begin("a", "r4", "cron");
  assert.deepEqual([api.kind("a"), api.kind("b")], ["side", "main"]);
});

test("a run within a run speaks for the session until it ends", async () => {
  const { api } = started();
  await api.begin("s1", "outer", "user");
  await api.begin("s1", "inner", "memory");
  assert.equal(api.kind("s1"), "side");
  await api.end("s1", "inner");
  assert.equal(api.kind("s1"), "main");
});

test("a run whose prompt is built again speaks for the session", async () => {
  const { api } = started();
  await api.begin("s1", "r1", "user");
  await api.begin("s1", "r2", "heartbeat");
  await api.begin("s1", "r1", "user");
  assert.equal(api.kind("s1"), "main");
});

test("where no run is known the kind is left to the server", async () => {
  const { api } = started();
  assert.deepEqual(api.headers("s1"), { "X-Session-Id": "s1" });
  await api.begin("s1", "r1", "user");
  await api.end("s1", "r1");
  assert.equal(api.kind("s1"), undefined);
});

for (const [what, sessionId] of [
  ["no session", undefined],
  ["an empty one", ""],
  ["one with a line break", "a\nb"],
  ["one beyond ASCII", "Möwe"],
  ["one with a blank at its end", "a "],
  ["one that is too long", "a".repeat(257)],
]) {
  test(`a request with ${what} has no session header`, () => {
    const { api } = started();
    assert.deepEqual(api.headers(sessionId), {});
  });
}

for (const sessionId of ["a", "agent:main:telegram 7", "a".repeat(256)]) {
  test(`a session of ${sessionId.length} characters is named`, () => {
    const { api } = started();
    assert.equal(api.headers(sessionId)["X-Session-Id"], sessionId);
  });
}

test("hooks without a context are survived", async () => {
  const { api } = started();
  for (const hook of api.handlers.keys()) {
    for (const nothing of [undefined, null, {}]) await api.emit(hook, nothing, nothing);
  }
  assert.equal(api.kind("s1"), undefined);
});

test("the prompt is left as it is", async () => {
  const { api } = started();
  assert.deepEqual(await api.begin("s1", "r1", "user"), [undefined]);
});

test("the provider is the one that the manifest names", () => {
  const { api } = started();
  const manifest = JSON.parse(readFileSync(new URL("../openclaw.plugin.json", import.meta.url)));
  assert.deepEqual(api.providers.map((provider) => provider.id), manifest.providers);
});
