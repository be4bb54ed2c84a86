/** What is remembered is bounded. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Sessions } from "../src/sessions.js";

test("the session that was quiet longest is forgotten first", () => {
  const sessions = new Sessions(2);
  for (const id of ["a", "b"]) sessions.beginRun(id, "r", "main");
  sessions.served("a");
  sessions.beginRun("c", "r", "side");
  assert.deepEqual(["a", "b", "c"].map((id) => sessions.kindOf(id)), ["main", undefined, "side"]);
  assert.equal(sessions.size, 2);
});

test("with a session its key is forgotten", () => {
  const sessions = new Sessions(1);
  sessions.name("a", "key-a");
  sessions.name("b", "key-b");
  assert.deepEqual([sessions.idOf("key-a"), sessions.idOf("key-b")], [undefined, "b"]);
});

test("a key that moved on is not forgotten with its old session", () => {
  const sessions = new Sessions();
  sessions.name("a", "key");
  sessions.name("b", "key");
  sessions.forget("a");
  assert.equal(sessions.idOf("key"), "b");
});

test("a session has one key", () => {
  const sessions = new Sessions();
  sessions.name("a", "old");
  sessions.name("a", "new");
  assert.deepEqual([sessions.idOf("old"), sessions.idOf("new")], [undefined, "a"]);
});

test("runs that never end do not pile up", () => {
  const sessions = new Sessions();
  for (let run = 0; run < 100; run++) sessions.beginRun("a", `r${run}`, "main");
  sessions.endRun("a", "r99");
  assert.equal(sessions.isRunning("a"), true);
  for (let run = 84; run < 99; run++) sessions.endRun("a", `r${run}`);
  assert.equal(sessions.isRunning("a"), false);
});

test("only a session that was served is worth telling", () => {
  const sessions = new Sessions();
  sessions.name("a");
  sessions.served("b");
  assert.deepEqual([sessions.forget("a"), sessions.forget("b"), sessions.forget("b")], [false, true, false]);
});
