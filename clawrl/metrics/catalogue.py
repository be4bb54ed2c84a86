"""Every metric there is: its name, what it says, and how it may be told apart.

One table, which the documentation, the dashboard and the tests are held to. ``name`` is ours; Prometheus sees
``ray_clawrl_<name>``, with ``_total`` after a counter. ``slime`` and ``verl`` are the names of the same figure in those
trainers; a figure that has one goes to TensorBoard and W&B under slime's name, one without under ``own``.

Tags are closed sets, but for ``version``, of which only the newest `NEWEST_VERSIONS` are told; nothing about people,
sessions or turns is ever one. So the number of series is bounded by this file.

Ray passes histograms on by their buckets: counts and quantiles are right, sums are not. What is to be added up is a
counter.
"""

from __future__ import annotations

from clawrl.messages import DropReason, TurnState
from clawrl.metrics.metric import ANY_VERSION, Group, Kind, Metric

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_HOLDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Between whole numbers, so that each of the small ones has a bucket of its own.
_LAGS = (0.5, 1.5, 2.5, 3.5, 4.5, 6.5, 8.5, 12.5, 16.5, 24.5, 32.5, 64.5)
# Shares of three, four and five votes lie between them.
_AGREEMENT = (0.3, 0.36, 0.45, 0.55, 0.64, 0.7, 0.77, 0.85, 0.95, 1.0)

# -- serving ----------------------------------------------------------------------------------------

REQUESTS = Metric(
    name="requests",
    kind=Kind.COUNTER,
    group=Group.SERVING,
    says="answered HTTP requests; refused is a 4xx, failed a 5xx, cancelled a client that went away",
    tags={
        "dialect": ("chat", "responses", "messages"),
        "outcome": ("answered", "refused", "failed", "cancelled"),
    },
)
REQUEST_SECONDS = Metric(
    name="request_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.SERVING,
    says="from a request's first byte to the last byte of its answer, refused ones left out",
    unit="s",
    tags={"dialect": ("chat", "responses", "messages")},
    buckets=_SECONDS,
)
TTFT_SECONDS = Metric(
    name="time_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.SERVING,
    says="at the replica, from taking a request (prompt, waiting for a place, prefill) to its first token",
    unit="s",
    buckets=_SECONDS,
)
GAP_SECONDS = Metric(
    name="inter_token_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.SERVING,
    says="at the replica, between two tokens of an answer; of long answers a part of them, the longest included",
    unit="s",
    buckets=_GAPS,
)
GENERATION_TOKENS = Metric(
    name="generation_tokens",
    kind=Kind.COUNTER,
    group=Group.SERVING,
    says="tokens sampled, for the rate",
)
PROMPT_TOKENS = Metric(
    name="prompt_tokens", kind=Kind.COUNTER, group=Group.SERVING, says="tokens of the prompts that were answered"
)
RUNNING = Metric(
    name="requests_running", kind=Kind.GAUGE, group=Group.SERVING, says="requests that are generating, of a replica"
)
WAITING = Metric(
    name="requests_waiting",
    kind=Kind.GAUGE,
    group=Group.SERVING,
    says="requests held at a replica: for a free place, or for weights as new as the request wants",
    tags={"until": ("place", "weights")},
)
HELD_REQUESTS = Metric(
    name="held_requests",
    kind=Kind.COUNTER,
    group=Group.SERVING,
    says="requests that were held in the middle of their answer while a replica took new weights",
)

# -- judging ----------------------------------------------------------------------------------------

JUDGEMENTS = Metric(
    name="judgements",
    kind=Kind.COUNTER,
    group=Group.JUDGING,
    says="settled cases by verdict; by a person where one said something of the answer on purpose",
    tags={"verdict": ("good", "neutral", "bad", "abstained"), "by": ("judge", "person")},
)
JUDGE_SECONDS = Metric(
    name="judge_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.JUDGING,
    says="what one judgement took, hints included; for an abstention all attempts together",
    unit="s",
    buckets=_SECONDS,
)
AGREEMENT = Metric(
    name="vote_agreement",
    kind=Kind.HISTOGRAM,
    group=Group.JUDGING,
    says="the share of a case's votes that are the most frequent one, of cases with two votes or more",
    buckets=_AGREEMENT,
)

# -- training ---------------------------------------------------------------------------------------

