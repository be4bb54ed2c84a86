"""What a streamed answer looks like in each dialect, in words: OpenAPI 3.1 has none of its own for it."""

CHAT = (
    "Events without a name whose `data` is a `chat.completion.chunk`, and `[DONE]` as the last. The first chunk of an "
    "answer has its role; then come deltas of `reasoning_content`, `content` and `tool_calls`, empty ones in a silent "
    "stretch; the last chunk of an answer has its `finish_reason`. The usage is in a chunk without choices if it was "
    "asked for, else in the last one. A failure is a chunk with `error`, after which the connection breaks without "
    "`[DONE]`."
)
RESPONSES = (
    "Named events: `response.created` and `response.in_progress`, then for each item `response.output_item.added`, its "
    "deltas and `response.output_item.done`, and `response.completed` or `response.incomplete` with the whole response "
    "at the end. A silent stretch has more `response.in_progress`. A failure is `response.failed`, after which the "
    "connection breaks."
)
MESSAGES = (
    "Named events: `message_start`, then for each block `content_block_start`, its deltas and `content_block_stop`, "
    "and `message_delta` with the reason and the usage and `message_stop` at the end. A silent stretch has `ping`. A "
    "failure is `error`, after which the connection breaks without `message_stop`."
)
