"""Why a turn was dropped, by its reason. Some drops are for good, others until somebody speaks up."""

from __future__ import annotations

from collections.abc import Mapping

from clawrl.inspection.case import Case, Explain, Why, cuts, ended, imposed, method_of, score, short
from clawrl.ledger.codec import ALTERED, DAMAGED_KEY
from clawrl.ledger.forgotten import ASKED, EVIDENCE, NO_KEY
from clawrl.messages import DropReason


def _side(case: Case) -> Why:
    return Why(
        sentence="It answered a side request (a summary, a heartbeat, or one that said `X-Turn-Type: side`), "
        "which is served and never trained.",
        remedy="If its client means it as a part of the conversation, let that send `X-Turn-Type: main`, or set "
        "serving.default_turn_type to main.",
    )


def _aborted(case: Case) -> Why:
    return Why(
        sentence=f"The client left after {case.life.row.response_tokens} tokens, before the answer had ended.",
        remedy="Nothing is wrong with it: a half answer says nothing about a whole one. If clients give up waiting, "
        "look at the time to the first token, and at their timeouts.",
    )


def _failed(case: Case) -> Why:
    return Why(
        sentence="The replica that was answering failed or was lost, so that the answer is not whole.",
        remedy="Look at the log of the Rollout deployment at the time when it ended; a single one after a restart is "
        "harmless.",
    )


def _empty(case: Case) -> Why:
    return Why(
        sentence=f"Its {case.life.row.response_tokens} tokens hold no word and no tool call that a client could see.",
        remedy="If many are empty, the policy is: look at the curves and consider `clawrl rollback`; where it only "
        "reasons without an answer, raise serving.sampling.max_tokens.",
    )


def _greedy(case: Case) -> Why:
    return Why(
        sentence="It was decoded greedily (temperature 0), which has no probability that a trainer could weigh."
        + imposed(case),
        remedy="Ask with a temperature above 0, or set serving.sampling.override to true to impose trainable sampling "
        "on main turns.",
    )


def _filtered(case: Case) -> Why:
    return Why(
        sentence=f"It was drawn from a cut distribution ({cuts(case.sampling)}), whose log-probs engines define "
        "differently, so that none can be trusted." + imposed(case),
        remedy="Ask without these, or set serving.sampling.override to true to impose plain sampling on main turns; an "
        "answer that must match a schema never trains.",
    )


def _not_permitted(case: Case) -> Why:
    return Why(
        sentence="Whoever sent it did not permit training on it.",
        remedy="Nothing to do: it is served and recorded as they wish. To have it trained they must permit it for "
        "their key, their session or the request.",
    )


def _redacted(case: Case) -> Why:
    return Why(
        sentence="A rule of privacy.redaction found something in it, or in what it answers; its token ids would decode "
        "to that, so none are stored and nothing of it trains.",
        remedy="If the rule was wrong, narrow or remove it in privacy.redaction; turns from then on are stored whole.",
    )


def _forgotten(case: Case) -> Why:
    if case.detail == EVIDENCE:
        return Why(
            sentence="What came after this answer was forgotten (`clawrl forget`), and with it what it was judged by; "
            "its own text is still here.",
            remedy="Nothing to do: nobody can say any more how good the answer was.",
        )
    if case.detail == ASKED:
        sentence = "What was said was deleted because somebody asked for it (`clawrl forget`)"
    elif case.detail == NO_KEY:
        sentence = "The key of its user is gone: they were forgotten after this copy of the ledger had been made"
    else:
        sentence = (
            "What was said was deleted, because somebody asked for it (`clawrl forget`) or because its time was over "
            "(privacy.retention_days)"
        )
    return Why(sentence=f"{sentence}, so that it can never train.", remedy="Nothing to do: it cannot be brought back.")


def _too_long(case: Case) -> Why:
    row = case.life.row
    return Why(
        sentence=f"Prompt and answer have {row.prompt_tokens + row.response_tokens} tokens, more than the "
        f"{case.deployment.trainer.training.max_sample_tokens} that a sample may have, and nothing is ever cut to fit.",
        remedy="Raise trainer.training.max_sample_tokens if the memory allows (`clawrl check` says), or let the client "
        "shorten its conversations.",
    )


def _session_ended(case: Case) -> Why:
    return Why(
        sentence="Its session ended before anybody reacted to it, so that nothing says whether it was good.",
        remedy=f"A last answer has only a person's word: `clawrl feedback --turn {case.life.row.turn_id} -- SCORE` "
        "still has it judged.",
    )


def _no_evidence(case: Case) -> Why:
    return Why(
        sentence=f"Nobody went on with its conversation within {case.deployment.ledger.idle_timeout_s:g} s.",
        remedy="Raise ledger.idle_timeout_s if people take longer to reply; "
        f"`clawrl feedback --turn {case.life.row.turn_id} -- SCORE` still has it judged.",
    )


def _judge_abstained(case: Case) -> Why:
    text = case.life.text
    detail = "" if text is None or text.judgement is None else text.judgement.detail.strip()
    votes = () if text is None or text.judgement is None else text.judgement.votes
    how = f" (votes {', '.join(map(str, votes))})" if votes else ""
    said = f": {short(detail)}" if detail else ""
    return Why(
        sentence=ended(f"The judge had no opinion{how}{said}"),
        remedy="If it failed, look at the Judge deployment and at judge.verdict.timeout_s and judge.verdict.attempts; "
        "if it is unsure, at judge.verdict and `clawrl calibrate`. A person's feedback still counts.",
    )


