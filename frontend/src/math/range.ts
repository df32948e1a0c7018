/** Half-open ranges of the data axis and their mapping to pixels. Pure: no DOM, no state. */

/** `[start, end)` in axis units: steps, or nanoseconds since the recording began. */
export interface Range {
  readonly start: number;
  readonly end: number;
}

export const span = (range: Range): number => range.end - range.start;

export const toPixel = (range: Range, width: number, value: number): number =>
  ((value - range.start) / span(range)) * width;

export const toValue = (range: Range, width: number, pixel: number): number =>
  range.start + (pixel / width) * span(range);

/** Keeps `range` inside `bounds` and no narrower than `narrowest`, moving before shrinking it. */
export function clamp(range: Range, bounds: Range, narrowest: number): Range {
  const whole = Math.max(span(bounds), narrowest);
  const length = Math.min(Math.max(span(range), narrowest), whole);
  const centre = (range.start + range.end) / 2;
  let start = span(range) < narrowest ? centre - length / 2 : range.start;
  start = Math.min(Math.max(start, bounds.start), bounds.start + whole - length);
  return { start, end: start + length };
}

/** Zooms by `factor` (below 1 zooms in), keeping the value under `anchor` where it is. */
export function zoomAt(range: Range, anchor: number, factor: number): Range {
  return {
    start: anchor - (anchor - range.start) * factor,
    end: anchor + (range.end - anchor) * factor,
  };
}

/** Where a drawing of `from` lies in the view `to`: the CSS transform of a canvas `width` pixels wide, from its left edge. */
export const stretched = (from: Range, to: Range, width: number): string =>
  `translateX(${toPixel(to, width, from.start)}px) scaleX(${span(from) / span(to)})`;

export const shift = (range: Range, by: number): Range => ({ start: range.start + by, end: range.end + by });

/** `range` with a margin on both sides, as a share of its length. */
export function padded(range: Range, share: number): Range {
  const by = span(range) * share;
  return { start: range.start - by, end: range.end + by };
}

export const sameRange = (a: Range | null, b: Range | null): boolean =>
  a === b || (!!a && !!b && a.start === b.start && a.end === b.end);

/** The power-of-two level whose buckets are at most one pixel wide, so one pixel sees one or two. */
export function levelFor(range: Range, pixels: number): number {
  const perPixel = span(range) / Math.max(1, pixels);
  return Math.max(0, Math.floor(Math.log2(Math.max(perPixel, 1))));
}

/** Index of the last element of sorted `values` that is <= `value`, or -1. NaN is not allowed. */
export function lastAtMost(values: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((values[middle] as number) <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
