import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decodeTiles, seriesKey } from './decode.ts';
import { encode } from './testing.ts';

const HEADER = { axis: 'step' as const, level: 2, first: 8, count: 7, series: [{ lane: 'steps', name: 'step' }, { lane: 'gpu0:x', name: 'x' }] };

test('a reply comes out as it was put in, whatever the padding', () => {
  for (const count of [1, 2, 7, 512]) {
    for (const name of ['a', 'ab', 'abc', 'abcd', 'abcde']) {
      const series = [{ lane: 'l', name }];
      const bytes = encode({ ...HEADER, count, series }, (_, bucket) => [bucket, bucket + 2, bucket + 1], (at) => at * 1e6);
      const block = decodeTiles(bytes);
      const tile = block.series.get(seriesKey('l', name));
      assert.ok(tile);
      for (let i = 0; i < count; i++) {
        assert.deepEqual([tile.min[i], tile.max[i], tile.mean[i]], [8 + i, 10 + i, 9 + i]);
        assert.equal(block.stepAt[i], (8 + i) * 4);
        assert.equal(block.timeAt[i], (8 + i) * 4e6);
      }
    }
  }
});

test('no data is NaN', () => {
  const block = decodeTiles(encode(HEADER, (series, bucket) => (series === 'gpu0:x/x' && bucket === 9 ? null : [1, 1, 1])));
  assert.ok(Number.isNaN(block.series.get('gpu0:x/x')?.mean[1]));
  assert.equal(block.series.get('steps/step')?.mean[1], 1);
});

test('a reply that was cut off is refused', () => {
  const whole = encode(HEADER, () => [1, 1, 1]);
  for (const length of [0, 3, 10, 100, whole.byteLength - 8]) assert.throws(() => decodeTiles(whole.slice(0, length)), RangeError);
});

test('what is alike is sent once', () => {
  const one = { ...HEADER, series: HEADER.series.map((series) => ({ ...series, alike: true })) };
  const bytes = encode(one, (_, bucket) => [bucket, bucket, bucket]);
  const whole = encode(HEADER, (_, bucket) => [bucket, bucket, bucket]);
  assert.equal(whole.byteLength - bytes.byteLength >= 2 * 2 * 4 * HEADER.count - 32, true);
  for (const [key, tile] of decodeTiles(whole).series) assert.deepEqual(decodeTiles(bytes).series.get(key), tile);
});

test('wider buckets are repeated, up to the end of the recording', () => {
  for (const first of [8, 9, 11, 2 ** 40 + 3]) {
    for (const filled of [0, 1, 5, 7]) {
      const series = [{ lane: 'l', name: 'wide', bits: 2 }, { lane: 'l', name: 'one', bits: 2, alike: true }, { lane: 'l', name: 'all', bits: 50 }, { lane: 'l', name: 'fine' }];
      const block = decodeTiles(encode({ ...HEADER, first, filled, series }, (_, bucket) => [bucket % 64, (bucket % 64) + 2, (bucket % 64) + 1]));
      const wide = Array.from({ length: HEADER.count }, (_, i) => (i < filled ? (Math.floor((first + i) / 4) * 4) % 64 : NaN));
      assert.deepEqual([...block.series.get('l/wide')!.min], wide);
      assert.deepEqual([...block.series.get('l/wide')!.mean], wide.map((value) => value + 1));
      assert.deepEqual([...block.series.get('l/one')!.max], wide);
      assert.deepEqual([...block.series.get('l/all')!.max], wide.map((value) => value * 0 + 2));
      assert.deepEqual([...block.series.get('l/fine')!.min], wide.map((_, i) => (first + i) % 64));
    }
  }
});
