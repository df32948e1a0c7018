/** How the categories of the accounts look, in the order in which they are drawn; the server names them. */
import type { WordedFinding, WordedReport } from '../api/types.ts';
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
  { key: 'step', colour: 'blue' },
  { key: 'input_wait', colour: 'amber', idle: true },
  { key: 'compile', colour: 'violet' },
  { key: 'validation', colour: 'mauve' },
  { key: 'callbacks', colour: 'olive' },
  { key: 'other', colour: 'grey' },
];

const GPU: Look[] = [
  { key: 'kernel', colour: 'blue' },
  { key: 'copy_h2d', colour: 'orange' },
  { key: 'copy_d2h', colour: 'rust' },
  { key: 'copy_d2d', colour: 'sand' },
  { key: 'collective', colour: 'teal' },
  { key: 'idle_input', colour: 'amber', idle: true },
  { key: 'idle_launch', colour: 'olive', idle: true },
  { key: 'idle_sync', colour: 'violet', idle: true },
  { key: 'idle_host', colour: 'mauve', idle: true },
  // Where no profiler window was taken, NVML alone tells running from idle.
  { key: 'gpu_active', colour: 'blue' },
  { key: 'idle', colour: 'grey', idle: true },
  { key: 'outside_steps', colour: 'mauve', idle: true },
  { key: 'other', colour: 'grey', idle: true },
];

const named = (account: 'host' | 'gpu' | 'host_step', looks: Look[]): Category[] => looks.map((look) => ({ ...look, ...titleOf(account, look.key) }));

export const hostCategories = (): Category[] => named('host', HOST);

export const gpuCategories = (): Category[] => named('gpu', GPU);

/** What NVML's utilization means. */
export const gpuActive = (): { title: string; explanation: string } => titleOf('gpu', 'gpu_active');

/** The ten categories of a traced step on a GPU. */
export const tracedCategories = (): Category[] => gpuCategories().filter(({ key }) => !['gpu_active', 'idle', 'outside_steps'].includes(key));

/** A traced step where no GPU was traced: the host alone. */
export const hostStepCategories = (): Category[] =>
  named('host_step', [
    { key: 'idle_host', colour: 'blue' },
    { key: 'idle_input', colour: 'amber', idle: true },
  ]);

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

/** The thread's account; in a worker's, what it waits in its steps for another one is a part of its own. */
export function hostSlices({ time_s, rank }: Pick<WordedReport, 'time_s' | 'rank'>, findings: readonly WordedFinding[]): Slice[] {
  const parts = slices(time_s, hostCategories());
  const late = findings.find(({ ranks, lost_s }) => ranks?.length === 1 && ranks[0] !== rank && lost_s);
  const [step] = parts;
  if (!late || step?.key !== 'step') return parts;
  // What the late one loses before its steps, this one may lose in part before its own.
  const part = late.id?.split('.').pop() ?? '';
  const waiting = Math.min(step.seconds, (late.lost_s ?? 0) - (parts.find(({ key }) => key === part)?.seconds ?? 0));
  if (waiting <= 0) return parts;
  const explanation = 'in its steps, estimated: by how much longer that worker takes before each of them';
  return [{ ...step, seconds: step.seconds - waiting }, { key: 'waiting', colour: 'grey', idle: true, title: `waiting for worker ${late.ranks?.[0]}`, explanation, seconds: waiting }, ...parts.slice(1)];
}

/** Colour of a series of the step breakdown: that of its category of the thread's time. */
export const seriesColour = (name: string): string => (name === 'gpu_wait' ? 'sky' : (HOST.find(({ key }) => key === name)?.colour ?? 'blue'));

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