def _neutral(case: Case) -> Why:
    method = method_of(case)
    return Why(
        sentence=f"The judge found it neither good nor bad{score(case)}, and the method {method} learns nothing from "
        "that.",
        remedy="Nothing is wrong with it. If too many are neutral, look at judge.verdict (`clawrl calibrate` shows how "
        "it decides), or choose a trainer.method that also learns from hints.",
    )


def _no_hint(case: Case) -> Why:
    method = method_of(case)
    return Why(
        sentence=f"The judge gave no hint of what would have been better, and the method {method} learns from hints "
        "alone.",
        remedy="Set judge.hints.reuse to session or owner to teach with earlier hints, look at judge.hints.source, or "
        "choose a trainer.method that also learns from the verdict, such as combine.",
    )


def _teacher_failed(case: Case) -> Why:
    hints = case.life.row.hints
    return Why(
        sentence=f"There {'was a hint' if hints == 1 else f'were {hints} hints'}, but the teacher did not answer in "
        f"{case.deployment.judge.teacher.attempts} attempts of {case.deployment.judge.teacher.timeout_s:g} s.",
        remedy="Look at the log of the Judge deployment (Rollout's with judge.teacher.version: current), and raise "
        "judge.teacher.timeout_s or judge.teacher.attempts. Feedback on the turn has it taught again.",
    )


def _too_short(case: Case) -> Why:
    return Why(
        sentence=f"It is too short to learn from: {case.detail or f'{case.life.row.response_tokens} tokens'}.",
        remedy="Lower guards.filters.min_response_tokens or guards.filters.min_response_words if short answers are "
        "what you want; if answers have become short, look at the alarms in `clawrl status`.",
    )


def _truncated(case: Case) -> Why:
    return Why(
        sentence=f"It ran into its token limit ({case.detail or f'{case.life.row.response_tokens} tokens'}).",
        remedy="Raise serving.sampling.max_tokens, or the client's max_tokens; guards.filters.truncated: keep trains "
        "such answers all the same.",
    )


def _repetitive(case: Case) -> Why:
    return Why(
        sentence=f"It repeats itself: {case.detail or 'it compresses too well'}.",
        remedy="Lower guards.filters.min_zlib_ratio if such answers are right (lists, tables); if many repeat "
        "themselves, consider `clawrl rollback`.",
    )


def _duplicate(case: Case) -> Why:
    return Why(
        sentence="The same answer to the same request was recorded less than "
        f"{case.deployment.ledger.duplicate_window_s:g} s before, and trains once.",
        remedy="If it is one of several answers to compare, send them under one `X-Group-Id`; "
        "guards.filters.duplicates: keep trains each.",
    )


def _refused_by_filter(case: Case) -> Why:
    text = case.life.text
    words = f": {short(text.refusal)}" if text is not None and text.refusal else ""
    return Why(
        sentence=ended(f"A filter of yours refused it, {case.detail or 'one of guards.filters.extra'}{words}"),
        remedy="Change or remove it in guards.filters.extra, and try it with `clawrl contract filter PATH`.",
    )


def _stale(case: Case) -> Why:
    return Why(
        sentence=f"It grew too old in the queue: {case.detail or f'version {case.life.row.oldest_version}'}, and the "
        f"limit is a lag of {case.deployment.trainer.training.staleness.limit} optimizer steps.",
        remedy="More comes than is trained: raise trainer.training.batch_size or trainer.training.staleness.max_steps, "
        "give the trainer more, or set trainer.training.staleness.beyond to correct.",
    )


def _malformed(case: Case) -> Why:
    if case.detail == ALTERED:
        return Why(
            sentence="What is stored of it is not what was written: a disk, or a hand, altered it.",
            remedy="It stays as it is and will not train. If it is one of many, check the disk, and put a backup back.",
        )
    if case.detail == DAMAGED_KEY:
        return Why(
            sentence="The key of its user could not be opened when it was to be read.",
            remedy="The coordinator's log names the file: put a copy of it back. This turn will not train, later ones "
            "will; what their user says until then waits in the journals.",
        )
    problem = f": {short(case.situation.problem)}" if case.situation.problem else ""
    return Why(
        sentence=ended(f"The method {method_of(case)} could not make a sample of it{problem}"),
        remedy="The coordinator's log has the error's kind and place under the turn's id. With a method of your own "
        "try `clawrl contract method PATH`; after a change of trainer.method older turns may not fit.",
    )


DROPS: Mapping[DropReason, Explain] = {
    DropReason.SIDE: _side,
    DropReason.ABORTED: _aborted,
    DropReason.FAILED: _failed,
    DropReason.EMPTY: _empty,
    DropReason.GREEDY: _greedy,
    DropReason.FILTERED: _filtered,
    DropReason.NOT_PERMITTED: _not_permitted,
    DropReason.REDACTED: _redacted,
    DropReason.FORGOTTEN: _forgotten,
    DropReason.TOO_LONG: _too_long,
    DropReason.SESSION_ENDED: _session_ended,
    DropReason.NO_EVIDENCE: _no_evidence,
    DropReason.JUDGE_ABSTAINED: _judge_abstained,
    DropReason.NEUTRAL: _neutral,
    DropReason.NO_HINT: _no_hint,
    DropReason.TEACHER_FAILED: _teacher_failed,
    DropReason.TOO_SHORT: _too_short,
    DropReason.TRUNCATED: _truncated,
    DropReason.REPETITIVE: _repetitive,
    DropReason.DUPLICATE: _duplicate,
    DropReason.REFUSED_BY_FILTER: _refused_by_filter,
    DropReason.STALE: _stale,
    DropReason.MALFORMED: _malformed,
}
