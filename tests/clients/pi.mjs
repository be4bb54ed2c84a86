// Holds conversations through pi-ai, one after the other, and runs the tool as often as it is called.
//
// In, on stdin, a JSON object a line: module (the file to import), api, baseUrl, key, model, headers, sessionId, compat,
// maxTokens, retries, system, tool (or null), texts, maxRounds. Out, on stdout, a JSON object a line: answers, a list of
// text, reasoning, calls, finish, error, promptTokens, completionTokens, pieces; or failed, what this program did wrong.
// An answer that is an error is the last of its conversation.

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const joined = (content, type, field) =>
  content
    .filter((block) => block.type === type)
    .map((block) => block[field])
    .join("");

function modelOf(asked) {
  return {
    id: asked.model,
    name: asked.model,
    api: asked.api,
    provider: "clawrl",
    baseUrl: asked.baseUrl,
    reasoning: true,
    input: ["text"],
    cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
    contextWindow: 1_000_000,
    maxTokens: asked.maxTokens,
    ...(asked.compat ? { compat: asked.compat } : {}),
  };
}

function optionsOf(asked) {
  return {
    apiKey: asked.key,
    headers: asked.headers,
    maxTokens: asked.maxTokens,
    maxRetries: asked.retries,
    reasoning: "low",
    ...(asked.sessionId ? { sessionId: asked.sessionId } : {}),
  };
}

async function answered(stream) {
  let pieces = 0;
  for await (const event of stream) pieces += event.type.endsWith("_delta") ? 1 : 0;
  const message = await stream.result();
  const { input, cacheRead, cacheWrite, output } = message.usage;
  const heard = {
    text: joined(message.content, "text", "text"),
    reasoning: joined(message.content, "thinking", "thinking"),
    calls: message.content
      .filter((block) => block.type === "toolCall")
      .map((call) => ({ id: call.id, name: call.name, arguments: call.arguments })),
    finish: message.stopReason,
    error: message.errorMessage ?? null,
    promptTokens: input + cacheRead + cacheWrite,
    completionTokens: output,
    pieces,
  };
  return [message, heard];
}

function resultOf(call) {
  return {
    role: "toolResult",
    toolCallId: call.id,
    toolName: call.name,
    content: [{ type: "text", text: `${String(call.arguments.word ?? "").toUpperCase()} was found` }],
    isError: false,
    timestamp: Date.now(),
  };
}

async function conversation(asked) {
  const { streamSimple } = await import(pathToFileURL(asked.module).href);
  const context = { systemPrompt: asked.system, messages: [], ...(asked.tool ? { tools: [asked.tool] } : {}) };
  const answers = [];
  for (const said of asked.texts) {
    context.messages.push({ role: "user", content: said, timestamp: Date.now() });
    for (let round = 0; round < asked.maxRounds; round++) {
      const [message, heard] = await answered(streamSimple(modelOf(asked), context, optionsOf(asked)));
      context.messages.push(message);
      answers.push(heard);
      if (heard.error !== null || heard.finish === "error") return answers;
      if (heard.calls.length === 0) break;
      context.messages.push(...heard.calls.map(resultOf));
    }
  }
  return answers;
}

for await (const line of createInterface({ input: process.stdin })) {
  let out;
  try {
    out = { answers: await conversation(JSON.parse(line)) };
  } catch (error) {
    out = { failed: String(error?.stack ?? error) };
  }
  process.stdout.write(`${JSON.stringify(out)}\n`);
}
