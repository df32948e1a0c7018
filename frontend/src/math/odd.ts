/** Which of many GPUs differ from the rest. Pure. */
import type { GpuReport as Gpu } from '../api/types.ts';

/** Points of utilization by which GPUs of one job differ without meaning anything. */
const LEAST_PCT = 6;
const LEAST_THROTTLED_PCT = 2;
/** Share of the memory's peak by which GPUs that hold the same differ. */
const MEMORY = 0.1;

/** The median; NaN of no values. */
export const median = (values: readonly number[]): number => {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (sorted.length === 0) return NaN;
  if (sorted.length % 2 === 1) return sorted[middle] as number;
  return ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
};

const throttled = (gpu: Gpu): number => Object.values(gpu.throttled_pct ?? {}).reduce<number>((sum, pct) => sum + (pct ?? 0), 0);

/**
 * Splits GPUs into those that stand out (in use, memory, throttling, model, or because a finding
 * names them) and the rest, which are alike. Both in their own order.
 */
export function split(gpus: readonly Gpu[], active: (gpu: Gpu) => number | null, named: ReadonlySet<string>): { odd: Gpu[]; alike: Gpu[] } {
  const numbersOf = (values: (number | null | undefined)[]): number[] => values.filter((value): value is number => typeof value === 'number');
  const away = (values: number[]): number => median(values.map((value) => Math.abs(value - median(values))));
  const use = numbersOf(gpus.map(active));
  const peaks = numbersOf(gpus.map((gpu) => gpu.memory_used_bytes?.max));
  const slowed = gpus.map(throttled);
  const usual = {
    use: median(use), spread: Math.max(LEAST_PCT, 6 * away(use)), peak: median(peaks), slowed: median(slowed),
    used: gpus.filter((gpu) => gpu.used_by_framework === false).length <= gpus.length / 2,
    name: [...gpus].map(({ name }) => name ?? '').sort()[gpus.length >> 1],
  };
  const differs = (gpu: Gpu): boolean => {
    const own = active(gpu);
    const peak = gpu.memory_used_bytes?.max;
    return (
      named.has(`gpu${gpu.index}`) ||
      (gpu.used_by_framework !== false) !== usual.used ||
      (gpu.name ?? '') !== usual.name ||
      (own === null ? use.length > 0 : Math.abs(own - usual.use) > usual.spread) ||
      (typeof peak === 'number' && Math.abs(peak - usual.peak) > MEMORY * Math.max(peak, usual.peak)) ||
      Math.abs(throttled(gpu) - usual.slowed) > LEAST_THROTTLED_PCT
    );
  };
  const odd = gpus.filter(differs);
  return { odd, alike: gpus.filter((gpu) => !odd.includes(gpu)) };
}
