/** Makes the binary tile reply as the server does, for tests. */
import type { Axis, TileRequest } from './request.ts';
import type { Range } from '../math/range.ts';
import { decodeTiles, type SeriesHeader, type TileBlock } from './decode.ts';
import type { TileStore } from './store.ts';

export type Sample = (series: string, bucket: number) => [min: number, max: number, mean: number] | null;

export function encode(
  header: { axis: 'step' | 'time'; level: number; first: number; count: number; series: SeriesHeader[]; filled?: number },
  sample: Sample,
  other: (bucket: number) => number = (bucket) => bucket,
): ArrayBuffer {
  const { count, first, level } = header;
  const json = new TextEncoder().encode(JSON.stringify({ revision: 1, ...header }));
  const start = Math.ceil((4 + json.length) / 8) * 8;
  const values: number[] = [];
  for (const { lane, name, alike, bits = 0 } of header.series) {
    const begin = Math.floor(first / 2 ** bits);
    const end = Math.floor((first + count - 1) / 2 ** bits);
    for (let part = 0; part < (alike ? 1 : 3); part++) {
      for (let i = begin; i <= end; i++) values.push((sample(`${lane}/${name}`, i * 2 ** bits) ?? [NaN, NaN, NaN])[part]!);
    }
  }
  const doubles = start + values.length * 4;
  const buffer = new ArrayBuffer(doubles + 2 * count * 8);
  const view = new DataView(buffer);
  view.setUint32(0, json.length, true);
  new Uint8Array(buffer, 4).set(json);
  const four = new DataView(new ArrayBuffer(4));
  values.forEach((value, i) => {
    four.setFloat32(0, value, true);
    for (let plane = 0; plane < 4; plane++) view.setUint8(start + plane * values.length + i, four.getUint8(plane));
  });
  for (let i = 0; i < count; i++) {
    const at = (first + i) * 2 ** level;
    const across = other(at);
    view.setFloat64(doubles + i * 8, header.axis === 'time' ? at : across, true);
    view.setFloat64(doubles + (count + i) * 8, header.axis === 'step' ? at : across, true);
  }
  return buffer;
}

/** A server of one lane per id, each with a single series of the same name. */
export const answer = (request: TileRequest, sample: Sample, other?: (at: number) => number): TileBlock =>
  decodeTiles(encode({ ...request, series: request.lanes.map((lane) => ({ lane, name: lane })) }, sample, other));

/** Whether every tile of `range` is cached at exactly `level`, with the series `key`. */
export function covers(tiles: TileStore, axis: Axis, level: number, range: Range, key: string): boolean {
  const found = tiles.get(axis, level, range);
  return found.length > 0 && found.every((tile) => tile?.series.has(key));
}
