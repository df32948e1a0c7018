import assert from 'node:assert/strict';
import { test } from 'node:test';
import { mulberry } from '../math/random.testing.ts';
import { TILE, type Tile } from '../tiles/store.ts';
import { joinLimit, Points, resample, robustTop } from './resample.ts';

/** Tiles over `values` (one bucket each at level 0; null is no data), as a store would hold them. */
function tilesOf(values: (number | null)[], msPerBucket = 10): Tile[] {
  const tiles: Tile[] = [];
  for (let index = 0; index * TILE < values.length; index++) {
    const mean = Float32Array.from({ length: TILE }, (_, i) => values[index * TILE + i] ?? NaN);
    tiles.push({
      axis: 'step', level: 0, index, series: new Map([['a/a', { min: mean, max: mean, mean }]]), lanes: new Set(['a']),
      timeAt: Float64Array.from({ length: TILE }, (_, i) => (index * TILE + i) * msPerBucket * 1e6),
      stepAt: Float64Array.from({ length: TILE }, (_, i) => index * TILE + i), stale: false, used: 0,
    });
  }
  return tiles;
}

test('a spike is never lost, however narrow the screen', () => {
  const random = mulberry(4);
  for (let round = 0; round < 50; round++) {
    const values = Array.from({ length: 3000 }, () => random());
    const at = Math.floor(random() * 3000);
    values[at] = 99;
    const width = 5 + Math.floor(random() * 3000);
    const points = resample(tilesOf(values), ['a/a'], { start: 0, end: 3000 }, width, new Points());
    const max = Math.max(...(points.max[0] as Float32Array).subarray(0, points.n));
    assert.equal(max, 99);
    assert.ok(points.n <= width + 2);
  }
});

test('means are kept: merged pixels weigh as many buckets as they hold', () => {
  const values = Array.from({ length: 1024 }, (_, i) => i);
  const points = resample(tilesOf(values), ['a/a'], { start: 0, end: 1024 }, 128, new Points());
  assert.equal(points.n, 128);
  for (let i = 0; i < points.n; i++) assert.ok(Math.abs((points.mean[0]?.[i] as number) - (i * 8 + 3.5)) < 1e-3);
});

test('buckets without data are no points', () => {
  const values = Array.from({ length: 100 }, (_, i) => (i % 10 === 0 ? i : null));
  const points = resample(tilesOf(values), ['a/a'], { start: 0, end: 100 }, 1000, new Points());
  assert.equal(points.n, 10);
  assert.equal(points.x0[3], 300);
  assert.equal(points.x1[3], 310);
});

test('between two samples a line goes on to both of them, beyond the edges of what is in view', () => {
  const values = Array.from({ length: 300 }, (_, i) => (i % 50 === 0 ? i : null));
  for (const key of [['a/a'], ['a/a', 'a/a']]) {
    const points = resample(tilesOf(values), key, { start: 60, end: 90 }, 300, new Points());
    assert.deepEqual([...points.x0.subarray(0, points.n)], [-100, 400], `${key.length} series`);
  }
});

test('samples a tenth of a second apart are one line; two seconds without any are a gap', () => {
  const every = (n: number): (number | null)[] => Array.from({ length: 500 }, (_, i) => (i % n === 0 ? 1 : null));
  const limit = (values: (number | null)[]): number =>
    joinLimit(resample(tilesOf(values), ['a/a'], { start: 0, end: 500 }, 1000, new Points()), 'time', 23);
  assert.ok(limit(every(10)) >= 0.1e9, 'ten a second');
  assert.ok(limit(every(10)) < 2e9);
  assert.ok(limit(every(100)) >= 1e9, 'a slow driver, one a second');
});

test('on the step axis a gap is one by its time, in the overview as in the lanes', () => {
  const values = Array.from({ length: 400 }, (_, i) => (i >= 100 && i < 140 ? null : 1));
  const limit = joinLimit(resample(tilesOf(values), ['a/a'], { start: 0, end: 400 }, 800, new Points()), 'step', 0);
  assert.ok(limit >= 0.1e9 && limit < 4e9, 'steps of a tenth of a second, four seconds without a sample');
});

test('the scale leaves one outlier off, also of a short run', () => {
  const pointsOf = (steps: number) => resample(tilesOf(Array.from({ length: steps }, (_, i) => (i === 7 ? 9000 : 100))), ['a/a'], { start: 0, end: steps }, 800, new Points());
  const top = (steps: number) => robustTop(pointsOf(steps), (i) => pointsOf(steps).max[0]?.[i] as number, 0.01);
  assert.deepEqual([top(40), top(9)], [100, 9000]);
  const points = pointsOf(400);
  assert.equal(robustTop(points, (i) => points.max[0]?.[i] as number, 0.01), 100);
  assert.equal(robustTop(points, (i) => points.max[0]?.[i] as number, 0), 9000);
});
