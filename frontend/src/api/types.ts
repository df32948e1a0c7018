/** The shapes of the plugin's HTTP replies. What the server could not measure is null or absent. */

export type Status = 'live' | 'ended' | 'interrupted' | 'lost';

export interface Problem {
  path: string;
  message: string;
}

export interface RecordingSummary {
  id: string;
  run: string;
  session: string | null;
  trial?: string | null;
  trial_config?: string | null;
  fit_index?: number | null;
  /** How many fits of one callback went on in this recording; absent or 1 for one. */
  fits?: number | null;
  host?: string | null;
  rank?: number | null;
  status: Status;
  /** "imported trace", where a profiler's files were. */
  job_source?: string | null;
  start_ns: number | null;
  end_ns: number | null;
  steps: number | null;
  label?: string | null;
  verdict?: string | null;
  /** Causes and titles of what was found, the costliest first, and the seconds it cost in all. */
  causes?: string[];
  titles?: string[];
  lost_s?: number | null;
  revision: number | string;
}

/** The title of a category of time, and what is counted in it, by its key. */
export type Titles = Readonly<Record<string, readonly [title: string, about: string]>>;

/** What the server calls things, the same as in the terminal. */
export interface Words {
  /** Titles of the causes. */
  causes: Readonly<Record<string, string>>;
  host: Titles;
  gpu: Titles;
  host_step: Titles;
}

export interface RunsReply {
  version: number;
  server_version?: string;
  logdir: string;
  /** Null where nobody knows: several directories, an object store. */
  logdir_exists?: boolean | null;
  tensorboard_runs: string[];
  looked_for: string;
  recordings: RecordingSummary[];
  problems: Problem[];
  words?: Words;
  /** False while the server is still looking through the runs: more may follow. */
  complete?: boolean;
}

/** One training: its ranks and restarts together. Times of GPUs, or of the training where none was held. */
export interface TrainingRow {
  /** Of the recording that stands for it: the last start's lowest rank. */
  id: string;
  /** Ids of all its recordings; empty where that is the only one. */
  recordings: string[];
  restarts: number;
  ranks: number;
  script: string | null;
  user: string | null;
  status: Status;
  start_ns: number;
  wall_s: number;
  hours: number;
  lost: number;
  saves: number;
  /** What it lost time to, the costliest first, and what it found at no known cost. */
  causes: string[];
  /** The cause that is worth fixing first. */
  top: string | null;
  /** The run before it of the same job, and how many times faster this one is. */
  since: [run: string, speed: number] | null;
}

/** Where the time of all runs went. */
export interface TotalReply {
  unit: 'gpu_hours' | 'hours';
  /** All in one sentence, as the terminal says it. */
  said: string;
  notes: string[];
  hours: number;
  /** The hours, none counted twice: "productive", "lost", "other", "not_judged". */
  shares: { part: string; title: string; hours: number }[];
  causes: { cause: string; title: string; hours: number; saves: number; trainings: number }[];
  /** How many runs are still to be diagnosed: the next request knows more. */
  left?: number;
  /** What is worth fixing most comes first. */
  runs: TrainingRow[];
}

/** A piece of evidence, ready to show. */
export interface EvidenceRow {
  name: string;
  label: string;
  value: string;
  /** What the rule compared with, e.g. "≥ 5 %"; empty where nothing was compared. */
  rule: string;
  /** Value and threshold as numbers, for a small chart. */
  bar: [number, number] | null;
}

export interface Advice {
  text?: string | null;
  code?: string | null;
  /** What the code replaces; empty where that is not known. */
  before?: string | null;
  /** A condition was not observed: the code helps if the answer to the text's question is yes. */
  question?: boolean;
}

