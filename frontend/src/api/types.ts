/** The plugin's HTTP replies; made of `tensorboard_plugin/reply_types.py` by `make schemas`. */

export type Status = 'live' | 'ended' | 'interrupted' | 'lost';

/** Title and appearance of a cause. */
export interface CauseWords {
  title: string;
  /** which no other cause has, so that neither it nor the colour has to be told apart alone */
  glyph: string;
  /** name of a hue of the tab */
  colour: string;
  /** its time lies between steps, mostly at the ends of epochs */
  between_steps: boolean;
  /** of the host account, in which its time is counted; "" = in none */
  part: string;
}

/** The vocabulary of the terminal: words for causes; title and meaning of each category. */
export interface Words {
  causes: Record<string, CauseWords>;
  host: Record<string, [string, string]>;
  gpu: Record<string, [string, string]>;
  host_step: Record<string, [string, string]>;
}

/** A file that could not be read. */
export interface ReportedProblem {
  path: string;
  message: string;
}

/** One line of the list of recordings. */
export interface RecordingSummary {
  /** the costliest first */
  causes?: string[];
  titles?: string[];
  /** in all */
  lost_s?: number | null;
  id: string;
  run: string;
  session: string | null;
  trial?: string | null;
  trial_config?: string | null;
  fit_index?: number | null;
  /** of one callback, which went on in this recording */
  fits?: number | null;
  host?: string | null;
  rank?: number | null;
  status: Status;
  /** "imported trace", where a profiler's files were */
  job_source?: string | null;
  start_ns: number | null;
  end_ns: number | null;
  steps: number | null;
  verdict?: string | null;
  /** 0 in an offline page */
  revision: string | number;
}

/** The list of recordings. */
export interface RunsReply {
  logdir: string;
  /** null where nobody knows: several directories, an object store */
  logdir_exists?: boolean | null;
  version: number;
  server_version?: string;
  tensorboard_runs: string[];
  looked_for: string;
  words?: Words;
  /** false while the server is still reading the runs: more may follow */
  complete?: boolean;
  /** how many runs it has looked at so far, and of how many */
  progress?: [number, number];
  problems: ReportedProblem[];
  recordings: RecordingSummary[];
}

/** A part of all hours; no hour is in two of them. */
export interface HoursShare {
  part: string;
  title: string;
  hours: number;
}

/** A cause, and the hours that it cost. */
export interface CauseHours {
  cause: string;
  title: string;
  hours: number;
  saves: number;
  trainings: number;
}

/** One training: its ranks and restarts together. Times of GPUs, or of the training where none was held. */
export interface TrainingRow {
  /** of the recording that stands for it: the last start's lowest rank */
  id: string;
  /** ids of all its recordings; empty where that is the only one */
  recordings: string[];
  restarts: number;
  ranks: number;
  script: string | null;
  user: string | null;
  status: Status;
  start_ns: number;
  wall_s: number;
  /** that it held; without any, hours are its own */
  gpus: number;
  hours: number;
  /** null is not known: it was not judged, or its causes have no known cost */
  lost: number | null;
  saves: number | null;
  /** the costliest first, then those at no known cost */
  causes: string[];
  /** the cause that is worth fixing first */
  top: string | null;
}

/** The sums of all runs. */
export interface TotalReply {
  unit: 'gpu_hours' | 'hours';
  /** all in one sentence, as in the terminal */
  headline: string;
  notes: string[];
  hours: number;
  shares: HoursShare[];
  causes: CauseHours[];
  /** what to do, of the runs that are worth fixing most */
  fixes: Record<string, string>;
  /** runs that are still to be diagnosed: the next request knows more */
  left?: number;
  /** that whose fix saves most comes first */
  runs: TrainingRow[];
}

/** The framework that trains. */
export interface Framework {
  name?: string | null;
  version?: string | null;
  backend?: string | null;
  keras?: string | null;
  python?: string | null;
  guessed?: boolean | null;
  device?: string | null;
  eager_by?: string | null;
  cuda_build?: boolean | null;
  cuda?: string | null;
  collectives?: string | null;
}

