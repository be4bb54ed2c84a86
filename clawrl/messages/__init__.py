"""The nouns that cross actors.

Everything here is plain data: frozen, slotted, keyword-only dataclasses whose token columns are
numpy arrays, so that a value pickles cheaply and means the same in every process. A constructor
refuses a value that would be a lie later (lengths that differ, a span that leaves a gap); nothing is
padded, truncated or repaired here. A field that is filled in later names its writer.

Shapes: ``P`` prompt tokens, ``R`` response tokens. Log-probabilities are natural logarithms at the
temperature that sampled the tokens. Times are seconds since the epoch.
"""

from clawrl.messages.conversation import NO_INPUTS, NOTHING_SAID, Message, TemplateInputs, ToolCall
from clawrl.messages.opinions import (
    Feedback,
    Judgement,
    JudgeRequest,
    ModelVitals,
    TeacherRequest,
    TeacherTargets,
    Verdict,
    Vitals,
    VitalsRequest,
)
from clawrl.messages.training import (
    AdapterShape,
    Addition,
    Lease,
    LedgerPosition,
    PolicyVersion,
    Sample,
    TensorSpec,
    WeightKind,
    WeightManifest,
)
from clawrl.messages.turns import (
    Arrival,
    DropReason,
    FinishReason,
    LogProbs,
    SamplingParams,
    TokenIds,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
    VersionSpan,
    Withheld,
)

__all__ = [
    "NOTHING_SAID",
    "NO_INPUTS",
    "AdapterShape",
    "Addition",
    "Arrival",
    "DropReason",
    "Feedback",
    "FinishReason",
    "JudgeRequest",
    "Judgement",
    "Lease",
    "LedgerPosition",
    "LogProbs",
    "Message",
    "ModelVitals",
    "PolicyVersion",
    "Sample",
    "SamplingParams",
    "TeacherRequest",
    "TeacherTargets",
    "TemplateInputs",
    "TensorSpec",
    "TokenIds",
    "ToolCall",
    "Turn",
    "TurnId",
    "TurnKind",
    "TurnState",
    "Verdict",
    "VersionSpan",
    "Vitals",
    "VitalsRequest",
    "WeightKind",
    "WeightManifest",
    "Withheld",
]
