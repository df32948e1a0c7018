/** Values under the cursor and means over a range, read from the tiles a view has. */
import type { LaneInfo } from '../api/types.ts';
import type { Range } from '../math/range.ts';
import { seriesKey } from '../tiles/decode.ts';
import { TILE, type Axis, type TileStore } from '../tiles/store.ts';

export interface Value {
  min: number;
  max: number;
  mean: number;
}

/** Of the newest bucket at or before `at` that has data, looking back at most `reach` axis units. */
export function valueAt(
  tiles: TileStore,
  axis: Axis,
  level: number,
  lane: string,
  series: string,
  at: number,
  reach: number,
): Value | null {
  const key = seriesKey(lane, series);
  const found = tiles.best(axis, level, { start: Math.max(0, at - reach), end: at + 1e-6 }, key);
  for (let t = found.length - 1; t >= 0; t--) {
    const tile = found[t];
    const data = tile?.series.get(key);
    if (!tile || !data) continue;
    const size = 2 ** tile.level;
    const last = Math.min(TILE - 1, Math.floor(at / size) - tile.index * TILE);
    for (let i = last; i >= 0; i--) {
      const bucket = (tile.index * TILE + i) * size;
      if (bucket + size < at - reach) return null;
      const mean = data.mean[i] as number;
      if (!Number.isNaN(mean)) return { min: data.min[i] as number, max: data.max[i] as number, mean };
    }
  }
  return null;
}

/** Steps are counted by steps, samples by time: the axis on which each bucket of a lane weighs alike. */
export const naturalAxis = (lane: LaneInfo): Axis => (lane.group === 'training' ? 'step' : 'time');

/**
 * Mean over the buckets that overlap `range`, each weighed by its share in it: by steps for what is
 * measured once a step, by time for what is sampled, so that the mean is the same at every zoom and
 * on both axes.
 */
export function valueOver(
  tiles: TileStore,
  axis: Axis,
  level: number,
  lane: LaneInfo,
  series: string,
  range: Range,
): (Value & { buckets: number }) | null {
  const key = seriesKey(lane.id, series);
  const across = naturalAxis(lane) !== axis;
  const found: { start: number; end: number; at: number; mean: number }[] = [];
  let min = Infinity;
  let max = -Infinity;
  let end = NaN;
  for (const tile of tiles.best(axis, level, range, key)) {
    const data = tile.series.get(key);
    if (!data) continue;
    const size = 2 ** tile.level;
    const other = axis === 'step' ? tile.timeAt : tile.stepAt;
    const from = Math.max(0, Math.floor(range.start / size) - tile.index * TILE);
    const to = Math.min(TILE, Math.ceil(range.end / size) - tile.index * TILE);
    for (let i = from; i < to; i++) {
      if (!Number.isNaN(other[i] as number)) end = other[i] as number;
      const mean = data.mean[i] as number;
      if (Number.isNaN(mean)) continue;
      const start = (tile.index * TILE + i) * size;
      found.push({ start, end: start + size, at: other[i] as number, mean });
      min = Math.min(min, data.min[i] as number);
      max = Math.max(max, data.max[i] as number);
    }
  }
  let weight = 0;
  let sum = 0;
  found.forEach(({ start, end: stop, at, mean }, i) => {
    const share = (Math.min(range.end, stop) - Math.max(range.start, start)) / (stop - start);
    let own = share;
    if (across) {
      // A bucket counts until the next one that has data; the last one as long as its neighbours.
      const next = found[i + 1]?.at ?? Math.max(end, at + (i > 0 ? at - (found[i - 1] as { at: number }).at : 1));
      own = share * Math.max(0, next - at);
    }
    weight += own;
    sum += mean * own;
  });
  if (found.length === 0) return null;
  if (weight <= 0) return { min, max, mean: found.reduce((all, { mean }) => all + mean, 0) / found.length, buckets: found.length };
  return { min, max, mean: sum / weight, buckets: found.length };
}

export interface LaneValue {
  series: { name: string; title: string; value: Value | null }[];
  /** Of a stack: the sum of the means; of a band: its first series' mean. */
  headline: number | null;
}

export function readLane(lane: LaneInfo, read: (series: string) => Value | null): LaneValue {
  const series = lane.series.map(({ name, title }) => ({ name, title: title || name, value: read(name) }));
  const known = series.filter(({ value }) => value !== null);
  if (known.length === 0) return { series, headline: null };
  const headline =
    lane.kind === 'stack'
      ? known.reduce((sum, { value }) => sum + (value as Value).mean, 0)
      : (known[0] as { value: Value }).value.mean;
  return { series, headline };
}

/** How far back a value still counts as current: a few buckets, and at least two seconds or twenty steps. */
export const reachOf = (axis: Axis, level: number): number =>
  axis === 'time' ? Math.max(2e9, 4 * 2 ** level) : Math.max(20, 4 * 2 ** level);
