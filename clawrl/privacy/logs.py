"""Redaction of what a process logs, whoever logs it: texts get into errors, and errors into logs."""

from __future__ import annotations

import logging

from clawrl.privacy.config import RedactionConfig
from clawrl.privacy.redactor import Redactor, finders_of

_FORMATTER = logging.Formatter()


def redact_logs_by(config: RedactionConfig) -> None:
    """`redact_logs` with a redactor of its own."""
    redact_logs(Redactor(finders_of(config)))


def redact_logs(redactor: Redactor) -> None:
    """From now on every record of this process is redacted before a handler sees it. Called again, it replaces."""
    if not redactor.on:
        return
    make = logging.getLogRecordFactory()
    plain = getattr(make, "plain", make)

    def factory(*args: object, **kwargs: object) -> logging.LogRecord:
        record: logging.LogRecord = plain(*args, **kwargs)
        try:
            said = record.getMessage()
        except Exception:
            # The handler reports it as it would have done without us.
            return record
        redacted = redactor.text(said)
        if redacted != said:
            record.msg, record.args = redacted, ()
        if record.exc_info:
            # A formatter that finds the text there does not make it anew.
            record.exc_text = redactor.text(_FORMATTER.formatException(record.exc_info))
        return record

    factory.plain = plain  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)
