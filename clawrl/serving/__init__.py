"""The HTTP side without Ray: from a client's bytes to a request of ours, and from an answer's pieces back to bytes.

A request's way: `auth` (whose it is, `rate`: how often), `body` (size and depth), a dialect of `dialects` (`chat`,
`responses`, `messages`: `request` is what they all make), `sessions` (which conversation it belongs to). The prompt:
`template` and `tool_text` write it, `prompts` makes it of the ids of earlier turns. The answer: `parsing` reads what
the model writes, `pieces` is what leaves a replica, and the dialect's writer makes events of it (`sse`).
`trainability` says what may train, `errors` holds every refusal, `openapi` describes it all.
"""