/** Durations of steps, input waits included. */
export interface StepMs {
  mean: number | null;
  p50: number | null;
  p95: number | null;
}

/** The denominator of `mfu_pct`. */
export interface PeakReport {
  /** dense */
  tflops: number;
  /** fp16, bf16, tf32 or fp32 */
  precision: string;
  /** address of the data sheet */
  source?: string | null;
  /** how it was computed, where it is on no data sheet */
  derived?: string | null;
  /** the denominator in words */
  text: string;
}

/** A distribution. */
export interface Spread {
  mean?: number | null;
  p5?: number | null;
  p50?: number | null;
  p95?: number | null;
}

/** The largest of the samples. */
export interface Highest {
  max: number | null;
}

/** The mean and the largest of the samples. */
export interface MeanAndHighest {
  mean: number | null;
  max: number | null;
}

/** A GPU, and what training made of it. */
export interface GpuReport {
  /** the framework's ordinal, or NVML's where it has none */
  index: number;
  nvml_index?: number | null;
  uuid?: string | null;
  name?: string | null;
  label?: string | null;
  used_by_framework?: boolean;
  compute_capability?: string | null;
  /** null where work or peak is not known */
  peak?: PeakReport | null;
  /** NVML's utilization: share of time in which a kernel or a copy ran; the mean is over the run's time */
  utilization_pct?: Spread;
  /** Time between two of the driver's readings as observed in the run; each is the mean of it */
  utilization_refresh_ms?: number | null;
  /** what the readings cannot show: work and idling within most of them */
  utilization_note?: string | null;
  sm_active_pct?: Spread;
  /** share of time with lowered clocks, by reason: thermal, power, other */
  throttled_pct?: Record<string, number | null>;
  memory_used_bytes?: Highest;
  memory_total_bytes?: number | null;
  memory_process_bytes?: Highest;
  /** the GPU shares the machine's memory, which is not counted as its */
  unified_memory?: boolean;
  /** a MIG device: power and temperature are its board's */
  mig?: boolean;
  power_mw?: MeanAndHighest;
  temperature_c?: Highest;
  samples?: number | null;
  /** model FLOPs utilization: the model's work on this GPU against `peak` */
  mfu_pct?: number | null;
}

/** The steps of the profiler windows, by GPU index: means of a step by category. */
export interface TracedSteps {
  steps: number;
  per_gpu: Record<string, Record<string, number>>;
}

/** A source that could not be measured, and the remedy. */
export interface Unavailable {
  source: string;
  reason: string;
  cure?: string | null;
}

/** The cost of recording. */
export interface Overhead {
  callback_us_per_step?: number | null;
  sampler_cpu_pct?: number | null;
  recorder_cpu_pct?: number | null;
  hz?: number | null;
  windows_s?: number | null;
}

/** The energy of a GPU over a run, and what it was computed from. */
export interface GpuEnergy {
  index: number;
  energy_j: number;
  source: 'energy counter' | 'power samples';
  measured_s: number;
}

/** The energy of the GPUs in use, split by the training thread's activity. */
export interface Energy {
  total_j: number;
  /** true: from power samples, as the driver has no energy counter */
  estimated: boolean;
  /** seconds that samples cover */
  measured_s: number;
  /** by category of time_s: what the training thread did meanwhile */
  by_time_j: Record<string, number>;
  gpus: GpuEnergy[];
}

/** The outcome of `gpu-util try` for a finding: the advice as it was tried, in turns with the program as it is. */
export interface TriedFacts {
  /** in a sentence */
  text: string;
  /** what was changed */
  code: string;
  /** times faster */
  ratio: number;
  /** of its interval of 95 % */
  low: number;
  high: number;
  /** the interval excludes no change */
  resolved: boolean;
  pairs: number;
}

