import assert from 'node:assert/strict';
import { test } from 'node:test';
import { clamp, lastAtMost, levelFor, span, stretched, toPixel, toValue, zoomAt } from './range.ts';
import { mulberry } from './random.testing.ts';

test('pixels and values are inverse to each other', () => {
  const random = mulberry(1);
  for (let i = 0; i < 200; i++) {
    const start = random() * 1e12;
    const range = { start, end: start + 1 + random() * 1e12 };
    const value = start + random() * span(range);
    assert.ok(Math.abs(toValue(range, 800, toPixel(range, 800, value)) - value) < 1e-9 * Math.abs(value) + 1e-6);
  }
});

test('zooming keeps what is under the pointer where it is', () => {
  const random = mulberry(2);
  for (let i = 0; i < 200; i++) {
    const range = { start: 100, end: 5000 };
    const anchor = 100 + random() * 4900;
    const zoomed = zoomAt(range, anchor, 0.1 + random() * 3);
    assert.ok(Math.abs(toPixel(range, 1000, anchor) - toPixel(zoomed, 1000, anchor)) < 1e-6);
  }
});

test('a stretched drawing puts values where the new view has them', () => {
  const [from, to] = [{ start: 100, end: 300 }, { start: 150, end: 250 }];
  const [, left, scale] = (/^translateX\((.*)px\) scaleX\((.*)\)$/.exec(stretched(from, to, 1000)) ?? []).map(Number) as [number, number, number];
  for (const value of [100, 170, 300]) assert.equal(left + scale * toPixel(from, 1000, value), toPixel(to, 1000, value));
});

test('a view never leaves its bounds and never gets narrower than allowed', () => {
  const random = mulberry(3);
  const bounds = { start: 0, end: 6400 };
  for (let i = 0; i < 1000; i++) {
    const start = (random() - 0.5) * 20000;
    const view = clamp({ start, end: start + random() ** 4 * 20000 }, bounds, 4);
    assert.ok(view.start >= 0 && view.end <= 6400 + 1e-9, JSON.stringify(view));
    assert.ok(span(view) >= 4 - 1e-9);
  }
});

test('a view moved past the end keeps its width', () => {
  assert.deepEqual(clamp({ start: 90, end: 110 }, { start: 0, end: 100 }, 1), { start: 80, end: 100 });
});

test('a bucket is at most one pixel wide, and more than half of one', () => {
  for (const [length, pixels] of [[6400, 1000], [1e7, 1400], [5, 1000], [3.6e12, 2000]] as const) {
    const level = levelFor({ start: 0, end: length }, pixels);
    const perPixel = length / pixels;
    if (perPixel < 1) assert.equal(level, 0);
    else assert.ok(2 ** level <= perPixel && 2 ** level > perPixel / 2);
  }
});

test('binary search finds the last value at most', () => {
  const values = [0, 2, 2, 5, 9];
  assert.deepEqual([-1, 0, 1, 2, 4, 9, 10].map((value) => lastAtMost(values, value)), [-1, 0, 0, 2, 2, 4, 4]);
});
