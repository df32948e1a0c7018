/** From tiles to the points of one lane: at most one per device pixel, spikes kept, gaps marked. */
import type { Range } from '../math/range.ts';
import type { Axis } from '../tiles/request.ts';
import { TILE, type Tile } from '../tiles/store.ts';

/** Points of a lane with `series` series, in pixels along x. Reused between frames. */
export class Points {
  n = 0;
  /** Left and right edge of each point, in pixels. */
  x0 = new Float32Array(0);
  x1 = new Float32Array(0);
  /** Start of each point in nanoseconds since the recording began. */
  time = new Float64Array(0);
  min: Float32Array[] = [];
  max: Float32Array[] = [];
  mean: Float32Array[] = [];

  /** Makes room for `capacity` points of `series` series; the points in it are lost. */
  reset(capacity: number, series: number): void {
    this.n = 0;
    if (this.x0.length < capacity) {
      this.x0 = new Float32Array(capacity);
      this.x1 = new Float32Array(capacity);
      this.time = new Float64Array(capacity);
      this.min = [];
    }
    if (this.min.length < series) {
      const size = this.x0.length;
      const grow = (): Float32Array[] => Array.from({ length: series }, () => new Float32Array(size));
      this.min = grow();
      this.max = grow();
      this.mean = grow();
    }
  }
}

/**
 * Fills `out` with the buckets of `tiles` that lie in `range`, those that share a pixel merged into one point: x in px
 * of `width`, minimum and maximum of each key, and the mean of the buckets' means (NaN without any). `range` is in units
 * of the axis, steps or ns; a bucket is 2 ** level of them. Buckets without data, and tiles that lack a key, are
 * skipped; the next bucket with data beyond each edge of `range` is kept, so that lines reach the border.
 */
export function resample(tiles: Tile[], keys: string[], range: Range, width: number, out: Points): Points {
  const level = tiles[0]?.level ?? 0;
  const size = 2 ** level;
  const scale = width / (range.end - range.start);
  out.reset(tiles.length * TILE + 2, keys.length);
  // The same, only quicker.
  if (keys.length === 1) return resampleOne(tiles, keys[0] as string, range, scale, size, out);
  const counts = new Float32Array(keys.length);
  let pixel = -Infinity;
  // Number of the point that is being filled.
  let n = -1;
  for (const tile of tiles) {
    const data = keys.map((key) => tile.series.get(key));
    if (data.some((series) => !series)) continue;
    const tileStart = tile.index * TILE;
    const [from, to] = bucketsOf(tile, (data[0] as { mean: Float32Array }).mean, range, size);
    for (let i = from; i < to; i++) {
      let hasData = false;
      for (const series of data) if (!Number.isNaN((series as { mean: Float32Array }).mean[i])) hasData = true;
      if (!hasData) continue;
      const left = ((tileStart + i) * size - range.start) * scale;
      const column = Math.floor(left);
      if (column !== pixel) {
        if (n >= 0) averageSeries(out, n, counts);
        n++;
        pixel = column;
        out.x0[n] = left;
        out.time[n] = tile.timeAt[i] as number;
        counts.fill(0);
        for (let s = 0; s < keys.length; s++) {
          (out.min[s] as Float32Array)[n] = Infinity;
          (out.max[s] as Float32Array)[n] = -Infinity;
          (out.mean[s] as Float32Array)[n] = 0;
        }
      }
      out.x1[n] = left + size * scale;
      for (let s = 0; s < keys.length; s++) {
        const series = data[s] as { min: Float32Array; max: Float32Array; mean: Float32Array };
        const mean = series.mean[i] as number;
        if (Number.isNaN(mean)) continue;
        const low = series.min[i] as number;
        const high = series.max[i] as number;
        const min = out.min[s] as Float32Array;
        const max = out.max[s] as Float32Array;
        if (low < (min[n] as number)) min[n] = low;
        if (high > (max[n] as number)) max[n] = high;
        (out.mean[s] as Float32Array)[n] = ((out.mean[s] as Float32Array)[n] as number) + mean;
        counts[s] = (counts[s] as number) + 1;
      }
    }
  }
  if (n >= 0) averageSeries(out, n, counts);
  out.n = n + 1;
  return out;
}

/**
 * The half-open range of the buckets of `tile` that lie in `range`, and the nearest with data beyond each of its edges;
 * `size`: units of the axis in a bucket.
 */
function bucketsOf({ index }: Tile, mean: Float32Array, range: Range, size: number): [number, number] {
  let from = Math.max(0, Math.floor(range.start / size) - 1 - index * TILE);
  let to = Math.min(TILE, Math.ceil(range.end / size) + 1 - index * TILE);
  while (from > 0 && Number.isNaN(mean[from])) from--;
  while (to > 0 && to < TILE && Number.isNaN(mean[to - 1])) to++;
  return [from, to];
}

