/** How the categories of the accounts look, in the order in which they are drawn; the server names them. */
import { titleOf } from './vocabulary.ts';

interface Look {
  key: string;
  colour: string;
  /** Time in which the device or thread did nothing useful: hatched, so that colour is not alone. */
  idle?: boolean;
}

export interface Category extends Look {
  title: string;
  explanation: string;
}

const HOST: Look[] = [
  { key: 'step', colour: 'busy' },
  { key: 'input_wait', colour: 'input' },
  { key: 'compile', colour: 'compile' },
  { key: 'validation', colour: 'validation' },
  { key: 'callbacks', colour: 'callbacks' },
  { key: 'other', colour: 'rest' },
];

const GPU: Look[] = [
  { key: 'kernel', colour: 'busy' },
  { key: 'copy_h2d', colour: 'copies' },
  { key: 'copy_d2h', colour: 'copies' },
  { key: 'copy_d2d', colour: 'copies' },
  { key: 'collective', colour: 'steel' },
  { key: 'idle_input', colour: 'input' },
  { key: 'idle_launch', colour: 'launch', idle: true },
  { key: 'idle_sync', colour: 'launch', idle: true },
  { key: 'idle_host', colour: 'grey', idle: true },
  { key: 'other', colour: 'rest' },
];

const named = (account: 'host' | 'gpu' | 'host_step', looks: Look[]): Category[] => looks.map((look) => ({ ...look, ...titleOf(account, look.key) }));

export const hostCategories = (): Category[] => named('host', HOST);

/** The ten categories of a traced step on a GPU. */
export const gpuCategories = (): Category[] => named('gpu', GPU);

/** What NVML's utilization means. */
export const gpuActive = (): { title: string; explanation: string } => titleOf('gpu', 'gpu_active');

/** A traced step where no GPU was traced: the host alone. */
export const hostStepCategories = (): Category[] =>
  named('host_step', [
    { key: 'idle_host', colour: 'busy' },
    { key: 'idle_input', colour: 'input' },
  ]);

export interface Slice extends Category {
  seconds: number;
}

/** The account's categories that took time, in drawing order; keys without a category come last. */
export function slices(account: Record<string, unknown> | null | undefined, categories: Category[]): Slice[] {
  const out: Slice[] = [];
  const groups = new Set<string>();
  for (const category of categories) {
    groups.add(category.key);
    const value = account?.[category.key];
    if (typeof value === 'number' && value > 0) out.push({ ...category, seconds: value });
  }
  for (const [key, value] of Object.entries(account ?? {})) {
    if (groups.has(key) || typeof value !== 'number' || !(value > 0)) continue;
    out.push({ key, title: key.replace(/_/g, ' '), colour: 'grey', explanation: '', seconds: value });
  }
  return out;
}

/** Colour of a series of the step breakdown: that of its category of the thread's time. */
export const seriesColour = (name: string): string => (name === 'gpu_wait' ? 'sky' : (HOST.find(({ key }) => key === name)?.colour ?? 'blue'));

/** Colour of a band lane: that of the part of the time that it measures, else neutral. */
export function laneColour(id: string): string {
  if (/input_wait/.test(id)) return 'input';
  return /:(utilization|kernel_busy|any_busy)_pct/.test(id) ? 'busy' : 'slate';
}
