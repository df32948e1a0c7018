/** Round tick positions for steps, durations and the clock, and round upper ends for values. */
import type { Range } from './range.ts';

const SECOND = 1e9;
const DURATIONS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8,
  2e8, 5e8, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 20 * SECOND, 30 * SECOND, 60 * SECOND, 120 * SECOND,
  300 * SECOND, 600 * SECOND, 1200 * SECOND, 1800 * SECOND, 3600 * SECOND, 7200 * SECOND, 10800 * SECOND,
  21600 * SECOND, 43200 * SECOND, 86400 * SECOND, 172800 * SECOND, 604800 * SECOND,
];

/** The smallest of 1, 2, 5 times a power of ten that is at least `value`. */
export function niceStep(value: number): number {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 5]) if (factor * power >= value * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

/** A round number at least `value`, for the top of a value axis; finer than `niceStep`. `binary`: round in KiB, MiB, … */
export function niceTop(value: number, binary = false): number {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  if (binary && value >= 1024) return niceTop(value / 1024, true) * 1024;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8])
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

export interface Ticks {
  readonly step: number;
  readonly values: number[];
}

function positions(range: Range, step: number, offset = 0): number[] {
  const values: number[] = [];
  const first = Math.ceil((range.start + offset) / step) * step - offset;
  for (let i = 0, value = first; value <= range.end && i < 1000; i++, value = first + i * step) values.push(value);
  return values;
}

export function stepTicks(range: Range, most: number): Ticks {
  const step = Math.max(1, niceStep((range.end - range.start) / Math.max(1, most)));
  return { step, values: positions(range, step) };
}

/** Ticks in nanoseconds; `offset` shifts them to round moments of the clock. */
export function timeTicks(range: Range, most: number, offset = 0): Ticks {
  const wanted = (range.end - range.start) / Math.max(1, most);
  const step = DURATIONS.find((duration) => duration >= wanted) ?? niceStep(wanted / 604800e9) * 604800e9;
  return { step, values: positions(range, step, offset % step) };
}
