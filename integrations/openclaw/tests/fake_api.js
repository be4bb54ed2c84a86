/** The parts of OpenClaw's plugin api that the plugin uses, and a server that only remembers what it was told. */

import { createPlugin } from "../src/plugin.js";

export class FakeApi {
  constructor({ provider = {}, pluginConfig } = {}) {
    this.config = { models: { providers: { clawrl: provider } } };
    this.pluginConfig = pluginConfig;
    this.handlers = new Map();
    this.providers = [];
  }

  on(hook, handler) {
    this.handlers.set(hook, [...(this.handlers.get(hook) ?? []), handler]);
  }

  registerProvider(provider) {
    this.providers.push(provider);
  }

  /** What the handlers return, awaited as OpenClaw does. */
  emit(hook, event, context) {
    return Promise.all((this.handlers.get(hook) ?? []).map((handler) => handler(event, context)));
  }

  begin(sessionId, runId, trigger, more = {}) {
    const sessionKey = `agent:main:${sessionId}`;
    return this.emit("before_prompt_build", {}, { sessionId, sessionKey, runId, trigger, ...more });
  }

  end(sessionId, runId) {
    return this.emit("agent_end", { runId }, { sessionId, sessionKey: `agent:main:${sessionId}`, runId });
  }

  headers(sessionId) {
    return this.providers[0].resolveTransportTurnState({ provider: "clawrl", sessionId, turnId: "turn", attempt: 1 }).headers;
  }

  kind(sessionId) {
    return this.headers(sessionId)["X-Turn-Type"];
  }
}

export const SERVER = { baseUrl: "http://127.0.0.1:8000/v1", apiKey: "key" };

/** A plugin that is registered with a fake api, and the requests that it made of its server. */
export function started({ provider = SERVER, pluginConfig, answer = () => new Response("{}") } = {}) {
  const told = [];
  const fetch = async (url, request) => {
    told.push({ url, ...request });
    return answer(request);
  };
  const api = new FakeApi({ provider, pluginConfig });
  createPlugin({ fetch }).register(api);
  return { api, told };
}
