/** Coarser tiles from finer ones, for a report that carries one level only. */
import type { SeriesTile, TileBlock } from './decode.ts';

/**
 * Buckets [first, first + count) of `level`, merged from `block`, which must be at that level or
 * finer and begin at bucket 0. Series of other lanes than `lanes` are left out.
 */
export function coarsen(block: TileBlock, level: number, first: number, count: number, lanes: ReadonlySet<string>): TileBlock {
  const shift = level - block.level;
  if (shift < 0) throw new RangeError(`this report holds level ${block.level} and coarser, not ${level}`);
  const per = 2 ** shift;
  const series = new Map<string, SeriesTile>();
  for (const [key, tile] of block.series) {
    if (lanes.has(key.slice(0, key.lastIndexOf('/')))) series.set(key, mergeBuckets(tile, block.count, per, first, count));
  }
  const pick = (values: Float64Array): Float64Array =>
    Float64Array.from({ length: count }, (_, i) => values[(first + i) * per] ?? NaN);
  const own = Float64Array.from({ length: count }, (_, i) => (first + i) * 2 ** level);
  return {
    ...block,
    level,
    first,
    count,
    series,
    timeAt: block.axis === 'time' ? own : pick(block.timeAt),
    stepAt: block.axis === 'step' ? own : pick(block.stepAt),
  };
}

/** Buckets [first, first + count), each of `per` of the `length` finer ones: their min, max and mean; NaN without data. */
function mergeBuckets(tile: SeriesTile, length: number, per: number, first: number, count: number): SeriesTile {
  const out = { min: new Float32Array(count), max: new Float32Array(count), mean: new Float32Array(count) };
  for (let i = 0; i < count; i++) {
    let [min, max, sum, n] = [Infinity, -Infinity, 0, 0];
    for (let k = (first + i) * per; k < Math.min((first + i + 1) * per, length); k++) {
      const mean = tile.mean[k] as number;
      if (Number.isNaN(mean)) continue;
      min = Math.min(min, tile.min[k] as number);
      max = Math.max(max, tile.max[k] as number);
      sum += mean;
      n++;
    }
    out.min[i] = n ? min : NaN;
    out.max[i] = n ? max : NaN;
    out.mean[i] = n ? sum / n : NaN;
  }
  return out;
}
