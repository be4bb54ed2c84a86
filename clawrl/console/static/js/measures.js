// The divergences that methods measure, each by a name of its own: which of them there are depends on the method.

import { number } from "./format.js";

export const MEASURES = [
  { field: "kl", name: "KL to the start", short: "to the start", colour: "line-1", says: "KL to the frozen start, in nats per token" },
  { field: "ppo_kl", name: "KL of the update", short: "of the update", colour: "line-2", quiet: true, says: "KL of the policy before the step from the one after its first updates, in nats per token" },
  { field: "train_rollout_kl", name: "KL, trainer to engine", short: "trainer to engine", colour: "line-3", quiet: true, says: "KL of the engine's policy from the trainer's, in nats per token" },
  { field: "opd_kl", name: "KL to the teacher", short: "to the teacher", colour: "line-4", says: "KL of the policy from the teacher who knows the hint, in nats per token" },
  { field: "opd_gap", name: "Gap to the teacher", short: "gap to the teacher", colour: "line-4", dashed: true, says: "Mean size of the clipped differences between the teacher's log-probs and the policy's, in nats" },
];

// Four digits are shown.
const SEEN = 5e-5;

// Those that these rows have. The quiet ones are always measured and mostly nothing: with one update a batch the update's own
// KL is 0 by definition, and the engine's policy the trainer's where both compute alike.
export const measuresIn = (rows) =>
  MEASURES.filter(({ field, quiet }) => rows.some(({ stats }) => typeof stats?.[field] === "number" && (!quiet || Math.abs(stats[field]) >= SEEN)));

export const measureColumns = (measures) =>
  measures.map((one) => ({ name: one.name, title: one.says, class: "num", cell: (row) => number(row.stats?.[one.field], 4) }));
