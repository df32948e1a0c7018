import assert from 'node:assert/strict';
import { test } from 'node:test';
import { niceTop, stepTicks, timeTicks } from './ticks.ts';

test('ticks are round, inside the range, and not more than asked for by much', () => {
  for (const length of [3, 40, 999, 6400, 123456, 1e7]) {
    const { step, values } = stepTicks({ start: 17, end: 17 + length }, 10);
    assert.ok(values.length <= 12 && values.length >= 1, `${length}: ${values.length}`);
    assert.ok(Number.isInteger(step));
    for (const value of values) {
      assert.equal(value % step, 0);
      assert.ok(value >= 17 && value <= 17 + length);
    }
  }
});

test('time ticks fall on seconds, minutes and hours', () => {
  assert.equal(timeTicks({ start: 0, end: 600e9 }, 10).step, 60e9);
  assert.equal(timeTicks({ start: 0, end: 7200e9 }, 10).step, 1200e9);
  assert.equal(timeTicks({ start: 0, end: 1e6 }, 10).step, 1e5);
});

test('the clock offset moves ticks to round moments of the day', () => {
  const offset = 37e9; // the recording began 37 s after a full minute
  for (const value of timeTicks({ start: 0, end: 600e9 }, 10, offset).values) assert.equal((value + offset) % 60e9, 0);
});

test('the top of a lane is at least its largest value', () => {
  for (let value = 0.001; value < 1e9; value *= 1.37) {
    assert.ok(niceTop(value) >= value * 0.999999);
    assert.ok(niceTop(value) <= value * 1.6);
  }
  assert.equal(niceTop(0), 1);
});

test('tops of bytes are round in the unit they are shown in', () => {
  assert.equal(niceTop(3.2 * 2 ** 30, true), 4 * 2 ** 30);
  assert.equal(niceTop(700 * 2 ** 20, true), 800 * 2 ** 20);
  assert.equal(niceTop(1000 * 2 ** 20, true), 1000 * 2 ** 20);
  assert.equal(niceTop(7, true), 8);
});