/** The remedy for a finding. */
export interface AdviceFacts {
  text: string;
  /** to paste; "" without */
  code: string;
  /** what the code replaces; "" where that is not known */
  before?: string | null;
  /** a condition was not observed: the code helps if the answer is yes */
  question?: boolean | null;
  /** what else the code changes: order, weights, a metric; "" = nothing */
  changes?: string | null;
  /** why `gpu-util try` cannot measure it; "" or absent = it can, where it knows the code */
  untried?: string | null;
}

/** A range of steps and of time, half-open. */
export interface Piece {
  start_step: number;
  /** exclusive */
  end_step: number;
  /** since the epoch */
  start_ns: number;
  end_ns: number;
}

/** A piece of evidence, ready to show. */
export interface EvidenceRow {
  name: string;
  label: string;
  value: string;
  /** the limit that it crossed, such as "≥ 5 %"; "" where nothing was compared */
  rule: string;
  /** value and limit as numbers, for a small chart */
  bar: [number, number] | null;
}

/** A finding with its words. */
export interface WordedFinding {
  /** unique within its run or session */
  id: string;
  /** a stable id, e.g. input_bound; `gpu-util report --rules` lists all */
  cause: string;
  /** for people; may be worded differently in any version */
  title?: string;
  /** seconds that it cost; no second is counted twice within a run */
  lost_s?: number | null;
  /** seconds that following the advice saves, at most */
  saves_s?: number | null;
  /** The least and the most seconds that following the advice saves; of a question, if the answer is yes. The most is null where nothing tells how much the steps can shrink */
  saves_range_s?: [number | null, number | null] | null;
  /** in place of the promise; absent where nothing was tried */
  tried?: TriedFacts | null;
  /** Duration of the script with several fits that it is about; absent where it is about this recording alone */
  of_s?: number | null;
  /** share of its time that was lost */
  severity?: number | null;
  confidence?: 'measured' | 'estimated';
  /** what was observed; units are the ends of the names */
  evidence?: Record<string, number | string | boolean | null>;
  /** the limits that were crossed, by the name of the evidence */
  threshold?: Record<string, number | null>;
  advice?: AdviceFacts;
  gpus?: number[];
  ranks?: number[];
  start_step?: number | null;
  end_step?: number | null;
  start_ns?: number | null;
  end_ns?: number | null;
  pieces?: Piece[] | null;
  rows?: EvidenceRow[];
  /** what the evidence names: the slowest stage, the callback; "" where it names none */
  culprit?: string;
  /** findings that one change fixes have this in common */
  fix?: string;
  /** of a GPU's time that it takes, as a series of its lane is named; "" where it has none of its own */
  part?: string;
}

/** The change that mends some findings of a row. */
export interface Remedy {
  /** the costliest finding that promises it */
  id: string;
  /** the least and the most that it saves of them all; of a question, if the answer is yes */
  saves_range_s: [number | null, number | null];
  /** that measures it; "" where it cannot be tried, or not from a script */
  command: string;
}

/** Findings that are listed as one: of one cause, at one time or at several. */
export interface FindingRow {
  /** in the order of the steps */
  ids: string[];
  /** the costliest */
  first: string;
  /** in all */
  lost_s: number | null;
  /** by what findings that it mends have as `fix` */
  remedies: Record<string, Remedy>;
}

/** Accelerator utilization, next to the limits of the benchmark that defines it. */
export interface AcceleratorWords {
  name: string;
  value: string;
  limits: string;
  text: string;
}

