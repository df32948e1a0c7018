/** Values under the cursor and means over a range, read from the tiles a view has. */
import type { LaneInfo, RecordingReply } from '../api/types.ts';
import type { Range } from '../math/range.ts';
import { seriesKey } from '../tiles/decode.ts';
import type { Frame } from './frame.ts';
import type { Axis } from '../tiles/request.ts';
import { TILE, type TileStore } from '../tiles/store.ts';

export interface Value {
  min: number;
  max: number;
  mean: number;
}

/**
 * The values of the newest bucket at or before `at` that has data, looking back at most `reach`; null without one. Both
 * are in units of the axis.
 */
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
  // The tile before this one only where this one has nothing: both may be there more coarsely alone.
  for (const start of [at, Math.max(0, at - reach)])
    for (const tile of tiles.best(axis, level, { start, end: at + 1e-6 }, key).reverse()) {
      const data = tile.series.get(key);
      const size = 2 ** tile.level;
      let i = Math.min(TILE - 1, Math.floor(at / size) - tile.index * TILE);
      for (; data && i >= 0 && (tile.index * TILE + i + 1) * size >= at - reach; i--) {
        const mean = data.mean[i] as number;
        if (!Number.isNaN(mean)) return { min: data.min[i] as number, max: data.max[i] as number, mean };
      }
    }
  return null;
}

/** Steps are counted by steps, samples by time: the axis on which each bucket of a lane weighs alike. */
export const naturalAxis = (lane: LaneInfo): Axis => (lane.group === 'training' ? 'step' : 'time');

/**
 * Minimum, maximum and mean over the buckets that overlap `range`, and their number; null without data. Each weighs by
 * its share in the range: by steps for what is measured once a step, by time for what is sampled, so that the mean is
 * the same at every zoom and on both axes.
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
  // The lane's buckets weigh alike on the other axis.
  const across = naturalAxis(lane) !== axis;
  let [min, max, buckets] = [Infinity, -Infinity, 0];
  let [sum, weight, plain] = [0, 0, 0];
  // The newest bucket with data waits for the next one: on the other axis it counts until there.
  let [at, share, mean] = [NaN, 0, 0];
  let length = 1;
  let end = NaN;
  const count = (until: number): void => {
    const own = across ? share * Math.max(0, until - at) : share;
    weight += own;
    sum += mean * own;
  };
  for (const tile of tiles.best(axis, level, range, key)) {
    const data = tile.series.get(key);
    if (!data) continue;
    const size = 2 ** tile.level;
    const other = axis === 'step' ? tile.timeAt : tile.stepAt;
    const from = Math.max(0, Math.floor(range.start / size) - tile.index * TILE);
    const to = Math.min(TILE, Math.ceil(range.end / size) - tile.index * TILE);
    for (let i = from; i < to; i++) {
      const where = other[i] as number;
      if (!Number.isNaN(where)) end = where;
      const value = data.mean[i] as number;
      if (Number.isNaN(value)) continue;
      if (buckets > 0) {
        count(where);
        length = where - at;
      }
      const start = (tile.index * TILE + i) * size;
      share = (Math.min(range.end, start + size) - Math.max(range.start, start)) / size;
      // Before the first step none was under way: it counts, too.
      at = buckets > 0 || range.start > 0 ? where : where - 1;
      mean = value;
      plain += value;
      buckets++;
      if ((data.min[i] as number) < min) min = data.min[i] as number;
      if ((data.max[i] as number) > max) max = data.max[i] as number;
    }
  }
  if (buckets === 0) return null;
  // The last one lasts as long as its neighbour did.
  count(Math.max(end, at + length));
  return { min, max, mean: weight > 0 ? sum / weight : plain / buckets, buckets };
}

export interface LaneValue {
  series: { name: string; title: string; value: Value | null }[];
  /** Of a stack: the sum of the means; of two series: both means; of more: the greatest. */
  heads: number[];
}

/** The values of a lane's series, and what its label says of them. */
export function readLane(lane: LaneInfo, read: (series: string) => Value | null): LaneValue {
  const series = lane.series.map(({ name, title }) => ({ name, title, value: read(name) }));
  const means = series.flatMap(({ value }) => (value ? [value.mean] : []));
  if (means.length === 0) return { series, heads: means };
  if (lane.kind === 'stack') return { series, heads: [means.reduce((sum, mean) => sum + mean, 0)] };
  return { series, heads: means.length > 2 ? [Math.max(...means)] : means };
}

/** Steps in some seconds of a run; 100 if its pace is not known. */
export function stepsIn({ report }: RecordingReply, seconds: number): number {
  const ms = report.step_ms.mean;
  return ms && ms > 0 ? (seconds * 1e3) / ms : 100;
}

/** How far back a value still counts as current, in axis units: as far as a line is drawn, or a few buckets. */
export const reachOf = ({ axis, level }: Pick<Frame, 'axis' | 'level'>, recording: RecordingReply, join = 2e9): number =>
  Math.max(axis === 'time' ? join : Math.max(20, stepsIn(recording, join / 1e9)), 4 * 2 ** level);