PHASES = ("wait", "forward", "backward", "optimizer", "update_weights", "other")
STEPS = Metric(
    name="steps",
    kind=Kind.COUNTER,
    group=Group.TRAINING,
    says="batches taken, by whether the weights changed",
    tags={"changed": ("yes", "no")},
)
STEP_SECONDS = Metric(
    name="step_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.TRAINING,
    says="from the end of one step to the end of the next",
    unit="s",
    buckets=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
    stat="step_s",
    slime="perf/step_time",
    verl="timing_s/step",
)
PHASE_SECONDS = Metric(
    name="step_phase_seconds",
    kind=Kind.COUNTER,
    group=Group.TRAINING,
    says="where the time of the steps went; update_weights is the publish of the version before",
    unit="s",
    tags={"phase": PHASES},
)
STEP = Metric(name="step", kind=Kind.GAUGE, group=Group.TRAINING, says="the newest step", slime="train/step")
SAMPLE_LAG = Metric(
    name="sample_lag_steps",
    kind=Kind.HISTOGRAM,
    group=Group.TRAINING,
    says="staleness: optimizer steps between the sampling of a trained sample's oldest token and its training",
    unit="steps",
    buckets=_LAGS,
)
REWARD_MEAN = Metric(
    name="reward_mean",
    kind=Kind.GAUGE,
    group=Group.JUDGING,
    says="mean reward of recent turns by the policy version that began them",
    tags={"version": ANY_VERSION},
)
REWARDED_TURNS = Metric(
    name="rewarded_turns",
    kind=Kind.GAUGE,
    group=Group.JUDGING,
    says="how many turns stand behind reward_mean",
    tags={"version": ANY_VERSION},
)


def _of_step(
    stat: str, says: str, *, name: str = "", unit: str = "", slime: str = "", verl: str = "", own: str = ""
) -> Metric:
    return Metric(
        name=name or f"train_{stat}",
        kind=Kind.GAUGE,
        group=Group.TRAINING,
        says=says,
        unit=unit,
        stat=stat,
        slime=slime,
        verl=verl,
        own=own,
    )


STEP_FIGURES = (
    _of_step("loss", "the step's loss", slime="train/loss", verl="actor/loss"),
    _of_step("grad_norm", "norm of its gradient, before clipping", slime="train/grad_norm", verl="actor/grad_norm"),
    _of_step(
        "train_rollout_logprob_abs_diff",
        "mean absolute difference of the trainer's and the engine's log-probs on the trained tokens",
        name="train_rollout_logprob_abs_diff",
        unit="nats",
        slime="train/train_rollout_logprob_abs_diff",
    ),
    _of_step(
        "train_rollout_kl",
        "k3 estimate of the KL of the engine's policy from the trainer's, on the trained tokens",
        name="train_rollout_kl",
        unit="nats",
        verl="rollout_corr/k3_kl",
    ),
    _of_step(
        "ppo_kl",
        "k1 estimate of the KL of the policy before the batch from the policy; 0 with one update a batch",
        unit="nats",
        slime="train/ppo_kl",
        verl="actor/ppo_kl",
    ),
    _of_step(
        "kl",
        "KL to the frozen start that the loss pulls to; there with kl_coef above 0",
        unit="nats",
        slime="train/kl_loss",
        verl="actor/kl_loss",
    ),
    _of_step(
        "entropy",
        "mean entropy of the policy at the trained tokens, over the whole vocabulary",
        unit="nats",
        slime="train/entropy_loss",
        verl="actor/entropy",
    ),
    _of_step(
        "clip_fraction",
        "share of trained tokens at which the clip of the ratio binds",
        slime="train/pg_clipfrac",
        verl="actor/pg_clipfrac",
    ),
    _of_step(
        "tis_clip_fraction",
        "share of trained tokens whose importance weight is truncated",
        slime="train/tis_clipfrac",
    ),
    _of_step("reward_mean", "mean reward of the batch", slime="rollout/raw_reward", verl="critic/rewards/mean"),
    _of_step("advantage_std", "spread of the batch's advantages"),
    _of_step(
        "response_length_mean",
        "mean answer of the batch",
        unit="tokens",
        slime="rollout/response_len/mean",
        verl="response_length/mean",
    ),
    _of_step("tokens", "tokens that the batch trained", unit="tokens"),
    _of_step("lag_mean", "mean staleness of the batch", unit="steps"),
    _of_step("lag_max", "largest staleness of the batch", unit="steps"),
    *(
        _of_step(
            f"{phase}_s",
            f"the newest step's time: {says}",
            name=f"step_{phase}",
            unit="s",
            slime=slime,
            verl=verl,
            own=f"perf/{phase}_time",
        )
        for phase, says, slime, verl in (
            ("wait", "waiting for a batch", "perf/train_wait_time", ""),
            ("forward", "forward passes, those of the reference included", "", ""),
            ("backward", "backward passes", "", ""),
            ("optimizer", "the optimizer", "", ""),
            (
                "update_weights",
                "publishing the version before: gather, snapshot, transfer, commit",
                "perf/update_weights_time",
                "timing_s/update_weights",
            ),
        )
    ),
)

