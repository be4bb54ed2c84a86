/** A session whose history is being summarised is on the side, for as long as that takes. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { started } from "./fake_api.js";

async function running() {
  const { api } = started();
  await api.begin("s1", "r1", "user");
  return api;
}

for (const [what, context] of [
  ["the id", { sessionId: "s1", sessionKey: "agent:main:s1" }],
  ["only the key", { sessionKey: "agent:main:s1" }],
]) {
  test(`a summary that is reported with ${what} of its session is on the side`, async () => {
    const api = await running();
    await api.emit("before_compaction", {}, context);
    assert.equal(api.kind("s1"), "side");
    await api.emit("after_compaction", {}, context);
    assert.equal(api.kind("s1"), "main");
  });
}

test("other sessions go on meanwhile", async () => {
  const api = await running();
  await api.begin("s2", "r2", "user");
  await api.emit("before_compaction", {}, { sessionKey: "agent:main:s1" });
  assert.equal(api.kind("s2"), "main");
});

test("a summary that failed ends with its run", async () => {
  const api = await running();
  await api.emit("before_compaction", {}, { sessionId: "s1" });
  await api.end("s1", "r1");
  assert.equal(api.kind("s1"), undefined);
});

test("a summary that failed ends when a prompt is built again", async () => {
  const api = await running();
  await api.emit("before_compaction", {}, { sessionId: "s1" });
  await api.begin("s1", "r1", "user");
  assert.equal(api.kind("s1"), "main");
});

test("a summary outside of any run is on the side", async () => {
  const { api } = started();
  await api.emit("before_compaction", {}, { sessionId: "s1" });
  assert.equal(api.kind("s1"), "side");
});

test("a key that was given to a new session speaks for that one", async () => {
  const api = await running();
  await api.emit("session_start", { sessionId: "s2", sessionKey: "agent:main:s1" });
  await api.emit("before_compaction", {}, { sessionKey: "agent:main:s1" });
  assert.deepEqual([api.kind("s1"), api.kind("s2")], ["main", "side"]);
});