/** A run of the report as the tab shows it, with words; it is sent the whole run, for its export. */
export interface WordedReport {
  /** "imported trace", where a profiler's files were */
  job_source: string | null;
  fit_index: number | null;
  host: string | null;
  rank: number | null;
  world_size: number | null;
  trial: string | null;
  trial_config: string | null;
  framework: Framework | null;
  /** name of the TensorBoard run, "." for the log directory itself */
  run: string;
  /** runs with the same value are workers of one job */
  session: string;
  /** of one callback, which went on in this recording */
  fits: number;
  status: Status;
  /** seconds of training */
  wall_s: number | null;
  steps: number;
  step_ms: StepMs;
  /** The training thread's time by category (step, input_wait, compile, validation, callbacks, other); adds up to wall_s */
  time_s: Record<string, number>;
  /** By GPU index, an estimate: seconds of the run by category, which add up to wall_s; empty where unknown. `basis`: windows or nvml */
  gpu_time_est: Record<string, Record<string, number | string>>;
  gpus: GpuReport[];
  traced: TracedSteps;
  /** what could not be measured */
  unavailable: Unavailable[];
  /** what recording cost in this run */
  overhead: Overhead;
  /** of the GPUs in use over the whole run; null where no power was sampled */
  energy: Energy | null;
  /** one sentence for people */
  verdict: string;
  /** those that are not the default: `input_bound.wait_pct` */
  thresholds_set: Record<string, number>;
  batch_size: number | null;
  findings: WordedFinding[];
  spans: WordedFinding[];
  /** all of them, in the order of the verdict */
  rows: FindingRow[];
  /** `first` of the row that the verdict speaks of */
  lead: string | null;
  /** what the verdict says where nothing was found */
  calm: 'healthy' | 'compiling' | 'outside' | 'unexplained' | 'unjudged' | 'empty' | null;
  /** part of the time that is large and no finding's -> how much, and why */
  not_counted: Record<string, string>;
  /** what a run without findings does not use -> the change, or the command to try it */
  levers: Record<string, string>;
  au: AcceleratorWords | null;
}

/** The steps and the times of a recording. */
export interface Extent {
  start_ns: number;
  end_ns: number;
  first_step: number;
  last_step: number;
}

/** A series of a lane. */
export interface SeriesInfo {
  name: string;
  title: string;
}

/** The limit of a lane's values. */
export interface LaneLimit {
  value: number;
  title: string;
}

/** A lane of the timeline. */
export interface LaneInfo {
  id: string;
  group: string;
  title: string;
  unit: string;
  /** time: shares of each bucket, which add up to 100 % */
  kind: 'stack' | 'band' | 'time';
  series: SeriesInfo[];
  /** the end of its scale; null for that of its values */
  max?: number | null;
  note?: string | null;
  /** nothing ever happened in it: it stands among a GPU's, or the host's, lesser lanes */
  minor?: boolean;
  limit?: LaneLimit | null;
}

/** A part of a GPU's time, as a series of its lane is named. */
export interface TimePart {
  name: string;
  title: string;
  seconds: number;
}

/** The sums of a lane of time; its parts add up to what is known of the training's time. */
export interface TimeBudget {
  lane: string;
  known_s: number;
  /** From when to when a GPU was read, since the recording's start: at the ends its mean stands for what nobody read */
  sampled_ns: [number, number];
  /** the thread hands steps over in advance: its clocks say about when the GPU had nothing to do */
  is_estimate: boolean;
  /** from the bottom of the lane to its top */
  parts: TimePart[];
}

/** The finest level of an offline page's tiles, by axis. */
export interface FinestLevels {
  step: number;
  time: number;
}

/** A phase between steps, as in the `phases` table. */
export interface PhaseReply {
  kind: string;
  name: string;
  start_ns: number;
  end_ns: number;
  step: number;
  account: string;
  count: number;
}

/** A profiler window: a few steps that were traced. */
export interface WindowInfo {
  window: number;
  first_step: number;
  /** exclusive */
  stop_step: number;
  start_ns: number | null;
  end_ns: number | null;
  profile: string | null;
  /** its name in the Profile tab */
  profile_run: string | null;
  events: number | null;
  cost_s: number | null;
}

