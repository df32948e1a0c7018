/** The categories of the two accounts, in the order in which they are drawn. */

export interface Category {
  key: string;
  title: string;
  colour: string;
  /** Time in which the device or thread did nothing useful: hatched, so that colour is not alone. */
  idle?: boolean;
  explanation: string;
}

export const HOST_CATEGORIES: Category[] = [
  {
    key: 'step',
    title: 'training step',
    colour: 'blue',
    explanation: 'inside the train function, and waiting for the GPU to finish it',
  },
  {
    key: 'input_wait',
    title: 'waiting for input',
    colour: 'amber',
    idle: true,
    explanation: 'the next batch was not ready when the step asked for it',
  },
  { key: 'compile', title: 'compiling', colour: 'violet', explanation: 'tracing the model and compiling it with XLA' },
  {
    key: 'validation',
    title: 'validation',
    colour: 'mauve',
    explanation: 'evaluation during fit, with its own waits and callbacks',
  },
  {
    key: 'callbacks',
    title: 'callbacks',
    colour: 'olive',
    explanation: "all callbacks but this recorder's, checkpoints included",
  },
  { key: 'other', title: 'other', colour: 'grey', explanation: 'wall time that none of the others explains' },
];

export const GPU_CATEGORIES: Category[] = [
  { key: 'kernel', title: 'kernels', colour: 'blue', explanation: 'at least one kernel runs' },
  {
    key: 'copy_h2d',
    title: 'copies to GPU',
    colour: 'orange',
    explanation: 'host-to-device copies with no kernel beside them',
  },
  {
    key: 'copy_d2h',
    title: 'copies to host',
    colour: 'rust',
    explanation: 'device-to-host copies with no kernel beside them',
  },
  {
    key: 'copy_d2d',
    title: 'copies on device',
    colour: 'sand',
    explanation: 'device-to-device copies with no kernel beside them',
  },
  {
    key: 'collective',
    title: 'collectives',
    colour: 'teal',
    explanation: 'communication between GPUs with no kernel beside it',
  },
  {
    key: 'idle_input',
    title: 'idle: input',
    colour: 'amber',
    idle: true,
    explanation: 'idle while the host waits for the next batch',
  },
  {
    key: 'idle_launch',
    title: 'idle: launch',
    colour: 'olive',
    idle: true,
    explanation: 'idle between kernels that the host has not launched yet',
  },
  {
    key: 'idle_sync',
    title: 'idle: sync',
    colour: 'violet',
    idle: true,
    explanation: 'idle around device synchronisations',
  },
  {
    key: 'idle_host',
    title: 'idle: host',
    colour: 'mauve',
    idle: true,
    explanation: 'idle during validation set-up, callbacks and other host work',
  },
  // Where no profiler window was taken, NVML alone tells running from idle.
  {
    key: 'kernel_active',
    title: 'kernel active',
    colour: 'blue',
    explanation: 'any kernel ran, by the NVML utilization samples; how many of its parts were busy is not known',
  },
  { key: 'idle', title: 'idle', colour: 'grey', idle: true, explanation: 'no kernel ran, by the NVML utilization samples' },
  {
    key: 'outside_steps',
    title: 'outside steps',
    colour: 'mauve',
    idle: true,
    explanation: 'validation, callbacks, compilation: no profiler window looked there',
  },
  { key: 'other', title: 'other', colour: 'grey', idle: true, explanation: 'not explained by the others' },
];

/** The ten categories of a traced step on a GPU. */
export const TRACED_CATEGORIES: Category[] = GPU_CATEGORIES.filter(({ key }) => !['kernel_active', 'idle', 'outside_steps'].includes(key));

/** A traced step where no GPU was traced: the host alone. */
export const HOST_STEP_CATEGORIES: Category[] = [
  { key: 'idle_host', title: 'the rest of the step', colour: 'blue', explanation: 'ops, Python and all else that the host did' },
  { key: 'idle_input', title: 'waiting for input', colour: 'amber', idle: true, explanation: 'the host fetched the next batch' },
];

export interface Slice extends Category {
  seconds: number;
}

/** The account's categories that took time, largest kept in drawing order; unknown keys come last. */
export function slices(account: Record<string, unknown> | null | undefined, categories: Category[]): Slice[] {
  const out: Slice[] = [];
  const known = new Set<string>();
  for (const category of categories) {
    known.add(category.key);
    const value = account?.[category.key];
    if (typeof value === 'number' && value > 0) out.push({ ...category, seconds: value });
  }
  for (const [key, value] of Object.entries(account ?? {})) {
    if (known.has(key) || typeof value !== 'number' || !(value > 0)) continue;
    out.push({ key, title: key.replace(/_/g, ' '), colour: 'grey', explanation: '', seconds: value });
  }
  return out;
}

/** Colour of a series of the step breakdown, by the words in its name. */
export function seriesColour(name: string): string {
  if (/input|wait_input|data/.test(name)) return 'amber';
  if (/compil/.test(name)) return 'violet';
  if (/gpu_wait|device_wait|sync/.test(name)) return 'sky';
  if (/callback/.test(name)) return 'olive';
  if (/valid/.test(name)) return 'mauve';
  if (/other/.test(name)) return 'grey';
  return 'blue';
}

/** Colour of a band lane, by what it measures. */
export function laneColour(id: string): string {
  const name = id.slice(id.indexOf(':') + 1);
  if (/input_wait/.test(name)) return 'amber';
  if (/utilization|kernel|sm_active|busy/.test(name)) return 'blue';
  if (/tensor/.test(name)) return 'olive';
  if (/memory|vram|ram/.test(name)) return 'mauve';
  if (/temperature|throttle/.test(name)) return 'red';
  if (/power/.test(name)) return 'orange';
  if (/clock/.test(name)) return 'violet';
  if (/pcie|nvlink|network|disk|net/.test(name)) return 'teal';
  return 'slate';
}
