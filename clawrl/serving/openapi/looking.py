"""What an operator looks at: turns, sessions, versions, steps."""

from __future__ import annotations

from clawrl.messages import DropReason, TurnKind, TurnState
from clawrl.serving.openapi.schemas import Json, array, boolean, integer, maybe, number, one_of, record, ref, text

_MOST = 2**53
_STATE = one_of(*(state.value for state in TurnState), description="Where it is in its life.")
_REASON = one_of(*(reason.value for reason in DropReason), description="Why it does not train.")

FILTERS: dict[str, tuple[str, Json]] = {
    "state": ("Only turns in this state.", _STATE),
    "reason": ("Only turns that were dropped for this reason.", _REASON),
    "session": ("Only turns of sessions of this name.", text()),
    "owner": ("Only turns of this owner, by the hash that turns carry.", text()),
    "version": ("Only turns of which this policy version wrote a part.", integer(minimum=0, maximum=_MOST)),
    "step": ("Only turns in the batch of this optimizer step.", integer(minimum=0, maximum=_MOST)),
}
"""What the list of turns can be narrowed to: the query's field, what it means, what it may be."""


def schemas() -> dict[str, Json]:
    session = _session()
    turn = _turn()
    return {
        "Turn": record(turn, tuple(turn), "One turn without its text."),
        "TurnLife": _life(turn),
        "Message": record(
            {"role": text(), "content": text(), "reasoning_content": text(), "tool_calls": array(record({}))},
            ("role", "content"),
        ),
        "Session": record(session, tuple(session)),
        "SessionTurns": record(
            {"session": text(), "of": array(ref("Session"), "One for each owner."), "turns": array(ref("Turn"))},
            ("session", "of", "turns"),
        ),
        "Exported": record(
            {"rows": array(record({})), "before": maybe(integer("Goes on with the next page."))}, ("rows", "before")
        ),
        "Version": _version(),
        "Step": _step(),
        "RolledBack": record(
            {
                "version": integer("What serves now: a new number with the old weights."),
                "rolled_back_to": integer(),
                "rolled_back_from": maybe(integer("What served before.")),
                "step": integer("The optimizer step that made the weights."),
            },
            ("version", "rolled_back_to", "rolled_back_from", "step"),
        ),
        "PublishAsked": record(
            {
                "outcome": one_of("asked", "nothing_new", description="`asked`: the trainer publishes without a rest."),
                "version": maybe(integer("What serves now.")),
                "step": integer("The newest step in what serves."),
                "newest_step": maybe(integer("The newest step that changed the trainer's weights.")),
                "trainer": text("What the trainer is doing; it publishes when it runs."),
            },
            ("outcome", "version", "step", "newest_step", "trainer"),
        ),
    }


def _turn() -> dict[str, Json]:
    return {
        "seq": integer("Its place; `before` pages on from it."),
        "turn_id": text(),
        "owner": text("A hash of who asked."),
        "session": text(),
        "parent": maybe(text("The turn that its request continued.")),
        "kind": one_of(*(kind.value for kind in TurnKind)),
        "state": _STATE,
        "drop_reason": maybe(_REASON),
        "verdict": maybe(integer("The judge's or a person's: -1, 0 or 1.")),
        "score": maybe(number()),
        "reward": maybe(number()),
        "hints": integer("How many hints there are for it."),
        "taught": boolean("A teacher has marked it."),
        "step": maybe(integer("The training step that it was in.")),
        "version": maybe(integer("The oldest policy that wrote a part of it.")),
        "newest_version": maybe(integer()),
        "prompt_tokens": integer(),
        "response_tokens": integer(),
        "finished_at": number("Seconds since the epoch."),
        "state_at": number("Since when it is in its state."),
    }


def _life(turn: dict[str, Json]) -> Json:
    token = {
        "id": integer(),
        "piece": maybe(text("Its text, if a replica could be asked.")),
        "logp": number("Behaviour log-prob in nats, at the temperature that sampled it."),
        "version": integer("The policy that sampled it."),
        "teacher_logp": maybe(number("The hinted teacher's, while its targets are kept.")),
        "advantage": maybe(number("What it is credited with; `credit` says how.")),
    }
    why = {"sentence": text(), "remedy": text("What to do.")}
    fields = {
        **turn,
        "text_gone": maybe(text("Why there is no text.")),
        "request": maybe(record({"messages": array(ref("Message")), "tools": array(record({}))}, ("messages",))),
        "answer": maybe(ref("Message")),
        "response_text": maybe(text("What the model wrote, marks of reasoning and tool calls included.")),
        "evidence": maybe(record({"from_turn": text(), "messages": array(ref("Message"))}, ("from_turn", "messages"))),
        "feedback": maybe(record({"score": number(), "comment": text(), "taken": boolean()}, ("score", "taken"))),
        "judgement": maybe(record({"votes": array(integer()), "reasoning": text(), "hints": array(text())})),
        "sampling": maybe(record({})),
        "spans": array(record({"start": integer(), "end": integer(), "version": integer()})),
        "tokens": array(record(token, tuple(token))),
        "credit": record(
            {
                "advantage_of": maybe(text("What the advantage of its tokens is, with the figures filled in.")),
                "advantage_note": maybe(text("What to know of it, or why there is none.")),
            },
            ("advantage_of", "advantage_note"),
            "What determines the advantage of its tokens.",
        ),
        "transitions": array(record({"from": maybe(text()), "to": text(), "detail": text(), "at": number()})),
        "trained_by": maybe(ref("Step")),
        "why": record(why, tuple(why), "Why it has not trained, or not yet."),
    }
    return record(fields, tuple(fields), "Everything that is known of one turn.")


def _session() -> dict[str, Json]:
    return {
        "seq": integer("Of its newest turn; `before` pages on from it."),
        "session": text(),
        "owner": text("A hash of who asked."),
        "named": boolean("The client named it; else it was found by its messages."),
        "active": boolean("Its newest answer waits for what comes next."),
        "turns": integer("Of very many the newest are counted."),
        "more_turns": boolean("It has others, which `turns` and `by_state` do not count."),
        "by_state": record({}, description="How many there are in each state."),
        "first_at": number("Seconds since the epoch."),
        "last_at": number(),
        "last_turn": text(),
    }


def _version() -> Json:
    fields = {
        "version": integer(),
        "step": integer("The training step that made its weights."),
        "published_at": number("Seconds since the epoch."),
        "current": boolean("It serves."),
        "kept": boolean("Its weights are on disk: it can be rolled back to."),
        "good": boolean("It was found to serve well."),
        "rolled_back_to": maybe(integer("The version whose weights these are, after a rollback.")),
        "rolled_back_from": maybe(integer("The version that served before that rollback.")),
        "stats": record({}, description="Of the step that made it and of its publish."),
    }
    return record(fields, tuple(fields))


def _step() -> Json:
    fields = {
        "seq": integer("Its place; `before` pages on from it."),
        "step": integer(),
        "run": text("The training run that took it."),
        "state": one_of("applied", "trained", "undone", description="`trained`: a checkpoint holds it."),
        "at": number("Seconds since the epoch."),
        "turns": integer(),
        "reward_mean": maybe(number()),
        "accepted_share": maybe(number("The share of its rewarded answers that were found good.")),
        "lag": record({}, description="How many of its samples were how many optimizer steps old."),
        "stats": record({}, description="What the trainer measured."),
    }
    return record(fields, tuple(fields))