/** A finding holds for the whole run; a span also has its half-open range of steps and times. */
export interface Finding {
  id?: string;
  cause: string;
  title?: string | null;
  lost_s?: number | null;
  /** What following the advice would save of `lost_s`, at most. */
  saves_s?: number | null;
  /** The least and the most that the advice saves; of a question, if the answer is yes. */
  saves_range_s?: [number, number] | null;
  /** Duration of the script with several fits that it is about; absent if it is about this recording alone. */
  of_s?: number;
  severity?: number | null;
  confidence?: string | null;
  evidence?: Record<string, unknown> | null;
  threshold?: Record<string, unknown> | null;
  rows?: EvidenceRow[];
  /** What the evidence names: the slowest stage, the callback; empty where it names none. */
  culprit?: string;
  /** Findings that one change fixes have this in common. */
  fix?: string;
  advice?: Advice | null;
  gpus?: unknown[] | null;
  ranks?: unknown[] | null;
  start_step?: number | null;
  end_step?: number | null;
  start_ns?: number | null;
  end_ns?: number | null;
}

export interface Gpu {
  index: number;
  nvml_index?: number | null;
  uuid?: string | null;
  name?: string | null;
  label?: string | null;
  used_by_framework?: boolean | null;
  utilization_pct?: { mean?: number | null; p5?: number | null; p50?: number | null; p95?: number | null } | null;
  memory_used_bytes?: { max?: number | null } | null;
  memory_total_bytes?: number | null;
  /** Model FLOPs utilization, of `peak`. */
  mfu_pct?: number | null;
  /** What others measured on this card. */
  mfu_yardstick?: { low_pct: number; high_pct: number; text: string; source: string } | null;
  peak?: { text: string; source?: string; derived?: string } | null;
  power_mw?: { mean?: number | null; max?: number | null } | null;
  /** Share of time with lowered clocks, by reason: thermal, power, other. */
  throttled_pct?: Record<string, number | null> | null;
}

export interface Unavailable {
  source: string;
  reason?: string | null;
  cure?: string | null;
}

/** Seconds by category; `basis` says what an estimate rests on. */
export type TimeAccount = Record<string, number | string | null>;

/** The cause whose advice saves most, else the costliest: its findings by id; `all_saves_s` is of all findings together. */
export interface Headline {
  cause: string;
  title: string;
  ids: string[];
  lost_s: number;
  saves_s: number;
  all_saves_s: number;
  faster_up_to: number | null;
}

export interface Report {
  run: string;
  session?: string | null;
  job?: string | null;
  fit_index?: number | null;
  fits?: number | null;
  host?: string | null;
  rank?: number | null;
  world_size?: number | null;
  fit?: { batch_size?: number | null } | null;
  trial?: string | null;
  trial_config?: string | null;
  status: Status;
  job_source?: string | null;
  framework?: unknown;
  verdict?: string | null;
  /** What the verdict is about, in numbers; null where it is about no finding of a known cost. */
  headline?: Headline | null;
  /** The rules' thresholds that are not the default: `input_bound.wait_pct` -> 90. */
  thresholds_set?: Record<string, number> | null;
  wall_s?: number | null;
  steps?: number | null;
  step_ms?: { mean?: number | null; p50?: number | null; p95?: number | null } | null;
  time_s?: TimeAccount | null;
  gpu_time_est?: Record<string, TimeAccount | null> | null;
  gpus?: Gpu[] | null;
  /** Of the GPUs in use over the whole run. */
  energy?: { estimated?: boolean; gpus?: { index: number; energy_j: number }[] } | null;
  /** What was measured before training: which is the ceiling, and the rates. */
  ceilings?: { text: string; rows: { name: string; batches: string; samples: string; per_s: number }[] } | null;
  /** Accelerator utilization, next to the limits of the benchmark that defines it. */
  au?: { name: string; value: string; limits: string; text: string } | null;
  traced?: { steps?: number | null; per_gpu?: Record<string, TimeAccount | null> | null } | null;
  unavailable?: Unavailable[] | null;
  overhead?: Record<string, unknown> | null;
  findings?: Finding[] | null;
  spans?: Finding[] | null;
}

export interface SeriesInfo {
  name: string;
  title?: string | null;
  total_bytes?: number | null;
}

export type LaneKind = 'stack' | 'band';

