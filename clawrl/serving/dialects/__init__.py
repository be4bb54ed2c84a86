"""One package for each HTTP dialect: `chat` and `responses` are OpenAI's, `messages` is Anthropic's.

Each has ``read(body, headers, config)``, which gives an `Asked` or raises `ApiError`, and ``error(error)``, the body of
an error response. Beside them stands what they share: `base` (what an answer needs to be written), `sampling`, `tools`,
`structured` and `common`.
"""