/** A recording. */
export interface RecordingReply {
  id: string;
  revision: string;
  report: WordedReport;
  extent: Extent;
  lanes: LaneInfo[];
  /** of each lane of time */
  budgets: TimeBudget[];
  /** absent where the server has every level */
  finest?: FinestLevels;
  /** the longest */
  phases: PhaseReply[];
  /** in the order of their steps */
  windows: WindowInfo[];
  problems: ReportedProblem[];
}

/** One traced step on one GPU (-1: the host, where no GPU was traced), with `<category>_ns`. */
export interface TracedStep {
  step: number;
  gpu: number;
  start_ns: number | null;
  duration_ns: number | null;
  [name: string]: number | null;
}

/** A kernel summed over a window and GPU; of GPU -1, an op on the host. */
export interface KernelReply {
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

/** Kernels of each step with most time. */
export interface StepKernels {
  names: string[];
  /** [step, gpu, index of the name, count, total_ns, max_ns] */
  rows: [number, number, number, number, number, number][];
}

/** The contents of a profiler window. */
export interface WindowReply {
  window: number;
  first_step: number;
  /** exclusive */
  stop_step: number;
  start_ns: number | null;
  end_ns: number | null;
  profile: string | null;
  /** its name in the Profile tab */
  profile_run: string | null;
  events: number | null;
  cost_s: number | null;
  steps: TracedStep[];
  /** with most time */
  kernels: KernelReply[];
  kernels_left_out: number;
  /** by GPU, of all kernels; "-1": ops on the host */
  kernel_total_ns: Record<string, number>;
  step_kernels?: StepKernels;
}

/** A worker's clock minus the reference worker's at a time, `drift` more each ns. */
export interface WorkerClock {
  offset_ns: number;
  drift: number;
  at_ns: number;
  text: string;
}

/** One recording of a job. */
export interface WorkerReply {
  id: string;
  rank: number | null;
  host: string | null;
  status?: Status;
  steps?: number | null;
  end_ns?: number | null;
  clock?: WorkerClock | null;
}

/** Workers of a job that are alike: the same causes at about the same cost. */
export interface WorkerGroup {
  ids: string[];
  ranks: number[];
  /** the verdict of the worst of them */
  text: string;
  lost_s: number;
}

/** The verdict on a job of several workers. */
export interface JobVerdict {
  text: string;
  /** of the recording that it is about: the one to open first */
  id: string;
  rank: number;
  /** id of the job's finding behind it; null where it is a worker's own verdict */
  finding: string | null;
  lost_s: number | null;
  saves_s: number | null;
  wall_s: number | null;
  faster_up_to: number | null;
  advice: AdviceFacts | null;
  /** the worst first */
  groups: WorkerGroup[];
}

/** Share of each cell of steps that a worker waits; of the late one, the share that its cause takes. */
export interface WaitRow {
  rank: number | null;
  shares: (number | null)[];
}

/** Share of the steps that the workers of a job wait for one of them. */
export interface Waits {
  /** the late one */
  rank: number;
  /** the category of time that makes it late */
  part: string;
  /** estimated: from profiler windows, one share for all steps */
  confidence: 'measured' | 'estimated';
  /** edges of the cells, as numbers of steps */
  steps: number[];
  /** the same, since the shown recording began */
  ns: number[];
  rows: WaitRow[];
}

/** The previous run of the same job: what its advice promised, and the gain. */
export interface Since {
  id: string;
  run: string;
  /** causes that this run does not have */
  gone: string[];
  /** gains: times as fast; the most is null where it has no upper end */
  estimated: [number | null, number | null];
  got: number;
  /** by more than runs that are alike differ */
  slower: boolean;
}

/** A recording among its like: the workers of its job, findings across them, and the fit before it. */
export interface JobReply {
  workers: WorkerReply[];
  /** null for a single process */
  verdict?: JobVerdict | null;
  findings: WordedFinding[];
  rows: FindingRow[];
  waits?: Waits | null;
  since: Since | null;
}
