import assert from 'node:assert/strict';
import { test } from 'node:test';
import { TileStore } from '../tiles/store.ts';
import { answer } from '../tiles/testing.ts';
import { other } from './frame.ts';
import { valueAt, valueOver } from './readout.ts';

async function filled(sample: Parameters<typeof answer>[1], across: (at: number) => number, axis: 'step' | 'time' = 'step', level = 0): Promise<TileStore> {
  const tiles = new TileStore('id', (request) => Promise.resolve(answer(request, sample, across)), () => {});
  tiles.want([{ axis, level, range: { start: 0, end: 1000 * 2 ** level }, lanes: ['a'] }]);
  await new Promise((resolve) => setTimeout(resolve, 5));
  return tiles;
}

test('the value under the cursor is that of its bucket, or the last one before it', async () => {
  const tiles = await filled((_, bucket) => (bucket % 10 === 0 ? [bucket, bucket + 2, bucket + 1] : null), (at) => at);
  assert.deepEqual(valueAt(tiles, 'step', 0, 'a', 'a', 50.5, 20), { min: 50, max: 52, mean: 51 });
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'a', 57, 20)?.mean, 51);
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'a', 57, 3), null, 'too long ago');
  assert.equal(valueAt(tiles, 'step', 0, 'a', 'b', 57, 20), null);
});

test('a range weighs the buckets at its edges by their share', async () => {
  const tiles = await filled((_, bucket) => [bucket, bucket, bucket], (at) => at, 'step', 2);
  const value = valueOver(tiles, 'step', 2, 'a', 'a', { start: 2, end: 8 });
  // Half of bucket 0 (value 0) and all of bucket 1 (value 1).
  assert.ok(value && Math.abs(value.mean - (0 * 0.5 + 1 * 1) / 1.5) < 1e-9);
  assert.equal(value?.buckets, 2);
});

test('steps and times translate into each other between buckets', async () => {
  const bySteps = await filled(() => [1, 1, 1], (step) => step * 100e6);
  assert.equal(other(bySteps, 'step', 0, 10), 1e9);
  assert.equal(other(bySteps, 'step', 0, 10.5), 1.05e9);
  const byTime = await filled(() => [1, 1, 1], (ns) => Math.floor(ns / 128), 'time', 6);
  assert.equal(other(byTime, 'time', 6, 64 * 11), 5);
});
