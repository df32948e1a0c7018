/** Profiler windows on the axis, and the traced step nearest to a place. Pure. */
import type { Extent, TracedStep, WindowInfo } from '../api/types.ts';
import type { Range } from '../math/range.ts';
import type { OpenWindow } from '../state/hash.ts';
import type { Axis } from '../tiles/request.ts';
import type { Box } from './spans.ts';

/** The range of a profiler window, in units of the axis; null on the time axis if its times are not known. */
export function windowRange(window: WindowInfo, axis: Axis, extent: Extent): Range | null {
  if (axis === 'step') return { start: window.first_step, end: Math.max(window.stop_step, window.first_step + 1) };
  if (window.start_ns === null || window.end_ns === null) return null;
  return { start: window.start_ns - extent.start_ns, end: window.end_ns - extent.start_ns };
}

/** The windows that have a range on the axis, all in one row. */
export function windowBoxes(windows: WindowInfo[], axis: Axis, extent: Extent): Box<WindowInfo>[] {
  return windows.flatMap((item) => {
    const range = windowRange(item, axis, extent);
    return range ? [{ item, range, row: 0 }] : [];
  });
}

/** Numbers of the traced steps, ascending, each once. */
export const tracedSteps = (steps: readonly TracedStep[]): number[] => [...new Set(steps.map(({ step }) => step))].sort((a, b) => a - b);

/** The number of the traced step that was asked for, else of the nearest by number, or by time (ns since the epoch); null without any. */
export function nearestStep(steps: readonly TracedStep[], open: Pick<OpenWindow, 'step' | 'ns'>): number | null {
  let best: number | null = null;
  let least = Infinity;
  for (const { step, start_ns, duration_ns } of steps) {
    const start = start_ns ?? NaN;
    const end = start + (duration_ns ?? 0);
    let away = step;
    if (open.step !== null) away = Math.abs(step - open.step);
    else if (open.ns !== undefined) away = Math.max(0, start - open.ns, open.ns - end);
    if (away < least) [best, least] = [step, away];
  }
  return best;
}
