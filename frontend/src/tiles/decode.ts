/**
 * The binary reply of `./tiles`: JSON header, then min, max and mean of each series as float32, all
 * of their first bytes before all of their second ones and so on, because that packs better. Where
 * the three are alike they are sent once; buckets that only repeat wider ones are sent as those.
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
  series: SeriesHeader[];
  refining?: string[];
  /** Of buckets that repeat wider ones, those from here on are empty. */
  filled?: number;
}

export interface SeriesHeader {
  lane: string;
  name: string;
  /** One array is min, max and mean. */
  alike?: boolean;
  /** Its buckets are so many bits wider, around those that were asked for. */
  bits?: number;
}

export const seriesKey = (lane: string, name: string): string => `${lane}/${name}`;

/**
 * Reads a reply: a uint32 with the header's length, the header, padding to 8 bytes, `bytes` of float32 in four planes,
 * then `timeAt` and `stepAt` as float64. A series of `bits` b was sent as buckets 2^b times as wide.
 * Throws RangeError when the bytes are shorter than their header promises.
 */
export function decodeTiles(buffer: ArrayBuffer): TileBlock {
  if (buffer.byteLength < 4) throw new RangeError('tile reply is empty');
  const headerLength = new DataView(buffer).getUint32(0, true);
  if (4 + headerLength > buffer.byteLength) throw new RangeError('tile reply is cut off in its header');
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, headerLength))) as Header;
  const { count, first, filled = count } = header;
  const begin = (bits: number): number => Math.floor(first / 2 ** bits);
  const length = (bits = 0): number => Math.floor((first + count - 1) / 2 ** bits) - begin(bits) + 1;
  const offset = Math.ceil((4 + headerLength) / 8) * 8;
  const bytes = header.series.reduce((sum, { alike, bits }) => sum + (alike ? 4 : 12) * length(bits), 0);
  const doublesAt = buffer.byteLength - 2 * count * 8;
  if (doublesAt < offset + bytes) throw new RangeError('tile reply is cut off in its data');
  const planes = new Uint8Array(buffer, offset, bytes);
  const values = new Uint8Array(bytes);
  for (let i = 0, from = 0; i < 4; i++) {
    for (let to = i; to < bytes; to += 4) values[to] = planes[from++]!;
  }
  let at = 0;
  const take = (bits = 0): Float32Array => {
    const sent = new Float32Array(values.buffer, at, length(bits));
    at += sent.byteLength;
    if (bits === 0) return sent;
    const all = new Float32Array(count).fill(NaN);
    sent.forEach((value, i) => {
      const [from, to] = [0, 1].map((next) => Math.max(0, (begin(bits) + i + next) * 2 ** bits - first));
      all.fill(value, from, Math.min(to!, filled));
    });
    return all;
  };
  const series = new Map<string, SeriesTile>();
  for (const { lane, name, alike, bits } of header.series) {
    const min = take(bits);
    series.set(seriesKey(lane, name), alike ? { min, max: min, mean: min } : { min, max: take(bits), mean: take(bits) });
  }
  const doubles = (at: number): Float64Array => new Float64Array(buffer.slice(at, at + count * 8));
  return {
    axis: header.axis,
    level: header.level,
    first: header.first,
    count,
    series,
    timeAt: doubles(doublesAt),
    stepAt: doubles(doublesAt + count * 8),
    refining: header.refining ?? [],
  };
}