/** `resample` for a lane of one series, as nearly all are; `scale`: pixels a unit of the axis, `size`: units a bucket. */
function resampleOne(tiles: Tile[], key: string, range: Range, scale: number, size: number, out: Points): Points {
  const { x0, x1, time } = out;
  const [min, max, mean] = [out.min[0] as Float32Array, out.max[0] as Float32Array, out.mean[0] as Float32Array];
  const wide = size * scale;
  let pixel = -Infinity;
  let n = -1;
  let many = 0;
  let sum = 0;
  for (const tile of tiles) {
    const series = tile.series.get(key);
    if (!series) continue;
    const [from, to] = bucketsOf(tile, series.mean, range, size);
    let left = ((tile.index * TILE + from) * size - range.start) * scale;
    for (let i = from; i < to; i++, left += wide) {
      const value = series.mean[i] as number;
      if (value !== value) continue; // NaN
      const low = series.min[i] as number;
      const high = series.max[i] as number;
      const column = Math.floor(left);
      if (column !== pixel) {
        if (n >= 0) mean[n] = sum / many;
        n++;
        pixel = column;
        x0[n] = left;
        time[n] = tile.timeAt[i] as number;
        min[n] = low;
        max[n] = high;
        sum = value;
        many = 1;
      } else {
        if (low < (min[n] as number)) min[n] = low;
        if (high > (max[n] as number)) max[n] = high;
        sum += value;
        many++;
      }
      x1[n] = left + wide;
    }
  }
  if (n >= 0) mean[n] = sum / many;
  out.n = n + 1;
  return out;
}

/** Divides the sums in point `n` by the number of buckets of each series; NaN without any. */
function averageSeries(out: Points, n: number, counts: Float32Array): void {
  for (let s = 0; s < counts.length; s++) {
    const mean = out.mean[s] as Float32Array;
    const many = counts[s] as number;
    mean[n] = many > 0 ? (mean[n] as number) / many : NaN;
  }
}

/** Time that a bucket of the step axis lasts on average, ns; 0 for fewer than two points. */
function averageBucket(points: Points): number {
  if (points.n < 2) return 0;
  const time = (points.time[points.n - 1] as number) - (points.time[0] as number);
  const pixels = (points.x0[points.n - 1] as number) - (points.x0[0] as number);
  return pixels > 0 ? (time / pixels) * ((points.x1[0] as number) - (points.x0[0] as number)) : 0;
}

/** Room for the gaps of one lane: at most two strides of 64 fit between 64 and 128 points. */
const GAPS = new Float64Array(128);

/**
 * The longest time between the starts of two neighbouring points that still belong to one line, in ns; longer gaps were
 * not measured. It follows the buckets' width and the median distance of the points.
 */
export function joinLimit(points: Points, axis: Axis, level: number): number {
  const bucketNs = axis === 'time' ? 2 ** level : averageBucket(points);
  // A sample of the distances is enough.
  const stride = Math.max(1, Math.floor(points.n / 64));
  let n = 0;
  for (let i = 1; i < points.n; i += stride) GAPS[n++] = (points.time[i] as number) - (points.time[i - 1] as number);
  const median = GAPS.subarray(0, n).sort()[n >> 1] ?? 0;
  // Samples arrive ten times a second unless a driver is slow: a second and a half without is a gap.
  return Math.max(1.5e9, 1.6 * bucketNs, bucketNs > 0.5e9 ? 0 : 4 * Math.min(median, 5e9));
}

/** Of fewer points than these the greatest is no outlier. */
const HANDFUL = 10;

/**
 * The greatest finite value of the points, without the top `share` (0 to 1) of them so that one spike hides nothing; 0
 * without points. `values`: of point `i`.
 */
export function robustTop(points: Points, values: (i: number) => number, share: number): number {
  let n = 0;
  let top = 0;
  if (share === 0) {
    for (let i = 0; i < points.n; i++) {
      const value = values(i);
      if (value > top && value < Infinity) top = value;
    }
    return top;
  }
  const finite = new Float32Array(points.n);
  for (let i = 0; i < points.n; i++) {
    const value = values(i);
    if (Number.isFinite(value)) finite[n++] = value;
  }
  if (n === 0) return top;
  const sorted = finite.subarray(0, n).sort();
  // A run's first steps are few and the first of them is slow: one outlier at least, but none among a handful.
  const outliers = n < HANDFUL ? 0 : Math.max(1, Math.floor(n * share));
  return sorted[n - 1 - outliers] as number;
}
