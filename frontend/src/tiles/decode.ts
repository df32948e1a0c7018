/**
 * The binary reply of `./tiles`: JSON header, then min, max and mean of each series as float32, all
 * of their first bytes before all of their second ones and so on, because that packs better.
 */

export interface SeriesTile {
  min: Float32Array;
  max: Float32Array;
  mean: Float32Array;
}

export interface TileBlock {
  axis: 'step' | 'time';
  level: number;
  /** Index of the first bucket; bucket k covers [k * 2^level, (k + 1) * 2^level). */
  first: number;
  count: number;
  revision: number | string;
  /** Key is `lane/series`. NaN is no data. */
  series: Map<string, SeriesTile>;
  /** Start of each bucket in nanoseconds since the recording began. */
  timeAt: Float64Array;
  /** First step of each bucket. */
  stepAt: Float64Array;
  /** Lanes whose buckets only repeat wider ones: what is finer is being read, and there in a moment. */
  refining?: readonly string[];
}

interface Header {
  axis: 'step' | 'time';
  level: number;
  first: number;
  count: number;
  revision: number | string;
  series: { lane: string; name: string }[];
  refining?: string[];
}

export const seriesKey = (lane: string, name: string): string => `${lane}/${name}`;

/** Throws RangeError when the bytes are shorter than their header promises. */
export function decodeTiles(buffer: ArrayBuffer): TileBlock {
  if (buffer.byteLength < 4) throw new RangeError('tile reply is empty');
  const headerLength = new DataView(buffer).getUint32(0, true);
  if (4 + headerLength > buffer.byteLength) throw new RangeError('tile reply is cut off in its header');
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headerLength))) as Header;
  const { count } = header;
  const offset = Math.ceil((4 + headerLength) / 8) * 8;
  const floats = header.series.length * 3 * count * 4;
  // The two float64 arrays start on a multiple of 8 when the float32 part is odd in length.
  const doublesAt = buffer.byteLength - 2 * count * 8;
  if (doublesAt < offset + floats) throw new RangeError('tile reply is cut off in its data');
  const planes = new Uint8Array(buffer, offset, floats);
  const values = new Uint8Array(floats);
  for (let i = 0, from = 0; i < 4; i++) {
    for (let to = i; to < floats; to += 4) values[to] = planes[from++]!;
  }
  let taken = 0;
  const take = (): Float32Array => new Float32Array(values.buffer, 4 * count * taken++, count);
  const series = new Map<string, SeriesTile>();
  for (const { lane, name } of header.series) {
    series.set(seriesKey(lane, name), { min: take(), max: take(), mean: take() });
  }
  const doubles = (at: number): Float64Array => new Float64Array(buffer.slice(at, at + count * 8));
  return {
    axis: header.axis,
    level: header.level,
    first: header.first,
    count,
    revision: header.revision,
    series,
    timeAt: doubles(doublesAt),
    stepAt: doubles(doublesAt + count * 8),
    refining: header.refining ?? [],
  };
}