KL_FROM_START = Metric(
    name="kl_from_start",
    kind=Kind.GAUGE,
    group=Group.TRAINING,
    says="KL of the serving policy from the start, as the guard measures it with guards.alarms.probe_every",
    unit="nats",
)

# -- publishing -------------------------------------------------------------------------------------

POLICY_VERSION = Metric(
    name="policy_version", kind=Kind.GAUGE, group=Group.PUBLISHING, says="the version that is current"
)
PUBLISHES = Metric(
    name="publishes",
    kind=Kind.COUNTER,
    group=Group.PUBLISHING,
    says="versions that became current; rollback: an earlier one's weights again",
    tags={"kind": ("trained", "rollback")},
)
PUBLISH_SECONDS = Metric(
    name="publish_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.PUBLISHING,
    says="a publish, from the first word to the replicas to their last",
    unit="s",
    buckets=_SECONDS,
)
PUBLISH_BYTES = Metric(
    name="publish_bytes",
    kind=Kind.COUNTER,
    group=Group.PUBLISHING,
    says="bytes of the published weights, times the replicas that took them",
    unit="bytes",
)
VERSION_BYTES = Metric(
    name="version_bytes",
    kind=Kind.GAUGE,
    group=Group.PUBLISHING,
    says="bytes that the newest publish sent to each replica",
    unit="bytes",
    stat="bytes",
    slime="perf/update_weights_wire_bytes",
)
HOLD_SECONDS = Metric(
    name="hold_seconds",
    kind=Kind.HISTOGRAM,
    group=Group.PUBLISHING,
    says="for how long a publish held the requests in flight, at the replica that held them longest",
    unit="s",
    buckets=_HOLDS,
)
REPLICAS = Metric(
    name="replicas",
    kind=Kind.GAUGE,
    group=Group.PUBLISHING,
    says="policy replicas by the version that they hold",
    tags={"version": ANY_VERSION},
)
REPLICAS_BEHIND = Metric(
    name="replicas_behind",
    kind=Kind.GAUGE,
    group=Group.PUBLISHING,
    says="replicas that do not hold the current version",
)

# -- ledger -----------------------------------------------------------------------------------------

TURNS = Metric(
    name="turns",
    kind=Kind.GAUGE,
    group=Group.LEDGER,
    says="turns ever recorded, by where they are now",
    tags={"state": tuple(TurnState)},
)
DROPPED = Metric(
    name="turns_dropped",
    kind=Kind.GAUGE,
    group=Group.LEDGER,
    says="turns ever dropped, by why",
    tags={"reason": tuple(DropReason)},
)
RECORDED = Metric(name="turns_recorded", kind=Kind.GAUGE, group=Group.LEDGER, says="turns ever recorded")
UNBALANCED = Metric(
    name="turns_unaccounted",
    kind=Kind.GAUGE,
    group=Group.LEDGER,
    says="turns recorded but in no state: anything but 0 is a defect",
)
QUEUE_DEPTH = Metric(
    name="queue_depth", kind=Kind.GAUGE, group=Group.LEDGER, says="judged turns that wait for a training batch"
)
SESSIONS = Metric(
    name="sessions_active", kind=Kind.GAUGE, group=Group.LEDGER, says="sessions in which an answer waits for a reaction"
)
PAUSED = Metric(
    name="submission_paused", kind=Kind.GAUGE, group=Group.LEDGER, says="1 while learning is paused, else 0"
)
JOURNALED = Metric(
    name="turns_journaled",
    kind=Kind.GAUGE,
    group=Group.LEDGER,
    says="answers in replicas' journals that the ledger has not taken in yet",
)

CATALOGUE: tuple[Metric, ...] = (
    *(REQUESTS, REQUEST_SECONDS, TTFT_SECONDS, GAP_SECONDS, GENERATION_TOKENS, PROMPT_TOKENS),
    *(RUNNING, WAITING, HELD_REQUESTS),
    *(JUDGEMENTS, JUDGE_SECONDS, AGREEMENT, REWARD_MEAN, REWARDED_TURNS),
    *(STEPS, STEP_SECONDS, PHASE_SECONDS, STEP, SAMPLE_LAG, *STEP_FIGURES, KL_FROM_START),
    *(
        POLICY_VERSION,
        PUBLISHES,
        PUBLISH_SECONDS,
        PUBLISH_BYTES,
        VERSION_BYTES,
        HOLD_SECONDS,
        REPLICAS,
        REPLICAS_BEHIND,
    ),
    *(TURNS, DROPPED, RECORDED, UNBALANCED, QUEUE_DEPTH, SESSIONS, PAUSED, JOURNALED),
)
