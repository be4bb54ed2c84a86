/**
 * Telling the server that a session is over: POST {server}/clawrl/sessions/{id}/done with the bearer key.
 *
 * It is a courtesy, since the server also ends sessions that go quiet: no failure of the server may reach the
 * agent, and no delay beyond `timeoutMs`. It is waited for, since a program that asks one thing and exits would cut it
 * off. `tellDone` never rejects; it resolves to whether the server agreed.
 */

const DEFAULT_TIMEOUT_MS = 1500; // the hook waits as long

/**
 * The plugin's own settings win over those of the provider in OpenClaw's configuration. `root` is undefined where
 * neither names a server.
 */
export function serverSettings(config, pluginConfig, providerId) {
  const provider = config?.models?.providers?.[providerId] ?? {};
  const own = pluginConfig ?? {};
  const address = text(own.serverUrl) ?? text(provider.baseUrl);
  return {
    root: address?.replace(/\/+$/, "").replace(/\/v1$/, ""),
    apiKey: text(own.apiKey) ?? text(provider.apiKey),
    timeoutMs: own.timeoutMs ?? DEFAULT_TIMEOUT_MS,
    doneAfterRun: own.doneAfterRun === true,
  };
}

export async function tellDone(fetch, settings, sessionId) {
  if (!settings.root) return false;
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), settings.timeoutMs);
  try {
    const response = await fetch(`${settings.root}/clawrl/sessions/${encodeURIComponent(sessionId)}/done`, {
      method: "POST",
      headers: settings.apiKey ? { Authorization: `Bearer ${settings.apiKey}` } : {},
      signal: abort.signal,
    });
    await response.body?.cancel();
    return response.ok;
  } catch {
    return false;
  } finally {
    clearTimeout(timer);
  }
}

// A key may also be a reference to a secret, which is not ours to resolve.
function text(value) {
  return typeof value === "string" && value.trim() ? value.trim() : undefined;
}