/** Growth of a lane's values, and where it meets their limit if it goes on: an estimate. */
export interface Trend {
  start_ns: number;
  end_ns: number;
  start_step: number;
  end_step: number;
  start_value: number;
  end_value: number;
  title: string;
}

export interface LaneInfo {
  id: string;
  group: string;
  title: string;
  unit: string;
  kind: LaneKind;
  series: SeriesInfo[];
  max?: number | null;
  note?: string | null;
  /** Another lane says the same better: it stands among a GPU's lesser lanes. */
  minor?: boolean;
  trend?: Trend | null;
  /** What its values may not exceed. */
  limit?: { value: number; title: string } | null;
}

/** One recording of a session. `clock`: its clock minus the reference worker's, `drift` more each ns. */
export interface Worker {
  id: string;
  rank: number | null;
  host: string | null;
  status?: Status;
  steps?: number | null;
  end_ns?: number | null;
  clock?: { offset_ns: number; drift: number; at_ns: number; text: string } | null;
}

/** Workers of a job that are alike: the same causes at about the same cost. */
export interface WorkerGroup {
  ids: string[];
  ranks: number[];
  /** The verdict of the worst of them, and what it lost. */
  text: string;
  lost_s: number;
}

/** The verdict on a job of several workers. */
export interface JobVerdict {
  text: string;
  /** The recording that it is about: the one to open first. */
  id: string;
  rank: number;
  /** Id of the one of the job's findings behind it; null where it is a worker's own verdict. */
  finding: string | null;
  lost_s: number | null;
  saves_s: number | null;
  wall_s: number | null;
  faster_up_to: number | null;
  advice: Advice | null;
  /** The worst first. */
  groups: WorkerGroup[];
}

/** A recording among its like: the workers of its job, findings across them, and the fit before it. */
export interface JobReply {
  workers: Worker[];
  /** Null for a single process. */
  verdict?: JobVerdict | null;
  findings: Finding[];
  since: { id: string; run: string; gone: string[]; estimated: [number, number]; promised_up_to: number; got: number } | null;
}

/** A profiler window: a few steps that were traced. `profile_run` is its name in the Profile tab. */
export interface WindowInfo {
  window: number;
  first_step: number;
  stop_step: number;
  start_ns: number | null;
  end_ns: number | null;
  profile: string | null;
  profile_run: string | null;
  events: number | null;
  cost_s: number | null;
}

/** One traced step on one GPU (-1: the host, where no GPU was traced), with `<category>_ns`. */
export type TracedStep = Record<string, number | null> & { step: number; gpu: number; start_ns: number | null; duration_ns: number | null };

/** A kernel summed over a window and GPU; of GPU -1, an op on the host. */
export interface Kernel {
  gpu: number;
  name: string | null;
  op: string | null;
  count: number | null;
  total_ns: number | null;
  min_ns: number | null;
  max_ns: number | null;
  occupancy_pct: number | null;
  registers: number | null;
  blocks: number | null;
  threads_per_block: number | null;
  tensor_core: string | null;
}

export interface WindowReply extends WindowInfo {
  steps: TracedStep[];
  kernels: Kernel[];
  kernels_left_out: number;
  kernel_total_ns: Record<string, number>;
  /** Kernels of each step with most time; rows of [step, gpu, index of the name, count, total_ns, max_ns]. */
  step_kernels?: { names: string[]; rows: [number, number, number, number, number, number][] };
}

export interface Phase {
  kind: string;
  name: string;
  start_ns: number;
  end_ns: number;
  step: number;
  account?: string | null;
  self_ns?: number | null;
  count?: number | null;
}

export interface Extent {
  start_ns: number;
  end_ns: number;
  first_step: number;
  last_step: number;
}

export interface RecordingReply {
  id: string;
  revision: number | string;
  report: Report;
  extent: Extent;
  lanes: LaneInfo[];
  /** Finest level there are tiles of; absent where the server has every level. */
  finest?: { step: number; time: number };
  phases: Phase[];
  /** In the order of their steps; absent where the server knows of none. */
  windows?: WindowInfo[];
  problems: Problem[];
}
