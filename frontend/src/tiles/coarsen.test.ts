import assert from 'node:assert/strict';
import { test } from 'node:test';
import { coarsen } from './coarsen.ts';
import { decodeTiles } from './decode.ts';
import { encode } from './testing.ts';

const block = decodeTiles(
  encode(
    { axis: 'step', level: 2, first: 0, count: 100, series: [{ lane: 'gpu0/x:a', name: 'a' }, { lane: 'b', name: 'b' }] },
    (_, bucket) => (bucket === 5 ? null : [bucket, bucket + 2, bucket + 1]),
    (step) => step * 1e6,
  ),
);

test('extremes are kept, means are means, missing buckets count for nothing', () => {
  const coarse = coarsen(block, 4, 0, 25, new Set(['b']));
  const tile = coarse.series.get('b/b');
  assert.deepEqual([tile?.min[0], tile?.max[0], tile?.mean[0]], [0, 5, 2.5]);
  // Buckets 4, 6 and 7 of the finer level.
  assert.deepEqual([tile?.min[1], tile?.max[1]], [4, 9]);
  assert.ok(Math.abs((tile?.mean[1] as number) - (5 + 7 + 8) / 3) < 1e-6);
  assert.equal(coarse.timeAt[1], 64e6 / 4);
  assert.equal(coarse.stepAt[2], 32);
});

test('only the lanes asked for, also when their names hold slashes', () => {
  assert.deepEqual([...coarsen(block, 2, 0, 4, new Set(['gpu0/x:a'])).series.keys()], ['gpu0/x:a/a']);
});

test('beyond the end there is nothing', () => {
  const beyond = coarsen(block, 2, 98, 8, new Set(['b']));
  assert.equal(beyond.series.get('b/b')?.mean[1], 100);
  assert.ok(Number.isNaN(beyond.series.get('b/b')?.mean[2]));
  assert.ok(Number.isNaN(beyond.timeAt[3]));
});

test('finer than the file holds is refused', () => {
  assert.throws(() => coarsen(block, 1, 0, 4, new Set(['b'])), RangeError);
});
